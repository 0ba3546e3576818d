//! The Zstandard decompression kernel for one page per warp. Every read and write is checked.

use super::constants::{CONSTANT_BYTES, Constants};
use super::format::MAX_FRAME_BYTES;
use super::restore::{WARP_BYTES, restore_frame};
use crate::kernels::packed::{BatchKernel, DecompressBatch, PageKind};
use crate::kernels::{Kernel, ResourceBudget};
use crate::{KernelBuilder, Target, ValidKernel};

/// Restores Zstandard frames of one block each, from any encoder at any level.
///
/// The parameters of the kernel are those of
/// [`Lz4WarpDecompressKernel`](crate::kernels::lz4::Lz4WarpDecompressKernel).
///
/// A malformed frame gets [`PageStatus::BadBlock`](crate::kernels::packed::PageStatus::BadBlock), and one that only the
/// CPU decodes gets [`PageStatus::Unsupported`](crate::kernels::packed::PageStatus::Unsupported): several blocks or
/// frames, a dictionary, a content size other than a page, a window below 4 KiB, trees or tables of an earlier block,
/// codes of more than 11 bits, and sequence tables of more than 768 entries together. libzstd writes none of these for
/// a page. The place of such a page in the output is not written. A checksum is verified.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, zstd::ZstdWarpDecompressKernel};
/// let kernel = ZstdWarpDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry zstd_warp_decompress"));
/// ```
#[derive(Clone, Debug)]
pub struct ZstdWarpDecompressKernel {
    batch: BatchKernel,
}

impl ZstdWarpDecompressKernel {
    /// Makes a kernel for batches of up to `max_pages`, with four warps per block.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, zstd::ZstdWarpDecompressKernel};
    /// let kernel = ZstdWarpDecompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self { batch: BatchKernel::new(max_pages) }
    }

    /// Chooses the number of warps per block. Above 48 KiB, shared memory is dynamic. [`Kernel::ir`] panics if the
    /// target has too little of it.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, zstd::ZstdWarpDecompressKernel}};
    /// let kernel = ZstdWarpDecompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block) }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::zstd::ZstdWarpDecompressKernel};
    /// let kernel = ZstdWarpDecompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target) }
    }
}

impl Kernel for ZstdWarpDecompressKernel {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir("zstd_warp_decompress", build)
    }

    fn budget(&self) -> ResourceBudget {
        // Seven blocks of four warps, or one of 28, leave 73 registers per thread.
        ResourceBudget { registers: 72, shared_bytes: self.batch.warps_per_block() * WARP_BYTES + CONSTANT_BYTES }
    }

    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages)
    }
}

fn build(k: &KernelBuilder) {
    let (batch, next_page) = DecompressBatch::declare(k, "next_page");
    let constants = Constants::fill(k, batch.lane);
    let region = k.shared_per_warp("page_and_tables", WARP_BYTES, 16);
    let buffer = region.base::<u32>(k.warp_id()).raw().named("buffer");
    batch.restore_pages(next_page, PageKind::Zstd, MAX_FRAME_BYTES, |page| {
        restore_frame(k, batch.lane, page, buffer, constants)
    });
}
