//! Order-0 entropy of pages: the bits per byte if each byte is coded by itself.

use serde::Serialize;
use trueno_zram_core::{PAGE_SIZE, Page};

/// Half bits from 0 to 8.
const ENTROPY_STEPS: usize = 16;

/// The distribution of entropy over pages.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Entropies {
    /// Pages measured: all but zero pages.
    pub(crate) pages: u64,
    /// Pages with 0 to 0.5 bits per byte, with 0.5 to 1, and so on.
    pub(crate) by_half_bit: [u64; ENTROPY_STEPS],
    #[serde(skip)]
    sum_bits: f64,
}

impl Entropies {
    /// Counts a page with this many bits per byte.
    pub(super) fn add(&mut self, bits: f64) {
        self.pages += 1;
        self.sum_bits += bits;
        // At most 8 bits, so at most 16 half bits: exact.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let step = (bits.max(0.0) * 2.0) as usize;
        self.by_half_bit[step.min(ENTROPY_STEPS - 1)] += 1;
    }

    /// Returns the mean over all pages; `None` without pages.
    pub(crate) fn mean_bits(&self) -> Option<f64> {
        (self.pages > 0).then(|| self.sum_bits / self.pages as f64)
    }
}

/// A table of `n * log2(n)` for all counts that a page can have.
pub(super) struct EntropyTable {
    n_log_n: Vec<f64>,
}

impl EntropyTable {
    pub(super) fn new() -> Self {
        let n_log_n = |n: usize| if n == 0 { 0.0 } else { n as f64 * (n as f64).log2() };
        Self { n_log_n: (0..=PAGE_SIZE).map(n_log_n).collect() }
    }

    /// Returns the bits per byte of a page.
    pub(super) fn bits(&self, page: &Page) -> f64 {
        // Four tables, so that equal neighbouring bytes do not wait for each other's count.
        let mut counts = [[0u16; 256]; 4];
        for four in page.as_chunks::<4>().0 {
            for (counts, byte) in counts.iter_mut().zip(four) {
                counts[usize::from(*byte)] += 1;
            }
        }
        let [a, b, c, d] = &counts;
        let sum: f64 = (0..256).map(|i| self.n_log_n[usize::from(a[i] + b[i] + c[i] + d[i])]).sum();
        const LEN: f64 = PAGE_SIZE as f64;
        LEN.log2() - sum / LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pages_have_known_entropies() {
        let table = EntropyTable::new();
        let bits = |byte: &dyn Fn(usize) -> usize| table.bits(&std::array::from_fn(|i| byte(i).to_le_bytes()[0]));
        assert_eq!(bits(&|_| 7), 0.0);
        assert_eq!(bits(&|i| i % 2), 1.0);
        assert_eq!(bits(&|i| i % 256), 8.0);
        let skewed = bits(&|i| usize::from(i % 4 == 0));
        let expected = -(0.25f64 * 0.25f64.log2() + 0.75 * 0.75f64.log2());
        assert!((skewed - expected).abs() < 1e-9, "{skewed} instead of {expected}");
    }

    #[test]
    fn pages_are_counted_by_half_bits() {
        let mut entropies = Entropies::default();
        [0.0, 0.49, 0.5, 7.99, 8.0].into_iter().for_each(|bits| entropies.add(bits));
        assert_eq!((entropies.by_half_bit[0], entropies.by_half_bit[1], entropies.by_half_bit[15]), (2, 1, 2));
        assert!((entropies.mean_bits().unwrap() - 3.396).abs() < 1e-9);
        assert_eq!(Entropies::default().mean_bits(), None);
    }
}
