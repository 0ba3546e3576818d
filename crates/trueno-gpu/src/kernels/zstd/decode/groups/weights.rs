//! Reads the weights of Huffman trees, one page per lane (section 4.2.1).

use super::super::format::WEIGHTS;
use super::super::frame::top_bits;
use super::group::{
    GROUP_PAGES, PageDescription, PageGroup, SEQUENCES_LANE_BYTES, WEIGHTS_LANE_BYTES, WEIGHTS_LIST_AT,
};
use super::parse::LanePage;
use super::tables::{CountLimits, ENTRY_BYTES, LaneTable, SYMBOL_SHIFT, list_bytes, next_state, state_bits};
use crate::{KernelBuilder, Reg};

/// The kind of literals that have a tree.
pub(super) const CODED: u32 = 2;

/// The most weights that are written; the last one follows from the others.
const MAX_WEIGHTS: u32 = 255;

/// The weights' word of a description: where the streams start, the number of weights, and whether the frame holds them
/// as they are. 0 if there are none.
pub(super) const COUNT_SHIFT: u32 = 16;
pub(super) const IS_DIRECT: u32 = 1 << 31;

/// Reads the weights of the lanes' pages and describes them to the second stage.
pub(super) fn prepare_weights<'k>(k: &'k KernelBuilder, lane: Reg<'k, u32>, page: &LanePage<'k>, group: PageGroup<'k>) {
    let frame = page.frame;
    k.section("Huffman weights, one page per lane");
    let has_tree = *page.is_there & page.literal_kind.eq(CODED);
    let head = frame.byte(has_tree, *page.held_at);
    let is_direct = head.ge(128);
    let direct_at = *page.held_at + 1 + ((head - 126) >> 1);
    let streams_at = is_direct.select(direct_at, *page.held_at + 1 + head);
    let is_tree = has_tree & streams_at.lt(*page.held_end) & head.ne(0);

    let memory = lane.mad(WEIGHTS_LANE_BYTES, group.work + GROUP_PAGES * SEQUENCES_LANE_BYTES);
    let list_len = list_bytes(WEIGHTS.max_symbol) / 2;
    let table = LaneTable { k, entries: memory, list: memory + WEIGHTS_LIST_AT, list_len, loads: frame.loads };
    let bit = k.var((*page.held_at + 1) * 8);
    let limits = CountLimits {
        end: streams_at * 8,
        max_log: k.value(WEIGHTS.max_log),
        max_symbol: k.value(WEIGHTS.max_symbol),
        room: k.value(1u32 << WEIGHTS.max_log),
    };
    let window = |wanted, bit| frame.window(wanted, bit);
    let counts = table.read_counts(window, is_tree & !is_direct, bit, limits);
    table.build(&counts);

    k.section("Huffman weights, one page per lane");
    let log = counts.log;
    let first_bit = bit.as_i32().named("first_bit");
    let last = frame.byte(counts.are_read, streams_at - 1);
    let has_stream = counts.are_read & last.ne(0) & bit.lt(streams_at * 8);
    let left = k.var(((streams_at - 1) * 8 + last.bfind()).as_i32()).named("left");
    let bits = frame.window_below(has_stream, *left);
    let states = [top_bits(bits, log), top_bits(bits << log, log)]
        .map(|state| k.var(state.mad(ENTRY_BYTES, memory)).named("state"));
    left.set(left - (log * 2).as_i32());
    let runs = k.var(has_stream & left.ge(first_bit)).named("runs");
    let is_complete = k.var(false).named("is_complete");
    let count = k.var(0u32).named("count");
    // The last eight weights, four bits each.
    let packed = k.var(0u32).named("packed");
    let place = k.var(group.weights(lane).raw()).named("place");
    let zero = k.value(0u32);
    let [first_entry, second_entry, third] = frame.loads.entries;
    let entries = [first_entry, second_entry];
    k.while_uniform(
        || runs.any(),
        || {
            let bits = frame.window_below(*runs, *left);
            for (entry, state) in entries.into_iter().zip(states) {
                k.when(*runs).load(entry, state.shared::<u16>());
            }
            let [first, second] = entries.map(|entry| entry.get());
            let [first_bits, second_bits] = [first, second].map(state_bits);
            let [first_symbol, second_symbol] = [first, second].map(|entry| entry.bfe(SYMBOL_SHIFT, 4u32));
            let pair = first_symbol | (second_symbol << 4);
            k.when(*runs).set(packed, packed.funnel_shr(pair, 8u32));
            k.when(*runs).set(count, count + 2);
            let is_full = *runs & (count & 7).eq(0);
            k.when(is_full).store(place.global::<u32>(), packed);
            k.when(is_full).set(place, place + 4u64);

            let left_by_first = left - first_bits.as_i32();
            let next = next_state(first, bits, first_bits).mad(ENTRY_BYTES, memory);
            left.set(left_by_first - second_bits.as_i32());
            states[0].set(next);
            states[1].set(next_state(second, zero.funnel_shl(bits, first_bits), second_bits).mad(ENTRY_BYTES, memory));
            let is_over = *runs & left.lt(first_bit);
            // The first state could still change when the second could not.
            let ends_with_first = is_over & left_by_first.ge(first_bit);
            k.when(ends_with_first).load(third, next.shared::<u16>());
            k.when(ends_with_first).set(packed, packed.funnel_shr(third.bfe(SYMBOL_SHIFT, 4u32), 4u32));
            k.when(ends_with_first).set(count, count + 1);
            k.when(ends_with_first & (count & 7).eq(0)).store(place.global::<u32>(), packed);
            is_complete.set(*is_complete | is_over);
            runs.set(*runs & !is_over & count.le(MAX_WEIGHTS - 2));
        },
    );
    let rest = count & 7;
    k.when(*is_complete & rest.ne(0)).store(place.global::<u32>(), *packed >> (32 - rest * 4));
    let coded = is_complete.select(streams_at | (*count << COUNT_SHIFT), 0u32);
    let direct = streams_at.or3((head - 127) << COUNT_SHIFT, IS_DIRECT);
    let word = (is_tree & is_direct).select(direct, coded);
    group.description(lane).at(PageDescription::WEIGHTS).store(word);
}
