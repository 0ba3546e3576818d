//! Codes of literal lengths, match lengths and offsets, with their extra bits (RFC 8878, section 3.1.1.3.2.1.1).

use super::find::Workspace;
use super::format::MIN_MATCH;
use super::record::Record;
use crate::Reg;

/// A code and the number of extra bits that follow it, which are the low bits of the value.
#[derive(Clone, Copy)]
pub(super) struct Coded<'k> {
    pub(super) code: Reg<'k, u32>,
    pub(super) value: Reg<'k, u32>,
    pub(super) extra_bits: Reg<'k, u32>,
}

/// Codes of lengths in the middle range, where neither every value nor every power of two has a code: lane `n` knows
/// the code and the extra bits of the literal length `2 n` and of the match value `4 n`, a byte each.
#[derive(Clone, Copy)]
pub(super) struct CodeTable<'k> {
    by_lane: Reg<'k, u32>,
}

/// A range of lanes: its first lane, the code there, the shift of a lane's distance that gives the number of codes
/// further on, and the number of extra bits.
type CodeRange = (u32, u32, i32, u32);

/// Literal lengths 16 to 63.
const LITERAL_RANGES: [CodeRange; 4] = [(8, 16, 0, 1), (12, 20, 1, 2), (16, 22, 2, 3), (24, 24, 31, 4)];
/// Match values 32 to 127. A lane of the first range has two codes.
const MATCH_RANGES: [CodeRange; 5] = [(8, 32, -1, 1), (10, 36, 0, 2), (12, 38, 1, 3), (16, 40, 2, 4), (24, 42, 31, 5)];

impl<'k> CodeTable<'k> {
    pub(super) fn new(ws: Workspace<'k>) -> Self {
        let Workspace { k, lane, .. } = ws;
        let entries = |ranges: &[CodeRange]| {
            let entry = k.var(0u32);
            for &(from, code, shift, extra_bits) in ranges {
                let distance = lane - from;
                let steps = if shift < 0 { distance << 1 } else { distance >> shift.cast_unsigned() };
                k.when(lane.ge(from)).set(entry, steps + (code | extra_bits << 8));
            }
            *entry
        };
        Self { by_lane: entries(&MATCH_RANGES).mad(1 << 16, entries(&LITERAL_RANGES)) }
    }

    /// Codes a literal length.
    pub(super) fn literal_length(self, length: Reg<'k, u32>) -> Coded<'k> {
        let entry = self.by_lane.shfl(length.min(63u32) >> 1);
        let (is_small, is_large) = (length.lt(16), length.gt(63));
        let log = length.bfind();
        let code = is_large.select(log + 19, is_small.select(length, entry & 0xff));
        let extra_bits = is_large.select(log, is_small.select(0u32, entry.bfe(8u32, 8u32)));
        Coded { code, value: length, extra_bits }
    }

    /// Codes a match length.
    pub(super) fn match_length(self, length: Reg<'k, u32>) -> Coded<'k> {
        // Lanes without a sequence have no length; any code will do.
        let value = length.max(MIN_MATCH) - MIN_MATCH;
        let entry = self.by_lane.shfl(value.min(127u32) >> 2);
        let (is_small, is_large) = (value.lt(32), value.gt(127));
        let log = value.bfind();
        let bits = entry >> 24;
        let code = entry.bfe(16u32, 8u32) + bits.eq(1).select(value.bfe(1u32, 1u32), 0u32);
        let code = is_large.select(log + 36, is_small.select(value, code));
        let extra_bits = is_large.select(log, is_small.select(0u32, bits));
        Coded { code, value, extra_bits }
    }

    /// Codes a sequence: literal length, offset, match length.
    pub(super) fn sequence(self, record: Record<'k>) -> [Coded<'k>; 3] {
        let offset = record.offset_value.max(1u32);
        let log = offset.bfind();
        let offset = Coded { code: log, value: offset, extra_bits: log };
        [self.literal_length(record.literals), offset, self.match_length(record.length)]
    }
}
