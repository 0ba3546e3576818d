//! The hash table: for each hash, the last position of the page that has it.
#![allow(unsafe_code)]

use super::low_u16;
use super::search::LAST_PROBE;

/// Logarithm of the number of entries.
const BITS: u32 = 12;

/// Positions by hash. Zero also marks an empty entry. Candidates are compared with the page before use, so neither
/// empty entries nor collisions do harm.
///
/// Invariant: no entry exceeds [`LAST_PROBE`]. All entries start at zero, and only `insert` writes others.
#[repr(align(64))]
pub(super) struct MatchTable([u16; 1 << BITS]);

impl MatchTable {
    pub(super) const fn new() -> Self {
        Self([0; 1 << BITS])
    }

    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Enters a position and its word under the hash of the word's first `hashed_bits` bits. Returns the previous position.
    #[inline(always)]
    pub(super) fn insert(&mut self, at: usize, word: u64, hashed_bits: u32) -> usize {
        assert!(at <= LAST_PROBE, "the search probes the page and a few bytes behind it");
        let entry = &mut self.0[hash(word, hashed_bits)];
        let previous = usize::from(std::mem::replace(entry, low_u16(at)));
        // SAFETY: the type's invariant. The assertion above upholds it.
        unsafe { std::hint::assert_unchecked(previous <= LAST_PROBE) };
        previous
    }

    /// Fills the table with one position, as an earlier page might have left it.
    #[cfg(test)]
    pub(super) fn fill(&mut self, at: u16) {
        assert!(usize::from(at) <= LAST_PROBE);
        self.0.fill(at);
    }
}

/// Hashes the first `hashed_bits` bits of a little-endian word.
#[inline(always)]
fn hash(word: u64, hashed_bits: u32) -> usize {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    // Shifting the multiplier discards the bits of the word that are not hashed.
    let product = word.wrapping_mul(MULTIPLIER << (u64::BITS - hashed_bits));
    usize::try_from(product >> (u64::BITS - BITS)).expect("a hash has few bits")
}
