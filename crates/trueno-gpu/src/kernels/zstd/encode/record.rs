//! Records of sequences, in global memory between the passes over a page.

use super::find::Workspace;
use super::format::{MIN_MATCH, PAGE_BYTES};
use crate::{Pred, Reg, Var};

/// A record: the two lengths, and the offset value.
pub(super) const RECORD_BYTES: u32 = 8;
/// Sequences of a page: none is shorter than the shortest match.
pub(super) const MAX_RECORDS: u32 = PAGE_BYTES / MIN_MATCH;
/// Memory for the records of a page, aligned to 512 bytes.
pub(super) const RECORDS_BYTES: u32 = (MAX_RECORDS * RECORD_BYTES).next_multiple_of(512);

/// Packs a literal length and a match length.
pub(super) fn pack_lengths<'k>(literals: Reg<'k, u32>, length: Reg<'k, u32>) -> Reg<'k, u32> {
    length.mad(1 << 16, literals)
}

/// Reads records 32 at a time, one per lane, and prefetches the next 32.
pub(super) struct RecordReader<'k> {
    ws: Workspace<'k>,
    count: Reg<'k, u32>,
    next: [Var<'k, u32>; 2],
}

/// A sequence; all zero in lanes without one.
#[derive(Clone, Copy)]
pub(super) struct Record<'k> {
    pub(super) literals: Reg<'k, u32>,
    pub(super) length: Reg<'k, u32>,
    pub(super) offset_value: Reg<'k, u32>,
}

impl<'k> RecordReader<'k> {
    /// Starts reading at the record `first` plus the lane.
    pub(super) fn start(ws: Workspace<'k>, count: Reg<'k, u32>, first: Reg<'k, u32>) -> Self {
        let records = Self { ws, count, next: [ws.k.var(0u32), ws.k.var(0u32)] };
        records.fetch(first);
        records
    }

    /// Fetches the record `first` plus the lane, if there is one.
    fn fetch(&self, first: Reg<'k, u32>) -> Pred<'k> {
        let Workspace { k, lane, records, .. } = self.ws;
        let n = first + lane;
        let there_is = n.lt(self.count);
        self.next.iter().for_each(|word| word.set(0u32));
        k.when(there_is).load_vec(self.next, records.step(n, RECORD_BYTES));
        there_is
    }

    /// Returns the lane's record and starts to fetch the one at `next` plus the lane.
    pub(super) fn take(&self, next: Reg<'k, u32>) -> Record<'k> {
        let [lengths, offset_value] = self.next.map(|word| word.get());
        self.fetch(next);
        Record { literals: lengths & 0xffff, length: lengths >> 16, offset_value }
    }
}
