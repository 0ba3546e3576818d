//! The Zstandard compression kernel: its options, resources and memory.

use super::find::{TABLE_BYTES, Workspace};
use super::format::PAGE_BYTES;
use super::frame::compress_page;
use super::huffman::CODES_BYTES;
use super::record::RECORDS_BYTES;
use super::{Mode, TableStores};
use crate::kernels::copy::WarpCopy;
use crate::kernels::packed::{BatchKernel, CompressBatch, CompressBuffers, LoadedPage, PageKind, SET_ASIDE_BYTES};
use crate::kernels::{Kernel, ResourceBudget};
use crate::{KernelBuilder, Target, ValidKernel};

/// Pages that a warp can set aside. Some pages take several times as long as others: with room for one, warps waited
/// for a quarter of the time (109 instead of 131 GB/s; 65,536 resident pages of a browser, H200).
const ASIDE_PAGES: u32 = 4;

/// Scratch memory that each warp of the grid needs: for the sequences of a page, the codes of its literals, and pages
/// set aside.
const SCRATCH_BYTES_PER_WARP: u32 = RECORDS_BYTES + CODES_BYTES + ASIDE_PAGES * SET_ASIDE_BYTES;

/// Compresses pages to Zstandard frames, one page per warp.
///
/// A frame has a magic number, a content size of 2 bytes and one compressed block; it has no checksum. Every decoder of
/// the format reads it. The kernel's parameters are those of
/// [`Lz4WarpCompressKernel`](crate::kernels::lz4::Lz4WarpCompressKernel), in the same order.
///
/// The bytes of a page and its place in the output depend on the pages alone: not on the GPU, the grid or the timing.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, zstd::ZstdWarpCompressKernel};
/// let kernel = ZstdWarpCompressKernel::new(65536);
/// let ptx = kernel.emit_ptx();
/// assert!(ptx.contains(".entry zstd_warp_compress"));
/// assert_eq!((kernel.grid(1001), kernel.block()), (251, 128));
/// ```
#[derive(Clone, Debug)]
pub struct ZstdWarpCompressKernel {
    mode: Mode,
    stores: TableStores,
    batch: BatchKernel,
}

impl ZstdWarpCompressKernel {
    /// Makes a kernel for batches of up to `max_pages`, with four warps per block, in fast mode, deterministic on every
    /// GPU.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, zstd::ZstdWarpCompressKernel};
    /// let kernel = ZstdWarpCompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self { mode: Mode::Fast, stores: TableStores::ReadBack, batch: BatchKernel::new(max_pages) }
    }

    /// Chooses the balance of speed and ratio.
    ///
    /// ```
    /// use trueno_gpu::kernels::zstd::{Mode, ZstdWarpCompressKernel};
    /// let kernel = ZstdWarpCompressKernel::new(1000).with_mode(Mode::Ratio);
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, batch: self.batch.unbuilt(), ..self }
    }

    /// Chooses how conflicting table stores are resolved; see [`TableStores`].
    ///
    /// ```
    /// use trueno_gpu::kernels::zstd::{TableStores, ZstdWarpCompressKernel};
    /// let kernel = ZstdWarpCompressKernel::new(1000).with_table_stores(TableStores::LowestLaneWins);
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_table_stores(self, stores: TableStores) -> Self {
        Self { stores, batch: self.batch.unbuilt(), ..self }
    }

    /// Chooses the number of warps per block. Above 48 KiB, shared memory is dynamic. [`Kernel::ir`] panics if the
    /// target has too little of it.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, zstd::ZstdWarpCompressKernel}};
    /// let kernel = ZstdWarpCompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block), ..self }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::zstd::ZstdWarpCompressKernel};
    /// let kernel = ZstdWarpCompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target), ..self }
    }

    /// Returns the bytes of scratch memory for a grid of `blocks`. They do not depend on the batch.
    ///
    /// ```
    /// use trueno_gpu::kernels::zstd::ZstdWarpCompressKernel;
    /// let kernel = ZstdWarpCompressKernel::new(65536).with_warps_per_block(28);
    /// assert_eq!(kernel.scratch_bytes(132), 132 * 28 * 28160);
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self, blocks: u32) -> u64 {
        self.batch.scratch_bytes(blocks, SCRATCH_BYTES_PER_WARP)
    }
}

impl Kernel for ZstdWarpCompressKernel {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir("zstd_warp_compress", |k| build(k, self.mode, self.stores))
    }

    fn budget(&self) -> ResourceBudget {
        // 28 warps leave 72 registers per thread; six blocks of four warps leave 80.
        let warps_per_block = self.batch.warps_per_block();
        let registers = if warps_per_block > 4 { 72 } else { 80 };
        ResourceBudget { registers, shared_bytes: warps_per_block * (PAGE_BYTES + TABLE_BYTES) + 3072 }
    }

    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages)
    }
}

fn build(k: &KernelBuilder, mode: Mode, stores: TableStores) {
    let batch = CompressBatch::declare(k);
    // Page and table in one region, so that the few bytes read past the page's end are the warp's own.
    let region = k.shared_per_warp("page_and_table", PAGE_BYTES + TABLE_BYTES, PAGE_BYTES);
    let page = region.base::<u32>(batch.warp).raw().named("page");
    let table = (page + PAGE_BYTES).named("table");
    let records = batch.warp_scratch(SCRATCH_BYTES_PER_WARP);
    let ws = Workspace { k, lane: batch.lane, page, table, records, copy: WarpCopy::new(k, batch.lane) };
    let aside = records.byte_offset((RECORDS_BYTES + CODES_BYTES).cast_signed());
    // The frame takes the page's place, and the page comes back from global memory if it does not shrink.
    let buffers = CompressBuffers { page, staging: page, aside, aside_pages: ASIDE_PAGES };
    batch.compress_pages(PageKind::Zstd, &buffers, |loaded| {
        store_page(ws, loaded);
        clear_table(ws);
        k.sync_warp();
        let len = compress_page(ws, mode, stores);
        k.if_uniform(len.eq(PAGE_BYTES), || {
            k.section("frame: the page itself");
            store_page(ws, &loaded.load_again());
        });
        len
    });
}

/// Stores a page to shared memory.
fn store_page<'k>(ws: Workspace<'k>, loaded: &LoadedPage<'k>) {
    let place = (ws.page + ws.lane * 16).shared::<u32>();
    for (piece, i) in loaded.pieces.iter().zip(0..) {
        place.byte_offset(512 * i).store_vec(*piece);
    }
}

fn clear_table(ws: Workspace<'_>) {
    let place = (ws.table + ws.lane * 16).shared::<u32>();
    for i in 0..8 {
        place.byte_offset(512 * i).store_vec([0u32; 4]);
    }
}
const _: () = assert!(TABLE_BYTES == 8 * 512);
