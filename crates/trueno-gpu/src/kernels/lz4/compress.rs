//! The LZ4 compression kernel.

use super::encode::encode;
use super::find::{Lz4Workspace, MAX_RECORDS, RECORD_BYTES, TABLE_BYTES, find_matches};
use super::format::PAGE_BYTES;
use super::{Mode, TableStores};
use crate::kernels::packed::{BatchKernel, CompressBatch, CompressBuffers, LoadedPage, PageKind, SET_ASIDE_BYTES};
use crate::kernels::{Kernel, ResourceBudget};
use crate::{KernelBuilder, Target, ValidKernel};

/// Scratch memory for the match records of one page.
const RECORDS_BYTES: u32 = MAX_RECORDS * RECORD_BYTES;

/// Scratch memory that each warp of the grid needs.
const SCRATCH_BYTES_PER_WARP: u32 = RECORDS_BYTES + SET_ASIDE_BYTES;

/// Compresses pages to LZ4 blocks, one page per warp.
///
/// Parameters of the kernel, in order:
///
/// | parameter | type | meaning |
/// | --- | --- | --- |
/// | `input` | pointer | the pages, aligned to 16 bytes |
/// | `output` | pointer | the packed pages, aligned to 16 bytes; at most 4096 bytes per page |
/// | `index` | pointer to u64 | one [`PackedEntry`](crate::kernels::packed::PackedEntry) per page, initially zero |
/// | `scratch` | pointer | [`scratch_bytes`](Self::scratch_bytes) for the launched grid |
/// | `next_page` | pointer to u32 | initially zero |
/// | `pages` | u32 | number of pages |
///
/// The compressed bytes and their place in the output depend only on the pages, not on the GPU, the grid or the timing.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpCompressKernel};
/// let kernel = Lz4WarpCompressKernel::new(65536);
/// let ptx = kernel.emit_ptx();
/// assert!(ptx.contains(".entry lz4_warp_compress"));
/// assert_eq!((kernel.grid(1001), kernel.block()), (251, 128));
/// ```
#[derive(Clone, Debug)]
pub struct Lz4WarpCompressKernel {
    mode: Mode,
    stores: TableStores,
    batch: BatchKernel,
}

impl Lz4WarpCompressKernel {
    /// Makes a kernel for batches of up to `max_pages`, with four warps per block, in fast mode, deterministic on every
    /// GPU.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpCompressKernel};
    /// let kernel = Lz4WarpCompressKernel::new(1000);
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
    /// use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Mode};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_mode(Mode::Ratio);
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, batch: self.batch.unbuilt(), ..self }
    }

    /// Chooses how conflicting table stores are resolved; see [`TableStores`].
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, TableStores};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_table_stores(TableStores::LowestLaneWins);
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
    /// use trueno_gpu::{Target, kernels::{Kernel, lz4::Lz4WarpCompressKernel}};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block), ..self }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::lz4::Lz4WarpCompressKernel};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target), ..self }
    }

    /// Returns the bytes of scratch memory for a grid of `blocks`. They do not depend on the batch.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::Lz4WarpCompressKernel;
    /// let kernel = Lz4WarpCompressKernel::new(65536).with_warps_per_block(28);
    /// assert_eq!(kernel.scratch_bytes(132), 132 * 28 * 12288);
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self, blocks: u32) -> u64 {
        self.batch.scratch_bytes(blocks, SCRATCH_BYTES_PER_WARP)
    }
}

impl Kernel for Lz4WarpCompressKernel {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir("lz4_warp_compress", |k| build(k, self.mode, self.stores))
    }

    fn budget(&self) -> ResourceBudget {
        // Six blocks of four warps are resident where shared memory allows, which leaves 85 registers per thread; 28
        // warps leave 73. Aligning the page costs up to 3 KiB per block.
        let warps_per_block = self.batch.warps_per_block();
        let registers = if warps_per_block > 4 { 72 } else { 84 };
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
    let ws = Lz4Workspace { k, lane: batch.lane, page, table, records };
    // The block takes the table's place: the records are complete when the encoder starts.
    let buffers = CompressBuffers {
        page,
        staging: table,
        aside: records.byte_offset(RECORDS_BYTES.cast_signed()),
        aside_pages: 1,
    };
    batch.compress_pages(PageKind::Lz4, &buffers, |loaded| {
        store_and_clear_table(ws, loaded);
        k.sync_warp();
        let count = find_matches(ws, mode, stores);
        k.sync_warp();
        encode(ws, count)
    });
}

/// Stores the page to shared memory and clears the table.
fn store_and_clear_table<'k>(ws: Lz4Workspace<'k>, loaded: &LoadedPage<'k>) {
    let place = (ws.page + ws.lane * 16).shared::<u32>();
    for (piece, i) in loaded.pieces.iter().zip(0..) {
        place.byte_offset(512 * i).store_vec(*piece);
        place.byte_offset(512 * i + PAGE_BYTES.cast_signed()).store_vec([0u32; 4]);
    }
}

/// Clearing as many bytes as a page has clears the whole table.
const _: () = assert!(TABLE_BYTES == PAGE_BYTES);
