//! Zstandard for memory pages, in standard frames (RFC 8878).
//!
//! [`ZstdWarpCompressKernel`] compresses one page per warp to a frame of one block. [`ZstdWarpDecompressKernel`]
//! restores one page per warp. [`ZstdGroupDecompressKernel`], after [`ZstdGroupOrderKernel`], restores the same frames
//! in groups of pages, which is about twice as fast in large batches.

mod decode;
mod encode;

pub use super::packed::{Mode, TableStores};
pub use decode::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel, ZstdWarpDecompressKernel};
pub use encode::ZstdWarpCompressKernel;

use super::packed::{CompressParts, DecompressParts, KernelFormat};

/// Zstandard frames, as the format of a kernel.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, packed::WarpCompressKernel, zstd::Zstd};
/// assert_eq!(WarpCompressKernel::<Zstd>::new(1000).name(), "zstd_warp_compress");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zstd;

impl KernelFormat for Zstd {
    const COMPRESS: CompressParts = encode::COMPRESS;
    const DECOMPRESS: DecompressParts = decode::DECOMPRESS;
}
