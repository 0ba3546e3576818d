//! Encodes match records as LZ4 sequences, 32 at a time, one per lane.

use super::find::{Lz4Workspace, RECORD_BYTES};
use super::format::{MIN_MATCH, PAGE_BYTES, RUN_MASK};
use crate::kernels::scan::scan;
use crate::kernels::shared_copy::copy_by_warp;
use crate::{Pred, Reg, Var};

/// Literal runs up to this length are copied by their lane, longer ones by the whole warp.
const SHORT_RUN: u32 = 16;

/// End of the space for sequences in the staging buffer. The space after it is for the last token and its length.
const SEQUENCES_END: u32 = PAGE_BYTES - 16;

/// Returns the number of bytes that extend a length, 0 below 15: (length - 15) / 255 + 1, by multiplication.
fn extension_bytes<'k>(length: Reg<'k, u32>) -> Reg<'k, u32> {
    // Exact for sums below 65536.
    ((length + (255 - RUN_MASK)) * 0x8081) >> 23
}

/// Returns byte `n` of the extension of a length.
fn extension_byte<'k>(length: Reg<'k, u32>, n: u32) -> Reg<'k, u32> {
    (length - (RUN_MASK + 255 * n)).min(255u32)
}

/// The sequence that one lane encodes.
#[derive(Clone, Copy)]
struct LaneSequence<'k> {
    active: Pred<'k>,
    /// Shared address of the literals.
    literals: Reg<'k, u32>,
    literal_len: Reg<'k, u32>,
    /// Length of the match above the minimum.
    extra: Reg<'k, u32>,
    offset: Reg<'k, u32>,
    /// Number of bytes that extend each length.
    literal_ext: Reg<'k, u32>,
    match_ext: Reg<'k, u32>,
}

/// Encodes `count` records into the staging buffer, which overwrites the table. Returns the length of the block, or
/// [`PAGE_BYTES`] if it would not be shorter than the page.
pub(super) fn encode<'k>(ws: Lz4Workspace<'k>, count: Var<'k, u32>) -> Var<'k, u32> {
    let Lz4Workspace { k, lane, page, records, .. } = ws;
    let staging = ws.table;
    let len = k.var(PAGE_BYTES).named("len");
    k.block_uniform(|give_up| {
        k.section("encode 32 sequences at a time");
        // Offsets from the staging buffer and the page, so that the compiler sees them as uniform too.
        let written = k.var(0u32).named("written");
        let carried = k.var(0u32).named("carried");
        let done = k.var(0u32).named("done");
        let record = [k.var(0u32), k.var(0u32)];
        let load_records = |from: Reg<'k, u32>| {
            k.when(from.lt(count)).load_vec(record, records.step(from, RECORD_BYTES));
        };
        load_records(lane);
        k.while_uniform(
            || done.lt(count),
            || {
                let active = (done + lane).lt(count);
                // Lanes without a record use a harmless address, so that no load needs a guard.
                let start = active.select(record[0] & 0xfff, 8u32) + page;
                let offset = active.select(*record[1], 0u32);
                let found = record[0] >> 12;
                load_records(done + lane + 32);
                let end = start + found + MIN_MATCH;
                let (before, has_before) = end.shfl_up_checked(1u32);
                let literals = has_before.select(before, page + carried);
                let room = active.select(start - literals, 0u32);
                let back = backward(ws, start, offset, room);
                let literal_len = room - back;
                let extra = found + back;
                let sequence = LaneSequence {
                    active,
                    literals,
                    literal_len,
                    extra,
                    offset,
                    literal_ext: extension_bytes(literal_len),
                    match_ext: extension_bytes(extra),
                };
                let size = active.select(3 + literal_len + sequence.literal_ext + sequence.match_ext, 0u32);
                let through = scan(k, size, |a, b| a + b);
                let total = through.shfl(31u32);
                give_up.exit_if((written + total).gt(SEQUENCES_END));
                write(ws, &sequence, staging + written + (*through - size));
                written.set(written + total);
                let last_lane = (count - done - 1).min(31u32);
                carried.set((end - page).shfl(last_lane));
                done.set(done + 32);
            },
        );

        k.section("the last literals");
        let run = PAGE_BYTES - carried;
        let ext = extension_bytes(run);
        let block_len = written + 1 + ext + run;
        give_up.exit_if(block_len.ge(PAGE_BYTES));
        let token = (staging + written).shared::<u8>();
        k.when(lane.eq(0)).store(token, run.min(RUN_MASK) << 4);
        k.when(lane.lt(ext)).store(token.byte_add(lane).at(1), (run - RUN_MASK - lane * 255).min(255u32));
        copy_by_warp(k, lane, page + carried, staging + written + 1 + ext, run);
        len.set(block_len);
    });
    len
}

/// Returns the number of bytes before the match that are equal too, without going before the sequence or the source's
/// first word.
fn backward<'k>(ws: Lz4Workspace<'k>, start: Reg<'k, u32>, offset: Reg<'k, u32>, room: Reg<'k, u32>) -> Var<'k, u32> {
    let k = ws.k;
    let word_before = |address: Reg<'k, u32>| {
        let aligned = (address & !3u32).shared::<u32>();
        aligned.at(-1).load().funnel_shr(aligned.load(), address << 3)
    };
    let inside = ws.page + 4;
    let back = k.var(0u32).named("back");
    // Four bytes at a time; mostly once. A lane that has found a difference finds it again.
    k.do_while_uniform(|| {
        let at = start - back;
        let source = at - offset;
        // The word before the page's first word is not part of the page.
        let reachable = source.ge(inside);
        let differ = word_before(reachable.select(at, inside)) ^ word_before(reachable.select(source, inside));
        let equal = (differ.bfind_shiftamt() >> 3).min(4u32);
        let equal = reachable.select(equal, 0u32);
        back.set((back + equal).min(room));
        (equal.eq(4) & back.lt(room)).any()
    });
    back
}

/// Writes the sequences of all lanes, each to its own place.
fn write<'k>(ws: Lz4Workspace<'k>, s: &LaneSequence<'k>, place: Reg<'k, u32>) {
    let k = ws.k;
    let token = place.shared::<u8>();
    let literals_at = place + 1 + s.literal_ext;
    let offset_at = literals_at + s.literal_len;
    let offset_field = offset_at.shared::<u8>();
    let has_match_ext = s.active & s.match_ext.ne(0);
    k.when(s.active).store(token, (s.literal_len.min(RUN_MASK) << 4) | s.extra.min(RUN_MASK));
    k.when(s.literal_ext.ne(0)).store(token.at(1), extension_byte(s.literal_len, 0));
    k.when(s.active).store(offset_field, s.offset);
    k.when(s.active).store(offset_field.at(1), s.offset >> 8);
    k.when(has_match_ext).store(offset_field.at(2), extension_byte(s.extra, 0));
    let long = s.literal_len.max(s.extra).ge(RUN_MASK + 255) & s.active;
    k.if_uniform(long.any(), || {
        k.section("lengths of several bytes");
        let tail = |length: Reg<'k, u32>, bytes: Reg<'k, u32>, at: Reg<'k, u32>| {
            let n = k.var(1u32);
            k.while_uniform(
                || (s.active & n.lt(bytes)).any(),
                || {
                    let byte = (length - RUN_MASK - n * 255).min(255u32);
                    k.when(s.active & n.lt(bytes)).store((at + n).shared::<u8>(), byte);
                    n.set(n + 1);
                },
            );
        };
        tail(s.literal_len, s.literal_ext, place + 1);
        tail(s.extra, s.match_ext, offset_at + 2);
    });

    k.section("short literal runs, by their lanes");
    let is_long = s.literal_len.gt(SHORT_RUN);
    let (from, to) = (k.var(s.literals), k.var(literals_at));
    let left = k.var(is_long.select(0u32, s.literal_len).as_i32());
    let words = [k.var_arbitrary::<u32>(), k.var_arbitrary::<u32>()];
    k.while_uniform(
        || left.gt(0).any(),
        || {
            let aligned = (from & !3u32).shared::<u32>();
            k.when(left.gt(0)).load(words[0], aligned);
            k.when(left.gt(0)).load(words[1], aligned.at(1));
            let bytes = words[0].funnel_shr(words[1], from << 3);
            for n in 0..4i32 {
                let shift = 8 * n.cast_unsigned();
                k.when(left.gt(n)).store(to.shared::<u8>().at(n), bytes >> shift);
            }
            from.set(from + 4);
            to.set(to + 4);
            left.set(left - 4);
        },
    );

    k.section("long literal runs, by the warp");
    let runs = k.var(is_long.ballot());
    k.while_uniform(
        || runs.ne(0),
        || {
            let owner = (runs & (0 - runs)).bfind();
            runs.set(runs & (runs - 1));
            copy_by_warp(k, ws.lane, s.literals.shfl(owner), literals_at.shfl(owner), s.literal_len.shfl(owner));
        },
    );
}
