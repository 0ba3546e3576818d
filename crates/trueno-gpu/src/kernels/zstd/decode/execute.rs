//! Writes the page by gathering: a bitmap marks where literal runs and matches start, a table holds the distance to the
//! source of each, and each lane fetches its own byte, 32 output bytes at a time.

use super::frame::Frame;
use super::literals::{Literals, SLACK_BYTES};
use crate::ir::AtomOp;
use crate::kernels::packed::PAGE_BYTES;
use crate::kernels::window::{follow_sources, repeat_pattern};
use crate::types::Shared;
use crate::{Addr, KernelBuilder, Pred, Reg, Var};

/// One bit per output byte of 32 sequences.
pub(super) const BITMAP_BYTES: u32 = PAGE_BYTES / 8;

/// Two segments per sequence, 16 bits each.
pub(super) const GATHER_SCRATCH_BYTES: u32 = BITMAP_BYTES + 32 * 2 * 2;

/// The page so far.
#[derive(Clone, Copy)]
pub(super) struct Gather<'k> {
    /// Address of the page.
    page: Reg<'k, u32>,
    bitmap: Reg<'k, u32>,
    /// Number of bytes written; uniform.
    pub(super) written: Var<'k, u32>,
    /// Number of literals used; uniform.
    pub(super) used: Var<'k, u32>,
}

/// The sequences of the lanes, with their places. All lie inside the page.
pub(super) struct PlacedSequences<'k> {
    pub(super) is_active: Pred<'k>,
    pub(super) has_literals: Pred<'k>,
    /// Positions in the page.
    pub(super) literal_start: Reg<'k, u32>,
    pub(super) match_start: Reg<'k, u32>,
    /// Number of the first literal.
    pub(super) literal_source: Reg<'k, u32>,
    pub(super) offset: Reg<'k, u32>,
    /// Number of bytes that all of them write; uniform.
    pub(super) output_bytes: Reg<'k, u32>,
    /// Number of literals used after them; uniform.
    pub(super) literals_end: Reg<'k, u32>,
}

impl<'k> Gather<'k> {
    /// Starts a page at `page`.
    pub(super) fn new(k: &'k KernelBuilder, page: Reg<'k, u32>, scratch: Reg<'k, u32>) -> Self {
        Self { page, bitmap: scratch, written: k.var(0u32).named("written"), used: k.var(0u32).named("used") }
    }

    /// Runs up to 32 sequences.
    pub(super) fn run(self, frame: Frame<'k>, literals: &Literals<'k>, placed: &PlacedSequences<'k>) {
        let Frame { k, lane, .. } = frame;
        let PlacedSequences { is_active, has_literals, literal_start, match_start, .. } = *placed;
        k.section("mark segments");
        let segments = self.segments();
        // The records of the sequences were in the same place.
        k.sync_warp();
        self.clear_marks(lane);
        k.sync_warp();
        self.mark(has_literals, literal_start);
        self.mark(is_active, match_start);
        let with_literals = has_literals.ballot();
        let before = lane + (with_literals & k.lanemask_lt()).popc();
        let entry = before.mad(2u32, segments);
        let literal_distance = literals.first + placed.literal_source - (self.page + literal_start);
        k.when(has_literals).store(entry.shared::<u16>(), literal_distance);
        let match_entry = entry + has_literals.select(2u32, 0u32);
        k.when(is_active).store(match_entry.shared::<u16>(), 0 - placed.offset);
        k.sync_warp();
        self.write(frame, segments, placed.output_bytes);
        self.written.set(self.written + placed.output_bytes);
        self.used.set(placed.literals_end);
    }

    /// Address of the segments' distances, 16 bits each.
    pub(super) fn segments(self) -> Reg<'k, u32> {
        self.bitmap + BITMAP_BYTES
    }

    /// Address of a position in the page.
    pub(super) fn address(self, position: Reg<'k, u32>) -> Reg<'k, u32> {
        self.page + position
    }

    /// Removes all marks.
    pub(super) fn clear_marks(self, lane: Reg<'k, u32>) {
        (self.bitmap + lane * 16).shared::<u32>().store_vec([0u32; 4]);
    }

    /// Marks a position where a segment starts, in the lanes where one does.
    pub(super) fn mark(self, starts: Pred<'k>, position: Reg<'k, u32>) {
        let at = position - self.written;
        let word = starts.select((at >> 5) * 4, 0u32) + self.bitmap;
        // Not guarded, because the assembler would make it a branch. Without set bits it changes nothing.
        word.shared::<u32>().reduce(AtomOp::Or, starts.select(1u32 << (at & 31), 0u32));
    }

    /// Writes the first `output_bytes` of the page, whose segments are all marked; the rest of the literals follows
    /// them.
    pub(super) fn write_marked(self, frame: Frame<'k>, literals: &Literals<'k>, output_bytes: Reg<'k, u32>) {
        self.write(frame, self.segments(), output_bytes);
        self.written.set(output_bytes);
        self.used.set(literals.len + output_bytes - PAGE_BYTES);
    }

    /// Writes `output_bytes` from the segments that are marked.
    fn write(self, frame: Frame<'k>, segments: Reg<'k, u32>, output_bytes: Reg<'k, u32>) {
        let Frame { k, lane, .. } = frame;
        let windows = OutputWindows {
            k,
            lane,
            up_to_own: k.lanemask_le(),
            place: k.var(self.page + self.written + lane).named("place"),
            entry: k.var(segments - 2).named("entry"),
        };
        let starts = k.var(self.bitmap).named("starts");
        let left = k.var(output_bytes.as_i32()).named("left");
        k.section("gather 128 bytes a round");
        k.while_uniform(
            || left.ge(128),
            || {
                for (bits, window) in starts.shared::<u32>().load_vec::<4>().into_iter().zip(0..) {
                    let source = windows.source(bits, bits.eq(0).all()).byte_offset(32 * window);
                    windows.place.shared::<u8>().byte_offset(32 * window).store(source.load());
                    k.sync_warp();
                }
                windows.place.set(windows.place + 128);
                starts.set(starts + 16);
                left.set(left - 128);
            },
        );
        k.section("gather the last bytes");
        k.while_uniform(
            || left.gt(0),
            || {
                let bits = starts.shared::<u32>().load_uniform();
                let source = windows.source(bits, bits.eq(0));
                let is_written = lane.as_i32().lt(*left);
                let byte = k.when(is_written).load_or(source, 0u32);
                k.when(is_written).store(windows.place.shared::<u8>(), byte);
                k.sync_warp();
                windows.place.set(windows.place + 32);
                starts.set(starts + 4);
                left.set(left - 32);
            },
        );
    }

    /// Writes the literals after the last match. Refuses a block that does not make a whole page.
    pub(super) fn finish(self, frame: Frame<'k>, literals: &Literals<'k>) {
        let Frame { k, lane, .. } = frame;
        k.section("last literals");
        let rest = literals.len - self.used;
        frame.malformed_if((self.written + rest).ne(PAGE_BYTES));
        // They lie as far behind their places as the literals' end lies behind the page. Bytes up to a multiple of 16,
        // then 16 bytes per lane.
        let slack = SLACK_BYTES.cast_signed();
        let from = self.page + self.written;
        let end = self.page + PAGE_BYTES;
        let aligned = ((from + 15) & !15).min(end);
        let own = from + lane;
        let is_before = own.lt(aligned);
        let byte = k.when(is_before).load_or(own.shared::<u8>().byte_offset(slack), 0u32);
        k.sync_warp();
        k.when(is_before).store(own.shared::<u8>(), byte);
        let round = k.var(aligned);
        let at = k.var(aligned + lane * 16);
        let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
        k.while_uniform(
            || round.lt(end),
            || {
                let is_inside = at.lt(end);
                k.when(is_inside).load_vec(words, at.shared::<u32>().byte_offset(slack));
                k.sync_warp();
                k.when(is_inside).store_vec(at.shared::<u32>(), words);
                k.sync_warp();
                at.set(at + 512);
                round.set(round + 512);
            },
        );
        k.sync_warp();
    }
}

/// Windows of 32 output bytes.
struct OutputWindows<'k> {
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    up_to_own: Reg<'k, u32>,
    /// Address of the lane's byte.
    place: Var<'k, u32>,
    /// The entry of the segment that contains the byte before the window.
    entry: Var<'k, u32>,
}

impl<'k> OutputWindows<'k> {
    /// Returns the address of the source of the lane's byte in the next window, if that starts at `place`. `bits` tells
    /// where segments start, and `goes_on` whether none does; uniform.
    fn source(&self, bits: Reg<'k, u32>, goes_on: Pred<'k>) -> Addr<'k, Shared, u8> {
        let Self { k, lane, up_to_own, place, entry } = *self;
        let own_entry = (bits & up_to_own).popc().mad(2u32, *entry);
        let distance = k.var(own_entry.shared::<i16>().load());
        entry.set(bits.popc().mad(2u32, *entry));
        let inside = (lane.as_i32() + distance).as_u32().lt(32);
        k.if_uniform(inside.any(), || {
            k.if_else_uniform(
                goes_on,
                || repeat_pattern(k, lane, distance, *entry),
                || follow_sources(k, lane, distance),
            );
        });
        (place + distance.as_u32()).shared::<u8>()
    }
}
