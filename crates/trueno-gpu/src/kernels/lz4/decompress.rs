//! The LZ4 decompression kernel. Every read and write is checked.

use super::chain::BlockInput;
use super::format::{MAX_BLOCK_BYTES, PAGE_BYTES};
use super::gather::{AFTER_BLOCK_BYTES, BITMAP_BYTES, GatherTables, SEGMENTS_BYTES, decode};
use crate::kernels::packed::{
    BatchKernel, DecompressBatch, PACK_ALIGN_BYTES, PackedPage, PageKind, RestoreAttempt, align_up,
};
use crate::kernels::{Kernel, ResourceBudget};
use crate::{KernelBuilder, Reg, Target, ValidKernel};

/// Bytes for the output, with the block at its end, aligned to 16 bytes. Decoding in place is safe. From any literal
/// on, the rest of a page's block is at most 18 bytes longer than the rest of the page (its length bytes), and
/// alignment costs up to 15 bytes. So a byte's source lies at least 47 bytes above it, outside the window of 32 bytes
/// being written.
const BUFFER_BYTES: u32 = PAGE_BYTES + 80 + AFTER_BLOCK_BYTES;

/// Even a block that is longer than its page does not overlap the start of the output.
const _: () = assert!(MAX_BLOCK_BYTES.next_multiple_of(PACK_ALIGN_BYTES) <= BUFFER_BYTES - AFTER_BLOCK_BYTES);

/// Shared memory per warp.
const WARP_BYTES: u32 = BUFFER_BYTES + BITMAP_BYTES + SEGMENTS_BYTES;

/// Restores LZ4 blocks, whether from [`Lz4WarpCompressKernel`](super::Lz4WarpCompressKernel) or any other encoder.
///
/// Parameters of the kernel, in order:
///
/// | parameter | type | meaning |
/// | --- | --- | --- |
/// | `input` | pointer | packed pages, aligned to 16 bytes |
/// | `input_len` | u64 | number of bytes in `input`, a multiple of 16 |
/// | `index` | pointer to u64 | one [`PackedEntry`](crate::kernels::packed::PackedEntry) per page; not trusted |
/// | `output` | pointer | the pages, aligned to 16 bytes |
/// | `status` | pointer to u32 | one [`PageStatus`](crate::kernels::packed::PageStatus) per page |
/// | `next_page` | pointer to u32 | initially zero |
/// | `pages` | u32 | number of pages |
///
/// A malformed page gets an error status, and its place in the output is not written. All other pages are restored.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpDecompressKernel};
/// let kernel = Lz4WarpDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry lz4_warp_decompress"));
/// ```
#[derive(Clone, Debug)]
pub struct Lz4WarpDecompressKernel {
    batch: BatchKernel,
}

impl Lz4WarpDecompressKernel {
    /// Makes a kernel for batches of up to `max_pages`, with four warps per block.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpDecompressKernel};
    /// let kernel = Lz4WarpDecompressKernel::new(1000);
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
    /// use trueno_gpu::{Target, kernels::{Kernel, lz4::Lz4WarpDecompressKernel}};
    /// let kernel = Lz4WarpDecompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block) }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::lz4::Lz4WarpDecompressKernel};
    /// let kernel = Lz4WarpDecompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target) }
    }
}

impl Kernel for Lz4WarpDecompressKernel {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir("lz4_warp_decompress", build)
    }

    fn budget(&self) -> ResourceBudget {
        // Seven blocks of four warps, or one of 28, leave 73 registers per thread.
        ResourceBudget { registers: 72, shared_bytes: self.batch.warps_per_block() * WARP_BYTES }
    }

    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages)
    }
}

fn build(k: &KernelBuilder) {
    let (batch, next_page) = DecompressBatch::declare(k, "next_page");
    let region = k.shared_per_warp("buffer_and_tables", WARP_BYTES, 16);
    let buffer = region.base::<u32>(k.warp_id()).raw().named("buffer");
    let tables = GatherTables {
        output: buffer,
        bitmap: buffer + BUFFER_BYTES,
        segments: buffer + (BUFFER_BYTES + BITMAP_BYTES),
    };
    batch.restore_pages(next_page, PageKind::Lz4, MAX_BLOCK_BYTES, |page| restore_block(k, batch.lane, page, tables));
}

fn restore_block<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    page: &PackedPage<'k>,
    tables: GatherTables<'k>,
) -> RestoreAttempt<'k> {
    let buffer = tables.output;
    k.section("bring the block in, at the buffer's end");
    let whole = align_up(page.len);
    let start = (buffer + (BUFFER_BYTES - AFTER_BLOCK_BYTES) - whole).named("start");
    page.load_to(start, whole);
    k.sync_warp();
    let is_page = decode(BlockInput { k, lane, start, end: start + page.len }, tables);
    RestoreAttempt { is_page, page: buffer, refused_as: None }
}
