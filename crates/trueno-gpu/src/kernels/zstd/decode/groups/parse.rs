//! Reads the headers of frames, one page per lane.

use super::super::format::MAX_FRAME_BYTES;
use super::super::frame::{Frame, LaneAccess};
use super::super::header::COMPRESSED;
use super::frame::{GuardedLoads, LaneFrame};
use super::group::{HAS_CHECKSUM, IS_FOUR, IS_PREPARED, KIND_SHIFT, MAX_RECORDS, SEQUENCES_SHIFT};
use crate::kernels::packed::{DecompressBatch, PageKind, PageStatus, align_up};
use crate::{KernelBuilder, Pred, Reg, Var};

/// The lane's page, whose frame has one compressed block with sequences that fit.
pub(super) struct LanePage<'k> {
    pub(super) frame: LaneFrame<'k>,
    /// Holds if the lane has such a page.
    pub(super) is_there: Var<'k, bool>,
    /// Holds if only the number of sequences keeps the page out.
    pub(super) is_large: Var<'k, bool>,
    /// Kind, number and position of the literals.
    pub(super) literal_kind: Var<'k, u32>,
    pub(super) literal_len: Var<'k, u32>,
    pub(super) held_at: Var<'k, u32>,
    pub(super) held_end: Var<'k, u32>,
    /// Number of sequences, position after it, and end of the block.
    pub(super) sequences: Var<'k, u32>,
    pub(super) at: Var<'k, u32>,
    pub(super) end: Var<'k, u32>,
    /// The word of sizes in the description if the page is prepared.
    pub(super) sizes: Var<'k, u32>,
}

impl<'k> LanePage<'k> {
    /// Reads the headers of page `number` in the lanes where `wanted`.
    pub(super) fn read(
        k: &'k KernelBuilder,
        batch: &DecompressBatch<'k>,
        number: Reg<'k, u32>,
        wanted: Pred<'k>,
        loads: GuardedLoads<'k>,
    ) -> Self {
        let (is_frame, words, len) = batch.look_up(number, wanted, PageKind::Zstd, MAX_FRAME_BYTES);
        let last_word = (align_up(len) >> 2) - 1;
        let [literal_kind, literal_len, held_at, held_end, sequences, at, end, sizes] = [(); 8].map(|()| k.var(0u32));
        let is_there = k.var(false).named("is_there");
        let is_large = k.var(false).named("is_large");
        let refused_as = k.var(PageStatus::BadBlock as u32);
        k.block(|refuse| {
            refuse.exit_if(!is_frame);
            let (lanes, zero) = (LaneAccess::PerLane, k.value(0u32));
            let frame = Frame { k, lane: batch.lane, lanes, words, len, last_word, zero, refuse, refused_as };
            let header = frame.read_header();
            refuse.exit_if(header.block_type.ne(COMPRESSED));
            frame.malformed_if(header.block_size.lt(2));
            let literals = frame.read_literals_header(header.start, header.end);
            let (count, after) = frame.read_sequence_count(literals.held_end, header.end);
            is_large.set(count.gt(MAX_RECORDS));
            refuse.exit_if(count.gt(MAX_RECORDS));
            let is_four = literals.is_four.select(IS_PREPARED | IS_FOUR, IS_PREPARED);
            let fields = literals.len | (count << SEQUENCES_SHIFT);
            let checksum = header.has_checksum.select(HAS_CHECKSUM, 0u32);
            for (var, value) in [
                (literal_kind, literals.kind),
                (literal_len, literals.len),
                (held_at, literals.held_at),
                (held_end, literals.held_end),
                (sequences, count),
                (at, after),
                (end, header.end),
                (sizes, fields | (literals.kind << KIND_SHIFT) | is_four | checksum),
            ] {
                var.set(value);
            }
            is_there.set(true);
        });
        let frame = LaneFrame { k, words, last_word, loads };
        Self { frame, is_there, is_large, literal_kind, literal_len, held_at, held_end, sequences, at, end, sizes }
    }
}
