//! Packs compressed pages in page order, without gaps except for alignment to 16 bytes, although warps finish them in
//! any order.
//!
//! The place of a page is the sum of the sizes before it. A warp publishes the size of a compressed page at once, sets
//! the page aside in scratch memory, and compresses the next one, or several more. By then the sizes before the first
//! page are almost always known, and the warp moves it to its place. The more the time per page varies, the more pages
//! a warp must be able to set aside: a warp without room waits for the slowest page. To find the place, the warp looks
//! back over the index, 32 entries at a time, to the nearest page whose place is known, and adds the sizes from there.
//! Running warps draw pages in order, so the earliest page without a place never waits, and no page waits forever.

use super::entry::{KIND_SHIFT, LEN_MASK, PACK_ALIGN_BYTES, STATE_PLACED, STATE_SHIFT, STATE_SIZED};
use super::{SET_ASIDE_BYTES, STEP_BYTES};
use crate::ir::{LoadHint, StoreHint};
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Var};

/// The part of the packing that one warp does.
pub(super) struct Packer<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) lane: Reg<'k, u32>,
    pub(super) index: Addr<'k, Global, u64>,
    /// The packed output, at the lane's first 16 bytes.
    pub(super) output: Addr<'k, Global, u32>,
    /// The first page set aside, at the lane's first 16 bytes.
    pub(super) aside: Addr<'k, Global, u32>,
    /// The places of several pages that are set aside; `None` if there is room for one.
    pub(super) ring: Option<AsideRing<'k>>,
    /// Number of the page set aside: in the lane of its place in a ring, otherwise in all lanes.
    pub(super) page: Var<'k, u32>,
    /// High half of its index entry, without the state; 0 if no page is set aside. Likewise.
    pub(super) entry: Var<'k, u32>,
}

/// Places in turn: a page takes the place of the one that was set aside first.
pub(super) struct AsideRing<'k> {
    /// A power of two up to 32.
    pub(super) places: u32,
    /// The next place; uniform.
    pub(super) next: Var<'k, u32>,
}

impl AsideRing<'_> {
    fn advance(&self) {
        self.next.set((self.next + 1) & (self.places - 1));
    }
}

/// A page set aside.
struct AsidePage<'k> {
    page: Reg<'k, u32>,
    entry: Reg<'k, u32>,
    /// The page's bytes, at the lane's first 16.
    bytes: Addr<'k, Global, u32>,
}

impl<'k> Packer<'k> {
    /// Publishes a page's length and kind, moves the page that was set aside first to its place if there is no room for
    /// another, and sets this one aside from shared memory at `bytes`.
    pub(super) fn hand_over(&self, page: Reg<'k, u32>, len: Reg<'k, u32>, kind: Reg<'k, u32>, bytes: Reg<'k, u32>) {
        let k = self.k;
        k.section("make the size known");
        let entry = len | (kind << KIND_SHIFT);
        self.publish(page, k.value(0u32), entry, STATE_SIZED);
        let oldest = self.oldest();
        self.move_to_place(&oldest);
        k.section("set the page aside");
        let from = (bytes + self.lane * 16).shared::<u32>();
        self.move_bytes(len, |at, inside| {
            let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
            k.when(inside).load_vec(words, from.byte_add(at));
            k.when(inside).store_vec(oldest.bytes.byte_add(at.to_u64()), words);
        });
        match &self.ring {
            None => {
                self.page.set(page);
                self.entry.set(entry);
            }
            Some(ring) => {
                let here = self.lane.eq(ring.next);
                k.when(here).set(self.page, page);
                k.when(here).set(self.entry, entry);
                ring.advance();
            }
        }
    }

    /// Moves all pages that are set aside to their places.
    pub(super) fn finish(&self) {
        let k = self.k;
        let Some(ring) = &self.ring else { return self.move_to_place(&self.oldest()) };
        let left = k.var(ring.places);
        k.do_while_uniform(|| {
            self.move_to_place(&self.oldest());
            ring.advance();
            left.set(left - 1);
            left.ne(0)
        });
    }

    /// Returns the page that was set aside first.
    fn oldest(&self) -> AsidePage<'k> {
        match &self.ring {
            None => AsidePage { page: *self.page, entry: *self.entry, bytes: self.aside },
            Some(ring) => AsidePage {
                page: self.page.shfl(*ring.next),
                entry: self.entry.shfl(*ring.next),
                bytes: self.aside.step(*ring.next, SET_ASIDE_BYTES),
            },
        }
    }

    /// Moves a page set aside, if there is one, to its place.
    fn move_to_place(&self, aside: &AsidePage<'k>) {
        let k = self.k;
        k.if_uniform(aside.entry.ne(0), || {
            let place = self.look_back(aside.page);
            self.publish(aside.page, place, aside.entry, STATE_PLACED);
            k.section("move the page to its place");
            let to = self.output.step(place, PACK_ALIGN_BYTES);
            self.move_bytes(aside.entry & LEN_MASK, |at, inside| {
                let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
                k.when(inside).load_vec(words, aside.bytes.byte_add(at.to_u64()));
                k.when(inside).store_vec(to.byte_add(at.to_u64()), words);
            });
        });
    }

    /// Writes the index entry of a page: its place, and its length and kind with the state.
    fn publish(&self, page: Reg<'k, u32>, place: Reg<'k, u32>, entry: Reg<'k, u32>, state: u32) {
        let bits = place.pack(entry | (state << STATE_SHIFT));
        self.k.when(self.lane.eq(0)).store_vec_with(StoreHint::Volatile, self.index.index(page), [bits]);
    }

    /// Calls `step` for each multiple of 512 below `len`, with a predicate that holds if the lane's 16 bytes there are
    /// needed.
    fn move_bytes(&self, len: Reg<'k, u32>, step: impl FnOnce(Reg<'k, u32>, Pred<'k>)) {
        let k = self.k;
        let at = k.var(0u32);
        k.do_while_uniform(|| {
            step(*at, (at + self.lane * 16).lt(len));
            at.set(at + STEP_BYTES);
            at.lt(len)
        });
    }

    /// Returns the sum of the sizes of all pages before `page`, in units of 16 bytes; uniform.
    fn look_back(&self, page: Reg<'k, u32>) -> Reg<'k, u32> {
        let k = self.k;
        k.section("look back for the page's place");
        let before = k.var(page).named("before");
        let place = k.var(0u32).named("place");
        k.loop_uniform(|searching| {
            // Treat the start of the batch as an empty page at place 0.
            let entry = k.var(u64::from(STATE_PLACED << STATE_SHIFT) << 32);
            let there_is = self.lane.lt(before);
            let address = self.index.index(before - self.lane - 1);
            k.when(there_is).load_vec_with(LoadHint::Volatile, [entry], address);
            let (entry_place, entry_high) = (entry.lo(), entry.hi());
            let state = entry_high >> STATE_SHIFT;
            let placed = state.eq(STATE_PLACED).ballot();
            let sized = state.ne(0).ballot();
            // The nearest page with a place, and the lanes nearer than it. If there is no such page, all lanes.
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
