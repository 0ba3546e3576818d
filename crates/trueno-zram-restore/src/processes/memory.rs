//! The memory of one process: the state shared by the handler and the workers of the background fill.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use trueno_zram_archive::Pages;
use trueno_zram_core::{PAGE_SIZE, Page};

use super::contents::{Contents, MemoryExtent};
use super::layout::{Layout, UnitSpan};
use super::run_progress::RunProgress;
use crate::error::Error;
use crate::lazy_memory::{Content, Filled, LazyMemory, Stop};
use crate::process_handle::Process;
use crate::uffd::{PROBE_ADDRESS, Userfaultfd};
use crate::unit_states::{AtomicBitSet, UnitStates};

/// The time that processes may keep changing memory that has to be poisoned.
const POISON_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before that is tried again.
const POISON_PAUSE: Duration = Duration::from_millis(1);

/// The memory of a process, or of a child that it forked since.
pub(super) struct ProcessMemory {
    pub(super) lazy: LazyMemory,
    /// Its number in the dump, or that of the process that it was forked from.
    pub(super) pid: u32,
    /// Unknown for a child that was forked after the restore: the kernel does not tell.
    pub(super) process: Option<Process>,
    pub(super) contents: Arc<Contents>,
    pub(super) progress: RunProgress,
    /// Changed only while the gate is shut.
    layout: RwLock<Layout>,
    /// Units that are not mapped anywhere, so that no thread can touch them.
    absent: AtomicBitSet,
    /// Changes of the process that this one was forked from, of which not all events were read, may have come before the fork.
    /// Until they were read, it is not known what is at any address.
    unsettled: AtomicBool,
    /// Nothing more can be restored. Missing units are treated as damaged.
    lost: AtomicBool,
    /// The kernel says that the memory is gone.
    ended: AtomicBool,
    /// The process has ended. Others may share its memory.
    is_orphaned: AtomicBool,
}

impl ProcessMemory {
    /// Checks the memory that a process hands over. The process is not known yet.
    pub(super) fn prepare(
        pid: u32,
        uffd: &Arc<Userfaultfd>,
        source: Arc<dyn Pages>,
        extents: &[MemoryExtent],
    ) -> Result<Self, Error> {
        let (contents, layout) = Contents::new(extents, source.len_bytes())?;
        uffd.prepare_for_process()?;
        let lazy = LazyMemory::new(Arc::clone(uffd), source, UnitStates::new(contents.units));
        Ok(Self::new(pid, lazy, Arc::new(contents), layout))
    }

    fn new(pid: u32, lazy: LazyMemory, contents: Arc<Contents>, layout: Layout) -> Self {
        Self {
            lazy,
            pid,
            process: None,
            progress: RunProgress::new(contents.runs.len()),
            layout: RwLock::new(layout),
            absent: AtomicBitSet::new(contents.units),
            unsettled: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_orphaned: AtomicBool::new(false),
            contents,
        }
    }

    /// Returns the memory of a child that was forked. Called while the gate is shut, so that no copy is under way.
    pub(super) fn fork(&self, uffd: Userfaultfd) -> Self {
        let (mut layout, unmapped) = self.layout().fork();
        let states = self.lazy.states.clone();
        unmapped.into_iter().for_each(|units| states.unset_removed(units));
        layout.drop_alternatives(|unit| states.is_wanted(unit));
        let lazy = LazyMemory::new(Arc::new(uffd), Arc::clone(&self.lazy.source), states);
        let child = Self::new(self.pid, lazy, Arc::clone(&self.contents), layout);
        child.lost.store(self.is_lost(), Ordering::Release);
        child.unsettled.store(true, Ordering::Release);
        child
    }

    pub(super) fn layout(&self) -> RwLockReadGuard<'_, Layout> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only for the handler, while the gate is shut.
    pub(super) fn layout_mut(&self) -> RwLockWriteGuard<'_, Layout> {
        self.layout.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire)
    }

    /// Records that all changes that may have come before this process was forked are known.
    pub(super) fn settle_fork(&self) {
        self.lazy.gate.shut(|| self.layout_mut().drop_inherited(|unit| self.lazy.states.is_wanted(unit)));
        self.unsettled.store(false, Ordering::Release);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Records that nothing more can be restored. Returns `true` if that was known.
    pub(super) fn set_lost(&self) -> bool {
        self.lost.swap(true, Ordering::AcqRel)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn set_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Returns the process, unless it is known to have ended.
    pub(super) fn running_process(&self) -> Option<&Process> {
        self.process.as_ref().filter(|_| !self.is_orphaned.load(Ordering::Acquire))
    }

    /// Records that the process has ended.
    pub(super) fn set_process_ended(&self) {
        self.is_orphaned.store(true, Ordering::Release);
        if self.is_gone() {
            self.set_ended();
        }
    }

    /// Returns `true` if nothing is missing.
    pub(super) fn is_complete(&self) -> bool {
        (0..self.contents.units).all(|unit| !self.lazy.states.is_wanted(unit) || self.absent.contains(unit))
    }

    /// Reads the pages of units that follow each other in the source.
    pub(super) fn read(&self, first: usize, out: &mut [Page]) -> Result<(), Error> {
        let page = self.contents.page_of(first);
        if self.is_lost() {
            return Err(Error::Lost { page });
        }
        self.lazy.source.read(page, out).map_err(|source| Error::Damaged { page, source })
    }

    /// Fills the units from `first` on that are wanted, and wakes the threads that wait for them. Returns how many units are
    /// done: fewer than all if the process is changing its memory, and events must be read before it goes on.
    pub(super) fn put(&self, first: usize, content: Content<'_>) -> Result<usize, Stop> {
        if self.is_unsettled() {
            return Ok(0);
        }
        let (layout, states) = (self.layout(), &self.lazy.states);
        let end = first + content.len() / PAGE_SIZE;
        let content_of =
            |start: usize, end: usize| content.part((start - first) * PAGE_SIZE..(end - first) * PAGE_SIZE);
        let mut unit = first;
        while unit < end {
            let done = if !states.is_fillable(unit) {
                1
            } else if layout.is_uncertain(unit) {
                self.fill_first_mapped(&layout, unit, content_of(unit, unit + 1))?
            } else {
                // Without an address, it is moved right now: the event of that has not been read.
                let Some((address, count)) = layout.locate(unit) else { break };
                let part_end = end.min(unit + count);
                let is_next = |unit: &usize| states.is_fillable(*unit) && !layout.is_uncertain(*unit);
                let part_end = (unit + 1..part_end).find(|unit| !is_next(unit)).unwrap_or(part_end);
                self.fill_at(&layout, address, unit, content_of(unit, part_end))?
            };
            if done == 0 {
                break;
            }
            unit += done;
        }
        Ok(unit - first)
    }

    /// Fills units at an address. Returns how many are done: 0 if the process is changing its memory.
    fn fill_at(&self, layout: &Layout, address: u64, unit: usize, mut content: Content<'_>) -> Result<usize, Stop> {
        loop {
            let units = content.len() / PAGE_SIZE;
            let filled = self.lazy.fill(address, unit..unit + units, content);
            match filled.map_err(|error| self.stop(layout, error))? {
                Filled::Units(count) => return Ok(count),
                Filled::Changing => return Ok(0),
                // A call cannot cross the end of a mapping.
                Filled::Unmapped if units > 1 => content = content.part(0..units.div_ceil(2) * PAGE_SIZE),
                Filled::Unmapped if self.is_unmapped(address) => {
                    self.absent.insert(unit);
                    return Ok(1);
                }
                Filled::Unmapped => return Ok(0),
            }
        }
    }

    /// Fills a unit at the first of its places that is mapped. Returns 1, or 0 if the process is changing its memory.
    fn fill_first_mapped(&self, layout: &Layout, unit: usize, content: Content<'_>) -> Result<usize, Stop> {
        for address in layout.places(unit) {
            let filled = self.lazy.fill(address, unit..unit + 1, content);
            match filled.map_err(|error| self.stop(layout, error))? {
                Filled::Units(count) => return Ok(count),
                Filled::Unmapped if self.is_unmapped(address) => {}
                Filled::Changing | Filled::Unmapped => return Ok(0),
            }
        }
        self.absent.insert(unit);
        Ok(1)
    }

    /// Returns `true` if an address where nothing can be filled is not mapped, rather than being changed right now. Wakes the threads
    /// that wait for it then.
    fn is_unmapped(&self, address: u64) -> bool {
        let is_unmapped = !self.lazy.uffd.is_changing();
        if is_unmapped {
            let _ = self.lazy.uffd.wake(address, PAGE_SIZE as u64);
        }
        is_unmapped
    }

    /// Fills a page that is in no unit, or whose content was given back. Returns `false` if the process is changing its memory.
    pub(super) fn put_zeros(&self, address: u64) -> Result<bool, Stop> {
        if self.is_unsettled() {
            return Ok(false);
        }
        match self.lazy.copy(address, Content::Zeros(PAGE_SIZE)).stopped {
            None => Ok(true),
            Some(Errno::AGAIN) => Ok(false),
            Some(Errno::EXIST | Errno::NOENT) => {
                let _ = self.lazy.uffd.wake(address, PAGE_SIZE as u64);
                Ok(true)
            }
            Some(error) => Err(self.stop(&self.layout(), error)),
        }
    }

    /// Makes every access to a unit fail. Returns `false` if the process is changing its memory.
    pub(super) fn poison(&self, unit: usize) -> Result<bool, Stop> {
        let (layout, lazy) = (self.layout(), &self.lazy);
        if !lazy.states.is_wanted(unit) {
            return Ok(true);
        }
        let places = layout.places(unit);
        if places.is_empty() {
            return Ok(false);
        }
        // Wherever it may be: it must not be filled with zeros there, either.
        let mut is_there = false;
        for address in places {
            match lazy.uffd.poison(address, PAGE_SIZE as u64).stopped {
                None => {
                    lazy.counters.poisoned.fetch_add(1, Ordering::Relaxed);
                    is_there = true;
                }
                Some(Errno::EXIST) => is_there = true,
                Some(Errno::NOENT) if !self.is_unsettled() && !lazy.uffd.is_changing() => {}
                Some(Errno::AGAIN | Errno::NOENT) => return Ok(false),
                Some(error) => return Err(self.stop(&layout, error)),
            }
        }
        if is_there {
            lazy.states.bar(unit);
            lazy.states.set_filled(unit);
        } else {
            self.absent.insert(unit);
        }
        Ok(true)
    }

    /// Interprets an error of the kernel.
    fn stop(&self, layout: &Layout, error: Errno) -> Stop {
        Stop::new(error, || self.is_gone_by(layout), "filling a page of the process")
    }

    /// Makes sure that the process never sees zeros in place of what is missing, once this memory is dropped: ends it, or, if
    /// only its memory is known, poisons that. Returns `false` if neither is possible.
    pub(super) fn end(&self) -> bool {
        if self.is_gone() {
            return true;
        }
        if self.process.as_ref().is_some_and(|process| !process.end_and_wait()) {
            return false;
        }
        // Its memory may have been shared with a process that is not known.
        self.is_gone() || self.poison_missing()
    }

    /// Returns `true` if no process has this memory any more. A process may have begun another program, and its memory may live on after
    /// it, in a process that shares it.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone_by(&self.layout())
    }

    fn is_gone_by(&self, layout: &Layout) -> bool {
        layout.find(PROBE_ADDRESS).is_none() && self.lazy.uffd.is_gone()
    }

    /// Poisons all missing units. Those that the process is changing are tried again: the handler reads the events meanwhile.
    fn poison_missing(&self) -> bool {
        self.set_lost();
        let deadline = Instant::now() + POISON_TIMEOUT;
        loop {
            match self.try_poison_missing() {
                Ok(true) | Err(Stop::Ended) => return true,
                Ok(false) if Instant::now() < deadline => std::thread::sleep(POISON_PAUSE),
                Ok(false) | Err(_) => return false,
            }
        }
    }

    /// Poisons missing units that are barred, except those that the process is changing. Returns `true` if there were none of these.
    pub(super) fn try_poison_barred(&self) -> Result<bool, Stop> {
        if self.is_unsettled() {
            return Ok(false);
        }
        let is_left = |unit: &usize| self.lazy.states.is_wanted(*unit) && !self.lazy.states.is_fillable(*unit);
        let mut is_complete = true;
        for unit in (0..self.contents.units).filter(is_left) {
            is_complete &= self.absent.contains(unit) || self.poison(unit)?;
        }
        Ok(is_complete)
    }

    /// Poisons missing units, except those that the process is changing. Returns `true` if there were none of these.
    pub(super) fn try_poison_missing(&self) -> Result<bool, Stop> {
        let spans: Vec<UnitSpan> = self.layout().spans().copied().collect();
        let missing = spans.iter().flat_map(UnitSpan::unit_range).filter(|unit| self.lazy.states.is_wanted(*unit));
        let mut is_complete = true;
        for unit in missing {
            is_complete &= self.poison(unit)?;
        }
        Ok(is_complete)
    }
}

#[cfg(test)]
mod tests {
    use trueno_test_restore::userfaultfd::{PROCESS_EVENTS, create, is_allowed, map_missing};
    use trueno_zram_archive::Image;

    use super::*;

    const PAGES: usize = 8;
    const LEN: u64 = (PAGES * PAGE_SIZE) as u64;
    /// Addresses that nothing is mapped at.
    const NOWHERE: u64 = 0x6400_0000_0000;

    /// Fills all units of a child that was forked while units were moved from `from` to `to`, by an address from that of
    /// memory that is mapped. Returns that one.
    fn fill_child(from: impl Fn(u64) -> u64, to: impl Fn(u64) -> u64) -> (ProcessMemory, u64) {
        let fd = create(PROCESS_EVENTS).unwrap();
        let mapped = map_missing(&fd, 0, PAGES * PAGE_SIZE, 0).unwrap();
        let (from, to) = (from(mapped), to(mapped));
        let uffd = Arc::new(Userfaultfd::new(fd.try_clone().unwrap()).unwrap());
        let content = [[7; PAGE_SIZE]; PAGES];
        let extents = [MemoryExtent { address: from, pages: PAGES as u64, first_page: 0 }];
        let memory = ProcessMemory::prepare(7, &uffd, Arc::new(Image::new(content.to_vec())), &extents).unwrap();
        memory.layout_mut().remap(from, to, LEN);
        let child = memory.fork(Userfaultfd::new(fd).unwrap());
        let fill = || child.put(0, Content::of(&content)).unwrap();
        assert_eq!(fill(), 0, "not before the changes are known");
        child.settle_fork();
        assert_eq!(fill(), PAGES);
        assert!(child.is_complete());
        (child, mapped)
    }

    #[test]
    fn units_that_may_be_moved_are_filled_where_memory_is_mapped() {
        if !is_allowed(PROCESS_EVENTS) {
            return;
        }
        for from_nowhere in [false, true] {
            let place = |is_nowhere: bool| move |mapped: u64| if is_nowhere { NOWHERE } else { mapped };
            let (child, mapped) = fill_child(place(from_nowhere), place(!from_nowhere));
            // All are there: none is missing.
            let again = child.lazy.uffd.zero(mapped, LEN);
            assert_eq!((again.done, again.stopped), (0, Some(Errno::EXIST)));
            assert_eq!(child.lazy.counters.copied_bytes.load(Ordering::Relaxed), LEN);
        }
    }

    #[test]
    fn units_that_are_mapped_nowhere_are_not_missing() {
        if !is_allowed(PROCESS_EVENTS) {
            return;
        }
        let (child, _) = fill_child(|_| NOWHERE, |_| NOWHERE + 2 * LEN);
        assert_eq!(child.lazy.counters.copied_bytes.load(Ordering::Relaxed), 0);
    }
}
