//! Sorts symbols by their counts: a radix sort of 5 bits at a time, as many times as the largest count needs.

use super::super::find::Workspace;
use super::count::LiteralCounts;
use super::{DIGITS, LEAVES, NODES, SYMBOLS};
use crate::ir::AtomOp;
use crate::kernels::scan::scan;
use crate::{Reg, Var};

/// Position of the count in a key.
const COUNT_SHIFT: u32 = 8;
const DIGIT_BITS: u32 = 5;

/// Sorts the keys at [`NODES`]; leaves the counts, ascending, at [`LEAVES`] and the symbols at [`SYMBOLS`]. Symbols of
/// the same count stay in order.
pub(super) fn sort<'k>(ws: Workspace<'k>, counted: &LiteralCounts<'k>) {
    let Workspace { k, page, .. } = ws;
    let symbols = counted.symbols;
    k.section("huffman: sort");
    let largest = counted.largest(k);
    let (from, to) = (k.var(page + NODES), k.var(page + LEAVES));
    let shift = k.var(COUNT_SHIFT);
    k.do_while_uniform(|| {
        sort_by_digit(ws, *symbols, [from, to], *shift);
        let sorted = to.get();
        to.set(from);
        from.set(sorted);
        shift.set(shift + DIGIT_BITS);
        ((largest << COUNT_SHIFT) >> shift).ne(0)
    });
    k.section("huffman: leaves");
    for_each_32(ws, *symbols, |n, inside| {
        let key = k.when(inside).load_or((from + (n << 2)).shared::<u32>(), 0u32);
        k.sync_warp();
        k.when(inside).store((page + LEAVES).shared::<u32>().index(n), key >> COUNT_SHIFT);
        k.when(inside).store((page + SYMBOLS + n).shared::<u8>(), key);
        k.sync_warp();
    });
}

/// One pass: keys move to their places by one digit.
fn sort_by_digit<'k>(ws: Workspace<'k>, symbols: Reg<'k, u32>, [from, to]: [Var<'k, u32>; 2], shift: Reg<'k, u32>) {
    let Workspace { k, lane, page, .. } = ws;
    let own_digit = (page + DIGITS).shared::<u32>().index(lane);
    own_digit.store(0u32);
    k.sync_warp();
    let digit_of = |key: Reg<'k, u32>| key.bfe(shift, DIGIT_BITS);
    for_each_32(ws, symbols, |n, inside| {
        let key = k.when(inside).load_or((from + (n << 2)).shared::<u32>(), 0u32);
        let slot = (page + DIGITS).shared::<u32>().index(digit_of(key));
        k.when(inside).reduce(slot, AtomOp::Add, 1u32);
    });
    k.sync_warp();
    let count = own_digit.load();
    let through = scan(k, count, |a, b| a + b);
    own_digit.store(through - count);
    k.sync_warp();
    let below = k.lanemask_lt();
    for_each_32(ws, symbols, |n, inside| {
        let key = k.when(inside).load_or((from + (n << 2)).shared::<u32>(), 0u32);
        let digit = digit_of(key);
        let slot = (page + DIGITS).shared::<u32>().index(digit);
        // Lanes without a key are their own peers.
        let peers = inside.select(digit, 1u32 << DIGIT_BITS).match_any();
        let place = slot.load() + (peers & below).popc();
        k.sync_warp();
        k.when(inside).store((to + (place << 2)).shared::<u32>(), key);
        k.when(inside & (peers >> lane).eq(1)).store(slot, place + 1);
        k.sync_warp();
    });
}

/// Runs `body` for `n` from the lane's number on in steps of 32, with whether it is below `count`, until all are.
pub(super) fn for_each_32<'k>(
    ws: Workspace<'k>,
    count: Reg<'k, u32>,
    body: impl FnOnce(Reg<'k, u32>, crate::Pred<'k>),
) {
    let Workspace { k, lane, .. } = ws;
    let first = k.var(0u32);
    k.do_while_uniform(|| {
        let n = first + lane;
        body(n, n.lt(count));
        first.set(first + 32);
        first.lt(count)
    });
}
