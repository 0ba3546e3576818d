//! Tables of finite state entropy coding (RFC 8878, section 4.1), built by a warp.
//!
//! A lane has the symbol of its number; where there are more than 32, also the one 32 above. A symbol's *cells* are its
//! share of the table, which has `1 << log` of them.

use super::bits::{append, log2_fixed, or_bits};
use super::format::MIN_ACCURACY_LOG;
use crate::kernels::reduce::{warp_max, warp_sum};
use crate::kernels::scan::scan;
use crate::{KernelBuilder, Reg, Var};

/// A symbol's step in a table: the bound from which the number of bits follows, and the shared address of its states,
/// less two bytes for each of its cells.
pub(super) const STEP_BYTES: u32 = 8;

/// Per lane, a value for its symbol and one for the symbol 32 above, which is 0 in tables of up to 32 symbols.
pub(super) type BySymbol<'k> = [Reg<'k, u32>; 2];

/// Shared memory of a table.
#[derive(Clone, Copy)]
pub(super) struct TableMemory<'k> {
    /// The states of each symbol in turn, 2 bytes each.
    pub(super) states: Reg<'k, u32>,
    /// A step for each symbol.
    pub(super) steps: Reg<'k, u32>,
    /// Scratch memory: [`SCRATCH_BYTES`], at a multiple of 4.
    pub(super) scratch: Reg<'k, u32>,
}

/// Most symbols and cells of a table.
const MAX_SYMBOLS: u32 = 64;
const MAX_CELLS: u32 = 128;
/// Scratch memory: the next state of each symbol, the symbols in order of their cells, the symbol of each cell.
const SYMBOLS_AT: u32 = 4 * MAX_SYMBOLS;
const CELLS_AT: u32 = SYMBOLS_AT + MAX_CELLS;
pub(super) const SCRATCH_BYTES: u32 = CELLS_AT + MAX_CELLS;

/// A lane's symbol and its cells.
struct SymbolCells<'k> {
    symbol: Reg<'k, u32>,
    cells: Reg<'k, u32>,
    /// Cells of all symbols before.
    before: Reg<'k, u32>,
    /// The nearest symbol before that has cells; -1 if there is none.
    previous: Reg<'k, u32>,
}

/// A table's description, while it is written.
#[derive(Clone, Copy)]
struct TableDescription<'k> {
    log: Reg<'k, u32>,
    /// Shared address of its first bit.
    out: Reg<'k, u32>,
    /// The bit after what is written.
    end: Var<'k, u32>,
    /// The last symbol that has cells.
    last: Reg<'k, u32>,
}

/// Builds the tables of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Fse<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) lane: Reg<'k, u32>,
}

impl<'k> Fse<'k> {
    /// Returns the lane's symbol, and the one 32 above.
    fn symbols(self) -> BySymbol<'k> {
        [self.lane, self.lane + 32]
    }

    /// Scales counts to a sum of `1 << log`: rounded, at least 1, the difference given to or taken from the largest.
    /// `total` is their sum.
    pub(super) fn distribute(self, counts: BySymbol<'k>, total: Reg<'k, u32>, log: Reg<'k, u32>) -> [Var<'k, u32>; 2] {
        let k = self.k;
        let scale = quotient(k, 0x10000u32 << log, total);
        let cells = counts.map(|count| k.var((count.mad(scale, 0x8000u32) >> 16).max(count.min(1u32))));
        let sum = warp_sum(k, cells[0] + cells[1]);
        let missing = k.var(((1u32 << log) - sum).as_i32());
        k.while_uniform(
            || missing.ne(0),
            || {
                // The last of the largest. An excess is removed one by one.
                let keys: [_; 2] = std::array::from_fn(|i| (cells[i] << 6) | self.symbols()[i]);
                let largest = warp_max(k, keys[0].max(keys[1]));
                let change = missing.max(-1);
                for (cells, key) in cells.into_iter().zip(keys) {
                    k.when(key.eq(largest)).set(cells, cells + change.as_u32());
                }
                missing.set(missing - change);
            },
        );
        cells
    }

    /// Returns the bits that symbols with these counts take, in steps of 1/256; uniform.
    pub(super) fn cost(self, counts: BySymbol<'k>, cells: BySymbol<'k>, log: Reg<'k, u32>) -> Reg<'k, u32> {
        let bits = |i: usize| (log << 8) - log2_fixed(cells[i].max(1u32));
        warp_sum(self.k, counts[0] * bits(0) + counts[1] * bits(1))
    }

    /// Writes the description of a table to zeroed shared memory at `out`, from bit `at` on; returns the bit after it.
    pub(super) fn describe(self, cells: BySymbol<'k>, log: Reg<'k, u32>, out: Reg<'k, u32>, at: u32) -> Var<'k, u32> {
        let Self { k, lane } = self;
        let end = k.var(at + 4);
        k.when(lane.eq(0)).reduce(out.shared::<u32>(), crate::ir::AtomOp::Or, (log - MIN_ACCURACY_LOG) << at);
        let present = cells.map(|cells| cells.ne(0).ballot());
        let last = k.var(present[0].bfind());
        k.when(present[1].ne(0)).set(last, present[1].bfind() + 32);
        let through = scan(k, cells[0], |a, b| a + b);
        let total = through.shfl(31u32);
        let below = k.lanemask_lt();
        let previous = (present[0] & below).bfind();
        let description = TableDescription { log, out, end, last: *last };
        let low = SymbolCells { symbol: lane, cells: cells[0], before: through - cells[0], previous };
        self.describe_half(low, description);
        k.if_uniform(present[1].ne(0), || {
            let through = scan(k, cells[1], |a, b| a + b);
            let nearer = present[1] & below;
            let previous = nearer.ne(0).select(nearer.bfind() + 32, present[0].bfind());
            let (symbol, before) = (lane + 32, total + through - cells[1]);
            self.describe_half(SymbolCells { symbol, cells: cells[1], before, previous }, description);
        });
        end
    }

    /// Describes 32 symbols: each that has cells with the zeros before it, and the first zero of each run.
    fn describe_half(self, own: SymbolCells<'k>, description: TableDescription<'k>) {
        let k = self.k;
        let SymbolCells { symbol, cells, before: cells_before, previous } = own;
        let TableDescription { log, out, end, last } = description;
        let has_cells = cells.ne(0);
        let distance = symbol - previous;
        let described = has_cells | (distance.eq(1) & symbol.lt(last));
        // A value takes as many bits as the cells that are left allow; small ones take one bit less.
        let left = (1u32 << log) + 1 - cells_before;
        let whole_bits = left.bfind();
        let threshold = 1u32 << whole_bits;
        let short = (threshold << 1) - 1 - left;
        let value = k.var(cells + 1);
        k.when(value.ge(threshold)).set(value, value + short);
        let value_bits = whole_bits + value.lt(short).select(0u32, 1u32);
        // Zeros after the first: two bits for every three of them, then two for the rest.
        let after_zeros = has_cells & distance.as_i32().ge(2);
        let zeros = after_zeros.select(distance - 2, 0u32);
        let threes = (zeros * 43) >> 7;
        let ones = threes << 1;
        let run = ((zeros - threes * 3) << ones) | ((1u32 << ones) - 1);
        let run_bits = after_zeros.select(ones + 2, 0u32);
        let run = after_zeros.select(run, 0u32);
        let bits = described.select(run_bits + value_bits, 0u32);
        let through = scan(k, bits, |a, b| a + b);
        let [low, high] = append(run, run_bits, *value);
        let at = end + (through - bits);
        or_bits(k, out, at, [described.select(low, 0u32), described.select(high, 0u32)]);
        end.set(end + through.shfl(31u32));
    }

    /// Builds the states and steps of a table. The last `improbable` symbols, of one cell each, have the last cells.
    pub(super) fn build(
        self,
        cells: BySymbol<'k>,
        log: Reg<'k, u32>,
        improbable: Reg<'k, u32>,
        place: TableMemory<'k>,
    ) {
        let Self { k, lane } = self;
        let size = 1u32 << log;
        let symbols_by_cells = (place.scratch + SYMBOLS_AT).named("symbols_by_cells");
        let symbol_of_cell = place.scratch + CELLS_AT;
        (symbols_by_cells + lane * 4).shared::<u32>().store(0u32);
        k.sync_warp();
        let first = k.var(0u32);
        let last_symbol = k.var(0u32);
        for (cells, symbol) in cells.into_iter().zip(self.symbols()) {
            let has_cells = cells.ne(0);
            let present = has_cells.ballot();
            k.if_uniform(present.ne(0), || {
                let through = scan(k, cells, |a, b| a + b);
                let start = first + through - cells;
                let most_bits = log - cells.gt(1).select((cells - 1).bfind(), 0u32);
                let bound = (most_bits << 16) - (cells << most_bits);
                let states = place.states + ((start - cells) << 1);
                k.when(has_cells).store_vec((place.steps + symbol * STEP_BYTES).shared::<u32>(), [bound, states]);
                k.when(has_cells).store((place.scratch + symbol * 4).shared::<u32>(), start);
                k.when(has_cells).store((symbols_by_cells + start).shared::<u8>(), symbol);
                first.set(first + through.shfl(31u32));
                last_symbol.set(symbol.shfl(0u32) + present.bfind());
            });
        }
        k.sync_warp();
        self.fill_symbols(symbols_by_cells, size);
        self.spread(symbols_by_cells, symbol_of_cell, log, size - improbable, *last_symbol);
        self.order_states(symbol_of_cell, place, size);
    }

    /// Fills the gaps after each symbol's first cell with the symbol.
    fn fill_symbols(self, symbols: Reg<'k, u32>, size: Reg<'k, u32>) {
        let Self { k, lane } = self;
        let (at, carried) = (k.var(0u32), k.var(0u32));
        k.do_while_uniform(|| {
            let own = (symbols + at + lane).shared::<u8>();
            let through = scan(k, own.load().max(carried), |a, b| a.max(b));
            own.store(through);
            carried.set(through.shfl(31u32));
            at.set(at + 32);
            at.lt(size)
        });
        k.sync_warp();
    }

    /// Spreads the symbols over the cells: a walk through all of them, which leaves those of improbable symbols out.
    fn spread(
        self,
        symbols: Reg<'k, u32>,
        cells: Reg<'k, u32>,
        log: Reg<'k, u32>,
        probable_cells: Reg<'k, u32>,
        last_symbol: Reg<'k, u32>,
    ) {
        let Self { k, lane } = self;
        let size = 1u32 << log;
        let stride = (size >> 1) + (size >> 3) + 3;
        let (at, visited) = (k.var(0u32), k.var(0u32));
        let below = k.lanemask_lt();
        k.do_while_uniform(|| {
            let cell = ((at + lane) * stride) & (size - 1);
            let probable = cell.lt(probable_cells);
            let all_probable = probable.ballot();
            let nth = visited + (all_probable & below).popc();
            // From the end, the improbable symbols in ascending order.
            let symbol = k.var(last_symbol + probable_cells - cell);
            k.when(probable).load(symbol, (symbols + nth).shared::<u8>());
            (cells + cell).shared::<u8>().store(symbol);
            visited.set(visited + all_probable.popc());
            at.set(at + 32);
            at.lt(size)
        });
        k.sync_warp();
    }

    /// Puts the states of each symbol in ascending order of their cells.
    fn order_states(self, symbol_of_cell: Reg<'k, u32>, place: TableMemory<'k>, size: Reg<'k, u32>) {
        let Self { k, lane } = self;
        let at = k.var(0u32);
        let below = k.lanemask_lt();
        k.do_while_uniform(|| {
            let cell = at + lane;
            let symbol = (symbol_of_cell + cell).shared::<u8>().load();
            let peers = symbol.match_any();
            let next = (place.scratch + symbol * 4).shared::<u32>();
            let own = next.load() + (peers & below).popc();
            (place.states + (own << 1)).shared::<u16>().store(size + cell);
            k.sync_warp();
            let is_last = (peers >> lane).eq(1);
            k.when(is_last).store(next, own + 1);
            k.sync_warp();
            at.set(at + 32);
            at.lt(size)
        });
    }

    /// Returns the initial state, from which the decoder ends with the symbol of this step.
    pub(super) fn first_state(self, [bound, states]: [Reg<'k, u32>; 2]) -> Reg<'k, u32> {
        let bits = (bound + 0x8000) >> 16;
        let cell = ((bits << 16) - bound) >> bits;
        (states + (cell << 1)).shared::<u16>().load()
    }

    /// Returns the next state by a step.
    pub(super) fn next_state(self, [bound, states]: [Reg<'k, u32>; 2], state: Reg<'k, u32>) -> Reg<'k, u32> {
        let cell = state >> step_bits(bound, state);
        (states + (cell << 1)).shared::<u16>().load()
    }
}

/// Returns the number of low bits of the state that a step writes.
pub(super) fn step_bits<'k>(bound: Reg<'k, u32>, state: Reg<'k, u32>) -> Reg<'k, u32> {
    (state + bound) >> 16
}

/// Returns the integer quotient of a number below 2^24 and another. The approximation is off by at most one, which is
/// corrected.
fn quotient<'k>(k: &'k KernelBuilder, dividend: Reg<'k, u32>, divisor: Reg<'k, u32>) -> Var<'k, u32> {
    let quotient = k.var((dividend.to_f32() * divisor.to_f32().rcp_approx()).to_u32());
    let rest = (dividend - quotient * divisor).as_i32();
    let too_much = rest.lt(0);
    let too_little = rest.ge(divisor.as_i32());
    k.when(too_much).set(quotient, quotient - 1);
    k.when(too_little).set(quotient, quotient + 1);
    quotient
}
