//! Writes the output by gathering. A bitmap marks where literal runs and matches start, and a table holds the distance
//! to the source of each. Then each lane fetches its own byte, 32 output bytes at a time.

use super::chain::{BlockInput, ChainPart, OUTPUT_MASK, PHANTOM_MATCH, SEGMENT_SHIFT};
use super::format::{LAST_LITERALS, MATCH_START_LIMIT, MIN_MATCH, PAGE_BYTES, RUN_MASK};
use crate::ir::AtomOp;
use crate::kernels::window::{follow_sources, repeat_pattern};
use crate::{KernelBuilder, Pred, Reg, Var};

/// One bit per output byte, and some more: a malformed block can be off by a phantom match before it is refused.
pub(super) const BITMAP_BYTES: u32 = 528;

/// Number of bytes between the block and the bitmap.
pub(super) const AFTER_BLOCK_BYTES: u32 = 16;

/// Two segments produce at least 5 output bytes, and a block is refused before it produces more than a page and a
/// phantom match.
const MAX_SEGMENTS: u32 = 1648;
const _: () = assert!(MAX_SEGMENTS > 2 * (PAGE_BYTES + PHANTOM_MATCH) / 5);
const _: () = assert!(BITMAP_BYTES * 8 > PAGE_BYTES + PHANTOM_MATCH);
pub(super) const SEGMENTS_BYTES: u32 = 2 * MAX_SEGMENTS;

/// The shared memory of a warp.
#[derive(Clone, Copy)]
pub(super) struct GatherTables<'k> {
    /// Address of the output.
    pub(super) output: Reg<'k, u32>,
    pub(super) bitmap: Reg<'k, u32>,
    /// Signed 16-bit distances from an output byte to its source, one per segment.
    pub(super) segments: Reg<'k, u32>,
}

/// Decodes the block into `tables.output`. Returns a predicate that holds if it decoded to exactly one page; uniform.
pub(super) fn decode<'k>(input: BlockInput<'k>, tables: GatherTables<'k>) -> Var<'k, bool> {
    let BlockInput { k, lane, .. } = input;
    let is_page = k.var(false).named("is_page");
    // The 16 bytes before the bitmap follow the block: a token in the last place may be read together with the next
    // byte.
    let cleared = 32 * 16;
    (tables.bitmap - AFTER_BLOCK_BYTES + lane * 16).shared::<u32>().store_vec([0u32; 4]);
    let rest = (tables.bitmap + (cleared - AFTER_BLOCK_BYTES) + lane * 4).shared::<u32>();
    k.when(lane.lt((BITMAP_BYTES + AFTER_BLOCK_BYTES - cleared) / 4)).store(rest, 0u32);
    k.sync_warp();
    k.block_uniform(|refuse| {
        let part = input.find_chain();
        let too_many = ((part.total & OUTPUT_MASK) - PAGE_BYTES).gt(PHANTOM_MATCH);
        refuse.exit_if(too_many);
        refuse.exit_if(!mark_segments(input, tables, &part));
        k.sync_warp();
        gather(k, lane, tables);
        is_page.set(true);
    });
    is_page
}

/// Walks the chain again, marks the starts of segments and stores their distances. Returns a predicate that holds if
/// the block is complete and every offset lies inside the page; uniform.
fn mark_segments<'k>(input: BlockInput<'k>, tables: GatherTables<'k>, part: &ChainPart<'k>) -> Pred<'k> {
    let BlockInput { k, end, .. } = input;
    k.section("mark segments");
    let at = k.var(part.first).named("at");
    let produced = k.var(part.before & OUTPUT_MASK).named("produced");
    let entry = k.var((part.before >> SEGMENT_SHIFT).mad(2u32, tables.segments)).named("entry");
    let active = k.var(at.lt(part.end));
    let (bad, complete) = (k.var(false), k.var(false));
    let mark = |starts: Pred<'k>, distance: Reg<'k, u32>| {
        let word = (produced >> 5).mad(4u32, tables.bitmap);
        // Not guarded, because the assembler would make it a branch. Without set bits it changes nothing.
        word.shared::<u32>().reduce(AtomOp::Or, starts.select(1u32 << (produced & 31), 0u32));
        k.when(starts).store(entry.shared::<u16>(), distance);
        k.when(starts).set(entry, entry + 2);
    };
    k.do_while_uniform(|| {
        let token = k.when(*active).load_or(at.shared::<u8>(), 0u32);
        let nibble = token >> 4;
        let long_literals = nibble.eq(RUN_MASK);
        let literal_more = k.when(long_literals).load_or(at.shared::<u8>().at(1), 0u32);
        let literals = k.var(at + 1 + long_literals.to_u32());
        let literal_len = k.var(nibble + literal_more);
        let literals_end = k.var(literals + literal_len);
        let match_nibble = token & RUN_MASK;
        let long_match = match_nibble.eq(RUN_MASK) & literals_end.lt(end - 2);
        let match_more = k.when(long_match).load_or(literals_end.shared::<u8>().at(2), 0u32);
        let extra = k.var(match_nibble + match_more);
        let next = k.var(literals_end + 2 + long_match.to_u32());
        let longer = literal_more.eq(255) | match_more.eq(255);
        k.if_uniform(longer.any(), || {
            let sequence = input.read_sequence(*at, *active);
            literals.set(sequence.literals);
            literal_len.set(sequence.literal_len);
            literals_end.set(sequence.literals + sequence.literal_len);
            extra.set(sequence.extra);
            next.set(sequence.next);
        });
        let has_literals = literal_len.ne(0) & *active;
        let has_match = *active & literals_end.lt(end);
        mark(has_literals, literals - tables.output - produced);
        k.when(*active).set(produced, produced + literal_len);
        let low = k.when(has_match).load_or(literals_end.shared::<u8>(), 0u32);
        let high = k.when(has_match).load_or(literals_end.shared::<u8>().at(1), 0u32);
        let offset = low | (high << 8);
        // An offset of 0 wraps to a huge number. Only the last literals show whether matches end in time.
        bad.set(*bad | (has_match & (offset - 1).ge(produced)) | (has_match & produced.gt(MATCH_START_LIMIT)));
        let is_last = *active & literals_end.eq(end);
        complete.set(*complete | (is_last & produced.eq(PAGE_BYTES) & literal_len.ge(LAST_LITERALS)));
        mark(has_match, 0 - offset);
        k.when(has_match).set(produced, produced + extra + MIN_MATCH);
        k.when(*active).set(at, next);
        active.set(*active & at.lt(part.end));
        active.any()
    });
    // A lane off the chain may have jumped to a sequence that runs past the input. The lanes after it then follow bytes
    // that are not tokens, and one of them may end like a block does. So the lane that reaches the end must do so with
    // the last literals.
    let ran_out = part.first.lt(part.end) & at.ge(end) & !*complete;
    !(*bad | ran_out).any() & complete.any()
}

/// Fetches every output byte from its source, which is the segment's distance away.
fn gather<'k>(k: &'k KernelBuilder, lane: Reg<'k, u32>, tables: GatherTables<'k>) {
    k.section("gather 128 output bytes a round");
    let up_to_own = k.lanemask_le();
    let place = k.var(tables.output + lane).named("place");
    // The entry of the segment that contains the byte before the window.
    let entry = k.var(tables.segments - 2).named("entry");
    let starts = k.var(tables.bitmap).named("starts");
    let done = k.var(0u32);
    k.do_while_uniform(|| {
        let words = starts.shared::<u32>().load_vec::<4>();
        for (bits, window) in words.into_iter().zip(0..) {
            let own_entry = (bits & up_to_own).popc().mad(2u32, entry);
            let distance = k.var(own_entry.shared::<i16>().load());
            entry.set(bits.popc().mad(2u32, entry));
            let inside = (lane.as_i32() + distance).as_u32().lt(32);
            k.if_uniform(inside.any(), || {
                k.if_else_uniform(
                    bits.eq(0).all(),
                    || repeat_pattern(k, lane, distance, *entry),
                    || follow_sources(k, lane, distance),
                );
            });
            let own = place.shared::<u8>().byte_offset(32 * window);
            let source = (place + distance.as_u32()).shared::<u8>().byte_offset(32 * window);
            own.store(source.load());
            k.sync_warp();
        }
        place.set(place + 128);
        starts.set(starts + 16);
        done.set(done + 128);
        done.lt(PAGE_BYTES)
    });
}
