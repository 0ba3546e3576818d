//! Compaction: moves pages out of slabs that are hardly used, and returns their memory.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::allocator::ClassSlabs;
use crate::entry::Form;
use crate::error::{Error, Result};
use crate::geometry::{Class, SlotAt};
use crate::slab::SlabState;
use crate::stats::Counters;
use crate::store::Store;

/// Pages moved while the lock of a class is held. Writers of that class wait meanwhile.
const MOVES_AT_ONCE: usize = 16;

/// What compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// Pages that were moved.
    pub pages_moved: u64,
    /// Memory that was returned to the system.
    pub bytes_returned: u64,
}

/// Whether to look at a class again.
enum Step {
    Again,
    Done,
}

impl Store {
    /// Moves pages together and returns the memory that becomes free, while requests go on.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// handle.write_at(0, b"a page, nearly empty")?;
    /// handle.discard(0, 4096)?;
    /// assert!(store.compact()?.bytes_returned > 0);
    /// assert_eq!(store.stats().mm.mem_used_total, 0);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::System`] if the system does not take memory back.
    pub fn compact(&self) -> Result<Compaction> {
        let _alone = self.lock_maintenance();
        let counters: Arc<Counters> = self.register_counters();
        let held_before = self.slots.budget().held();
        let returned = "memory could not be returned";
        for class in Class::all() {
            while matches!(self.compact_step(class, &counters).map_err(Error::system(returned))?, Step::Again) {}
        }
        self.slots.return_free_slabs().map_err(Error::system(returned))?;
        let pages_moved = counters.pages_compacted.get();
        Ok(Compaction { pages_moved, bytes_returned: held_before.saturating_sub(self.slots.budget().held()) })
    }

    /// Moves a few pages of a class.
    fn compact_step(&self, class: Class, counters: &Counters) -> std::io::Result<Step> {
        let mut lists = self.slots.class(class);
        // Spare slots hold slabs as if they were used, and threads at work have made new ones since the last step.
        self.slots.return_spares(&mut lists, class);
        let mut partial = self.slots.partial(&lists);
        let (source, has_target) = match (lists.growing(), partial.next()) {
            (Some(growing), first) => (growing, first.is_some()),
            (None, Some(first)) => {
                let emptiest = partial.fold(first, |a, b| if self.used(b) < self.used(a) { b } else { a });
                (emptiest, self.slots.partial(&lists).nth(1).is_some())
            }
            (None, None) => return Ok(Step::Done),
        };
        let (moved, stuck) = if has_target {
            self.empty_slab(&mut lists, class, source, counters)
        } else {
            self.pack_slab(&mut lists, class, source, counters)
        };
        if moved > 0 && !stuck {
            return Ok(Step::Again);
        }
        if !has_target && matches!(self.slots.slab(source).state(), SlabState::Partial | SlabState::Growing) {
            self.slots.trim_to_growing(&mut lists, class, source)?;
        }
        Ok(Step::Done)
    }

    fn used(&self, slab: u32) -> u16 {
        self.slots.slab(slab).used()
    }

    /// Moves pages of `source` to partial slabs. Returns how many, and whether one could not be moved.
    fn empty_slab(&self, lists: &mut ClassSlabs, class: Class, source: u32, counters: &Counters) -> (usize, bool) {
        let mut moved = 0;
        for slot in 0..class.slots() {
            let from = SlotAt { slab: source, slot };
            if moved == MOVES_AT_ONCE || self.used(source) == 0 {
                break;
            }
            if !self.slots.slab(source).is_used(slot) {
                continue;
            }
            let Some(target) = self.slots.partial(lists).find(|slab| *slab != source) else { break };
            if !self.move_page(lists, class, from, target, counters) {
                return (moved, true);
            }
            moved += 1;
        }
        (moved, false)
    }

    /// Moves the last pages of a slab to its first free slots.
    fn pack_slab(&self, lists: &mut ClassSlabs, class: Class, number: u32, counters: &Counters) -> (usize, bool) {
        let slab = self.slots.slab(number);
        for moved in 0..MOVES_AT_ONCE {
            let (Some(last), Some(free)) = (slab.last_used(), slab.first_free(class.slots())) else {
                return (moved, false);
            };
            if free > last {
                return (moved, false);
            }
            if !self.move_page(lists, class, SlotAt { slab: number, slot: last }, number, counters) {
                return (moved, true);
            }
        }
        (MOVES_AT_ONCE, false)
    }

    /// Moves the page in a slot to the first free slot of `target`. Returns `false` if the page is in use, or if its entry
    /// names another slot: then this one was just taken, is free or about to be, or is kept for a snapshot.
    fn move_page(&self, lists: &mut ClassSlabs, class: Class, from: SlotAt, target: u32, counters: &Counters) -> bool {
        let page = self.slots.owner(from);
        let Some(guard) = self.table.try_lock(page) else { return false };
        let entry = guard.entry();
        let Ok(Form::Stored(stored)) = entry.form() else { return false };
        if stored.class() != class || stored.place != class.place(from) {
            return false;
        }
        let Some(to) = self.slots.take_slot(lists, target, class) else { return false };
        self.slots.set_owner(to, page);
        let len_bytes = usize::from(stored.len_bytes);
        let words = self.slots.slot_words(stored.place, len_bytes);
        let place = class.place(to);
        for (from, to) in words.iter().zip(self.slots.slot_words(place, len_bytes)) {
            to.store(from.load(Relaxed), Relaxed);
        }
        guard.publish(entry.moved_to(place));
        self.slots.free_in(lists, class, from);
        counters.pages_compacted.add(1);
        true
    }
}
