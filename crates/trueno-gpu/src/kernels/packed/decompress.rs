//! Restores a batch of packed pages, with any algorithm that restores one page per warp.

use super::entry::{KIND_SHIFT, LEN_MASK, PACK_ALIGN_BYTES, STATE_PLACED, STATE_SHIFT, align_up, kind_code};
use super::{FILL_WORD_BYTES, PAGE_BYTES, PAGE_STEPS, PageStatus, STEP_BYTES, for_each_page};
use crate::ir::LoadHint;
use crate::types::Global;
use crate::{Addr, KernelBuilder, Reg, Var};
use trueno_page::PageKind;

/// The parameters of a decompression kernel.
pub(in crate::kernels) struct DecompressBatch<'k> {
    k: &'k KernelBuilder,
    input: Addr<'k, Global, u32>,
    input_len: Reg<'k, u64>,
    index: Addr<'k, Global, u64>,
    output: Addr<'k, Global, u32>,
    status: Addr<'k, Global, u32>,
    next_page: Addr<'k, Global, u32>,
    pages: Reg<'k, u32>,
    pub(in crate::kernels) lane: Reg<'k, u32>,
}

/// A page that an algorithm tried to restore.
pub(in crate::kernels) struct Restored<'k> {
    /// Whether the compressed bytes decoded to exactly one page; uniform.
    pub(in crate::kernels) is_page: Var<'k, bool>,
    /// Shared address of the page.
    pub(in crate::kernels) page: Reg<'k, u32>,
    /// The status if it is none; uniform. [`PageStatus::BadBlock`] if the algorithm knows no other.
    pub(in crate::kernels) refused_as: Option<Var<'k, u32>>,
}

impl<'k> DecompressBatch<'k> {
    /// Declares the parameters.
    pub(in crate::kernels) fn declare(k: &'k KernelBuilder) -> Self {
        Self {
            k,
            input: k.param_ptr("input"),
            input_len: k.param_u64("input_len"),
            index: k.param_ptr("index"),
            output: k.param_ptr("output"),
            status: k.param_ptr("status"),
            next_page: k.param_ptr("next_page"),
            pages: k.param_u32("pages"),
            lane: k.lane_id().named("lane"),
        }
    }

    /// Restores every page of the batch.
    ///
    /// `decode` gets each page held as `kind` in 1 to `max_len` bytes, which lie inside the input.
    pub(in crate::kernels) fn restore_pages(
        &self,
        kind: PageKind,
        max_len: u32,
        decode: impl FnOnce(&PackedPage<'k>) -> Restored<'k>,
    ) {
        let Self { k, lane, input, .. } = *self;
        let lane_input = input.step(lane, PACK_ALIGN_BYTES);
        let lane_output = self.output.step(lane, PACK_ALIGN_BYTES);
        for_each_page(k, lane, self.next_page, self.pages, |number| {
            let entry = self.index.index(number).load_uniform();
            let (place, high) = (entry.lo(), entry.hi());
            let len = high & LEN_MASK;
            let held_as = (high >> KIND_SHIFT) & 3;
            let from = lane_input.step(place, PACK_ALIGN_BYTES);
            let page = PackedPage { k, lane, len, input, place, from, to: lane_output.step(number, PAGE_BYTES) };
            let code = k.var(PageStatus::BadEntry as u32).named("code");
            k.block_uniform(|done| {
                let end = (place.to_u64() << 4) + align_up(len).to_u64();
                done.exit_if(end.gt(self.input_len) | (high >> STATE_SHIFT).ne(STATE_PLACED));
                k.if_uniform(held_as.eq(kind_code(PageKind::SameFilled)) & len.eq(FILL_WORD_BYTES), || {
                    page.fill();
                    code.set(PageStatus::Restored as u32);
                    done.exit();
                });
                k.if_uniform(held_as.eq(kind_code(PageKind::Raw)) & len.eq(PAGE_BYTES), || {
                    page.copy();
                    code.set(PageStatus::Restored as u32);
                    done.exit();
                });
                done.exit_if(held_as.ne(kind_code(kind)) | (len - 1).ge(max_len));
                let Restored { is_page, page: restored, refused_as } = decode(&page);
                k.sync_warp();
                code.set(match refused_as {
                    Some(refused_as) => is_page.select(PageStatus::Restored as u32, refused_as),
                    None => is_page.select(PageStatus::Restored as u32, PageStatus::BadBlock as u32),
                });
                k.if_uniform(*is_page, || page.write(restored));
            });
            k.when(lane.eq(0)).store(self.status.index(number), code);
            k.sync_warp();
        });
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
