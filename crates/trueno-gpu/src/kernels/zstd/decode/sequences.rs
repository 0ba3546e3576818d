//! Decodes the sequences section, 32 sequences at a time (section 3.1.1.3.2).

use super::constants::{Constants, EXTRA_SHIFT};
use super::execute::{Gather, PlacedSequences};
use super::format::{CODE_KINDS, MAX_SEQUENCES, MAX_TABLE_ENTRIES};
use super::frame::{Frame, LaneAccess, top_bits};
use super::fse::{FseEntry, FseTable};
use super::literals::Literals;
use super::offsets::OffsetHistory;
use super::weights::end_of_stream;
use crate::kernels::packed::PAGE_BYTES;
use crate::kernels::scan::scan;
use crate::types::Shared;
use crate::{Addr, Reg, Var};

/// Modes of a table.
const PREDEFINED: u32 = 0;
const RLE: u32 = 1;
const REPEAT: u32 = 3;

/// Shared memory for sequences.
#[derive(Clone, Copy)]
pub(super) struct SequenceBuffers<'k> {
    pub(super) tables: Addr<'k, Shared, u32>,
    /// For tables while they are built, and then for records.
    pub(super) scratch: Reg<'k, u32>,
    pub(super) constants: Constants<'k>,
}

/// A table of literal lengths, offsets or match lengths.
#[derive(Clone, Copy)]
pub(super) struct SequenceTable<'k> {
    pub(super) log: Var<'k, u32>,
    /// Address of the first entry.
    pub(super) entries: Var<'k, u32>,
}

/// Bytes of a record: a sequence's entries of the three tables, and the position after its extra bits.
const RECORD_BYTES: u32 = 16;
pub(super) const RECORDS_BYTES: u32 = 32 * RECORD_BYTES;

/// Decodes the sequences of a block that ends at `end`, and writes the page.
pub(super) fn decode_sequences<'k>(
    frame: Frame<'k>,
    buffers: SequenceBuffers<'k>,
    gather: Gather<'k>,
    literals: &Literals<'k>,
    end: Reg<'k, u32>,
) {
    let k = frame.k;
    let (count, at) = frame.read_sequence_count(literals.sequences_at, end);
    let at = k.var(at).named("at");
    k.if_else_uniform(
        count.eq(0),
        || frame.malformed_if(at.ne(end)),
        || run_sequences(frame, buffers, gather, literals, at, end, count),
    );
    gather.finish(frame, literals);
}

impl<'k> Frame<'k> {
    /// Reads the number of sequences at `start` of a block that ends at `end`. Returns it and the position after it.
    pub(super) fn read_sequence_count(self, start: Reg<'k, u32>, end: Reg<'k, u32>) -> (Reg<'k, u32>, Reg<'k, u32>) {
        self.k.section("sequences header");
        let head = self.window(start * 8, self.lanes);
        let first = head & 0xff;
        let (is_more, is_long) = (first.ge(128), first.eq(255));
        let two_bytes = (first - 128) * 256 + head.bfe(8u32, 8u32);
        let three_bytes = head.bfe(8u32, 16u32) + 0x7f00;
        let count = is_more.select(is_long.select(three_bytes, two_bytes), first).named("count");
        let at = start + is_more.select(is_long.select(3u32, 2u32), 1u32);
        self.malformed_if(at.gt(end) | count.gt(MAX_SEQUENCES));
        (count, at)
    }
}

fn run_sequences<'k>(
    frame: Frame<'k>,
    buffers: SequenceBuffers<'k>,
    gather: Gather<'k>,
    literals: &Literals<'k>,
    at: Var<'k, u32>,
    end: Reg<'k, u32>,
    count: Reg<'k, u32>,
) {
    let Frame { k, lane, .. } = frame;
    let coders = read_tables(frame, buffers, at, end);
    k.section("sequence states");
    let first_bit = (at * 8).named("first_bit");
    let stream_end = end_of_stream(frame, first_bit, end);
    let bits = k.var(frame.window_below(stream_end, LaneAccess::Uniform));
    let left = k.var(stream_end.as_i32()).named("left");
    let states = coders.map(|coder| {
        let state = k.var(top_bits(*bits, *coder.log)).named("state");
        bits.set(frame.after_top(*bits, *coder.log));
        left.set(left - coder.log.as_i32());
        state
    });
    frame.malformed_if(left.lt(first_bit.as_i32()));
    let history = OffsetHistory::new(k);
    let done = k.var(0u32).named("done");
    k.while_uniform(
        || done.lt(count),
        || {
            let batch = (count - done).min(32u32);
            walk_states(frame, coders, states, left, buffers.scratch, batch);
            // Lanes without a sequence read the last record.
            let record = lane.min(batch - 1).mad(RECORD_BYTES, buffers.scratch).shared::<u32>();
            let [literal_entry, offset_entry, match_entry, end] = record.load_vec();
            let end = end.as_i32();
            let is_active = lane.lt(batch);
            let is_last = (done + lane).eq(count - 1);

            k.section("sequence values");
            let codes = [(0, literal_entry), (2, match_entry)]
                .map(|(kind, entry)| buffers.constants.codes(kind).index(FseEntry(entry).symbol()).load());
            let offset_code = FseEntry(offset_entry).symbol();
            let [literal_bits, match_bits] = codes.map(|word| word >> EXTRA_SHIFT);
            let used = offset_code + literal_bits + match_bits;
            let after = end - used.as_i32();
            // Offsets, match lengths and literal lengths of a page never need more than 32 bits together: code 12 is an
            // offset of 4093 or more, after which a match of 3 bytes is the longest, and lengths of 11 extra bits are
            // half a page each.
            let overruns = after.lt(first_bit.as_i32()) | (is_last & after.ne(first_bit.as_i32()));
            let is_bad = offset_code.gt(12) | used.gt(32) | overruns;
            let bits = frame.window_below(end.max(32i32).as_u32(), LaneAccess::PerLane);
            let (offset_extra, bits) = (top_bits(bits, offset_code), frame.after_top(bits, offset_code));
            let (match_extra, bits) = (top_bits(bits, match_bits), frame.after_top(bits, match_bits));
            let [literal_base, match_base] = codes.map(|word| word & 0xff_ffff);
            let literal_len = is_active.select(literal_base + top_bits(bits, literal_bits), 0u32);
            let match_len = is_active.select(match_base + match_extra, 0u32);
            let has_literals = literal_len.ne(0);
            let value = is_active.select((1u32 << offset_code) + offset_extra, 1u32);
            let offset = history.resolve(k, lane, value, has_literals | !is_active);

            k.section("sequence positions");
            let literals_end = gather.used + scan(k, literal_len, |a, b| a + b);
            let through = scan(k, literal_len + match_len, |a, b| a + b);
            let output_end = gather.written + through;
            let match_start = output_end - match_len;
            let rest = literals.len - literals_end;
            let is_outside = literals_end.gt(literals.len) | (output_end + rest).gt(PAGE_BYTES);
            let too_far = (offset - 1).ge(match_start);
            frame.malformed_if((is_active & (is_bad | is_outside | too_far)).any());
            gather.run(
                frame,
                literals,
                &PlacedSequences {
                    is_active,
                    has_literals,
                    literal_start: match_start - literal_len,
                    literal_source: literals_end - literal_len,
                    match_start,
                    offset,
                    output_bytes: through.shfl(31u32),
                    literals_end: literals_end.shfl(31u32),
                },
            );
            done.set(done + 32);
        },
    );
}

/// Reads the tables of literal lengths, offsets and match lengths.
fn read_tables<'k>(
    frame: Frame<'k>,
    buffers: SequenceBuffers<'k>,
    at: Var<'k, u32>,
    end: Reg<'k, u32>,
) -> [SequenceTable<'k>; 3] {
    let Frame { k, lane, .. } = frame;
    frame.malformed_if(at.ge(end));
    let modes = k.var(frame.byte(*at, LaneAccess::Uniform)).named("modes");
    at.set(at + 1);
    frame.malformed_if((modes & 3).ne(0));
    let coders = [(); 3].map(|()| SequenceTable { log: k.var(0u32), entries: k.var(0u32) });
    let kind = k.var(0u32).named("kind");
    let entries = k.var(0u32).named("entries");
    k.do_while_uniform(|| {
        let mode = modes.bfe(6u32, 2u32);
        modes.set(modes << 2);
        let is_offset = kind.eq(1);
        let by_kind = |values: [u32; 3]| is_offset.select(values[1], kind.eq(0).select(values[0], values[2]));
        let max_symbol = by_kind(CODE_KINDS.map(|kind| kind.limits.max_symbol));
        let first = buffers.tables.index(*entries);
        let table =
            FseTable { entries: first, scratch: buffers.scratch, codes: Some(buffers.constants.codes_of(*kind)) };
        let log = k.var(by_kind(CODE_KINDS.map(|kind| kind.predefined_log))).named("log");
        frame.unsupported_if(mode.eq(REPEAT));
        k.if_else_uniform(
            mode.eq(RLE),
            || {
                let symbol = frame.byte(*at, LaneAccess::Uniform);
                frame.malformed_if(at.ge(end) | symbol.gt(max_symbol));
                at.set(at + 1);
                log.set(0u32);
                frame.unsupported_if(entries.ge(MAX_TABLE_ENTRIES));
                table.store_single(symbol);
            },
            || {
                k.if_else_uniform(
                    mode.eq(PREDEFINED),
                    || {
                        table.store_counts(lane, buffers.constants.counts_of(*kind, lane));
                        k.sync_warp();
                    },
                    || {
                        let bit = k.var(*at * 8);
                        let max_log = by_kind(CODE_KINDS.map(|kind| kind.limits.max_log));
                        log.set(table.read_counts(frame, bit, end * 8, max_log, max_symbol));
                        at.set(bit >> 3);
                    },
                );
                frame.unsupported_if((entries + (1u32 << *log)).gt(MAX_TABLE_ENTRIES));
                table.build(frame, *log);
            },
        );
        k.sync_warp();
        // After three rounds, each is in its place.
        for i in [0, 1] {
            coders[i].log.set(coders[i + 1].log);
            coders[i].entries.set(coders[i + 1].entries);
        }
        coders[2].log.set(log);
        coders[2].entries.set(first.raw());
        entries.set(entries + (1u32 << *log));
        kind.set(kind + 1);
        kind.lt(3)
    });
    coders
}

/// Walks the states of up to 32 sequences, one after the other, and leaves a record of each.
fn walk_states<'k>(
    frame: Frame<'k>,
    coders: [SequenceTable<'k>; 3],
    states: [Var<'k, u32>; 3],
    left: Var<'k, i32>,
    records: Reg<'k, u32>,
    batch: Reg<'k, u32>,
) {
    let Frame { k, lane, .. } = frame;
    k.section("sequence states");
    let record = k.var(records).named("record");
    let end = batch.mad(RECORD_BYTES, records);
    let writes = lane.eq(0);
    k.do_while_uniform(|| {
        let entries = [0, 1, 2]
            .map(|kind| FseEntry(states[kind].mad(4u32, *coders[kind].entries).shared::<u32>().load_uniform()));
        let [literals, offset, matched] = entries;
        k.when(writes).store_vec(record.shared::<u32>(), [literals.0, offset.0, matched.0, left.as_u32()]);
        let sum = FseEntry(literals.0 + offset.0 + matched.0);
        // An overrun stops at bit 32, before every stream, and is refused with the values.
        let state_end = (left - sum.extra_bits().as_i32()).max(32i32);
        let bits = frame.window_below(state_end.as_u32(), LaneAccess::Uniform);
        states[0].set(literals.next_state(bits));
        let bits = frame.after_top(bits, literals.0);
        states[2].set(matched.next_state(bits));
        states[1].set(offset.next_state(frame.after_top(bits, matched.0)));
        left.set(state_end - sum.state_bits().as_i32());
        record.set(record + RECORD_BYTES);
        record.lt(end)
    });
    k.sync_warp();
}
