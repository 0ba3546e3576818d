//! Tables of finite state entropy coding: distribution, description, states (RFC 8878, section 4.1).

use super::bits::{BitWriter, floor_log2, log2_fixed};
use super::format::MIN_ACCURACY_LOG;

/// A table to encode with.
pub(super) struct FseTable {
    log: usize,
    /// For each symbol and each of its cells, the state of the cell, in ascending order.
    states: Vec<usize>,
    /// The change of state for each symbol.
    steps: Vec<SymbolStep>,
}

/// The change of state that a symbol causes: with `bits = (state + bits_bound) >> 16`, the low `bits` bits of the state
/// are written, and the rest leads to the next state.
#[derive(Clone, Copy, Default)]
struct SymbolStep {
    bits_bound: usize,
    /// Index of the first state, less the symbol's number of cells.
    base: isize,
}

impl FseTable {
    /// Builds the table of a distribution. -1 stands for a probability below 1.
    pub(super) fn build(distribution: &[i32], log: usize) -> Self {
        let size = 1 << log;
        // Improbable symbols have one cell each, from the end; the others are spread over what is left.
        let improbable: Vec<_> = (0..distribution.len()).filter(|&symbol| distribution[symbol] < 0).collect();
        let spread_cells = size - improbable.len();
        let mut symbol_of = vec![0; size];
        for (n, symbol) in improbable.into_iter().enumerate() {
            symbol_of[size - 1 - n] = symbol;
        }
        let step = (size >> 1) + (size >> 3) + 3;
        let mut cells = (0..size).map(|n| n * step % size).filter(|cell| *cell < spread_cells);
        for (symbol, &count) in distribution.iter().enumerate() {
            for _ in 0..count {
                symbol_of[cells.next().expect("the distribution sums to the table's size")] = symbol;
            }
        }
        let (mut states, mut steps) = (Vec::new(), Vec::new());
        for (symbol, &count) in distribution.iter().enumerate() {
            let first = states.len();
            states.extend((0..size).filter(|cell| symbol_of[*cell] == symbol && count != 0).map(|cell| size + cell));
            steps.push(match states.len() - first {
                0 => SymbolStep::default(),
                cells => {
                    let most_bits = log - if cells > 1 { floor_log2(cells - 1) } else { 0 };
                    let bits_bound = (most_bits << 16) - (cells << most_bits);
                    SymbolStep { bits_bound, base: first.cast_signed() - cells.cast_signed() }
                }
            });
        }
        Self { log, states, steps }
    }

    /// A table in which one symbol takes all: no bits are written.
    pub(super) fn of_one_symbol(symbol: usize) -> Self {
        Self { log: 0, states: vec![0], steps: vec![SymbolStep::default(); symbol + 1] }
    }

    fn state_at(&self, symbol: usize, cell: usize) -> usize {
        self.states[self.steps[symbol].base.checked_add_unsigned(cell).expect("small").unsigned_abs()]
    }

    /// Returns the state to start with, from which the decoder ends with `symbol`.
    pub(super) fn first_state(&self, symbol: usize) -> usize {
        let bound = self.steps[symbol].bits_bound;
        let bits = (bound + (1 << 15)) >> 16;
        self.state_at(symbol, ((bits << 16) - bound) >> bits)
    }

    /// Encodes a symbol. Returns the next state and the number of low bits of the current state to write.
    pub(super) fn next_state(&self, symbol: usize, state: usize) -> (usize, usize) {
        let bits = (state + self.steps[symbol].bits_bound) >> 16;
        (self.state_at(symbol, state >> bits), bits)
    }

    /// Writes the last state, the first that the decoder reads.
    pub(super) fn write_state(&self, state: usize, out: &mut BitWriter) {
        out.push(state, self.log);
    }
}

/// Scales counts to a sum of `1 << log`: rounded, at least 1, the difference taken from or given to the largest.
pub(super) fn distribute(counts: &[usize], log: usize) -> Vec<i32> {
    let size: usize = 1 << log;
    let total: usize = counts.iter().sum();
    let scale = (size << 16) / total;
    let scaled = |count: &usize| ((count * scale + 0x8000) >> 16).max(usize::from(*count > 0));
    let mut distribution: Vec<i32> =
        counts.iter().map(|c| i32::try_from(scaled(c)).expect("at most the size")).collect();
    loop {
        let missing = i32::try_from(size).expect("small") - distribution.iter().sum::<i32>();
        if missing == 0 {
            return distribution;
        }
        // The last of the largest. What is too much goes one by one.
        let largest = distribution.iter_mut().max().expect("there are symbols");
        *largest += if missing > 0 { missing } else { -1 };
    }
}

/// Returns the bits that symbols in these numbers take, in steps of 1/256, by a distribution.
pub(super) fn cost(counts: &[usize], distribution: &[i32], log: usize) -> usize {
    let bits = |cells: i32| 256 * log - log2_fixed(usize::try_from(cells).unwrap_or(1).max(1));
    counts.iter().zip(distribution).map(|(count, cells)| count * bits(*cells)).sum()
}

/// Writes the description of a distribution without improbable symbols.
pub(super) fn describe(distribution: &[i32], log: usize, out: &mut BitWriter) {
    out.push(log - MIN_ACCURACY_LOG as usize, 4);
    let mut left = (1 << log) + 1;
    let mut zeros = 0;
    for &cells in distribution {
        let cells = usize::try_from(cells).expect("no improbable symbols");
        if left == 1 {
            break;
        }
        if zeros > 0 && cells == 0 {
            zeros += 1;
            continue;
        }
        if zeros > 0 {
            // After a zero, how many more follow: 3 at a time, then the rest.
            for _ in 0..(zeros - 1) / 3 {
                out.push(3, 2);
            }
            out.push((zeros - 1) % 3, 2);
        }
        // A value takes as many bits as the cells that are left allow; small ones take one bit less.
        let whole_bits = floor_log2(left);
        let threshold = 1 << whole_bits;
        let short = 2 * threshold - 1 - left;
        let mut value = cells + 1;
        if value >= threshold {
            value += short;
        }
        out.push(value, whole_bits + 1 - usize::from(value < short));
        left -= cells;
        zeros = usize::from(cells == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_sum_to_the_size_and_keep_every_symbol() {
        let many: Vec<usize> = (0..40).map(|i| i % 3 * (i + 1)).collect();
        for counts in [vec![1, 1], vec![4000, 1, 0, 7], vec![1; 30], many] {
            let distribution = distribute(&counts, 6);
            assert_eq!(distribution.iter().sum::<i32>(), 64);
            assert!(counts.iter().zip(&distribution).all(|(count, cells)| (*count == 0) == (*cells == 0)));
        }
    }

    #[test]
    fn every_state_leads_to_each_symbol() {
        let table = FseTable::build(&[3, 20, 0, 9], 5);
        for symbol in [0, 1, 3] {
            for state in 32..64 {
                let (next, bits) = table.next_state(symbol, state);
                assert!((32..64).contains(&next) && bits <= 5);
            }
        }
    }
}
