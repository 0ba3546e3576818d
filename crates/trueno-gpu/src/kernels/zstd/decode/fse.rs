//! Reads the counts of FSE tables and builds the tables (section 4.1).

use super::constants::EXTRA_SHIFT;
use super::format::MAX_TABLE_ENTRIES;
use super::frame::{Frame, FrameChunk};
use crate::ir::AtomOp;
use crate::kernels::scan::scan;
use crate::types::Shared;
use crate::{Addr, Operand, Pred, Reg, Var};

/// An entry of a table has these fields, from the top:
///
/// | bits | meaning |
/// | --- | --- |
/// | 21 to 31 | next state without its low bits, which follow in the stream |
/// | 15 to 20 | symbol |
/// | 8 to 14 | number of extra bits of the symbol |
/// | 0 to 4 | number of low bits of the next state |
const NEXT_SHIFT: u32 = 21;
const SYMBOL_SHIFT: u32 = 15;
const SYMBOL_BITS: u32 = 6;
const SYMBOL_EXTRA_SHIFT: u32 = 8;
const SYMBOL_EXTRA_BITS: u32 = 7;
const STATE_BITS_MASK: u32 = 31;
/// Position of the symbol in tables of codes without extra bits: a byte of its own.
const PLAIN_SYMBOL_SHIFT: u32 = 8;

/// A count of "less than one", as the scratch memory holds it.
const LESS_THAN_ONE: u32 = 0xffff;

/// Scratch memory while a table is built: counts, a bitmap of where symbols start, and the symbols that have cells.
const COUNTS_BYTES: u32 = 2 * 64;
const STARTS_WORDS: u32 = 20;
/// Every symbol has at most one bit, and reading takes two words from any of a table's cells.
const _: () = assert!(STARTS_WORDS > 512 / 32 + 1);
const SYMBOLS_AT: u32 = COUNTS_BYTES + 4 * STARTS_WORDS;
pub(super) const FSE_SCRATCH_BYTES: u32 = SYMBOLS_AT + 64;

/// Each of the symbols takes ten bits at most, and two more for a run of zeros.
const _: () = assert!(4 + 64 * 12 <= FrameChunk::BITS);

/// An entry of a table, or the sum of several.
#[derive(Clone, Copy)]
pub(super) struct FseEntry<'k>(pub(super) Reg<'k, u32>);

impl<'k> FseEntry<'k> {
    pub(super) fn symbol(self) -> Reg<'k, u32> {
        self.0.bfe(SYMBOL_SHIFT, SYMBOL_BITS)
    }

    /// Returns the symbol of an entry without extra bits.
    pub(super) fn plain_symbol(self) -> Reg<'k, u32> {
        self.0.bfe(PLAIN_SYMBOL_SHIFT, 8u32)
    }

    /// Returns the symbols of two entries without extra bits in the low bytes; the high bytes have no meaning.
    pub(super) fn two_plain_symbols(self, second: Self) -> Reg<'k, u32> {
        self.0.prmt(second.0, 0x0051u32)
    }

    /// Number of extra bits. In a sum of three entries this is the sum.
    pub(super) fn extra_bits(self) -> Reg<'k, u32> {
        self.0.bfe(SYMBOL_EXTRA_SHIFT, SYMBOL_EXTRA_BITS)
    }

    /// Number of state bits. In a sum of three entries this is the sum.
    pub(super) fn state_bits(self) -> Reg<'k, u32> {
        self.0 & STATE_BITS_MASK
    }

    /// Returns the next state, whose low bits are the top bits of `bits`.
    pub(super) fn next_state(self, bits: Reg<'k, u32>) -> Reg<'k, u32> {
        bits.funnel_shl(self.0 >> NEXT_SHIFT, self.0)
    }
}

/// A count of a table's description.
pub(super) struct CountField<'k> {
    /// The number of cells; -1 is "less than one".
    pub(super) count: Reg<'k, u32>,
    /// Number of bits of the field if it is short; otherwise one less.
    pub(super) short_bits: Reg<'k, u32>,
    pub(super) is_short: Pred<'k>,
}

impl<'k> CountField<'k> {
    /// Reads a count from the low bits of `bits`. Its value is at most `left`, one more than what this count and those
    /// to come add up to. The low values take one bit less.
    pub(super) fn at(bits: Reg<'k, u32>, left: Reg<'k, u32>) -> Self {
        let short_bits = left.bfind();
        let half = 1u32 << short_bits;
        let short_values = half * 2 - 1 - left;
        let (low, whole) = (bits & (half - 1), bits & (half * 2 - 1));
        let is_short = low.lt(short_values);
        let long = whole.lt(half).select(whole, whole - short_values);
        Self { count: is_short.select(low, long) - 1, short_bits, is_short }
    }
}

/// The memory of a table, and the codes that its symbols stand for.
#[derive(Clone, Copy)]
pub(super) struct FseTable<'k> {
    pub(super) entries: Addr<'k, Shared, u32>,
    pub(super) scratch: Reg<'k, u32>,
    /// Words of the codes that the symbols stand for, if those have extra bits.
    pub(super) codes: Option<Addr<'k, Shared, u32>>,
}

impl<'k> FseTable<'k> {
    /// Stores the table of one symbol, which takes no bits.
    pub(super) fn store_single(self, symbol: Reg<'k, u32>) {
        let extra = self.codes.expect("only sequence tables").index(symbol).load() >> EXTRA_SHIFT;
        self.entries.store_conflicting((symbol << SYMBOL_SHIFT) | (extra << SYMBOL_EXTRA_SHIFT));
    }

    /// Stores two counts of each lane.
    pub(super) fn store_counts(self, lane: Reg<'k, u32>, counts: impl Operand<'k, u32>) {
        (self.scratch + lane * 4).shared::<u32>().store(counts);
    }

    /// Reads counts from bit `bit` on, which moves to the byte after them. They must end by `end`. Returns the accuracy
    /// in bits; uniform.
    pub(super) fn read_counts(
        self,
        frame: Frame<'k>,
        bit: Var<'k, u32>,
        end: Reg<'k, u32>,
        max_log: impl Operand<'k, u32>,
        max_symbol: impl Operand<'k, u32>,
    ) -> Reg<'k, u32> {
        let k = frame.k;
        k.section("FSE counts");
        self.store_counts(frame.lane, 0u32);
        k.sync_warp();
        let max_symbol = k.value(max_symbol);
        let chunk = frame.chunk(*bit);
        let log = (chunk.window(*bit) & 15) + 5;
        frame.malformed_if(log.gt(max_log));
        bit.set(bit + 4);
        // One more than what the counts to come add up to.
        let left = k.var((1u32 << log) + 1).named("left");
        let symbol = k.var(0u32).named("symbol");
        k.loop_uniform(|counts| {
            let CountField { count, short_bits, is_short } = CountField::at(chunk.window(*bit), *left);
            bit.set(bit + short_bits + is_short.select(0u32, 1u32));
            // At most the highest symbol here, so it is inside the counts.
            (self.scratch + symbol * 2).shared::<u16>().store_conflicting(count);
            symbol.set(symbol + 1);
            left.set(left - count.as_i32().abs().as_u32());
            counts.break_if(left.eq(1));
            k.if_uniform(count.eq(0), || {
                k.do_while_uniform(|| {
                    let zeros = chunk.window(*bit) & 3;
                    bit.set(bit + 2);
                    symbol.set(symbol + zeros);
                    zeros.eq(3) & symbol.le(max_symbol)
                });
            });
            frame.malformed_if(symbol.gt(max_symbol));
        });
        bit.set((bit + 7) & !7);
        frame.malformed_if(bit.gt(end));
        k.sync_warp();
        log
    }

    /// Builds the table of `1 << log` entries from the counts in the scratch memory.
    pub(super) fn build(self, frame: Frame<'k>, log: Reg<'k, u32>) {
        let Frame { k, lane, .. } = frame;
        k.section("FSE table");
        let below = k.lanemask_lt();
        let size = 1u32 << log;
        let counts = (self.scratch + lane * 2).shared::<u16>();
        let starts = (self.scratch + COUNTS_BYTES).shared::<u32>();
        let symbols = (self.scratch + SYMBOLS_AT).shared::<u8>();
        k.when(lane.lt(STARTS_WORDS)).store(starts.index(lane), 0u32);
        // Symbols `lane` and `lane + 32`.
        let halves = [counts.load(), counts.at(32).load()];
        let is_low = halves.map(|count| count.eq(LESS_THAN_ONE));
        let low = is_low.map(|is_low| is_low.ballot());
        let low_total = low[0].popc() + low[1].popc();
        let cells = [0, 1].map(|i| is_low[i].select(0u32, halves[i]));
        let has_cells = cells.map(|cells| cells.ne(0));
        let with_cells = has_cells.map(|has_cells| has_cells.ballot());
        let sum = scan(k, cells[0] | (cells[1] << 16), |a, b| a + b);
        let first_half = sum.shfl(31u32) & 0xffff;
        let start = [(sum & 0xffff) - cells[0], first_half + (sum >> 16) - cells[1]];
        let low_before = [(low[0] & below).popc(), low[0].popc() + (low[1] & below).popc()];
        let listed_before = [(with_cells[0] & below).popc(), with_cells[0].popc() + (with_cells[1] & below).popc()];
        k.sync_warp();
        for i in [0, 1] {
            let symbol = lane + 32 * u32::try_from(i).expect("0 or 1");
            // Those of less than one cell get single cells, from the end of the table.
            k.when(is_low[i]).store(self.entries.index(size - 1 - low_before[i]), symbol);
            k.when(is_low[i]).store(counts.at(32 * i32::try_from(i).expect("0 or 1")), 1u32);
            let bit = 1u32 << (start[i] & 31);
            k.when(has_cells[i]).reduce(starts.index(start[i] >> 5), AtomOp::Or, bit);
            k.when(has_cells[i]).store(symbols.index(listed_before[i]), symbol);
        }
        k.sync_warp();
        self.spread(frame, size, size - low_total);
        self.number(frame, log, size);
    }

    /// Gives each symbol its cells, 32 steps of the walk at a time. Cells from `limit` on are taken.
    fn spread(self, frame: Frame<'k>, size: Reg<'k, u32>, limit: Reg<'k, u32>) {
        let Frame { k, lane, .. } = frame;
        let below = k.lanemask_lt();
        let step = (size >> 1) + (size >> 3) + 3;
        // Cells given so far, and the entry in `symbols` after that of the last one.
        let (given, listed) = (k.var(0u32), k.var(self.scratch + SYMBOLS_AT));
        let walked = k.var(0u32);
        k.do_while_uniform(|| {
            let cell = ((walked + lane) * step) & (size - 1);
            let is_free = cell.lt(limit);
            let free = is_free.ballot();
            let (rank, count) = ((free & below).popc(), free.popc());
            let word = (self.scratch + COUNTS_BYTES + (given >> 5) * 4).shared::<u32>();
            // One bit per cell at which a symbol starts, from the first cell of this step on.
            let starts = word.load_uniform().funnel_shr(word.at(1).load_uniform(), *given);
            let up_to_own = (2u32 << rank) - 1;
            let place = listed + (starts & up_to_own).popc();
            let symbol = k.when(is_free).load_or((place - 1).shared::<u8>(), 0u32);
            k.when(is_free).store(self.entries.index(cell), symbol);
            // All 32 bits if all cells are free.
            let up_to_last = k.value(u32::MAX) >> (32 - count);
            listed.set(listed + (starts & up_to_last).popc());
            given.set(given + count);
            walked.set(walked + 32);
            walked.lt(size)
        });
        k.sync_warp();
    }

    /// Numbers the cells of each symbol in the order of the table, and makes entries of them.
    fn number(self, frame: Frame<'k>, log: Reg<'k, u32>, size: Reg<'k, u32>) {
        let Frame { k, lane, .. } = frame;
        let below = k.lanemask_lt();
        let at = k.var(lane);
        let done = k.var(0u32);
        k.do_while_uniform(|| {
            let own = self.entries.index(*at);
            let symbol = own.load();
            let peers = symbol.match_any();
            let peers_below = peers & below;
            let next = (self.scratch + symbol * 2).shared::<u16>();
            let number = next.load() + peers_below.popc();
            k.sync_warp();
            k.when(peers_below.eq(0)).store(next, number + peers.popc());
            let bits = log - number.bfind();
            let next_state = (number - (size >> bits)) << NEXT_SHIFT;
            let fields = match self.codes {
                Some(codes) => {
                    let extra = codes.index(symbol).load() >> EXTRA_SHIFT;
                    (symbol << SYMBOL_SHIFT) | (extra << SYMBOL_EXTRA_SHIFT)
                }
                None => symbol << PLAIN_SYMBOL_SHIFT,
            };
            own.store(next_state | fields | bits);
            k.sync_warp();
            at.set(at + 32);
            done.set(done + 32);
            done.lt(size)
        });
    }
}

/// The sequence tables' states fit the field.
const _: () = assert!(MAX_TABLE_ENTRIES < 1 << (32 - NEXT_SHIFT));
