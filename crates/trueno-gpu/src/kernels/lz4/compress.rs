//! The compression kernel: one page a warp, drawn in order; same-filled pages, LZ4 blocks, raw pages; packed output.

use std::sync::OnceLock;

use super::encode::encode;
use super::find::{MAX_RECORDS, RECORD_BYTES, TABLE_BYTES, Workspace, find_matches};
use super::format::{FILL_WORD_BYTES, PAGE_BYTES};
use super::index::{KIND_LZ4, KIND_RAW, KIND_SAME_FILLED};
use super::pack::Packer;
use super::{Mode, TableStores};
use crate::ir::{AtomOp, KernelIr, LoadHint};
use crate::kernels::{Budget, Kernel};
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Target};

/// Scratch memory that each warp of the grid needs: match records, and a page set aside until its place is known.
const SCRATCH_BYTES_PER_WARP: u32 = MAX_RECORDS * RECORD_BYTES + PAGE_BYTES;

/// 16-byte pieces of a page that a lane loads.
const PIECES: i32 = 8;

/// Compresses pages to LZ4 blocks, one page a warp.
///
/// Parameters of the kernel, in order:
///
/// | parameter | type | what |
/// | --- | --- | --- |
/// | `input` | pointer | the pages, aligned to 16 bytes |
/// | `output` | pointer | the packed pages, aligned to 16 bytes: at most 4096 bytes a page |
/// | `index` | pointer to u64 | one [`PackedEntry`](super::PackedEntry) a page; zero at the start |
/// | `scratch` | pointer | [`scratch_bytes`](Self::scratch_bytes) for the grid that is launched |
/// | `next_page` | pointer to u32 | zero at the start |
/// | `pages` | u32 | how many |
///
/// The bytes of a page and its place in the output depend on the pages alone: not on the GPU, the grid or the timing.
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
    max_pages: u32,
    mode: Mode,
    stores: TableStores,
    warps_per_block: u32,
    target: Target,
    /// Built when first asked for, since the options come one after the other.
    ir: OnceLock<KernelIr>,
}

impl Lz4WarpCompressKernel {
    /// A kernel for batches of up to `max_pages`: four warps a block, the fast mode, deterministic on every GPU.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpCompressKernel};
    /// let kernel = Lz4WarpCompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self {
            max_pages,
            mode: Mode::Fast,
            stores: TableStores::ReadBack,
            warps_per_block: 4,
            target: Target::default(),
            ir: OnceLock::new(),
        }
    }

    /// With another balance of speed and ratio.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, Mode};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_mode(Mode::Ratio);
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ir: OnceLock::new(), ..self }
    }

    /// With another rule for conflicting stores; see [`TableStores`].
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{Lz4WarpCompressKernel, TableStores};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_table_stores(TableStores::LowestLaneWins);
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_table_stores(self, stores: TableStores) -> Self {
        Self { stores, ir: OnceLock::new(), ..self }
    }

    /// With another number of warps a block. What is over 48 KiB of shared memory is dynamic, and the target must have it:
    /// [`Kernel::ir`] panics otherwise.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, lz4::Lz4WarpCompressKernel}};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { warps_per_block, ir: OnceLock::new(), ..self }
    }

    /// For another target than the default.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::lz4::Lz4WarpCompressKernel};
    /// let kernel = Lz4WarpCompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { target, ir: OnceLock::new(), ..self }
    }

    /// Bytes of scratch memory for a grid of `blocks`: the same whatever the batch.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::Lz4WarpCompressKernel;
    /// let kernel = Lz4WarpCompressKernel::new(65536).with_warps_per_block(28);
    /// assert_eq!(kernel.scratch_bytes(132), 132 * 28 * 12288);
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self, blocks: u32) -> u64 {
        u64::from(blocks) * u64::from(self.warps_per_block) * u64::from(SCRATCH_BYTES_PER_WARP)
    }
}

impl Kernel for Lz4WarpCompressKernel {
    fn ir(&self) -> &KernelIr {
        self.ir.get_or_init(|| {
            let k = KernelBuilder::new("lz4_warp_compress");
            let k = k.with_target(self.target).with_warps_per_block(self.warps_per_block);
            build(&k, self.mode, self.stores);
            k.finish().expect("the target has the shared memory for so many warps")
        })
    }

    fn budget(&self) -> Budget {
        // Blocks of four warps are resident six at a time where shared memory allows, which leaves 85 registers a thread;
        // 28 warps leave 73. A page's alignment costs up to 3 KiB a block.
        let registers = if self.warps_per_block > 4 { 72 } else { 84 };
        Budget { registers, shared_bytes: self.warps_per_block * (PAGE_BYTES + TABLE_BYTES) + 3072 }
    }

    fn grid(&self, pages: u32) -> u32 {
        pages.min(self.max_pages).div_ceil(self.warps_per_block)
    }
}

/// The page in the lanes' registers: 8 pieces of 16 bytes each.
struct LoadedPage<'k>(Vec<[Reg<'k, u32>; 4]>);

fn build(k: &KernelBuilder, mode: Mode, stores: TableStores) {
    let input = k.param_ptr::<u32>("input");
    let output = k.param_ptr::<u32>("output");
    let index = k.param_ptr::<u64>("index");
    let scratch = k.param_ptr::<u32>("scratch");
    let next_page = k.param_ptr::<u32>("next_page");
    let pages = k.param_u32("pages");

    let lane = k.lane_id().named("lane");
    // Not the uniform `warp_id`: with addresses in uniform registers, three instructions of each window have to copy them.
    let warp = (k.thread_id() >> 5).named("warp");
    // Page and table in one region, so that what is read a few bytes past the page's end is the warp's own.
    let region = k.shared_per_warp("page_and_table", PAGE_BYTES + TABLE_BYTES, PAGE_BYTES);
    let page = region.base::<u32>(warp).raw().named("page");
    let table = (page + PAGE_BYTES).named("table");
    let warps_per_block = k.block_threads() >> 5;
    let own = scratch.step(k.block_id().mad(warps_per_block, warp), SCRATCH_BYTES_PER_WARP);
    let ws = Workspace { k, lane, page, table, records: own };
    let packer = Packer {
        k,
        lane,
        index,
        output: output.step(lane, 16),
        aside: own.byte_offset((MAX_RECORDS * RECORD_BYTES).cast_signed()).step(lane, 16),
        page: k.var(0u32).named("aside_page"),
        entry: k.var(0u32).named("aside_entry"),
    };
    let lane_input = input.step(lane, 16);

    k.loop_uniform(|all| {
        k.section("draw a page");
        let drawn = k.var(0u32);
        k.when(lane.eq(0)).atomic(drawn, next_page, AtomOp::Add, 1u32);
        let number = drawn.shfl(0u32).named("number");
        all.break_if(number.ge(pages));

        let loaded = LoadedPage::load(lane_input.step(number, PAGE_BYTES));
        let len = k.var(FILL_WORD_BYTES);
        let kind = k.var(KIND_SAME_FILLED);
        let bytes = k.var(table);
        k.if_else_uniform(
            loaded.is_same_filled(k),
            || k.when(lane.eq(0)).store_vec(table.shared::<u32>(), loaded.0[0]),
            || {
                loaded.store(ws);
                k.sync_warp();
                let count = find_matches(ws, mode, stores);
                k.sync_warp();
                len.set(encode(ws, count));
                let raw = len.eq(PAGE_BYTES);
                kind.set(raw.select(KIND_RAW, KIND_LZ4));
                bytes.set(raw.select(page, table));
            },
        );
        k.sync_warp();
        packer.hand_over(number, *len, *kind, *bytes);
        // The next page overwrites what the lanes have just read.
        k.sync_warp();
    });
    packer.settle();
}

impl<'k> LoadedPage<'k> {
    fn load(from: Addr<'k, Global, u32>) -> Self {
        Self((0..PIECES).map(|i| from.byte_offset(512 * i).load_vec_with(LoadHint::NonCoherent)).collect())
    }

    /// Whether all 8-byte words are the first one; uniform. Most pages are known by their first 512 bytes.
    fn is_same_filled(&self, k: &'k KernelBuilder) -> Pred<'k> {
        let word = [self.0[0][0].shfl(0u32), self.0[0][1].shfl(0u32)];
        let differ = |piece: &[Reg<'k, u32>; 4]| {
            let low = (piece[0] ^ word[0]) | (piece[2] ^ word[0]);
            let high = (piece[1] ^ word[1]) | (piece[3] ^ word[1]);
            low | high
        };
        let differs = k.var(differ(&self.0[0]).ne(0).any());
        k.if_uniform(!*differs, || {
            let rest = self.0[1..].iter().map(differ).reduce(|a, b| a | b).expect("a page has several pieces");
            differs.set(rest.ne(0).any());
        });
        !*differs
    }

    /// Stores the page to shared memory and clears the table.
    fn store(&self, ws: Workspace<'k>) {
        let place = (ws.page + ws.lane * 16).shared::<u32>();
        for (piece, i) in self.0.iter().zip(0..) {
            place.byte_offset(512 * i).store_vec(*piece);
            place.byte_offset(512 * i + PAGE_BYTES.cast_signed()).store_vec([0u32; 4]);
        }
    }
}
