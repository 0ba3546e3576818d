//! Packing: compressed pages leave in page order, without gaps but for the alignment to 16 bytes, though warps finish them
//! in any order.
//!
//! A page's place is the sum of the sizes before it. A warp that has compressed a page makes its size known at once,
//! sets the page aside in scratch memory, and goes on to the next; when that one is done, the sizes before the first
//! are almost always known, and it is moved to its place. To find the place, the warp looks back over the index, 32
//! entries at a time, to the nearest page whose place is known, and adds up the sizes from there. Since pages are
//! drawn in order by warps that run, the earliest page without a place never waits, so none waits for ever.

use super::STEP_BYTES;
use super::entry::{KIND_SHIFT, LEN_MASK, PACK_ALIGN_BYTES, STATE_PLACED, STATE_SHIFT, STATE_SIZED};
use crate::ir::{LoadHint, StoreHint};
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Var};

/// The warp's end of the packing.
pub(super) struct Packer<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) lane: Reg<'k, u32>,
    pub(super) index: Addr<'k, Global, u64>,
    /// The packed output, at the lane's first 16 bytes.
    pub(super) output: Addr<'k, Global, u32>,
    /// The page set aside, at the lane's first 16 bytes.
    pub(super) aside: Addr<'k, Global, u32>,
    /// The number of the page set aside.
    pub(super) page: Var<'k, u32>,
    /// The high half of its index entry, without the state; 0 if there is none.
    pub(super) entry: Var<'k, u32>,
}

impl<'k> Packer<'k> {
    /// Makes a page's length and kind known, moves the page set aside before to its place, and sets this one aside from
    /// shared memory at `bytes`.
    pub(super) fn hand_over(&self, page: Reg<'k, u32>, len: Reg<'k, u32>, kind: Reg<'k, u32>, bytes: Reg<'k, u32>) {
        let k = self.k;
        k.section("make the size known");
        let entry = len | (kind << KIND_SHIFT);
        self.announce(page, k.value(0u32), entry, STATE_SIZED);
        self.settle();
        k.section("set the page aside");
        let from = (bytes + self.lane * 16).shared::<u32>();
        self.move_bytes(len, |at, inside| {
            let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
            k.when(inside).load_vec(words, from.byte_add(at));
            k.when(inside).store_vec(self.aside.byte_add(at.to_u64()), words);
        });
        self.page.set(page);
        self.entry.set(entry);
    }

    /// Moves the page set aside, if there is one, to its place.
    pub(super) fn settle(&self) {
        let k = self.k;
        k.if_uniform(self.entry.ne(0), || {
            let place = self.look_back();
            self.announce(*self.page, place, *self.entry, STATE_PLACED);
            k.section("move the page to its place");
            let to = self.output.step(place, PACK_ALIGN_BYTES);
            self.move_bytes(*self.entry & LEN_MASK, |at, inside| {
                let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
                k.when(inside).load_vec(words, self.aside.byte_add(at.to_u64()));
                k.when(inside).store_vec(to.byte_add(at.to_u64()), words);
            });
        });
    }

    fn announce(&self, page: Reg<'k, u32>, place: Reg<'k, u32>, entry: Reg<'k, u32>, state: u32) {
        let bits = place.pack(entry | (state << STATE_SHIFT));
        self.k.when(self.lane.eq(0)).store_vec_with(StoreHint::Volatile, self.index.index(page), [bits]);
    }

    /// Calls `step` with a multiple of 512 and whether the lane's 16 bytes there are wanted, until `len` is covered.
    fn move_bytes(&self, len: Reg<'k, u32>, step: impl FnOnce(Reg<'k, u32>, Pred<'k>)) {
        let k = self.k;
        let at = k.var(0u32);
        k.do_while_uniform(|| {
            step(*at, (at + self.lane * 16).lt(len));
            at.set(at + STEP_BYTES);
            at.lt(len)
        });
    }

    /// The sum of the sizes of all pages before the one set aside, in units of 16 bytes; uniform.
    fn look_back(&self) -> Reg<'k, u32> {
        let k = self.k;
        k.section("look back for the page's place");
        let before = k.var(*self.page).named("before");
        let place = k.var(0u32).named("place");
        k.loop_uniform(|searching| {
            // Before the first page lies, as it were, a page of no bytes at place 0.
            let entry = k.var(u64::from(STATE_PLACED << STATE_SHIFT) << 32);
            let there_is = self.lane.lt(before);
            let address = self.index.index(before - self.lane - 1);
            k.when(there_is).load_vec_with(LoadHint::Volatile, [entry], address);
            let (entry_place, entry_high) = (entry.lo(), entry.hi());
            let state = entry_high >> STATE_SHIFT;
            let placed = state.eq(STATE_PLACED).ballot();
            let sized = state.ne(0).ballot();
            // The nearest page with a place, and the lanes nearer than it: all of them if there is none.
            let nearest = placed.brev().bfind_shiftamt();
            let nearer = (1u32 << nearest) - 1;
            searching.continue_if((sized & nearer).ne(nearer));
            let size = ((entry_high & LEN_MASK) + (PACK_ALIGN_BYTES - 1)) >> 4;
            let is_nearest = self.lane.eq(nearest);
            let part = k.var(0u32);
            k.when(self.lane.lt(nearest)).set(part, size);
            k.when(is_nearest).set(part, size + entry_place);
            for distance in [16u32, 8, 4, 2, 1] {
                part.set(part + part.shfl_xor(distance));
            }
            place.set(place + part.shfl(0u32));
            searching.break_if(placed.ne(0));
            before.set(before - 32);
        });
        *place
    }
}
