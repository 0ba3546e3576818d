//! The hash table: for each hash, the last position of the page that has it.
#![allow(unsafe_code)]

use super::bytes::Bytes;
use super::low_u16;
use crate::page::PAGE_SIZE;

/// Number of entries: the most that any search uses.
pub(super) const TABLE_ENTRIES: usize = 1 << MAX_BITS;

/// Logarithm of `TABLE_ENTRIES`.
pub(super) const MAX_BITS: u32 = 13;

/// The last position from which eight bytes can be read.
const LAST_WORD: usize = PAGE_SIZE - 8;

/// Positions by hash. Zero also marks an empty entry. Candidates are compared with the page before use, so neither
/// empty entries nor collisions do harm.
///
/// Invariant: no entry exceeds `LAST_WORD`. All entries start at zero, and only `insert` writes others.
#[repr(align(64))]
pub(super) struct Table([u16; TABLE_ENTRIES]);

impl Table {
    pub(super) const fn new() -> Self {
        Self([0; TABLE_ENTRIES])
    }

    /// Clears the entries that a hash of `BITS` bits can reach.
    #[inline(always)]
    pub(super) fn clear<const BITS: u32>(&mut self) {
        const { assert!(BITS <= MAX_BITS) };
        self.0[..1 << BITS].fill(0);
    }

    /// Inserts the position under the hash of its first `HASHED_BITS` bits. Returns the previous position.
    #[inline(always)]
    pub(super) fn insert<const HASHED_BITS: u32, const BITS: u32>(&mut self, bytes: Bytes<'_>, at: usize) -> usize {
        let word = bytes.u64_at(at);
        let entry = &mut self.0[hash::<HASHED_BITS, BITS>(word)];
        let previous = usize::from(std::mem::replace(entry, low_u16(at)));
        // SAFETY: the type's invariant. `u64_at` has just checked it for `at`, and panics otherwise.
        unsafe { std::hint::assert_unchecked(previous <= LAST_WORD) };
        previous
    }

    /// Fills the table with one position, as an earlier page might have left it.
    #[cfg(test)]
    pub(super) fn fill(&mut self, at: u16) {
        assert!(usize::from(at) <= LAST_WORD);
        self.0.fill(at);
    }
}

/// Hashes the first `HASHED_BITS` bits of a little-endian word.
#[inline(always)]
fn hash<const HASHED_BITS: u32, const BITS: u32>(word: u64) -> usize {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    // Shifting the multiplier discards the bits of the word that are not hashed.
    let product = word.wrapping_mul(MULTIPLIER << (u64::BITS - HASHED_BITS));
    usize::try_from(product >> (u64::BITS - BITS)).expect("a hash has at most MAX_BITS bits")
}

const _: () = assert!(LAST_WORD <= u16::MAX as usize);
