//! Walks the sequences of frames, one page per lane, and leaves a record of each (sections 3.1.1.3.2 and 3.1.1.5).

use super::super::format::CODE_KINDS;
use super::super::frame::top_bits;
use super::super::sequences::SequenceTable;
use super::frame::GuardedLoads;
use super::group::{
    PageDescription, PageGroup, RECORD_BYTES, SEQUENCES_LANE_BYTES, SEQUENCES_LIST_AT, SEQUENCES_STAGE_AT,
    TABLE_ENTRIES,
};
use super::lookup::{LENGTH_SHIFT, MATCH_CODES_AT, MIN_MATCH, SharedTables};
use super::parse::LanePage;
use super::ring::{BitRing, MAX_BITS_PER_REFILL, Staged};
use super::tables::{CountLimits, ENTRY_BYTES, LaneTable, MAX_LOG, SYMBOL_SHIFT, list_bytes, next_state, state_bits};
use crate::kernels::packed::PAGE_BYTES;
use crate::kernels::reduce::warp_max;
use crate::types::Global;
use crate::{Addr, KernelBuilder, Reg, Var};

/// Modes of a table.
const PREDEFINED: u32 = 0;
const RLE: u32 = 1;
const CODED: u32 = 2;

/// The most extra bits of a sequence. Offset, match length and literal length of a page never need more together: see
/// `decode_sequences`.
const MAX_EXTRA_BITS: u32 = 32;
/// Two sequences between refills, with the bits of three states each.
const _: () = assert!(2 * (MAX_EXTRA_BITS + 3 * MAX_LOG) <= MAX_BITS_PER_REFILL);

/// Walks the sequences of the lanes' pages and describes the pages to the second stage.
pub(super) fn prepare_sequences<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    page: &LanePage<'k>,
    group: PageGroup<'k>,
    lookup: SharedTables<'k>,
) {
    let description = group.description(lane);
    description.at(PageDescription::HELD).store(*page.held_at | (*page.held_end << 16));
    let memory = (lane.mad(SEQUENCES_LANE_BYTES, group.work)).named("memory");
    // A page without sequences has nothing behind their number.
    let is_empty = page.sequences.eq(0) & page.at.eq(*page.end);
    let walks = k.var(*page.is_there & page.sequences.ne(0)).named("walks");
    let coders = read_tables(k, page, walks, memory, lookup);
    let walk = SequenceWalk::start(k, page, walks, coders, memory + SEQUENCES_STAGE_AT);
    walk.run(page, group.records(lane), lookup);
    let ends_whole = walk.literals.le(*page.literal_len)
        & (walk.written + *page.literal_len - walk.literals).eq(PAGE_BYTES)
        & walk.end.eq(walk.first_bit);
    let is_prepared = *page.is_there & (is_empty | *walks) & !*walk.is_bad & ends_whole;
    description.at(PageDescription::SIZES).store(is_prepared.select(*page.sizes, 0u32));
}

/// Reads the tables of literal lengths, offsets and match lengths. `walks` stays where all three are there.
fn read_tables<'k>(
    k: &'k KernelBuilder,
    page: &LanePage<'k>,
    walks: Var<'k, bool>,
    memory: Reg<'k, u32>,
    lookup: SharedTables<'k>,
) -> [SequenceTable<'k>; 3] {
    let (frame, at, end) = (page.frame, page.at, *page.end);
    k.section("sequence tables, one page per lane");
    walks.set(*walks & at.lt(end));
    let staged = Staged::bring(frame, memory + SEQUENCES_STAGE_AT, *walks, *at);
    let modes = k.var(staged.window(*walks, *at * 8) & 0xff).named("modes");
    at.set(at + 1);
    walks.set(*walks & (modes & 3).eq(0));
    let coders = [(); 3].map(|()| SequenceTable { log: k.var(0u32), entries: k.var(0u32) });
    let kind = k.var(0u32).named("kind");
    let used = k.var(0u32).named("used");
    k.do_while_uniform(|| {
        let by_kind = |values: [u32; 3]| kind.eq(1).select(values[1], kind.eq(0).select(values[0], values[2]));
        let mode = modes.bfe(6u32, 2u32);
        modes.set(modes << 2);
        let max_symbol = by_kind(CODE_KINDS.map(|kind| kind.limits.max_symbol));
        let (is_single, is_coded) = (*walks & mode.eq(RLE), *walks & mode.eq(CODED));
        let entries = used.mad(ENTRY_BYTES, memory).named("entries");
        let room = TABLE_ENTRIES - *used;

        let symbol = staged.window(is_single & at.lt(end), *at * 8) & 0xff;
        let is_single_there = is_single & at.lt(end) & symbol.le(max_symbol) & room.ge(2);
        k.when(is_single_there).store(entries.shared::<u16>(), symbol << SYMBOL_SHIFT);

        let (max_log, bit) = (by_kind(CODE_KINDS.map(|kind| kind.limits.max_log)), k.var(*at * 8));
        let list_len = list_bytes(CODE_KINDS[2].limits.max_symbol) / 2;
        let table = LaneTable { k, entries, list: memory + SEQUENCES_LIST_AT, list_len, loads: frame.loads };
        let log = k.var(by_kind(CODE_KINDS.map(|kind| kind.predefined_log))).named("log");
        let is_there = k.var(is_single_there | mode.eq(PREDEFINED));
        k.if_uniform(is_coded.any(), || {
            let window = |wanted, bit| staged.window(wanted, bit);
            let counts =
                table.read_counts(window, is_coded, bit, CountLimits { end: end * 8, max_log, max_symbol, room });
            table.build(&counts);
            k.when(is_coded).set(log, counts.log);
            is_there.set(*is_there | counts.are_read);
        });
        k.when(is_single).set(log, 0u32);
        walks.set(*walks & *is_there);
        at.set(is_coded.select(*bit >> 3, *at + is_single.to_u32()));
        let predefined = lookup.table(by_kind(SharedTables::tables_at()));
        // After three rounds, each is in its place.
        for i in [0, 1] {
            coders[i].log.set(coders[i + 1].log);
            coders[i].entries.set(coders[i + 1].entries);
        }
        coders[2].log.set(log);
        coders[2].entries.set(mode.eq(PREDEFINED).select(predefined, entries));
        // Two entries for a table of one, so that tables start at words.
        let more = mode.eq(PREDEFINED).select(0u32, (1u32 << *log).max(2u32));
        used.set(walks.select(used + more, used));
        kind.set(kind + 1);
        kind.lt(3)
    });
    coders
}

/// A walk over the sequences.
struct SequenceWalk<'k> {
    k: &'k KernelBuilder,
    ring: BitRing<'k>,
    coders: [SequenceTable<'k>; 3],
    /// Addresses of the entries of the three states.
    states: [Var<'k, u32>; 3],
    /// Position after the bits to come.
    left: Var<'k, i32>,
    first_bit: Reg<'k, i32>,
    /// Position after the bits to come when the last sequence was read.
    end: Var<'k, i32>,
    /// Bytes of the page, and literals, up to here.
    written: Var<'k, u32>,
    literals: Var<'k, u32>,
    is_bad: Var<'k, bool>,
    /// Number of sequences; 0 if there is nothing to walk.
    count: Reg<'k, u32>,
}

impl<'k> SequenceWalk<'k> {
    fn start(
        k: &'k KernelBuilder,
        page: &LanePage<'k>,
        walks: Var<'k, bool>,
        coders: [SequenceTable<'k>; 3],
        ring: Reg<'k, u32>,
    ) -> Self {
        k.section("sequences, one page per lane");
        let (frame, end) = (page.frame, *page.end);
        let first_bit = (*page.at * 8).as_i32().named("first_bit");
        walks.set(*walks & page.at.lt(end));
        let last = frame.byte(*walks, end - 1);
        walks.set(*walks & last.ne(0));
        let left = k.var(((end - 1) * 8 + last.bfind()).as_i32()).named("left");
        let ring = BitRing::start(frame, ring, *walks, *left);
        let bits = k.var(ring.window_below(*walks, *left));
        let states = coders.map(|coder| {
            let state = k.var(top_bits(*bits, *coder.log).mad(ENTRY_BYTES, *coder.entries)).named("state");
            bits.set(*bits << *coder.log);
            left.set(left - coder.log.as_i32());
            state
        });
        walks.set(*walks & left.ge(first_bit));
        Self {
            k,
            ring,
            coders,
            states,
            left,
            first_bit,
            end: k.var(first_bit).named("end"),
            written: k.var(0u32).named("written"),
            literals: k.var(0u32).named("literals"),
            is_bad: k.var(false).named("is_bad"),
            count: walks.select(*page.sequences, 0u32).named("count"),
        }
    }

    /// Walks all sequences. What is wrong with them shows at the end: literals, output and bits only add up, so the
    /// sums bound every step. An offset is checked where it is used.
    fn run(&self, page: &LanePage<'k>, records: Addr<'k, Global, u32>, lookup: SharedTables<'k>) {
        let Self { k, left, written, literals, .. } = *self;
        let most = warp_max(k, self.count).named("most");
        let codes = lookup.codes();
        let zero = k.value(0u32);
        let history = [1u32, 4, 8].map(|offset| k.var(offset).named("repeated"));
        let record = k.var(records.raw()).named("record");
        let done = k.var(0u32).named("done");
        let GuardedLoads { entries, codes: code_halves, .. } = page.frame.loads;
        k.while_uniform(
            || done.lt(most),
            || {
                let runs = done.lt(self.count);
                for (entry, state) in entries.into_iter().zip(self.states) {
                    k.when(runs).load(entry, state.shared::<u16>());
                }
                let [literal_entry, offset_entry, match_entry] = entries.map(|entry| entry.get());
                for (half, (entry, at)) in
                    code_halves.into_iter().zip([(literal_entry, 0), (match_entry, MATCH_CODES_AT)])
                {
                    // Twice the symbol, which is the place of its half word.
                    let place = (entry >> (SYMBOL_SHIFT - 1)).and_or(0x7eu32, codes);
                    k.when(runs).load(half, place.shared::<u16>().byte_offset(at.cast_signed()));
                }
                let [literal_code, match_code] = code_halves.map(|half| half.get());
                let offset_code = offset_entry.bfe(SYMBOL_SHIFT, 6u32);

                let bits = self.ring.window_below(runs, *left);
                let value = bits.funnel_shl(1u32, offset_code);
                let bits = zero.funnel_shl(bits, offset_code);
                let match_len = bits.funnel_shl(match_code >> LENGTH_SHIFT, match_code) + MIN_MATCH;
                let bits = zero.funnel_shl(bits, match_code);
                let literal_len = bits.funnel_shl(literal_code >> LENGTH_SHIFT, literal_code);
                let used = (offset_code + match_code + literal_code) & 0xff;
                let extra_end = left - used.as_i32();
                k.when(runs).set(self.end, extra_end);

                let offset = resolve(k, history, value, literal_len);
                let match_start = written + literal_len;
                let is_wrong = used.gt(MAX_EXTRA_BITS) | (offset - 1).ge(match_start);
                self.is_bad.set(*self.is_bad | (is_wrong & runs));
                let match_end = match_start + match_len;
                let halves = [match_start | (offset << 16), match_end | (*literals << 16)];
                k.when(runs).store_vec(record.global::<u32>(), halves);
                k.when(runs).set(written, match_end);
                k.when(runs).set(literals, literals + literal_len);
                record.set(record + u64::from(RECORD_BYTES));

                let bits = k.var(self.ring.window_below(runs, extra_end));
                let state_end = k.var(extra_end);
                for kind in [0, 2, 1] {
                    let entry = entries[kind].get();
                    let count = state_bits(entry);
                    let next = next_state(entry, *bits, count);
                    self.states[kind].set(next.mad(ENTRY_BYTES, *self.coders[kind].entries));
                    bits.set(zero.funnel_shl(*bits, count));
                    state_end.set(state_end - count.as_i32());
                }
                left.set(state_end);
                done.set(done + 1);
                k.if_uniform((*done & 1).eq(0), || self.ring.refill(runs, *left));
            },
        );
    }
}

/// Returns the offset that a sequence's value stands for, and takes it over. 1 to 3 are repeated offsets, one further
/// without literals. An offset of 0 comes out as 0.
fn resolve<'k>(
    k: &'k KernelBuilder,
    [first, second, third]: [Var<'k, u32>; 3],
    value: Reg<'k, u32>,
    literal_len: Reg<'k, u32>,
) -> Reg<'k, u32> {
    let which = value + literal_len.eq(0).to_u32();
    let is_new = value.gt(3);
    // 1 to 3: one of the history. 4: the first less one.
    let repeated = k.var(*first);
    k.when(which.eq(2)).set(repeated, second);
    k.when(which.eq(3)).set(repeated, third);
    k.when(which.eq(4)).set(repeated, first - 1);
    let offset = is_new.select(value - 3, *repeated);
    k.when(which.gt(2)).set(third, second);
    k.when(which.gt(1)).set(second, first);
    first.set(offset);
    offset
}
