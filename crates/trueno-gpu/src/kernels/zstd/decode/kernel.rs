//! The Zstandard decompression kernel for one page per warp. Every read and write is checked.

use super::constants::{CONSTANT_BYTES, Constants};
use super::format::MAX_FRAME_BYTES;
use super::restore::{WARP_BYTES, restore_frame};
use crate::KernelBuilder;
use crate::kernels::packed::{DecompressBatch, DecompressParts, PageKind, WarpDecompressKernel};
use crate::kernels::zstd::Zstd;

/// Restores Zstandard frames of one block each, one page per warp; see [`WarpDecompressKernel`] for its parameters.
///
/// A malformed frame gets [`PageStatus::BadBlock`](crate::kernels::packed::PageStatus::BadBlock), and one that only the
/// CPU decodes gets [`PageStatus::Unsupported`](crate::kernels::packed::PageStatus::Unsupported): several blocks or
/// frames, a dictionary, a content size other than a page, a window below 4 KiB, trees or tables of an earlier block,
/// codes of more than 11 bits, and sequence tables of more than 768 entries together. libzstd writes none of these for
/// a page, at any level. The place of such a page in the output is not written. A checksum is verified.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, zstd::ZstdWarpDecompressKernel};
/// let kernel = ZstdWarpDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry zstd_warp_decompress"));
/// ```
pub type ZstdWarpDecompressKernel = WarpDecompressKernel<Zstd>;

pub(in crate::kernels::zstd) const DECOMPRESS: DecompressParts =
    DecompressParts { name: "zstd_warp_decompress", warp_bytes: WARP_BYTES, block_bytes: CONSTANT_BYTES, build };

fn build(k: &KernelBuilder) {
    let (batch, next_page) = DecompressBatch::declare(k, "next_page");
    let constants = Constants::fill(k, batch.lane);
    let region = k.shared_per_warp("page_and_tables", WARP_BYTES, 16);
    let buffer = region.base::<u32>(k.warp_id()).raw().named("buffer");
    batch.restore_pages(next_page, PageKind::Zstd, MAX_FRAME_BYTES, |page| {
        restore_frame(k, batch.lane, page, buffer, constants)
    });
}
