//! The Zstandard decompression kernel for large batches. Every read and write is checked.

use super::super::constants::Constants;
use super::super::format::MAX_FRAME_BYTES;
use super::super::restore::{WARP_BYTES, restore_frame};
use super::frame::GuardedLoads;
use super::group::{
    GROUP_PAGES, PAGE_WARP_BYTES, PageDescription, PageGroup, SCRATCH_BYTES, THIRD_STAGE_WARP_BYTES, shared_bytes,
    third_stage_warps,
};
use super::lookup::SharedTables;
use super::order::{COUNTERS_BYTES, LISTS_BYTES_PER_PAGE, Lists};
use super::parse::LanePage;
use super::restore_prepared::restore_prepared;
use super::walk::prepare_sequences;
use super::weights::prepare_weights;
use crate::ir::AtomOp;
use crate::kernels::packed::{BatchKernel, DecompressBatch, LaneAddresses, PageKind};
use crate::kernels::{Kernel, ResourceBudget};
use crate::{KernelBuilder, Reg, Target, ValidKernel};

/// Warps that an SM of compute capability 9.0 has the shared memory for, in blocks of four.
const WARPS_PER_SM: u32 = 28;

/// Pages of a group that has only pages with too many sequences, if there are many of them.
const LARGE_GROUP_PAGES: u32 = 24;

/// Restores the same frames as [`ZstdWarpDecompressKernel`](super::super::ZstdWarpDecompressKernel), with the same
/// result for every page, about twice as fast in large batches and slower in small ones: see
/// [`Self::LEAST_PAGES_PER_BLOCK`].
///
/// Its parameters are those of that kernel, except for `scratch` in place of `next_page`: [`Self::scratch_bytes`] of
/// memory, aligned to 16 bytes. [`ZstdGroupOrderKernel`](super::ZstdGroupOrderKernel) must run before it with the same
/// arguments.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, zstd::ZstdGroupDecompressKernel};
/// let kernel = ZstdGroupDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry zstd_group_decompress"));
/// ```
#[derive(Clone, Debug)]
pub struct ZstdGroupDecompressKernel {
    batch: BatchKernel,
}

impl ZstdGroupDecompressKernel {
    /// The number of pages per block of the grid from which this kernel is faster than
    /// [`ZstdWarpDecompressKernel`](super::super::ZstdWarpDecompressKernel).
    ///
    /// ```
    /// use trueno_gpu::kernels::zstd::ZstdGroupDecompressKernel;
    /// assert!(ZstdGroupDecompressKernel::LEAST_PAGES_PER_BLOCK < 32);
    /// ```
    pub const LEAST_PAGES_PER_BLOCK: u32 = 20;

    /// Makes a kernel for batches of up to `max_pages`, with four warps per block.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, zstd::ZstdGroupDecompressKernel};
    /// let kernel = ZstdGroupDecompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self { batch: BatchKernel::new(max_pages).with_warps_per_sm(WARPS_PER_SM) }
    }

    /// Chooses the number of warps per block. Above 48 KiB, shared memory is dynamic. [`Kernel::ir`] panics if the
    /// target has too little of it.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, zstd::ZstdGroupDecompressKernel}};
    /// let kernel = ZstdGroupDecompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(7);
    /// assert_eq!(kernel.block(), 224);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block) }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::zstd::ZstdGroupDecompressKernel};
    /// let kernel = ZstdGroupDecompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target) }
    }

    /// Returns the bytes of scratch memory for a grid of `blocks` and a batch of `pages`.
    ///
    /// ```
    /// use trueno_gpu::kernels::zstd::ZstdGroupDecompressKernel;
    /// let kernel = ZstdGroupDecompressKernel::new(65536);
    /// assert_eq!(kernel.scratch_bytes(2, 1000), 256 + 1000 * 128 + 2 * 32 * 4224);
    /// ```
    #[must_use]
    pub fn scratch_bytes(&self, blocks: u32, pages: u32) -> u64 {
        let lists = u64::from(COUNTERS_BYTES) + u64::from(LISTS_BYTES_PER_PAGE) * u64::from(pages);
        lists + u64::from(blocks) * u64::from(SCRATCH_BYTES)
    }
}

impl Kernel for ZstdGroupDecompressKernel {
    fn ir(&self) -> &ValidKernel {
        let warps = self.batch.warps_per_block();
        self.batch.ir("zstd_group_decompress", |k| build(k, warps))
    }

    fn budget(&self) -> ResourceBudget {
        // Seven blocks of four warps leave 73 registers per thread. Elsewhere shared memory allows five at most.
        let registers = if self.batch.has_large_sm() { 72 } else { 96 };
        ResourceBudget { registers, shared_bytes: shared_bytes(self.batch.warps_per_block()) + 256 }
    }

    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages)
    }
}

fn build(k: &KernelBuilder, warps: u32) {
    let (batch, scratch) = DecompressBatch::declare(k, "scratch");
    let (lane, warp) = (batch.lane, k.warp_id().named("warp"));
    let lookup = SharedTables::fill(k, lane);
    let lists = Lists::new(k, scratch, batch.pages);
    let group = PageGroup::declare(k, warps, lists.end());
    let stages = GroupStages { k, batch: &batch, lanes: batch.lane_addresses(), group, warp };
    stages.draw_group(lists);
    k.sync_block();
    // Pages with too many sequences come first, in groups of one for each warp of the third stage; if there are many,
    // of more.
    let left_over_warps = third_stage_warps(warps);
    let large_pages = lists.large_pages().named("large_pages");
    let are_few = (large_pages * 8).le(batch.pages);
    let group_large = are_few.select(left_over_warps, LARGE_GROUP_PAGES).named("group_large");
    let [few, many] = [left_over_warps, LARGE_GROUP_PAGES].map(|by| quotient_up(large_pages, by));
    let large_groups = are_few.select(few, many).named("large_groups");
    let groups = quotient_up(batch.pages - large_pages, GROUP_PAGES).named("groups");
    // Blocks draw groups in turn. Barriers need a number of turns that all warps agree on: twice what all groups take,
    // and some more. Without a group, a turn is over at once.
    let limit = ((batch.pages >> 2) + k.block_count() * 4).named("limit");
    let turns = k.var(0u32).named("turns");
    k.while_uniform(
        || turns.lt(limit),
        || {
            let drawn = group.drawn_group.load_uniform().named("drawn");
            let is_large = drawn.lt(large_groups);
            let number = drawn - large_groups;
            let is_group = number.lt(groups);
            // From both ends of the order, so that blocks are in different stages.
            let half = number >> 1;
            let place = (number & 1).eq(0).select(half, groups - 1 - half);
            let first = place.mad(GROUP_PAGES, large_pages).named("first");
            k.if_uniform(warp.lt(2) & is_group, || stages.prepare(lists, first, lookup, warps));
            k.if_uniform(warp.eq(0) & is_large, || {
                let first = drawn * group_large;
                stages.leave_over(lists, first, (large_pages - first).min(group_large));
            });
            k.sync_block();
            k.if_uniform(is_group, || stages.restore_prepared(first));
            k.sync_block();
            stages.draw_group(lists);
            let has_left_over = warp.lt(left_over_warps) & (is_group | is_large);
            k.if_uniform(has_left_over, || stages.restore_left_over(left_over_warps));
            k.sync_block();
            turns.set(turns + k.block_count());
        },
    );
}

/// Returns a number divided by a constant below 64, rounded up. The number is below a billion.
fn quotient_up(number: Reg<'_, u32>, by: u32) -> Reg<'_, u32> {
    if by == 1 { number } else { (number + (by - 1)).mul_hi(u32::MAX / by + 1) }
}

/// The stages that a group of pages passes.
struct GroupStages<'k, 'b> {
    k: &'k KernelBuilder,
    batch: &'b DecompressBatch<'k>,
    lanes: LaneAddresses<'k>,
    group: PageGroup<'k>,
    warp: Reg<'k, u32>,
}

impl<'k> GroupStages<'k, '_> {
    /// Draws the block's next group.
    fn draw_group(&self, lists: Lists<'k>) {
        let Self { k, batch, group, warp, .. } = *self;
        let is_first = warp.eq(0) & batch.lane.eq(0);
        let drawn = k.var(0u32);
        k.when(is_first).atomic(drawn, lists.drawn(), AtomOp::Add, 1u32);
        k.when(is_first).store(group.drawn_group, drawn);
    }

    /// Prepares the pages from position `first` of the order on, one per lane: the first warp their sequences, the
    /// second their weights.
    fn prepare(&self, lists: Lists<'k>, first: Reg<'k, u32>, lookup: SharedTables<'k>, warps: u32) {
        let Self { k, batch, group, warp, .. } = *self;
        let lane = batch.lane;
        k.section("headers, one page per lane");
        let position = first + lane;
        let is_there = position.lt(batch.pages);
        let number = lists.page_at(lane, position, is_there);
        let page = LanePage::read(k, batch, number, is_there, GuardedLoads::new(k));
        let weights_warp = u32::from(warps > 1);
        k.if_uniform(warp.eq(weights_warp), || prepare_weights(k, lane, &page, group));
        k.if_uniform(warp.eq(0), || {
            k.when(lane.eq(0)).store(group.drawn, 0u32);
            k.when(lane.eq(0)).store(group.left_over, 0u32);
            group.description(lane).at(PageDescription::NUMBER).store(number);
            prepare_sequences(k, lane, &page, group, lookup);
        });
    }

    /// Leaves `count` pages from position `first` of the order on to the third stage.
    fn leave_over(&self, lists: Lists<'k>, first: Reg<'k, u32>, count: Reg<'k, u32>) {
        let Self { k, batch, group, .. } = *self;
        let lane = batch.lane;
        let number = lists.page_at(lane, first + lane, lane.lt(count));
        group.description(lane).at(PageDescription::NUMBER).store(number);
        k.when(lane.eq(0)).store(group.left_over, (1u32 << count) - 1);
    }

    /// Restores the pages from position `first` of the order on, one per warp.
    fn restore_prepared(&self, first: Reg<'k, u32>) {
        let Self { k, batch, group, .. } = *self;
        let lane = batch.lane;
        let buffer = self.warp.mad(PAGE_WARP_BYTES, group.work).named("buffer");
        k.loop_uniform(|all| {
            k.section("draw a page");
            let drawn = k.var(0u32);
            k.when(lane.eq(0)).atomic(drawn, group.drawn, AtomOp::Add, 1u32);
            let slot = drawn.shfl(0u32).named("slot");
            all.break_if(slot.ge(GROUP_PAGES) | (first + slot).ge(batch.pages));
            let number = group.description(slot).at(PageDescription::NUMBER).load_uniform().named("number");
            batch.restore_page(self.lanes, number, PageKind::Zstd, MAX_FRAME_BYTES, |page| {
                restore_prepared(k, lane, page, buffer, group, slot)
            });
        });
    }

    /// Restores from the start what is left over, one page per warp. Pages go to the `warps` in turn.
    fn restore_left_over(&self, warps: u32) {
        let Self { k, batch, group, warp, .. } = *self;
        let lane = batch.lane;
        let left_over = k.var(group.left_over.load_uniform()).named("left_over");
        k.if_uniform(left_over.ne(0), || {
            let buffer = warp.mad(THIRD_STAGE_WARP_BYTES, group.work).named("buffer");
            let constants = Constants::fill_for_warp(k, lane, buffer + WARP_BYTES);
            // Pages until the warp's next.
            let turn = k.var(warp).named("turn");
            k.do_while_uniform(|| {
                let lowest = *left_over & (0 - *left_over);
                left_over.set(*left_over ^ lowest);
                k.if_uniform(turn.eq(0), || {
                    let number = group.description(lowest.bfind()).at(PageDescription::NUMBER).load_uniform();
                    batch.restore_page(self.lanes, number, PageKind::Zstd, MAX_FRAME_BYTES, |page| {
                        restore_frame(k, lane, page, buffer, constants)
                    });
                });
                turn.set(turn.eq(0).select(warps - 1, turn - 1));
                left_over.ne(0)
            });
        });
    }
}
