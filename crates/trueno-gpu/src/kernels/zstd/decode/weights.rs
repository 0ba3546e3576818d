//! Reads the weights of a Huffman tree (section 4.2.1).

use super::format::WEIGHTS;
use super::frame::{Frame, LaneAccess};
use super::fse::{FseEntry, FseTable};
use crate::{Reg, Var};

/// Number of bytes for weights, one per symbol.
pub(super) const WEIGHTS_BYTES: u32 = 256;

/// The most weights that are written; the last one follows from the others.
const MAX_WEIGHTS: u32 = 255;

/// Four entries' state bits add up to less than their field holds.
const _: () = assert!(4 * WEIGHTS.max_log < 32);

/// The weights that are written, and where the streams start. All of it is uniform.
pub(super) struct Weights<'k> {
    pub(super) count: Var<'k, u32>,
    pub(super) streams_at: Var<'k, u32>,
}

/// Shared memory for weights.
#[derive(Clone, Copy)]
pub(super) struct WeightBuffers<'k> {
    /// Address of the weights, one byte each.
    pub(super) weights: Reg<'k, u32>,
    /// The table of their codes.
    pub(super) table: FseTable<'k>,
}

/// Reads the weights at `at` of the frame; bytes after them are 0. The streams must start before `end`.
pub(super) fn read_weights<'k>(
    frame: Frame<'k>,
    buffers: WeightBuffers<'k>,
    at: Reg<'k, u32>,
    end: Reg<'k, u32>,
) -> Weights<'k> {
    let Frame { k, lane, .. } = frame;
    let weights = buffers.weights;
    k.section("Huffman weights");
    (weights + lane * 8).shared::<u32>().store_vec([0u32; 2]);
    k.sync_warp();
    let head = frame.byte(at, LaneAccess::Uniform);
    let count = k.var(head - 127).named("count");
    let streams_at = k.var(at + 1 + head).named("streams_at");
    let is_direct = head.ge(128);
    k.when(is_direct).set(streams_at, at + 1 + ((count + 1) >> 1));
    frame.malformed_if(head.eq(0) | streams_at.ge(end));
    k.if_else_uniform(
        is_direct,
        || read_direct(frame, weights, at + 1, *count),
        || read_coded(frame, buffers, at + 1, *streams_at, count),
    );
    k.sync_warp();
    Weights { count, streams_at }
}

/// Reads weights of four bits each, the first in the high half of its byte.
pub(super) fn read_direct<'k>(frame: Frame<'k>, weights: Reg<'k, u32>, at: Reg<'k, u32>, count: Reg<'k, u32>) {
    let Frame { k, lane, .. } = frame;
    let first = k.var(0u32);
    k.do_while_uniform(|| {
        let i = first + lane;
        let byte = frame.byte(at + (i >> 1), LaneAccess::PerLane);
        let shift = 4 - (i & 1) * 4;
        k.when(i.lt(count)).store((weights + i).shared::<u8>(), (byte >> shift) & 15);
        first.set(first + 32);
        first.lt(count)
    });
}

/// Reads weights that two FSE states produce in turn, until the stream is used up.
fn read_coded<'k>(
    frame: Frame<'k>,
    buffers: WeightBuffers<'k>,
    at: Reg<'k, u32>,
    end: Reg<'k, u32>,
    count: Var<'k, u32>,
) {
    let k = frame.k;
    let WeightBuffers { weights, table } = buffers;
    let bit = k.var(at * 8);
    let log = table.read_counts(frame, bit, end * 8, WEIGHTS.max_log, WEIGHTS.max_symbol);
    table.build(frame, log);
    k.section("Huffman weights");
    let first_bit = bit.get();
    let stream_end = end_of_stream(frame, first_bit, end);
    let bits = frame.window_below(stream_end, LaneAccess::Uniform);
    let states =
        [bits >> (32 - log), frame.after_top(bits, log) >> (32 - log)].map(|state| k.var(state).named("state"));
    let left = k.var(stream_end - log * 2).named("left");
    frame.malformed_if(left.lt(first_bit));
    count.set(0u32);
    let entry_of = |state: Reg<'k, u32>| FseEntry(table.entries.index(state).load_uniform());
    read_pairs_of_pairs(frame, buffers, &WeightStream { states, left, first_bit }, count);
    let last_state = k.var(0u32);
    // Holds if the first state could still change when the second could not.
    let ends_with_first = k.var(false);
    k.loop_uniform(|pairs| {
        let [first, second] = states.map(|state| entry_of(*state));
        let bits = frame.window_below(*left, LaneAccess::Uniform);
        (weights + count).shared::<u16>().store_conflicting(first.two_plain_symbols(second));
        count.set(count + 2);
        // At most 12 bits, and more than that lie before any stream.
        let left_by_first = left - first.state_bits();
        left.set(left_by_first - second.state_bits());
        last_state.set(first.next_state(bits));
        ends_with_first.set(left_by_first.ge(first_bit));
        pairs.break_if(left.lt(first_bit) | count.gt(MAX_WEIGHTS - 2));
        states[0].set(last_state);
        states[1].set(second.next_state(frame.after_top(bits, first.0)));
    });
    frame.malformed_if(left.ge(first_bit));
    k.if_uniform(*ends_with_first, || {
        (weights + count).shared::<u8>().store_conflicting(entry_of(*last_state).plain_symbol());
        count.set(count + 1);
    });
}

/// The stream of coded weights.
struct WeightStream<'k> {
    states: [Var<'k, u32>; 2],
    /// Position after the bits to come.
    left: Var<'k, u32>,
    first_bit: Reg<'k, u32>,
}

/// Reads four weights per window, as long as the bits surely last.
fn read_pairs_of_pairs<'k>(
    frame: Frame<'k>,
    buffers: WeightBuffers<'k>,
    stream: &WeightStream<'k>,
    count: Var<'k, u32>,
) {
    let k = frame.k;
    let WeightBuffers { weights, table } = buffers;
    let WeightStream { states, left, first_bit } = *stream;
    let enough = (first_bit + 4 * WEIGHTS.max_log).named("enough");
    k.while_uniform(
        || left.ge(enough) & count.le(MAX_WEIGHTS - 7),
        || {
            let bits = k.var(frame.window_below(*left, LaneAccess::Uniform));
            let used = k.var(0u32);
            let entries = [states[0], states[1], states[0], states[1]].map(|state| {
                let entry = FseEntry(table.entries.index(*state).load_uniform());
                state.set(entry.next_state(*bits));
                bits.set(frame.after_top(*bits, entry.0));
                used.set(used + entry.0);
                entry
            });
            let [low, high] = [0, 2].map(|i| entries[i].two_plain_symbols(entries[i + 1]));
            (weights + count).shared::<u32>().store_conflicting(low.prmt(high, 0x5410u32));
            left.set(left - FseEntry(*used).state_bits());
            count.set(count + 4);
        },
    );
}

/// Returns the position of the mark that ends a stream between bit `first_bit` and byte `end`: the highest set bit of
/// its last byte. Refuses a stream without one.
pub(super) fn end_of_stream<'k>(frame: Frame<'k>, first_bit: Reg<'k, u32>, end: Reg<'k, u32>) -> Reg<'k, u32> {
    let last = frame.byte(end - 1, LaneAccess::Uniform);
    frame.malformed_if(last.eq(0) | first_bit.ge(end * 8));
    (end - 1) * 8 + last.bfind()
}
