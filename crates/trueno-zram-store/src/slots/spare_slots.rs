//! Spare slots: free slots that threads keep for their next writes, so that a write takes no lock of a size class.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::atomic_word::AtomicWord;
use crate::mapping::{CACHE_LINE_BYTES, MemfdMapping, WORD_BYTES};
use crate::slots::geometry::{CLASS_COUNT, SizeClass};

/// Stripes of a store. Handles beyond this number share them.
const STRIPES: usize = 64;

/// Spare slots per stripe and class: one cache line of cells.
const CELLS: usize = CACHE_LINE_BYTES / WORD_BYTES;

/// Slots that move together between a stripe and the slabs of a class: half of the cells, so that neither a write nor a
/// free that follows is likely to need the lock again.
pub(crate) const REFILL_SLOTS: usize = CELLS / 2;

/// Bytes of all cells.
pub(crate) const CELLS_BYTES: usize = STRIPES * CLASS_COUNT * CELLS * WORD_BYTES;

/// An empty cell. No slot starts at place 0: a slab begins with the page numbers of its slots.
const EMPTY: u64 = 0;

/// Free slots in cells, by stripe and size class.
///
/// The bitmaps of the slabs count a spare slot as used. It belongs to the thread that takes it out of its cell. The cells are not
/// part of what another process attaches to: there, spare slots are free like all slots that the table does not name.
#[derive(Debug)]
pub(crate) struct SpareSlots {
    /// Take memory when stripes are used.
    cells: MemfdMapping,
    assigned_stripes: AtomicUsize,
}

/// The part of the spare slots that a thread uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripe(usize);

impl Stripe {
    /// The stripe of background work.
    pub(crate) const BACKGROUND: Self = Self(0);
}

impl SpareSlots {
    pub(crate) fn new() -> io::Result<Self> {
        let cells = MemfdMapping::create("trueno-zram-spare-slots", CELLS_BYTES)?;
        Ok(Self { cells, assigned_stripes: AtomicUsize::new(0) })
    }

    pub(crate) fn populate_and_lock(&self) -> io::Result<()> {
        self.cells.populate_and_lock(0..self.cells.len_bytes())
    }

    /// Returns a stripe for a new handle.
    pub(crate) fn next_stripe(&self) -> Stripe {
        let number = self.assigned_stripes.fetch_add(1, Ordering::Relaxed);
        Stripe(1 + number % (STRIPES - 1))
    }

    /// Takes the spare slot that was put in last. Returns its place.
    pub(crate) fn take(&self, stripe: Stripe, class: SizeClass) -> Option<u64> {
        take_from(self.cells(stripe, class))
    }

    /// Puts in a slot of `class`. Returns `false` if there is no room.
    pub(crate) fn put(&self, stripe: Stripe, class: SizeClass, place: u64) -> bool {
        put_into(self.cells(stripe, class), place)
    }

    /// Takes all spare slots of a class in all stripes. Slots that other threads put in meanwhile may stay.
    pub(crate) fn take_all(&self, class: SizeClass) -> impl Iterator<Item = u64> + use<'_> {
        let used = self.assigned_stripes.load(Ordering::Relaxed).saturating_add(1).min(STRIPES);
        let cells = (0..used).flat_map(move |stripe| self.cells(Stripe(stripe), class));
        cells.filter_map(|cell| take_from(std::slice::from_ref(cell)))
    }

    fn cells(&self, stripe: Stripe, class: SizeClass) -> &[AtomicU64] {
        let start = (stripe.0 * CLASS_COUNT + class.index()) * CELLS;
        &self.cells.words()[start..start + CELLS]
    }
}

/// Takes the slot of the last full cell. Everything that earlier users of the slot did happened before.
fn take_from(cells: &[impl AtomicWord]) -> Option<u64> {
    let full = cells.iter().rev().filter(|cell| cell.load(Ordering::Relaxed) != EMPTY);
    full.map(|cell| cell.swap(EMPTY, Ordering::Acquire)).find(|place| *place != EMPTY)
}

/// Puts a slot into the first empty cell. Returns `false` if there is none.
fn put_into(cells: &[impl AtomicWord], place: u64) -> bool {
    debug_assert_ne!(place, EMPTY);
    let mut empty = cells.iter().filter(|cell| cell.load(Ordering::Relaxed) == EMPTY);
    empty.any(|cell| cell.replace(EMPTY, place, Ordering::Release))
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as LoomU64;
    use loom::thread;

    use super::*;

    /// Two cells and two slots. loom reports any access to a slot that races with another.
    struct Model {
        cells: [LoomU64; 2],
        slots: [UnsafeCell<u64>; 2],
    }

    impl Model {
        /// Takes a slot if there is one, writes to it as its owner may, and puts it back. Returns it if there is no room, as
        /// it may seem while others move slots.
        #[allow(unsafe_code, reason = "loom checks these accesses")]
        fn use_slot(&self) -> Option<u64> {
            let place = take_from(&self.cells)?;
            let slot = &self.slots[usize::try_from(place).unwrap() - 1];
            // SAFETY: the thread that takes a slot out of its cell owns it; loom checks that this is so.
            slot.with_mut(|slot| unsafe { *slot += 1 });
            (!put_into(&self.cells, place)).then_some(place)
        }
    }

    #[test]
    fn a_slot_has_one_owner_at_a_time() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Arc::new(Model {
                cells: [LoomU64::new(1), LoomU64::new(2)],
                slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let others = [(); 2].map(|()| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.use_slot())
            });
            let mut found: Vec<u64> = model.use_slot().into_iter().collect();
            found.extend(others.into_iter().filter_map(|other| other.join().unwrap()));
            found.extend(std::iter::from_fn(|| take_from(&model.cells)));
            found.sort_unstable();
            assert_eq!(found, [1, 2], "no slot is lost or doubled");
        });
    }

    /// A class of three slots, and a cell for each of three threads.
    struct ModelClass {
        free: loom::sync::Mutex<Vec<u64>>,
        cells: [LoomU64; 3],
    }

    impl ModelClass {
        /// Takes a slot as the allocator does: a spare one, one of the class with another one to spare, or after all spare slots
        /// were given back. No other thread gets at the slots of the class in between.
        fn allocate(&self, thread: usize) -> Option<u64> {
            let own = &self.cells[thread..=thread];
            take_from(own).or_else(|| self.refill(own)).or_else(|| {
                let mut free = self.free.lock().unwrap();
                free.extend(std::iter::from_fn(|| take_from(&self.cells)));
                free.pop()
            })
        }

        fn refill(&self, own: &[LoomU64]) -> Option<u64> {
            let mut free = self.free.lock().unwrap();
            let taken = free.pop();
            if let Some(spare) = free.pop() {
                assert!(put_into(own, spare), "the cell was empty");
            }
            taken
        }
    }

    #[test]
    fn no_thread_is_refused_a_slot_that_another_one_has_to_spare() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let class = Arc::new(ModelClass {
                free: loom::sync::Mutex::new(vec![1, 2, 3]),
                cells: [(); 3].map(|()| LoomU64::new(EMPTY)),
            });
            let others = [1, 2].map(|number| {
                let class = Arc::clone(&class);
                thread::spawn(move || class.allocate(number))
            });
            let mut taken = vec![class.allocate(0)];
            taken.extend(others.map(|other| other.join().unwrap()));
            taken.sort_unstable();
            assert_eq!(taken, [Some(1), Some(2), Some(3)]);
        });
    }

    #[test]
    fn the_last_slot_is_taken_first_and_a_full_stripe_takes_no_more() {
        let spares = SpareSlots::new().unwrap();
        let (stripe, class) = (spares.next_stripe(), SizeClass::of_len(100));
        assert_eq!(spares.take(stripe, class), None);
        (1..=CELLS as u64).for_each(|place| assert!(spares.put(stripe, class, place)));
        assert!(!spares.put(stripe, class, 99));
        assert_eq!([(); 2].map(|()| spares.take(stripe, class)), [Some(8), Some(7)]);
        assert_eq!(spares.take(stripe, SizeClass::of_len(1)), None, "another class has cells of its own");
        assert_eq!(spares.take(spares.next_stripe(), class), None, "another stripe has cells of its own");
    }

    #[test]
    fn all_stripes_are_emptied() {
        let spares = SpareSlots::new().unwrap();
        let class = SizeClass::of_len(4096);
        for place in 1..=2 * STRIPES as u64 {
            assert!(spares.put(spares.next_stripe(), class, place));
        }
        assert!(spares.put(Stripe::BACKGROUND, class, 1000));
        let mut taken: Vec<u64> = spares.take_all(class).collect();
        taken.sort_unstable();
        assert_eq!(taken, (1..=2 * STRIPES as u64).chain([1000]).collect::<Vec<_>>());
        assert_eq!(spares.take_all(class).count(), 0);
    }
}
