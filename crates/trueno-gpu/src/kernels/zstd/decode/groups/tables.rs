//! Reads the counts of FSE tables and builds the tables, one table per lane (section 4.1).

use super::super::fse::CountField;
use super::frame::GuardedLoads;
use crate::kernels::reduce::warp_max;
use crate::{KernelBuilder, Pred, Reg, Var};

/// The largest accuracy of a table, in bits.
pub(super) const MAX_LOG: u32 = 7;

/// An entry of a table has these fields, from the top: next state without its low bits, which follow in the stream;
/// symbol; number of those bits.
pub(super) const NEXT_SHIFT: u32 = 9;
pub(super) const SYMBOL_SHIFT: u32 = 3;
pub(super) const STATE_BITS_MASK: u32 = 7;
pub(super) const ENTRY_BYTES: u32 = 2;
const _: () = assert!(NEXT_SHIFT + MAX_LOG <= 16 && MAX_LOG <= STATE_BITS_MASK);

/// Position of the symbol in an entry of the list; its cells are below.
const LISTED_SYMBOL_SHIFT: u32 = 8;
const CELLS_MASK: u32 = 0xff;

/// A table of the lane.
#[derive(Clone, Copy)]
pub(super) struct LaneTable<'k> {
    pub(super) k: &'k KernelBuilder,
    /// Address of the entries.
    pub(super) entries: Reg<'k, u32>,
    /// Address of the list of symbols: those with cells from the front, those of "less than one" from the back. While
    /// the table is built, its cells hold positions in the list.
    pub(super) list: Reg<'k, u32>,
    /// One more than the number of symbols.
    pub(super) list_len: u32,
    pub(super) loads: GuardedLoads<'k>,
}

/// Limits of a table's counts.
#[derive(Clone, Copy)]
pub(super) struct CountLimits<'k> {
    /// Position by which they end.
    pub(super) end: Reg<'k, u32>,
    pub(super) max_log: Reg<'k, u32>,
    pub(super) max_symbol: Reg<'k, u32>,
    /// Number of entries that the table may have.
    pub(super) room: Reg<'k, u32>,
}

/// The counts of a table, as read.
pub(super) struct TableCounts<'k> {
    /// Holds if the lane has read counts of a table that fits.
    pub(super) are_read: Pred<'k>,
    pub(super) log: Reg<'k, u32>,
    /// Number of cells that symbols of "less than one" leave.
    free: Reg<'k, u32>,
}

/// Returns the bytes of a list for symbols up to `max_symbol`.
pub(super) const fn list_bytes(max_symbol: u32) -> u32 {
    2 * (max_symbol + 2)
}

impl<'k> LaneTable<'k> {
    /// Reads counts from bit `bit` on, where `wanted`; `window` returns 32 bits from a bit on. `bit` moves to the byte
    /// after the counts.
    pub(super) fn read_counts(
        self,
        window: impl Fn(Pred<'k>, Reg<'k, u32>) -> Reg<'k, u32>,
        wanted: Pred<'k>,
        bit: Var<'k, u32>,
        limits: CountLimits<'k>,
    ) -> TableCounts<'k> {
        let CountLimits { end, max_log, max_symbol, room } = limits;
        let Self { k, list, .. } = self;
        k.section("FSE counts, one page per lane");
        let log = (window(wanted, *bit) & 15) + 5;
        let size = 1u32 << log;
        let running = k.var(wanted & log.le(max_log.min(MAX_LOG)) & size.le(room)).named("running");
        bit.set(bit + 4);
        // One more than what the counts to come add up to.
        let left = k.var(size + 1).named("left");
        let symbol = k.var(0u32).named("symbol");
        // Holds if the next two bits are a number of further zeros.
        let in_run = k.var(false);
        let is_complete = k.var(false);
        let front = k.var(list).named("front");
        let back = k.var(list + 2 * (self.list_len - 1)).named("back");
        let last_cell = k.var(size.mad(ENTRY_BYTES, self.entries) - ENTRY_BYTES).named("last_cell");
        k.while_uniform(
            || running.any(),
            || {
                let bits = window(*running, *bit);
                let CountField { count, short_bits, is_short } = CountField::at(bits, *left);
                let count_bits = short_bits + is_short.select(0u32, 1u32);
                let zeros = bits & 3;
                bit.set(running.select(bit + in_run.select(2u32, count_bits), bit));
                let counts = *running & !*in_run;
                let is_low = counts & count.eq(u32::MAX);
                let has_cells = counts & (count - 1).lt(u32::MAX - 1);
                let listed = symbol << LISTED_SYMBOL_SHIFT;
                k.when(has_cells).store(front.shared::<u16>(), listed | count);
                k.when(has_cells).set(front, front + 2);
                k.when(is_low).store(back.shared::<u16>(), listed | 1);
                k.when(is_low).store(last_cell.shared::<u16>(), back - list);
                k.when(is_low).set(back, back - 2);
                k.when(is_low).set(last_cell, last_cell - ENTRY_BYTES);
                k.when(counts).set(left, left - count.as_i32().abs().as_u32());
                let is_last = counts & left.eq(1);
                is_complete.set(*is_complete | is_last);
                symbol.set(symbol + in_run.select(zeros, 1u32));
                in_run.set((*in_run & zeros.eq(3)) | (counts & count.eq(0)));
                running.set(*running & !is_last & symbol.le(max_symbol));
            },
        );
        bit.set((bit + 7) & !7);
        let are_read = *is_complete & bit.le(end);
        // Walking the list ends with an entry more.
        k.when(are_read).store(front.shared::<u16>(), 0u32);
        let free = ((last_cell + ENTRY_BYTES) - self.entries) >> 1;
        TableCounts { are_read, log, free }
    }

    /// Builds the table in the lanes that have read counts.
    pub(super) fn build(self, counts: &TableCounts<'k>) {
        let Self { k, entries, list, .. } = self;
        let TableCounts { are_read, log, free } = *counts;
        k.section("FSE tables, one page per lane");
        let size = 1u32 << log;
        let largest = warp_max(k, are_read.select(size, 0u32)).named("largest");
        let step = (size >> 1) + (size >> 3) + 3;
        let position = k.var(0u32).named("position");
        let listed = k.var(list).named("listed");
        let [item, place, _] = self.loads.entries;
        k.when(are_read).load(item, list.shared::<u16>());
        let left = k.var(*item & CELLS_MASK).named("left");
        let walked = k.var(0u32);
        k.while_uniform(
            || walked.lt(largest),
            || {
                let is_free = are_read & walked.lt(size) & position.lt(free);
                k.when(is_free).store(position.mad(ENTRY_BYTES, entries).shared::<u16>(), listed - list);
                k.when(is_free).set(left, left - 1);
                let is_used_up = is_free & left.eq(0);
                k.when(is_used_up).set(listed, listed + 2);
                k.when(is_used_up).load(item, listed.shared::<u16>());
                k.when(is_used_up).set(left, *item & CELLS_MASK);
                position.set((position + step) & (size - 1));
                walked.set(walked + 1);
            },
        );
        // Numbers the cells of each symbol in the order of the table.
        let at = k.var(entries).named("at");
        let done = k.var(0u32);
        k.while_uniform(
            || done.lt(largest),
            || {
                let is_inside = are_read & done.lt(size);
                k.when(is_inside).load(place, at.shared::<u16>());
                let numbered = (list + place).shared::<u16>();
                k.when(is_inside).load(item, numbered);
                k.when(is_inside).store(numbered, item + 1);
                let number = *item & CELLS_MASK;
                let bits = log - number.bfind();
                let next = (number - (size >> bits)) << NEXT_SHIFT;
                let symbol = (*item >> (LISTED_SYMBOL_SHIFT - SYMBOL_SHIFT)) & !STATE_BITS_MASK;
                k.when(is_inside).store(at.shared::<u16>(), next.or3(symbol, bits));
                at.set(at + ENTRY_BYTES);
                done.set(done + 1);
            },
        );
    }
}

/// Returns the number of bits of an entry's next state that follow in the stream.
pub(super) fn state_bits(entry: Reg<'_, u32>) -> Reg<'_, u32> {
    entry & STATE_BITS_MASK
}

/// Returns the next state: its low bits are the top `count` of `bits`, which is the entry's number of them.
pub(super) fn next_state<'k>(entry: Reg<'k, u32>, bits: Reg<'k, u32>, count: Reg<'k, u32>) -> Reg<'k, u32> {
    bits.funnel_shl(entry >> NEXT_SHIFT, count)
}
