//! Slots of page hashes in a hash table.

use std::hash::{BuildHasher, RandomState};

use crate::hashes::page_hash::PAGE_HASH_LEN;

/// Maps hashes to slots of a table with a power of two of them.
///
/// Both halves are multiplied by random numbers, so that an attacker cannot choose hashes that share a slot. `SipHash` would do
/// as well, and take several times as long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotHasher {
    factors: [u64; 2],
    shift: u32,
}

impl SlotHasher {
    pub(crate) fn new(slots: usize) -> Self {
        let random = RandomState::new();
        Self { factors: [random.hash_one(0) | 1, random.hash_one(1) | 1], shift: u64::BITS - slots.ilog2() }
    }

    pub(crate) fn of(self, hash: &[u8; PAGE_HASH_LEN]) -> usize {
        let (halves, _) = hash.as_chunks();
        let product = |half: usize| u64::from_le_bytes(halves[half]).wrapping_mul(self.factors[half]);
        let sum = product(0).wrapping_add(product(1));
        // The upper bits depend on all bits of the hash.
        usize::try_from(sum.checked_shr(self.shift).unwrap_or(0)).expect("less than the number of slots")
    }
}
