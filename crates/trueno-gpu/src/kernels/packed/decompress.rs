//! Restores a batch of packed pages, with any algorithm that restores one page per warp.

use super::entry::{KIND_SHIFT, LEN_MASK, PACK_ALIGN_BYTES, STATE_PLACED, STATE_SHIFT, align_up, kind_code};
use super::{FILL_WORD_BYTES, PAGE_BYTES, PAGE_STEPS, PageStatus, STEP_BYTES, for_each_page};
use crate::ir::LoadHint;
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Var};
use trueno_page::PageKind;

/// The parameters of a decompression kernel.
pub(in crate::kernels) struct DecompressBatch<'k> {
    k: &'k KernelBuilder,
    input: Addr<'k, Global, u32>,
    input_len: Reg<'k, u64>,
    index: Addr<'k, Global, u64>,
    output: Addr<'k, Global, u32>,
    status: Addr<'k, Global, u32>,
    pub(in crate::kernels) pages: Reg<'k, u32>,
    pub(in crate::kernels) lane: Reg<'k, u32>,
}

/// A page that an algorithm tried to restore.
pub(in crate::kernels) struct RestoreAttempt<'k> {
    /// Holds if the compressed bytes decoded to exactly one page; uniform.
    pub(in crate::kernels) is_page: Var<'k, bool>,
    /// Shared address of the page.
    pub(in crate::kernels) page: Reg<'k, u32>,
    /// The status of a page that was not restored; uniform. `None` stands for [`PageStatus::BadBlock`].
    pub(in crate::kernels) refused_as: Option<Var<'k, u32>>,
}

impl<'k> DecompressBatch<'k> {
    /// Declares the parameters. One of them is the kernel's own: a pointer named `own`, which is returned too.
    pub(in crate::kernels) fn declare(k: &'k KernelBuilder, own: &str) -> (Self, Addr<'k, Global, u32>) {
        let (input, input_len, index) = (k.param_ptr("input"), k.param_u64("input_len"), k.param_ptr("index"));
        let (output, status, own) = (k.param_ptr("output"), k.param_ptr("status"), k.param_ptr(own));
        let (pages, lane) = (k.param_u32("pages"), k.lane_id().named("lane"));
        (Self { k, input, input_len, index, output, status, pages, lane }, own)
    }

    /// Restores every page of the batch; warps draw them from the counter `next_page`.
    ///
    /// `decode` gets each page held as `kind` in 1 to `max_len` bytes, which lie inside the input.
    pub(in crate::kernels) fn restore_pages(
        &self,
        next_page: Addr<'k, Global, u32>,
        kind: PageKind,
        max_len: u32,
        decode: impl FnOnce(&PackedPage<'k>) -> RestoreAttempt<'k>,
    ) {
        let lanes = self.lane_addresses();
        for_each_page(self.k, self.lane, next_page, self.pages, |number| {
            self.restore_page(lanes, number, kind, max_len, decode);
        });
    }

    /// Returns where the lane starts to read packed pages and to write restored ones.
    pub(in crate::kernels) fn lane_addresses(&self) -> LaneAddresses<'k> {
        LaneAddresses {
            input: self.input.step(self.lane, PACK_ALIGN_BYTES),
            output: self.output.step(self.lane, PACK_ALIGN_BYTES),
        }
    }

    /// Restores page `number`, which is uniform. For `decode`, see [`Self::restore_pages`].
    pub(in crate::kernels) fn restore_page(
        &self,
        lanes: LaneAddresses<'k>,
        number: Reg<'k, u32>,
        kind: PageKind,
        max_len: u32,
        decode: impl FnOnce(&PackedPage<'k>) -> RestoreAttempt<'k>,
    ) {
        let Self { k, lane, input, .. } = *self;
        let entry = EntryFields::new(self.index.index(number).load_uniform());
        let from = lanes.input.step(entry.place, PACK_ALIGN_BYTES);
        let to = lanes.output.step(number, PAGE_BYTES);
        let page = PackedPage { k, lane, len: entry.len, input, place: entry.place, from, to };
        let code = k.var(PageStatus::BadEntry as u32).named("code");
        k.block_uniform(|done| {
            done.exit_if(!entry.is_inside(self.input_len));
            k.if_uniform(entry.is_held_as(PageKind::SameFilled) & entry.len.eq(FILL_WORD_BYTES), || {
                page.fill();
                code.set(PageStatus::Restored as u32);
                done.exit();
            });
            k.if_uniform(entry.is_held_as(PageKind::Raw) & entry.len.eq(PAGE_BYTES), || {
                page.copy();
                code.set(PageStatus::Restored as u32);
                done.exit();
            });
            done.exit_if(!entry.is_held_as(kind) | (entry.len - 1).ge(max_len));
            let RestoreAttempt { is_page, page: restored, refused_as } = decode(&page);
            k.sync_warp();
            code.set(match refused_as {
                Some(refused_as) => is_page.select(PageStatus::Restored as u32, refused_as),
                None => is_page.select(PageStatus::Restored as u32, PageStatus::BadBlock as u32),
            });
            k.if_uniform(*is_page, || page.write(restored));
        });
        k.when(lane.eq(0)).store(self.status.index(number), code);
        k.sync_warp();
    }

    /// Looks up one page per lane. Returns a predicate that holds if the page is held as `kind` in 1 to `max_len` bytes
    /// inside the input, the address of these bytes, and their number. Lanes where `wanted` is false have no page.
    pub(in crate::kernels) fn look_up(
        &self,
        number: Reg<'k, u32>,
        wanted: Pred<'k>,
        kind: PageKind,
        max_len: u32,
    ) -> (Pred<'k>, Addr<'k, Global, u32>, Reg<'k, u32>) {
        let entry = EntryFields::new(self.k.when(wanted).load_or(self.index.index(number), 0u64));
        let is_whole = entry.is_inside(self.input_len) & (entry.len - 1).lt(max_len);
        (is_whole & entry.is_held_as(kind), self.input.step(entry.place, PACK_ALIGN_BYTES), entry.len)
    }
}

/// Addresses of a lane's first 16 bytes of the input and of the output.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct LaneAddresses<'k> {
    input: Addr<'k, Global, u32>,
    output: Addr<'k, Global, u32>,
}

/// An entry of the index in registers.
#[derive(Clone, Copy)]
struct EntryFields<'k> {
    place: Reg<'k, u32>,
    len: Reg<'k, u32>,
    high: Reg<'k, u32>,
    kind: Reg<'k, u32>,
}

impl<'k> EntryFields<'k> {
    fn new(bits: Reg<'k, u64>) -> Self {
        let (place, high) = (bits.lo(), bits.hi());
        Self { place, len: high & LEN_MASK, high, kind: (high >> KIND_SHIFT) & 3 }
    }

    /// Returns a predicate that holds if the entry is complete and its page lies inside the input.
    fn is_inside(self, input_len: Reg<'k, u64>) -> Pred<'k> {
        let end = (self.place.to_u64() << 4) + align_up(self.len).to_u64();
        !(end.gt(input_len) | (self.high >> STATE_SHIFT).ne(STATE_PLACED))
    }

    fn is_held_as(self, kind: PageKind) -> Pred<'k> {
        self.kind.eq(kind_code(kind))
    }
}

/// A packed page and its place in the output. `from` and `to` are those of the lane's first 16 bytes.
pub(in crate::kernels) struct PackedPage<'k> {
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    /// Number of bytes that hold the page.
    pub(in crate::kernels) len: Reg<'k, u32>,
    input: Addr<'k, Global, u32>,
    place: Reg<'k, u32>,
    from: Addr<'k, Global, u32>,
    to: Addr<'k, Global, u32>,
}

impl<'k> PackedPage<'k> {
    /// Loads the compressed bytes to shared memory at `start`, which is aligned to 16 bytes, up to a multiple of 16.
    pub(in crate::kernels) fn load_to(&self, start: Reg<'k, u32>, whole: Reg<'k, u32>) {
        let Self { k, lane, .. } = *self;
        let at = k.var(0u32);
        let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
        k.do_while_uniform(|| {
            let lane_at = at + lane * PACK_ALIGN_BYTES;
            let inside = lane_at.lt(whole);
            k.when(inside).load_vec_with(LoadHint::NonCoherent, words, self.from.byte_add(at.to_u64()));
            k.when(inside).store_vec((start + lane_at).shared::<u32>(), words);
            at.set(at + STEP_BYTES);
            at.lt(whole)
        });
    }

    /// Returns the address of the first compressed word; uniform.
    pub(in crate::kernels) fn start(&self) -> Addr<'k, Global, u32> {
        self.input.step(self.place, PACK_ALIGN_BYTES)
    }

    fn fill(&self) {
        let word = self.start();
        self.k.section("a same-filled page");
        let [low, high] = word.load_vec_with(LoadHint::NonCoherent);
        for i in 0..PAGE_STEPS {
            self.to.byte_offset(STEP_BYTES.cast_signed() * i).store_vec([low, high, low, high]);
        }
    }

    fn copy(&self) {
        self.k.section("a raw page");
        let at = |i| STEP_BYTES.cast_signed() * i;
        // All loads before the first store, so that they are in flight together.
        let pieces: Vec<[Reg<'k, u32>; 4]> =
            (0..PAGE_STEPS).map(|i| self.from.byte_offset(at(i)).load_vec_with(LoadHint::NonCoherent)).collect();
        for (words, i) in pieces.into_iter().zip(0..) {
            self.to.byte_offset(at(i)).store_vec(words);
        }
    }

    /// Writes the restored page, which lies in shared memory, to the output.
    fn write(&self, page: Reg<'k, u32>) {
        self.k.section("the page goes out");
        let from = (page + self.lane * PACK_ALIGN_BYTES).shared::<u32>();
        for i in 0..PAGE_STEPS {
            let at = STEP_BYTES.cast_signed() * i;
            self.to.byte_offset(at).store_vec(from.byte_offset(at).load_vec::<4>());
        }
    }
}
