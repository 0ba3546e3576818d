//! Counts pages that are exact copies of another one, by their hash, in bounded memory.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};

use trueno_zram_core::Page;

/// The most hashes kept: about 20 MiB, and exact up to 4 GiB of distinct pages.
const MOST_KEPT: usize = 1 << 20;

/// Counts distinct pages. Beyond a million of them it keeps every second hash, then every fourth, and so on, and the
/// counts are estimates.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    kept: HashSet<u64, BuildHasherDefault<AsIs>>,
    most_kept: usize,
    /// Only hashes that end in this many zero bits are kept.
    zero_bits: u32,
    pages: u64,
}

impl Copies {
    pub(super) fn new() -> Self {
        Self::with_room(MOST_KEPT)
    }

    fn with_room(most_kept: usize) -> Self {
        Self { kept: HashSet::default(), most_kept, zero_bits: 0, pages: 0 }
    }

    /// Counts a page by its hash.
    pub(super) fn add(&mut self, hash: u64) {
        self.pages += 1;
        if self.is_kept(hash) && self.kept.insert(hash) {
            while self.kept.len() > self.most_kept {
                self.zero_bits += 1;
                let mut kept = std::mem::take(&mut self.kept);
                kept.retain(|hash| self.is_kept(*hash));
                self.kept = kept;
            }
        }
    }

    fn is_kept(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.zero_bits
    }

    /// Returns how many pages are a copy of one counted earlier.
    pub(crate) fn copies(&self) -> u64 {
        self.pages.saturating_sub((self.kept.len() as u64) << self.zero_bits)
    }

    /// Returns `true` if the count is exact. Two different pages with the same hash are not expected.
    pub(crate) fn is_exact(&self) -> bool {
        self.zero_bits == 0
    }
}

/// Returns the 64-bit hash of a page.
pub(super) fn hash(page: &Page) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
}

/// A hasher for keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        // The lowest bits of kept hashes may all be zero, and tables use those.
        self.0.rotate_right(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u64) -> Page {
        std::array::from_fn(|i| n.to_le_bytes()[i % 8])
    }

    #[test]
    fn copies_are_counted_exactly_while_there_is_room() {
        let mut copies = Copies::new();
        for n in [1, 2, 3, 1, 1, 3, 4] {
            copies.add(hash(&page(n)));
        }
        assert_eq!((copies.copies(), copies.is_exact()), (3, true));
    }

    #[test]
    fn without_room_the_count_is_an_estimate_that_says_so() {
        let mut copies = Copies::with_room(1000);
        for n in 0..40_000 {
            // Every page twice.
            copies.add(hash(&page(n / 2)));
        }
        assert!(copies.kept.len() <= 1000 && !copies.is_exact());
        let share = copies.copies() as f64 / 40_000.0;
        assert!((share - 0.5).abs() < 0.05, "{share}");
    }
}
