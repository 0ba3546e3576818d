//! Limits the code lengths and assigns codes.

use super::super::find::Workspace;
use super::super::format::MAX_CODE_BITS;
use super::sort::for_each_32;
use super::tree::{ANCESTOR_MASK, DEPTH_SHIFT};
use super::{CODE_LENGTH_SHIFT, CODES, COUNTS, DIGITS, LEAVES, NEXT_CODES, NODES, SYMBOLS};
use crate::ir::AtomOp;
use crate::kernels::reduce::warp_sum;
use crate::kernels::scan::scan;
use crate::{Reg, ScopeLabel, Var};

/// The code length of each symbol, 1 byte each: the inner nodes are no longer needed.
const LENGTHS: u32 = NODES;

/// Number of codes of each length.
pub(super) struct Lengths<'k> {
    /// The lane's number is the length.
    pub(super) count: Var<'k, u32>,
    /// The longest length of a code; uniform.
    pub(super) longest: Reg<'k, u32>,
}

/// Counts the lengths and limits them. The limit is lower for fewer literals. Jumps out of the scope `raw` if no such code
/// exists.
pub(super) fn limit_lengths<'k>(
    ws: Workspace<'k>,
    symbols: Reg<'k, u32>,
    total: Reg<'k, u32>,
    raw: ScopeLabel<'k>,
) -> Lengths<'k> {
    let Workspace { k, lane, page, .. } = ws;
    k.section("huffman: limit the lengths");
    let own_digit = (page + DIGITS).shared::<u32>().index(lane);
    own_digit.store(0u32);
    k.sync_warp();
    let for_total = ((total - 1).bfind().max(2u32)) - 1;
    let limit = for_total.max((symbols - 1).bfind() + 2).min(MAX_CODE_BITS);
    for_each_32(ws, symbols, |n, inside| {
        let parent = k.when(inside).load_or((page + LEAVES).shared::<u32>().index(n), 0u32);
        let node = (page + NODES).shared::<u32>().index(parent & ANCESTOR_MASK).load();
        let depth = (node >> DEPTH_SHIFT) + 1;
        k.when(inside).reduce((page + DIGITS).shared::<u32>().index(depth.min(limit)), AtomOp::Add, 1u32);
    });
    k.sync_warp();
    let count = k.var(own_digit.load());
    k.sync_warp();
    // The code space used beyond what exists, in codes of the longest length.
    let used = warp_sum(k, lane.le(limit).select(count << (limit - lane), 0u32));
    let excess = k.var((used - (1u32 << limit)).as_i32());
    let move_one = |from: Reg<'k, u32>, to: Reg<'k, u32>| {
        k.when(lane.eq(from)).set(count, count - 1);
        k.when(lane.eq(to)).set(count, count + 1);
    };
    k.while_uniform(
        || excess.gt(0),
        || {
            let longest = (count.ne(0) & lane.lt(limit)).ballot().bfind();
            move_one(longest, longest + 1);
            excess.set(excess - (1u32 << (limit - 1 - longest)).as_i32());
        },
    );
    k.while_uniform(
        || excess.lt(0),
        || {
            raw.exit_if(!(lane.eq(limit) & count.ne(0)).any());
            move_one(limit, limit - 1);
            excess.set(excess + 1);
        },
    );
    let longest = count.ne(0).ballot().bfind();
    Lengths { count, longest }
}

/// Gives each symbol its length and code, and its weight at [`SYMBOLS`]; returns the bits of all literals, uniform.
pub(super) fn assign_codes<'k>(
    ws: Workspace<'k>,
    lengths: &Lengths<'k>,
    symbols: Reg<'k, u32>,
    last: Reg<'k, u32>,
) -> Reg<'k, u32> {
    let Workspace { k, lane, page, .. } = ws;
    let Lengths { count, longest } = *lengths;
    k.section("huffman: assign codes");
    store_first_codes(ws, lengths);
    for n in [0, 128] {
        (page + (LENGTHS + n) + lane * 4).shared::<u32>().store(0u32);
    }
    k.sync_warp();
    // Number of symbols whose length is at least the lane's number: the rarest ones.
    let at_least = symbols - (scan(k, *count, |a, b| a + b) - count);
    for_each_32(ws, symbols, |n, inside| {
        let length = k.var(0u32);
        for step in [8u32, 4, 2, 1] {
            let reached = n.lt(at_least.shfl(length + step));
            k.when(reached).set(length, length + step);
        }
        let symbol = k.when(inside).load_or((page + SYMBOLS + n).shared::<u8>(), 0u32);
        k.when(inside).store((page + LENGTHS + symbol).shared::<u8>(), length);
    });
    k.sync_warp();
    let bits = k.var(0u32);
    let below = k.lanemask_lt();
    for_each_32(ws, last + 1, |symbol, _| {
        let length = (page + LENGTHS + symbol).shared::<u8>().load();
        let peers = length.match_any();
        let next = (page + NEXT_CODES).shared::<u16>().index(length);
        let code = next.load() + (peers & below).popc();
        k.sync_warp();
        let has_code = length.ne(0);
        k.when(has_code & (peers >> lane).eq(1)).store(next, code + 1);
        (page + CODES).shared::<u16>().index(symbol).store(code | (length << CODE_LENGTH_SHIFT));
        let weight = has_code.select(longest + 1 - length, 0u32);
        (page + SYMBOLS + symbol).shared::<u8>().store(weight);
        bits.set(length.mad((page + COUNTS).shared::<u32>().index(symbol).load(), *bits));
        k.sync_warp();
    });
    warp_sum(k, *bits)
}

/// Stores the first code of each length: the longest start at 0.
fn store_first_codes<'k>(ws: Workspace<'k>, lengths: &Lengths<'k>) {
    let Workspace { k, lane, page, .. } = ws;
    let Lengths { count, longest } = *lengths;
    let (own, next, length) = (k.var(0u32), k.var(0u32), k.var(longest));
    k.do_while_uniform(|| {
        k.when(lane.eq(length)).set(own, next);
        next.set((next + count.shfl(*length)) >> 1);
        length.set(length - 1);
        length.ne(0)
    });
    k.when(lane.lt(16)).store((page + NEXT_CODES).shared::<u16>().index(lane), own);
}
