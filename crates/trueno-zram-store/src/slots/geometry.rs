//! Size classes, and the layout of the slots in a slab of each class.

use trueno_zram_core::PAGE_SIZE;

/// The unit of places and size classes, in bytes.
pub(crate) const UNIT_BYTES: usize = 64;

/// Length of a slab in bytes. A slab holds slots of one class at a time.
pub(crate) const SLAB_BYTES: usize = 256 << 10;

/// Length of a slab in units.
pub(crate) const SLAB_UNITS: usize = SLAB_BYTES / UNIT_BYTES;

/// The granule in which the system gives memory and takes it back.
pub(crate) const GRANULE_BYTES: usize = 4096;

/// Granules of a slab. The slots of every class reach into the last one.
pub(crate) const SLAB_GRANULES: u16 = 64;

const _: () = assert!(SLAB_GRANULES as usize * GRANULE_BYTES == SLAB_BYTES);

/// Number of size classes. Class `c` has slots of `c + 1` units.
pub(crate) const CLASS_COUNT: usize = PAGE_SIZE / UNIT_BYTES;

/// Length of the page number that a slab records for each slot, at its start.
const OWNER_BYTES: usize = 4;

/// The most slots that a slab of any class has.
pub(crate) const MAX_SLOTS: usize = slots_of(1);

/// A size class: slots of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeClass(u8);

/// A slot: its slab, and its number within the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId {
    pub(crate) slab: u32,
    pub(crate) slot: u16,
}

impl SizeClass {
    /// Returns the class with the shortest slots that hold `len_bytes`, which is 1 to 4096.
    pub(crate) fn of_len(len_bytes: usize) -> Self {
        debug_assert!((1..=PAGE_SIZE).contains(&len_bytes));
        let units = len_bytes.div_ceil(UNIT_BYTES).clamp(1, CLASS_COUNT);
        Self(u8::try_from(units - 1).expect("there are 64 classes"))
    }

    /// Iterates over all classes.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..CLASS_COUNT).map(|index| Self(u8::try_from(index).expect("there are 64 classes")))
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Length of a slot in units.
    pub(crate) fn slot_units(self) -> usize {
        usize::from(self.0) + 1
    }

    /// Number of slots in a slab.
    pub(crate) fn slots(self) -> u16 {
        SLOTS[self.index()]
    }

    /// Units at the start of a slab that hold the page numbers of its slots.
    fn header_units(self) -> usize {
        header_units_of(usize::from(self.slots()))
    }

    /// Returns the first unit of a slot, counted from the first slab.
    pub(crate) fn place(self, at: SlotId) -> u64 {
        let within = self.header_units() + usize::from(at.slot) * self.slot_units();
        u64::from(at.slab) * SLAB_UNITS as u64 + within as u64
    }

    /// Returns the slot that starts at `place`, if there is one.
    pub(crate) fn slot_at(self, place: u64) -> Option<SlotId> {
        let slab = u32::try_from(place / SLAB_UNITS as u64).ok()?;
        let within = usize::try_from(place % SLAB_UNITS as u64).ok()?.checked_sub(self.header_units())?;
        let slot = u16::try_from(within / self.slot_units()).ok()?;
        let starts_here = within.is_multiple_of(self.slot_units()) && slot < self.slots();
        starts_here.then_some(SlotId { slab, slot })
    }

    /// Granules from the start of a slab to the end of its first `slots` slots; 0 for no slots.
    pub(crate) fn granules_for(self, slots: usize) -> u16 {
        if slots == 0 {
            return 0;
        }
        let bytes = (self.header_units() + slots * self.slot_units()) * UNIT_BYTES;
        u16::try_from(bytes.div_ceil(GRANULE_BYTES)).expect("a slab has 64 granules")
    }
}

/// Slots of each class.
const SLOTS: [u16; CLASS_COUNT] = {
    let mut slots = [0; CLASS_COUNT];
    let mut index = 0;
    while index < CLASS_COUNT {
        #[allow(clippy::cast_possible_truncation, reason = "at most 4096 slots")]
        let count = slots_of(index + 1) as u16;
        slots[index] = count;
        index += 1;
    }
    slots
};

const fn header_units_of(slots: usize) -> usize {
    (slots * OWNER_BYTES).div_ceil(UNIT_BYTES)
}

const fn slots_of(slot_units: usize) -> usize {
    let mut slots = SLAB_UNITS / slot_units;
    while header_units_of(slots) + slots * slot_units > SLAB_UNITS {
        slots -= 1;
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fit_the_slab_and_do_not_overlap() {
        for class in SizeClass::all() {
            let mut end = class.header_units() as u64;
            for slot in 0..class.slots() {
                let place = class.place(SlotId { slab: 0, slot });
                assert_eq!(place, end, "{class:?} slot {slot}");
                end = place + class.slot_units() as u64;
            }
            assert!(end <= SLAB_UNITS as u64);
            assert!(SLAB_UNITS as u64 - end < class.slot_units() as u64 + 1, "{class:?} has room for another slot");
        }
    }

    #[test]
    fn only_the_first_unit_of_a_slot_names_it() {
        for class in SizeClass::all() {
            let slots: Vec<_> = (0..3 * SLAB_UNITS as u64).filter_map(|place| class.slot_at(place)).collect();
            assert_eq!(slots.len(), 3 * usize::from(class.slots()));
            assert!(slots.iter().all(|at| class.slot_at(class.place(*at)) == Some(*at)));
        }
    }

    #[test]
    fn lengths_take_the_shortest_slot_that_holds_them() {
        for len in 1..=PAGE_SIZE {
            let slot_bytes = SizeClass::of_len(len).slot_units() * UNIT_BYTES;
            assert!(slot_bytes >= len && slot_bytes < len + UNIT_BYTES);
        }
    }

    #[test]
    fn a_slab_wastes_less_than_two_percent() {
        for class in SizeClass::all() {
            let used = usize::from(class.slots()) * class.slot_units();
            let overhead = header_units_of(usize::from(class.slots()));
            assert!((SLAB_UNITS - used - overhead) * 50 < SLAB_UNITS, "{class:?}");
            assert_eq!(class.granules_for(usize::from(class.slots())), SLAB_GRANULES);
        }
    }
}
