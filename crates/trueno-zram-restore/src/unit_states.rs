//! Three bits per unit, changed by many threads: filled, removed, and barred.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of numbers that threads share.
#[derive(Debug)]
pub(crate) struct AtomicBitSet(Vec<AtomicU64>);

impl AtomicBitSet {
    /// Takes numbers below `count`.
    pub(crate) fn new(count: usize) -> Self {
        Self((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn contains(&self, unit: usize) -> bool {
        self.0[unit / 64].load(Ordering::Acquire) >> (unit % 64) & 1 == 1
    }

    /// Returns `true` if the number is new.
    pub(crate) fn insert(&self, unit: usize) -> bool {
        let bit = 1 << (unit % 64);
        // A number that is there already takes a read only.
        !self.contains(unit) && self.0[unit / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    fn remove(&self, unit: usize) {
        self.0[unit / 64].fetch_and(!(1 << (unit % 64)), Ordering::AcqRel);
    }
}

impl Clone for AtomicBitSet {
    fn clone(&self) -> Self {
        Self(self.0.iter().map(|word| AtomicU64::new(word.load(Ordering::Acquire))).collect())
    }
}

/// The units that were filled, those that the VMM removed, and those that are not filled from the source any more.
#[derive(Clone, Debug)]
pub(crate) struct UnitStates {
    filled: AtomicBitSet,
    removed: AtomicBitSet,
    barred: AtomicBitSet,
    count: usize,
}

impl UnitStates {
    pub(crate) fn new(count: usize) -> Self {
        let [filled, removed, barred] = [(); 3].map(|()| AtomicBitSet::new(count));
        Self { filled, removed, barred, count }
    }

    /// Returns `true` if the unit was filled at some time. The VMM may have removed it since.
    pub(crate) fn is_filled(&self, unit: usize) -> bool {
        self.filled.contains(unit)
    }

    /// Returns `true` if the VMM has removed the unit. From then on its content is zeros whenever it is missing.
    pub(crate) fn is_removed(&self, unit: usize) -> bool {
        self.removed.contains(unit)
    }

    /// Returns `true` if the unit still has to be filled from the archive.
    pub(crate) fn is_wanted(&self, unit: usize) -> bool {
        !self.is_filled(unit) && !self.is_removed(unit)
    }

    /// Records that a unit is filled.
    pub(crate) fn set_filled(&self, unit: usize) {
        self.filled.insert(unit);
    }

    /// Records that units were removed. Returns how many were not before.
    pub(crate) fn set_removed(&self, units: Range<usize>) -> u64 {
        units.map(|unit| u64::from(self.removed.insert(unit))).sum()
    }

    /// Records that units were not removed after all.
    pub(crate) fn unset_removed(&self, units: Range<usize>) {
        units.for_each(|unit| self.removed.remove(unit));
    }

    /// Returns `true` if the unit must not be filled: it was removed, or is barred.
    pub(crate) fn is_closed(&self, unit: usize) -> bool {
        self.removed.contains(unit) || self.barred.contains(unit)
    }

    /// Returns `true` if the unit is still to be filled, and may be.
    pub(crate) fn is_fillable(&self, unit: usize) -> bool {
        self.is_wanted(unit) && !self.barred.contains(unit)
    }

    /// Bars a unit: content of it that was read before must not be filled any more.
    pub(crate) fn bar(&self, unit: usize) {
        self.barred.insert(unit);
    }

    pub(crate) fn is_barred(&self, unit: usize) -> bool {
        self.barred.contains(unit)
    }

    /// Bars the missing ones of these units. Returns how many were filled from the source before, and may be there.
    pub(crate) fn bar_missing(&self, units: Range<usize>) -> u64 {
        let missing = |unit: &usize| !self.is_filled(*unit);
        let filled = units.clone().filter(|unit| !missing(unit) && !self.is_barred(*unit)).count();
        units.filter(missing).for_each(|unit| self.bar(unit));
        filled as u64
    }

    /// Returns the parts of a range that still have to be filled. Gaps of fewer than `gap` units are part of them.
    pub(crate) fn wanted_in(&self, units: Range<usize>, gap: usize) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        for unit in units.filter(|unit| self.is_wanted(*unit)) {
            match parts.last_mut() {
                Some(part) if unit - part.end < gap => part.end = unit + 1,
                _ => parts.push(unit..unit + 1),
            }
        }
        parts
    }

    /// Returns `true` if no unit is left that has to be filled from the archive.
    pub(crate) fn is_complete(&self) -> bool {
        (0..self.count).all(|unit| !self.is_wanted(unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_units_are_not_wanted_whether_they_were_filled_or_not() {
        let states = UnitStates::new(130);
        assert!(states.is_wanted(129) && !states.is_complete());
        states.set_filled(129);
        assert_eq!(states.set_removed(100..130), 30);
        assert_eq!(states.set_removed(99..130), 1);
        assert!(states.is_filled(129) && states.is_removed(129) && !states.is_filled(100));
        assert!(!states.is_complete());
        [10, 11, 14, 40].into_iter().for_each(|unit| states.set_filled(unit));
        assert_eq!(states.wanted_in(5..50, 1), [5..10, 12..14, 15..40, 41..50]);
        assert_eq!(states.wanted_in(5..50, 2), [5..10, 12..50]);
        assert_eq!(states.wanted_in(5..50, 3), vec![5..50]);
        (0..99).for_each(|unit| states.set_filled(unit));
        assert!(states.is_complete());
    }
}
