//! The tree's description: the weights of all symbols but the last, coded or 4 bits each, whichever is shorter.

use super::super::bits::{low_bits, or_bits};
use super::super::choices::{MANY_WEIGHTS, WEIGHTS_LOG};
use super::super::find::Workspace;
use super::super::format::{DIRECT_WEIGHTS_BASE, MAX_DIRECT_WEIGHTS, MAX_TREE_BYTES};
use super::super::fse::{Fse, SCRATCH_BYTES, STEP_BYTES, TableMemory, step_bits};
use super::code::Lengths;
use super::sort::for_each_32;
use super::{COUNTS, DESCRIPTION, LEAVES, SYMBOLS};
use crate::kernels::scan::scan;
use crate::{Reg, Var};

/// The step of each weight: the counts and lengths are no longer needed.
const WEIGHT_STEPS: u32 = COUNTS;
/// The table of the weights, in place of the leaves: 64 states, steps of up to 12 weights, scratch memory; then the
/// state before each step, 1 byte each.
const TABLE_STATES: u32 = LEAVES;
const TABLE_STEPS: u32 = TABLE_STATES + 128;
const TABLE_SCRATCH: u32 = TABLE_STEPS + 16 * STEP_BYTES;
const STATES: u32 = TABLE_SCRATCH + SCRATCH_BYTES;
const _: () = assert!(STATES + 256 <= SYMBOLS && WEIGHT_STEPS + 256 * STEP_BYTES <= LEAVES);

/// Coding is not tried if the estimate is longer than this.
const LONGEST_TRIED: u32 = 156;

/// Describes the weights at [`SYMBOLS`] at [`DESCRIPTION`], which is zeroed; returns the bytes, 0 if they cannot be
/// described.
pub(super) fn describe<'k>(
    ws: Workspace<'k>,
    lengths: &Lengths<'k>,
    symbols: Reg<'k, u32>,
    count: Reg<'k, u32>,
) -> Var<'k, u32> {
    let Workspace { k, lane, page, .. } = ws;
    let Lengths { count: of_length, longest } = *lengths;
    k.section("huffman: describe the weights");
    // Number of weights equal to the lane's number. The last symbol's weight is not described.
    let last = (page + SYMBOLS + count).shared::<u8>().load();
    let with_weight = lane.eq(0).select(count + 1 - symbols, of_length.shfl(longest + 1 - lane));
    let with_weight = with_weight - lane.eq(last).to_u32();
    let with_weight = lane.le(longest).select(with_weight, 0u32);
    let direct_fits = count.le(MAX_DIRECT_WEIGHTS);
    let direct_bytes = ((count + 1) >> 1) + 1;
    let bytes = k.var(0u32).named("description_bytes");
    let kinds = with_weight.ne(0).ballot().popc();
    k.if_uniform(count.ge(2) & kinds.ge(2), || {
        let most = direct_fits.select((direct_bytes + 4).min(LONGEST_TRIED), LONGEST_TRIED);
        code_weights(ws, with_weight, count, most, bytes);
    });
    let direct_is_shorter = bytes.eq(0) | direct_bytes.lt(bytes);
    k.if_uniform(direct_fits & direct_is_shorter, || {
        k.section("huffman: weights of 4 bits");
        bytes.set(direct_bytes);
        k.sync_warp();
        k.when(lane.eq(0)).store((page + DESCRIPTION).shared::<u8>(), count + DIRECT_WEIGHTS_BASE);
        for_each_32(ws, (count + 1) >> 1, |n, inside| {
            let pair = (page + SYMBOLS + (n << 1)).shared::<u8>();
            let first = k.when(inside).load_or(pair, 0u32);
            let second = k.when(((n << 1) + 1).lt(count)).load_or(pair.at(1), 0u32);
            k.when(inside).store((page + DESCRIPTION + n).shared::<u8>().at(1), (first << 4) | second);
        });
    });
    bytes
}

/// Codes the weights with two interleaved states, if the estimate is below `most` bytes. Sets the bytes of the
/// description if it is possible.
fn code_weights<'k>(
    ws: Workspace<'k>,
    with_weight: Reg<'k, u32>,
    count: Reg<'k, u32>,
    most: Reg<'k, u32>,
    bytes: Var<'k, u32>,
) {
    let Workspace { k, lane, page, .. } = ws;
    let fse = Fse { k, lane };
    let log = count.ge(MANY_WEIGHTS).select(WEIGHTS_LOG[1], WEIGHTS_LOG[0]);
    let none = k.value(0u32);
    let counts = [with_weight, none];
    let [cells, _] = fse.distribute(counts, count, log);
    let cells = [*cells, none];
    let out = page + DESCRIPTION;
    let head_end = (fse.describe(cells, log, out, 8) + 7) & !7u32;
    let promised = (head_end + (fse.cost(counts, cells, log) >> 8)) >> 3;
    k.if_uniform(promised.lt(most), || {
        let place =
            TableMemory { states: page + TABLE_STATES, steps: page + TABLE_STEPS, scratch: page + TABLE_SCRATCH };
        fse.build(cells, log, none, place);
        k.section("huffman: chains of weights");
        let last_states = run_chains(ws, fse, count);
        let end = k.var(head_end);
        k.block_uniform(|too_long| {
            write_states(ws, count, end, too_long);
            let states = [1u32, 0].map(|chain| low_bits(last_states.shfl(chain), log));
            let tail = states[0] | (states[1] << log) | (1u32 << (log << 1));
            or_bits(k, out, *end, [lane.eq(0).select(tail, 0u32), none]);
            let all_bytes = (end + (log << 1) + 1 + 7) >> 3;
            too_long.exit_if(all_bytes.gt(MAX_TREE_BYTES));
            bytes.set(all_bytes);
            k.sync_warp();
            k.when(lane.eq(0)).store(out.shared::<u8>(), all_bytes - 1);
        });
    });
    k.sync_warp();
}

/// Runs the chains of the weights at even and at odd places, from the last on, in lanes 0 and 1. Leaves the state
/// before each step at [`STATES`]; returns the last state of each chain.
fn run_chains<'k>(ws: Workspace<'k>, fse: Fse<'k>, count: Reg<'k, u32>) -> Var<'k, u32> {
    let Workspace { k, lane, page, .. } = ws;
    for_each_32(ws, count, |n, inside| {
        let weight = k.when(inside).load_or((page + SYMBOLS + n).shared::<u8>(), 0u32);
        let step = (page + TABLE_STEPS + weight * STEP_BYTES).shared::<u32>();
        let words = [k.var(0u32), k.var(0u32)];
        k.when(inside).load_vec(words, step);
        k.when(inside).store_vec((page + WEIGHT_STEPS + n * STEP_BYTES).shared::<u32>(), words);
    });
    k.sync_warp();
    let chain = lane & 1;
    // The last place with the chain's parity.
    let last = (count - 1) - ((count - 1 - chain) & 1);
    let step_at = k.var(page + WEIGHT_STEPS + last * STEP_BYTES);
    let state_at = k.var(page + STATES + last);
    let state = k.var(fse.first_state(step_at.shared::<u32>().load_vec()));
    let writes = lane.lt(2);
    let advance = |n: i32| {
        let step = step_at.shared::<u32>().byte_offset(-n * 2 * STEP_BYTES.cast_signed()).load_vec();
        k.when(writes).store(state_at.shared::<u8>().at(-n * 2), state);
        state.set(fse.next_state(step, *state));
    };
    let left = k.var((count >> 1) - 1);
    let move_on = |n: u32| {
        step_at.set(step_at - n * 2 * STEP_BYTES);
        state_at.set(state_at - n * 2);
        left.set(left - n);
    };
    k.while_uniform(
        || (left & 3).ne(0),
        || {
            advance(1);
            move_on(1);
        },
    );
    k.while_uniform(
        || left.ne(0),
        || {
            (1..=4).for_each(advance);
            move_on(4);
        },
    );
    // With an odd number of weights, those at even places are one more. The other chain is done.
    k.if_uniform((count & 1).ne(0) & count.gt(2), || {
        let finished = state.get();
        let first = (page + WEIGHT_STEPS).shared::<u32>();
        k.when(lane.eq(0)).store((page + STATES).shared::<u8>(), state);
        state.set(chain.eq(0).select(fse.next_state(first.load_vec(), finished), finished));
    });
    k.sync_warp();
    state
}

/// Writes the bits of the states, from the last weights on; leaves `too_long` when the description cannot become short
/// enough.
fn write_states<'k>(ws: Workspace<'k>, count: Reg<'k, u32>, end: Var<'k, u32>, too_long: crate::ScopeLabel<'k>) {
    let Workspace { k, lane, page, .. } = ws;
    k.section("huffman: bits of the weights");
    // The last two weights only set the states.
    let first = k.var(2u32);
    k.while_uniform(
        || first.lt(count),
        || {
            let n = first + lane;
            let inside = n.lt(count);
            let place = count - 1 - n;
            let state = k.when(inside).load_or((page + STATES + place).shared::<u8>(), 0u32);
            let bound = k.when(inside).load_or((page + WEIGHT_STEPS + place * STEP_BYTES).shared::<u32>(), 0u32);
            let bits = inside.select(step_bits(bound, state), 0u32);
            let through = scan(k, bits, |a, b| a + b);
            or_bits(k, page + DESCRIPTION, end + through - bits, [low_bits(state, bits), k.value(0u32)]);
            end.set(end + through.shfl(31u32));
            too_long.exit_if(end.gt(8 * MAX_TREE_BYTES));
            first.set(first + 32);
        },
    );
}
