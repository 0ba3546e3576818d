//! Orders the pages of a batch by their number of sequences, so that a group's lanes have about as many steps.

use super::frame::GuardedLoads;
use super::group::MAX_RECORDS;
use super::parse::LanePage;
use crate::ir::AtomOp;
use crate::kernels::packed::{BatchKernel, DecompressBatch};
use crate::kernels::scan::scan;
use crate::kernels::{Kernel, ResourceBudget};
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Target, ValidKernel};

/// Number of lists. A page with more sequences is in an earlier list; the first one has those with too many.
const LISTS: u32 = 32;
const SEQUENCES_PER_LIST: u32 = MAX_RECORDS.div_ceil(LISTS - 1);
/// Bytes of the counters: one per list, and that of the groups that blocks have drawn.
pub(super) const COUNTERS_BYTES: u32 = 4 * LISTS + 128;
/// Bytes of all lists per page of the batch: each has room for all pages.
pub(super) const LISTS_BYTES_PER_PAGE: u32 = 4 * LISTS;

/// The lists, at the start of the scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Lists<'k> {
    k: &'k KernelBuilder,
    counters: Addr<'k, Global, u32>,
    pages: Reg<'k, u32>,
}

impl<'k> Lists<'k> {
    pub(super) fn new(k: &'k KernelBuilder, scratch: Addr<'k, Global, u32>, pages: Reg<'k, u32>) -> Self {
        Self { k, counters: scratch, pages }
    }

    /// Returns the number of pages with too many sequences, which come first; uniform.
    pub(super) fn large_pages(self) -> Reg<'k, u32> {
        self.counters.load_uniform()
    }

    /// Returns the counter of the groups that blocks have drawn.
    pub(super) fn drawn(self) -> Addr<'k, Global, u32> {
        self.counters.at(LISTS.cast_signed())
    }

    /// Returns the memory behind the lists.
    pub(super) fn end(self) -> Addr<'k, Global, u32> {
        self.lists().byte_add(self.pages.mul_wide(LISTS_BYTES_PER_PAGE))
    }

    fn lists(self) -> Addr<'k, Global, u32> {
        self.counters.byte_offset(COUNTERS_BYTES.cast_signed())
    }

    /// Adds each lane's page to a list, where `wanted`.
    fn add(self, list: Reg<'k, u32>, number: Reg<'k, u32>, wanted: Pred<'k>) {
        let k = self.k;
        // Lanes of one list reserve their places together.
        let peers = wanted.select(list, LISTS).match_any();
        let is_first = (peers & k.lanemask_lt()).eq(0);
        let place = k.var(0u32);
        k.when(wanted & is_first).atomic(place, self.counters.index(list), AtomOp::Add, peers.popc());
        let first_lane = (peers & (0 - peers)).bfind();
        let rank = (peers & k.lanemask_lt()).popc();
        let at = list * self.pages + place.shfl(first_lane) + rank;
        k.when(wanted).store(self.lists().index(at), number);
    }

    /// Returns the page at `position` of the order, where `wanted`.
    pub(super) fn page_at(self, lane: Reg<'k, u32>, position: Reg<'k, u32>, wanted: Pred<'k>) -> Reg<'k, u32> {
        let k = self.k;
        let ends = scan(k, self.counters.index(lane).load(), |a, b| a + b);
        let (list, start) = (k.var(0u32), k.var(0u32));
        let next = k.var(0u32);
        k.do_while_uniform(|| {
            let end = ends.shfl(*next);
            let is_behind = end.le(position);
            k.when(is_behind).set(start, end);
            k.when(is_behind).set(list, list + 1);
            next.set(next + 1);
            next.lt(LISTS)
        });
        k.when(wanted).load_or(self.lists().index(list * self.pages + position - start), 0u32)
    }
}

/// Orders the pages of a batch for [`ZstdGroupDecompressKernel`](super::ZstdGroupDecompressKernel), which must run
/// after it with the same arguments. The first [`Self::ZEROED_BYTES`] of `scratch` must be 0 before.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, zstd::ZstdGroupOrderKernel};
/// let kernel = ZstdGroupOrderKernel::new(65536);
/// assert_eq!((kernel.grid(1000), kernel.block()), (8, 128));
/// ```
#[derive(Clone, Debug)]
pub struct ZstdGroupOrderKernel {
    batch: BatchKernel,
}

impl ZstdGroupOrderKernel {
    /// Bytes of the scratch memory that must be 0 before the kernel runs.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::kernels::zstd::ZstdGroupOrderKernel::ZEROED_BYTES, 256);
    /// ```
    pub const ZEROED_BYTES: u32 = COUNTERS_BYTES;

    /// Makes a kernel for batches of up to `max_pages`, with four warps per block.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, zstd::ZstdGroupOrderKernel};
    /// assert_eq!(ZstdGroupOrderKernel::new(1000).grid(2000), 8);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self { batch: BatchKernel::new(max_pages) }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::zstd::ZstdGroupOrderKernel};
    /// let kernel = ZstdGroupOrderKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target) }
    }
}

impl Kernel for ZstdGroupOrderKernel {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir("zstd_group_order", build)
    }

    fn budget(&self) -> ResourceBudget {
        ResourceBudget { registers: 64, shared_bytes: 0 }
    }

    /// Returns the number of blocks for a batch: a thread per page.
    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages).div_ceil(32)
    }
}

fn build(k: &KernelBuilder) {
    let (batch, scratch) = DecompressBatch::declare(k, "scratch");
    let lists = Lists::new(k, scratch, batch.pages);
    k.section("headers, one page per lane");
    let number = k.block_id() * k.block_threads() + k.thread_id();
    let wanted = number.lt(batch.pages);
    let page = LanePage::read(k, &batch, number, wanted, GuardedLoads::new(k));
    k.section("lists");
    let sequences = page.sequences.min(MAX_RECORDS - 1);
    let quotient = (sequences * (65536 / SEQUENCES_PER_LIST + 1)) >> 16;
    // Pages that are not frames of this kind go to all other lists alike.
    let other = (number & (LISTS - 1)).max(1u32);
    let list = page.is_there.select(LISTS - 1 - quotient, other);
    lists.add(page.is_large.select(0u32, list), number, wanted);
}

/// The order takes a number of sequences by its quotient, which a product gives exactly.
const _: () = {
    let mut sequences = 0;
    while sequences < MAX_RECORDS {
        assert!(sequences / SEQUENCES_PER_LIST < LISTS - 1);
        assert!((sequences * (65536 / SEQUENCES_PER_LIST + 1)) >> 16 == sequences / SEQUENCES_PER_LIST);
        sequences += 1;
    }
};
