//! Compaction: moves pages out of nearly empty slabs, and returns the memory of those.

use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::{Error, Result};
use crate::slots::allocator::{ClassSlabs, SlotAllocator};
use crate::slots::geometry::{SizeClass, SlotId};
use crate::slots::slab::SlabState;
use crate::stats::ThreadCounters;
use crate::store::Store;
use crate::table::PageTable;
use crate::table::entry::PageForm;

/// Pages moved while the lock of a class is held. Writers of that class wait meanwhile.
const MOVES_AT_ONCE: usize = 16;

/// The result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// Pages that were moved.
    pub pages_moved: u64,
    /// Memory that was returned to the system.
    pub bytes_returned: u64,
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
    /// [`Error::System`] if memory cannot be returned to the system.
    pub fn compact(&self) -> Result<Compaction> {
        let _lock = self.lock_maintenance();
        let counters = self.counters.register();
        let (moved_before, held_before) = (counters.pages_compacted.get(), self.slots.budget().held());
        let failed = "memory could not be returned";
        for class in SizeClass::all() {
            while ClassPass::lock(self, class, &counters).step().map_err(Error::system(failed))? {}
        }
        self.slots.return_free_slabs().map_err(Error::system(failed))?;
        Ok(Compaction {
            pages_moved: counters.pages_compacted.get() - moved_before,
            bytes_returned: held_before.saturating_sub(self.slots.budget().held()),
        })
    }
}

/// A few moves among the slabs of a class, whose lists are locked meanwhile.
struct ClassPass<'a> {
    slots: &'a SlotAllocator,
    table: &'a PageTable,
    class: SizeClass,
    lists: MutexGuard<'a, ClassSlabs>,
    counters: &'a ThreadCounters,
}

impl<'a> ClassPass<'a> {
    fn lock(store: &'a Store, class: SizeClass, counters: &'a ThreadCounters) -> Self {
        let (slots, table) = (&store.slots, &store.table);
        Self { slots, table, class, lists: slots.class(class), counters }
    }

    /// Moves a few pages. Returns `true` if there may be more to move.
    fn step(mut self) -> io::Result<bool> {
        // Spare slots hold slabs as if they were used, and threads at work have made new ones since the last step.
        self.slots.return_spares(&mut self.lists, self.class);
        let emptiest = || self.slots.partial(&self.lists).min_by_key(|slab| self.used(*slab));
        let Some(source) = self.lists.growing().or_else(emptiest) else { return Ok(false) };
        let has_target = self.slots.partial(&self.lists).any(|slab| slab != source);
        let has_more = if has_target { self.empty_slab(source) } else { self.pack_slab(source) };
        if has_more {
            return Ok(true);
        }
        if !has_target && matches!(self.slots.slab(source).state(), SlabState::Partial | SlabState::Growing) {
            self.slots.trim_to_growing(&mut self.lists, self.class, source)?;
        }
        Ok(false)
    }

    fn used(&self, slab: u32) -> u16 {
        self.slots.slab(slab).used()
    }

    /// Moves pages of `source` to partial slabs. Returns `false` if none was moved, or one could not be.
    fn empty_slab(&mut self, source: u32) -> bool {
        let mut moved = 0;
        for slot in 0..self.class.slots() {
            if moved == MOVES_AT_ONCE || self.used(source) == 0 {
                break;
            }
            if !self.slots.slab(source).is_used(slot) {
                continue;
            }
            let Some(target) = self.slots.partial(&self.lists).find(|slab| *slab != source) else { break };
            if !self.move_page(SlotId { slab: source, slot }, target) {
                return false;
            }
            moved += 1;
        }
        moved > 0
    }

    /// Moves the last pages of a slab to its first free slots. Returns `false` if no slot before the last page is free, or if a
    /// page could not be moved.
    fn pack_slab(&mut self, number: u32) -> bool {
        (0..MOVES_AT_ONCE).all(|_| {
            let slab = self.slots.slab(number);
            let last = slab.last_used().filter(|last| slab.first_free(*last).is_some());
            last.is_some_and(|last| self.move_page(SlotId { slab: number, slot: last }, number))
        })
    }

    /// Moves the page in a slot to the first free slot of `target`. Returns `false` if the page is in use, or if its entry
    /// names another slot: then this one was just taken, is free or about to be, or is kept for a snapshot.
    fn move_page(&mut self, from: SlotId, target: u32) -> bool {
        let page = self.slots.owner(from);
        let Some(guard) = self.table.try_lock(page) else { return false };
        let entry = guard.entry();
        let Ok(PageForm::Stored(stored)) = entry.form() else { return false };
        if stored.class() != self.class || stored.place != self.class.place(from) {
            return false;
        }
        let Some(to) = self.slots.take_slot(&mut self.lists, target, self.class) else { return false };
        self.slots.set_owner(to, page);
        let len_bytes = usize::from(stored.len_bytes);
        let words = self.slots.slot_words(stored.place, len_bytes);
        let place = self.class.place(to);
        for (from, to) in words.iter().zip(self.slots.slot_words(place, len_bytes)) {
            to.store(from.load(Relaxed), Relaxed);
        }
        guard.publish(entry.moved_to(place));
        self.slots.free_in(&mut self.lists, self.class, from);
        self.counters.pages_compacted.add(1);
        true
    }
}
