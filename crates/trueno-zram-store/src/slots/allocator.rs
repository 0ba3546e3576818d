//! Allocates slots by size class, and frees them.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::mapping::{HALF_WORD_BYTES, MemfdMapping, WORD_BYTES, prefetch};
use crate::slots::budget::MemoryBudget;
use crate::slots::free_slabs::FreeSlabs;
use crate::slots::geometry::{CLASS_COUNT, GRANULE_BYTES, SLAB_BYTES, SLAB_GRANULES, SizeClass, SlotId, UNIT_BYTES};
use crate::slots::slab::{BITMAP_WORDS, NIL, SlabRef, SlabState};
use crate::slots::slab_table::SlabTable;
use crate::slots::spare_slots::{REFILL_SLOTS, SpareSlots, Stripe};
use crate::table::entry::StoredPage;

/// The most pages of a store: slots record page numbers of 32 bits.
pub(crate) const MAX_PAGES: u64 = 1 << 32;

/// Length of a slab's bitmap.
const BITMAP_BYTES: usize = BITMAP_WORDS * WORD_BYTES;

/// Slots in slabs in a mapping.
///
/// Memory is counted in granules, the system's pages. A slab takes memory from its start to the end of the last slot that
/// was ever used. Each class fills one new slab at a time, after the free slots of all others.
///
/// A thread takes slots from its spare ones, and frees them to there. The lists of a class, with their lock, are only
/// needed when it has no spare slot, or no room for one more.
#[derive(Debug)]
pub(crate) struct SlotAllocator {
    mapping: MemfdMapping,
    /// The slabs in use. The mapping has room for more, which [`grow_to`](Self::grow_to) adds.
    slabs: SlabTable,
    /// The bitmaps of the slabs' slots. They take memory when slabs are used.
    bitmaps: MemfdMapping,
    classes: Box<[Mutex<ClassSlabs>; CLASS_COUNT]>,
    spares: SpareSlots,
    /// Held while all spare slots, or the memory of free slabs, are returned. A thread that finds no memory waits for it and
    /// tries again.
    reclaim_lock: Mutex<()>,
    /// Free slabs that take memory. They are used first.
    touched: FreeSlabs,
    /// Free slabs that take none.
    untouched: FreeSlabs,
    budget: MemoryBudget,
    residency: Residency,
}

/// The time at which slabs take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Residency {
    /// From the first use of a slot until its slab is returned.
    OnDemand,
    /// Always: all slabs are populated and locked at the start.
    Locked,
}

/// The slabs of a class that have free slots. Each class has a cache line of its own, so that only threads that use the
/// same class at the same time wait for each other.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct ClassSlabs {
    /// The first of the partial slabs.
    partial: u32,
    /// The slab that is filled for the first time.
    growing: Option<u32>,
}

impl ClassSlabs {
    pub(crate) fn growing(&self) -> Option<u32> {
        self.growing
    }
}

impl SlotAllocator {
    /// Creates an allocator whose first `slabs` slabs are free. The others of the mapping are not in use yet.
    pub(crate) fn new(mapping: MemfdMapping, slabs: u64, limit_bytes: u64, residency: Residency) -> io::Result<Self> {
        let allocator = Self::without_free_slabs(mapping, slabs, limit_bytes, residency)?;
        (0..allocator.slab_count()).rev().for_each(|number| allocator.add_free_slab(number));
        Ok(allocator)
    }

    fn without_free_slabs(
        mapping: MemfdMapping,
        slabs: u64,
        limit_bytes: u64,
        residency: Residency,
    ) -> io::Result<Self> {
        let room = mapping.len_bytes() / SLAB_BYTES;
        let count = usize::try_from(slabs).map_or(room, |slabs| slabs.min(room));
        let bitmaps = MemfdMapping::create("trueno-zram-bitmaps", room * BITMAP_BYTES)?;
        let spares = SpareSlots::new()?;
        if residency == Residency::Locked {
            mapping.populate_and_lock(0..count * SLAB_BYTES)?;
            bitmaps.populate_and_lock(0..count * BITMAP_BYTES)?;
            spares.populate_and_lock()?;
        }
        Ok(Self {
            mapping,
            bitmaps,
            slabs: SlabTable::new(u32::try_from(count).expect("the options limit the number of slabs")),
            classes: Box::new([const { Mutex::new(ClassSlabs { partial: NIL, growing: None }) }; CLASS_COUNT]),
            spares,
            reclaim_lock: Mutex::new(()),
            touched: FreeSlabs::new(),
            untouched: FreeSlabs::new(),
            budget: MemoryBudget::new(limit_bytes),
            residency,
        })
    }

    /// Creates an allocator for memory that is in use: `pages` yields every page that has a slot, with its number. Everything
    /// else is free.
    pub(crate) fn rebuild(
        mapping: MemfdMapping,
        slabs: u64,
        limit_bytes: u64,
        residency: Residency,
        pages: impl Iterator<Item = Result<(u64, StoredPage)>>,
    ) -> Result<Self> {
        let allocator = Self::without_free_slabs(mapping, slabs, limit_bytes, residency);
        let allocator = allocator.map_err(Error::system("memory could not be taken"))?;
        let mut class_of_slab: Vec<Option<SizeClass>> = vec![None; allocator.slabs.len() as usize];
        for page in pages {
            let (page, stored) = page?;
            let corrupt = |defect| Error::CorruptEntry { page, defect };
            let class = stored.class();
            let at = class.slot_at(stored.place).ok_or(corrupt("no slot of that length starts there"))?;
            let of_slab = class_of_slab.get_mut(at.slab as usize).ok_or(corrupt("there is no such slab"))?;
            if *of_slab.get_or_insert(class) != class {
                return Err(corrupt("its slab has slots of another length"));
            }
            if !allocator.slab(at.slab).take(at.slot) {
                return Err(corrupt("another page has its slot"));
            }
            allocator.set_owner(at, page);
        }
        let returned = Error::system("memory of free slabs could not be returned");
        allocator.enter_slabs(&class_of_slab).map_err(returned)?;
        Ok(allocator)
    }

    /// Enters slabs that another process filled. A free slab may take any amount of memory, so all of it is returned.
    fn enter_slabs(&self, class_of_slab: &[Option<SizeClass>]) -> io::Result<()> {
        for (number, class) in (0..self.slab_count()).zip(class_of_slab).rev() {
            let slab = self.slab(number);
            let Some(class) = *class else {
                if self.residency == Residency::OnDemand {
                    self.mapping.punch(number as usize * SLAB_BYTES, SLAB_BYTES)?;
                }
                self.add_free_slab(number);
                continue;
            };
            slab.set_touched(SLAB_GRANULES);
            self.budget.charge_existing(bytes(SLAB_GRANULES));
            if slab.used() == class.slots() {
                slab.set_state(SlabState::Full);
            } else {
                self.link_partial(&mut self.class(class), number);
            }
        }
        // The slab of each class that the other process had begun last is the one with the fewest slots at its end.
        for class in SizeClass::all() {
            let mut lists = self.class(class);
            if let Some(number) = self.partial(&lists).min_by_key(|number| self.slab(*number).last_used()) {
                self.trim_to_growing(&mut lists, class, number)?;
            }
        }
        Ok(())
    }

    /// Enters a free slab at the start.
    fn add_free_slab(&self, number: u32) {
        if self.residency == Residency::Locked {
            self.slab(number).set_touched(SLAB_GRANULES);
            self.budget.charge_existing(bytes(SLAB_GRANULES));
        }
        self.free_slab(number);
    }

    /// Returns the number of slabs in use.
    pub(crate) fn slab_count(&self) -> u32 {
        self.slabs.len()
    }

    /// Returns the number of slabs that the mapping has room for.
    pub(crate) fn max_slabs(&self) -> u64 {
        (self.mapping.len_bytes() / SLAB_BYTES) as u64
    }

    /// Adds free slabs until there are `count`, which the mapping must have room for. Only one thread may do this at a time.
    pub(crate) fn grow_to(&self, count: u64) -> io::Result<()> {
        let count = u32::try_from(count).expect("the options limit the number of slabs");
        let added = self.slab_count()..count;
        if self.residency == Residency::Locked {
            let (first, end) = (added.start as usize, added.end as usize);
            self.mapping.populate_and_lock(first * SLAB_BYTES..end * SLAB_BYTES)?;
            self.bitmaps.populate_and_lock(first * BITMAP_BYTES..end * BITMAP_BYTES)?;
        }
        self.slabs.grow_to(count);
        added.rev().for_each(|number| self.add_free_slab(number));
        Ok(())
    }

    pub(crate) fn class(&self, class: SizeClass) -> MutexGuard<'_, ClassSlabs> {
        lock(&self.classes[class.index()])
    }

    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    pub(crate) fn mapping(&self) -> &MemfdMapping {
        &self.mapping
    }

    pub(crate) fn slab(&self, number: u32) -> SlabRef<'_> {
        let start = number as usize * BITMAP_WORDS;
        SlabRef::new(&self.slabs[number], &self.bitmaps.words()[start..start + BITMAP_WORDS])
    }

    /// Returns a stripe of spare slots for a new handle.
    pub(crate) fn next_stripe(&self) -> Stripe {
        self.spares.next_stripe()
    }

    /// Takes a slot for `page`. Returns its place, or `None` if the limit does not allow it. The caller writes it and publishes it.
    pub(crate) fn allocate(&self, stripe: Stripe, class: SizeClass, page: u64) -> Option<u64> {
        let spare = self.spares.take(stripe, class).and_then(|place| class.slot_at(place));
        let at = spare.or_else(|| self.refill(stripe, class)).or_else(|| self.allocate_after_reclaim(class))?;
        self.set_owner(at, page);
        Some(class.place(at))
    }

    /// Takes a slot from the lists of a class, and up to a batch for the stripe as long as that takes no more memory.
    fn refill(&self, stripe: Stripe, class: SizeClass) -> Option<SlotId> {
        let mut lists = self.class(class);
        let taken = self.allocate_in(&mut lists, class)?;
        for _ in 1..REFILL_SLOTS {
            let slab = Some(lists.partial).filter(|slab| *slab != NIL);
            let Some(at) = slab.and_then(|slab| self.take_slot(&mut lists, slab, class)) else { break };
            if !self.spares.put(stripe, class, class.place(at)) {
                self.free_in(&mut lists, class, at);
                break;
            }
        }
        Some(taken)
    }

    /// Takes a slot after returning all spare slots and free slabs, so that no write is refused because of them.
    fn allocate_after_reclaim(&self, class: SizeClass) -> Option<SlotId> {
        let reclaiming = lock(&self.reclaim_lock);
        // All at once, in the order of their numbers: between two of them, other threads could take slots out of the slabs again,
        // as spare ones that they do not need.
        let mut lists = self.classes.each_ref().map(lock);
        SizeClass::all().for_each(|class| self.return_spares(&mut lists[class.index()], class));
        // There are more free slabs now, and they may hold the memory that this class lacks. Memory that cannot be returned
        // stays counted, and then the write is refused.
        let _ = self.return_slabs(&reclaiming);
        self.allocate_in(&mut lists[class.index()], class)
    }

    /// Returns the spare slots of a class to their slabs.
    pub(crate) fn return_spares(&self, lists: &mut ClassSlabs, class: SizeClass) {
        self.spares.take_all(class).filter_map(|place| class.slot_at(place)).for_each(|at| {
            self.free_in(lists, class, at);
        });
    }

    fn allocate_in(&self, lists: &mut ClassSlabs, class: SizeClass) -> Option<SlotId> {
        if lists.partial != NIL {
            return self.take_slot(lists, lists.partial, class);
        }
        let number = match lists.growing {
            Some(number) => number,
            None => {
                let number = self.touched.pop(&self.slabs).or_else(|| self.untouched.pop(&self.slabs))?;
                self.slab(number).set_state(SlabState::Growing);
                *lists.growing.insert(number)
            }
        };
        let slab = self.slab(number);
        let slot = slab.first_free(class.slots())?;
        let needed = class.granules_for(usize::from(slot) + 1);
        let more = needed.saturating_sub(slab.touched());
        if more > 0 {
            if !self.budget.charge(bytes(more)) {
                if slab.used() == 0 {
                    lists.growing = None;
                    self.free_slab(number);
                }
                return None;
            }
            slab.set_touched(needed);
        }
        slab.take(slot);
        if slab.used() == class.slots() {
            lists.growing = None;
            slab.set_state(SlabState::Full);
        } else if slab.touched() == SLAB_GRANULES {
            lists.growing = None;
            self.link_partial(lists, number);
        }
        Some(SlotId { slab: number, slot })
    }

    /// Takes the first free slot of a slab whose memory is all in use, or of a growing slab below its last slot.
    pub(crate) fn take_slot(&self, lists: &mut ClassSlabs, number: u32, class: SizeClass) -> Option<SlotId> {
        let slab = self.slab(number);
        let slot = slab.first_free(class.slots())?;
        slab.take(slot);
        if slab.used() == class.slots() {
            self.unlink_partial(lists, number);
            slab.set_state(SlabState::Full);
        }
        Some(SlotId { slab: number, slot })
    }

    /// Frees a slot. No entry may name it any more.
    pub(crate) fn free(&self, stripe: Stripe, stored: StoredPage) {
        let class = stored.class();
        let Some(at) = class.slot_at(stored.place) else { return debug_assert!(false, "{stored:?} is not a slot") };
        if !self.spares.put(stripe, class, stored.place) {
            self.spill(stripe, class, at);
        }
        // The next page of this class that this thread writes is likely to get this slot.
        prefetch(self.slot_words(stored.place, stored.len_bytes.into()));
    }

    /// Returns a slot and a batch of the stripe's spare ones to their slabs.
    fn spill(&self, stripe: Stripe, class: SizeClass, at: SlotId) {
        let mut lists = self.class(class);
        self.free_in(&mut lists, class, at);
        for _ in 0..REFILL_SLOTS {
            let Some(at) = self.spares.take(stripe, class).and_then(|place| class.slot_at(place)) else { break };
            self.free_in(&mut lists, class, at);
        }
    }

    pub(crate) fn free_in(&self, lists: &mut ClassSlabs, class: SizeClass, at: SlotId) {
        let slab = self.slab(at.slab);
        let was_used = slab.give_back(at.slot);
        debug_assert!(was_used, "{at:?} of {class:?} was freed twice");
        let empty = slab.used() == 0;
        match slab.state() {
            // It is not empty: slabs of every class have many slots.
            SlabState::Full => self.link_partial(lists, at.slab),
            SlabState::Partial if empty => {
                self.unlink_partial(lists, at.slab);
                self.free_slab(at.slab);
            }
            SlabState::Growing if empty => {
                lists.growing = None;
                self.free_slab(at.slab);
            }
            SlabState::Partial | SlabState::Growing | SlabState::Free => {}
        }
    }

    /// Puts an empty slab, which is in no list, on the stack from which any class can take it.
    fn free_slab(&self, number: u32) {
        let slab = self.slab(number);
        slab.set_state(SlabState::Free);
        let stack = if slab.touched() == 0 { &self.untouched } else { &self.touched };
        stack.push(&self.slabs, number);
    }

    pub(crate) fn link_partial(&self, lists: &mut ClassSlabs, number: u32) {
        let slab = self.slab(number);
        slab.set_state(SlabState::Partial);
        slab.next.store(lists.partial, Relaxed);
        slab.prev.store(NIL, Relaxed);
        if let Some(next) = self.slabs.get(lists.partial) {
            next.prev.store(number, Relaxed);
        }
        lists.partial = number;
    }

    pub(crate) fn unlink_partial(&self, lists: &mut ClassSlabs, number: u32) {
        let slab = self.slab(number);
        let (next, prev) = (slab.next.load(Relaxed), slab.prev.load(Relaxed));
        match self.slabs.get(prev) {
            Some(before) => before.next.store(next, Relaxed),
            None => lists.partial = next,
        }
        if let Some(after) = self.slabs.get(next) {
            after.prev.store(prev, Relaxed);
        }
    }

    /// Iterates over the partial slabs of a class.
    pub(crate) fn partial<'a>(&'a self, lists: &ClassSlabs) -> impl Iterator<Item = u32> + use<'a> {
        let some = |slab: u32| (slab != NIL).then_some(slab);
        std::iter::successors(some(lists.partial), move |slab| some(self.slabs[*slab].next.load(Relaxed)))
    }

    /// Makes a partial slab the growing one, with memory for its slots in use and no more. Other memory goes back to the
    /// system.
    pub(crate) fn trim_to_growing(&self, lists: &mut ClassSlabs, class: SizeClass, number: u32) -> io::Result<()> {
        debug_assert!(lists.growing.is_none_or(|growing| growing == number));
        let slab = self.slab(number);
        let needed = class.granules_for(slab.last_used().map_or(0, |slot| usize::from(slot) + 1));
        let surplus = slab.touched().saturating_sub(needed);
        if surplus == 0 || self.residency == Residency::Locked {
            return Ok(());
        }
        let start = number as usize * SLAB_BYTES + usize::from(needed) * GRANULE_BYTES;
        self.mapping.punch(start, usize::from(surplus) * GRANULE_BYTES)?;
        slab.set_touched(needed);
        self.budget.release(bytes(surplus));
        if lists.growing.is_none() {
            self.unlink_partial(lists, number);
            slab.set_state(SlabState::Growing);
            lists.growing = Some(number);
        }
        Ok(())
    }

    /// Returns the memory of free slabs to the system.
    pub(crate) fn return_free_slabs(&self) -> io::Result<()> {
        self.return_slabs(&lock(&self.reclaim_lock))
    }

    fn return_slabs(&self, _: &MutexGuard<'_, ()>) -> io::Result<()> {
        if self.residency == Residency::Locked {
            return Ok(());
        }
        // No more than there are now: other threads may keep freeing slabs.
        for _ in 0..self.touched.len() {
            let Some(number) = self.touched.pop(&self.slabs) else { break };
            let slab = self.slab(number);
            if let Err(error) = self.mapping.punch(number as usize * SLAB_BYTES, SLAB_BYTES) {
                self.touched.push(&self.slabs, number);
                return Err(error);
            }
            self.budget.release(bytes(slab.touched()));
            slab.set_touched(0);
            self.untouched.push(&self.slabs, number);
        }
        Ok(())
    }

    /// Returns the words from `place` on that hold `len_bytes`, or none for a place beyond the end.
    pub(crate) fn slot_words(&self, place: u64, len_bytes: usize) -> &[AtomicU64] {
        let words = self.mapping.words();
        let start = usize::try_from(place).map_or(words.len(), |place| place * (UNIT_BYTES / WORD_BYTES));
        let end = start.saturating_add(len_bytes.div_ceil(WORD_BYTES));
        words.get(start..end).unwrap_or_default()
    }

    /// Returns the page that a slot was last taken for. Its entry may name another slot by now.
    pub(crate) fn owner(&self, at: SlotId) -> u64 {
        self.owner_word(at).load(Relaxed).into()
    }

    /// Sets the page of a slot, for compaction. The caller owns the slot.
    pub(crate) fn set_owner(&self, at: SlotId, page: u64) {
        let page = u32::try_from(page).expect("a store has at most 2^32 pages");
        self.owner_word(at).store(page, Relaxed);
    }

    fn owner_word(&self, at: SlotId) -> &AtomicU32 {
        self.mapping.half_word(at.slab as usize * (SLAB_BYTES / HALF_WORD_BYTES) + usize::from(at.slot))
    }
}

/// A panic elsewhere leaves the lists whole: nothing in this file panics between changes that belong together.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(granules: u16) -> u64 {
    u64::from(granules) * GRANULE_BYTES as u64
}

#[cfg(test)]
mod tests;
