//! Slabs: the slots in use, the state, and the links to other slabs.

use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::slots::geometry::MAX_SLOTS;

/// Words of a slab's bitmap.
pub(crate) const BITMAP_WORDS: usize = MAX_SLOTS.div_ceil(64);

/// No slab, at the ends of lists.
pub(crate) const NIL: u32 = u32::MAX;

/// The use of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlabState {
    /// In one of the stacks of free slabs.
    Free = 0,
    /// Being filled for the first time: its memory ends with its last slot in use.
    Growing = 1,
    /// All of its memory was used before, and some slots are free.
    Partial = 2,
    /// All slots are in use.
    Full = 3,
}

/// The state of a slab, known to this process only.
///
/// A slab that is not free belongs to a class, and its fields are changed only under the lock of that class. A free slab
/// belongs to the thread that took it off its stack. The fields are atomic so that this needs no unsafe code; their order is
/// given by those locks.
#[derive(Debug)]
pub(crate) struct Slab {
    state: AtomicU8,
    /// Slots in use, with those that threads keep as spare ones.
    used: AtomicU16,
    /// Granules at the start that take memory.
    touched: AtomicU16,
    /// Neighbours in the list of partial slabs; `next` also links stacks of free slabs.
    pub(crate) next: AtomicU32,
    pub(crate) prev: AtomicU32,
}

/// A slab and the bitmap of its slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlabRef<'a> {
    slab: &'a Slab,
    /// A bit per slot in use. Words beyond the slots of the slab's class are 0.
    bitmap: &'a [AtomicU64],
}

impl<'a> SlabRef<'a> {
    pub(crate) fn new(slab: &'a Slab, bitmap: &'a [AtomicU64]) -> Self {
        Self { slab, bitmap }
    }
}

impl Deref for SlabRef<'_> {
    type Target = Slab;

    fn deref(&self) -> &Slab {
        self.slab
    }
}

impl Slab {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(SlabState::Free as u8),
            used: AtomicU16::new(0),
            touched: AtomicU16::new(0),
            next: AtomicU32::new(NIL),
            prev: AtomicU32::new(NIL),
        }
    }

    pub(crate) fn state(&self) -> SlabState {
        match self.state.load(Relaxed) {
            0 => SlabState::Free,
            1 => SlabState::Growing,
            2 => SlabState::Partial,
            _ => SlabState::Full,
        }
    }

    pub(crate) fn set_state(&self, state: SlabState) {
        self.state.store(state as u8, Relaxed);
    }

    pub(crate) fn used(&self) -> u16 {
        self.used.load(Relaxed)
    }

    pub(crate) fn touched(&self) -> u16 {
        self.touched.load(Relaxed)
    }

    pub(crate) fn set_touched(&self, granules: u16) {
        self.touched.store(granules, Relaxed);
    }
}

impl SlabRef<'_> {
    /// Returns the word of the bitmap that has a slot's bit, and that bit.
    fn word_and_bit(&self, slot: u16) -> (&AtomicU64, u64) {
        (&self.bitmap[usize::from(slot / 64)], 1 << (slot % 64))
    }

    pub(crate) fn is_used(self, slot: u16) -> bool {
        let (word, bit) = self.word_and_bit(slot);
        word.load(Relaxed) & bit != 0
    }

    /// Marks a slot as used. Returns `false` if it was used already.
    pub(crate) fn take(self, slot: u16) -> bool {
        let (word, bit) = self.word_and_bit(slot);
        let before = word.load(Relaxed);
        word.store(before | bit, Relaxed);
        let was_free = before & bit == 0;
        if was_free {
            self.slab.used.store(self.used() + 1, Relaxed);
        }
        was_free
    }

    /// Marks a slot as free. Returns `false` if it was free already.
    pub(crate) fn give_back(self, slot: u16) -> bool {
        let (word, bit) = self.word_and_bit(slot);
        let before = word.load(Relaxed);
        word.store(before & !bit, Relaxed);
        let was_used = before & bit != 0;
        if was_used {
            self.slab.used.store(self.used() - 1, Relaxed);
        }
        was_used
    }

    /// Returns the first free slot of `slots`.
    pub(crate) fn first_free(self, slots: u16) -> Option<u16> {
        let words = self.bitmap.iter().map(|word| word.load(Relaxed)).zip((0u16..).step_by(64));
        let (word, first) = words.take_while(|(_, first)| *first < slots).find(|(word, _)| *word != u64::MAX)?;
        let below = u16::try_from(word.trailing_ones()).expect("at most 64");
        Some(first + below).filter(|slot| *slot < slots)
    }

    /// Returns the last slot in use.
    pub(crate) fn last_used(self) -> Option<u16> {
        let words = self.bitmap.iter().map(|word| word.load(Relaxed));
        let (index, word) = words.enumerate().rev().find(|(_, word)| *word != 0)?;
        let last = index * 64 + 63 - word.leading_zeros() as usize;
        Some(u16::try_from(last).expect("a slab has at most 4096 slots"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_from_the_front_and_given_back_once() {
        let (slab, bitmap) = (Slab::new(), [const { AtomicU64::new(0) }; BITMAP_WORDS]);
        let slab = SlabRef::new(&slab, &bitmap);
        for slot in 0..130 {
            assert_eq!(slab.first_free(130), Some(slot));
            assert!(slab.take(slot) && !slab.take(slot));
            assert_eq!(slab.last_used(), Some(slot));
        }
        assert_eq!((slab.first_free(130), slab.used()), (None, 130));
        for slot in [64, 63, 129] {
            assert!(slab.give_back(slot) && !slab.give_back(slot));
            assert!(!slab.is_used(slot));
        }
        assert_eq!((slab.first_free(130), slab.last_used(), slab.used()), (Some(63), Some(128), 127));
    }
}
