//! The memory of one process: what the handler and the workers of the background fill share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use trueno_zram_core::{PAGE_SIZE, Page};

use super::contents::Contents;
use super::layout::{Layout, Piece};
use crate::error::Error;
use crate::gate::Gate;
use crate::process::Process;
use crate::session::{Content, Counters, Stop, load_page};
use crate::source::PagesByNumber;
use crate::states::{Bits, States};
use crate::uffd::{PROBE_ADDRESS, Progress, Userfaultfd};

/// Faults that workers know of. They fill what these wait for first.
const URGENT: usize = 4;
/// How long processes may keep changing memory that has to be poisoned.
const POISON_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before it is tried again.
const POISON_PAUSE: Duration = Duration::from_millis(1);

/// The memory of a process, or of a child that it forked since.
#[derive(Debug)]
pub(super) struct ProcessMemory<S> {
    pub(super) uffd: Userfaultfd,
    /// Its number in the dump, or that of the process that it was forked from.
    pub(super) pid: u32,
    /// Unknown for a child that was forked after the restore: the kernel does not tell.
    pub(super) process: Option<Process>,
    pub(super) source: S,
    pub(super) contents: Arc<Contents>,
    pub(super) states: States,
    /// Keeps copies apart from the reading of events.
    pub(super) gate: Gate,
    pub(super) counters: Counters,
    /// Changed only while the gate is shut.
    layout: RwLock<Layout>,
    /// Units whose address is not there: nobody can touch them.
    absent: Bits,
    /// Whether changes of the process that this one was forked from, of which not all events were read, may have come before that.
    /// Until they were, it is not known what is at any address.
    unsettled: AtomicBool,
    /// Whether nothing more can be restored. What is missing is treated as damaged.
    lost: AtomicBool,
    /// Whether the kernel says that the memory is gone.
    ended: AtomicBool,
    /// Whether the process has ended. Others may share its memory.
    is_orphaned: AtomicBool,
    taken: Bits,
    finished: Bits,
    /// The run to take next.
    cursor: AtomicUsize,
    runs_left: AtomicUsize,
    urgent: [AtomicUsize; URGENT],
    next_urgent: AtomicUsize,
}

impl<S: PagesByNumber> ProcessMemory<S> {
    pub(super) fn new(
        (pid, process): (u32, Option<Process>),
        uffd: Userfaultfd,
        source: S,
        (contents, layout): (Arc<Contents>, Layout),
    ) -> Self {
        let (units, runs) = (contents.units, contents.runs.len());
        Self {
            uffd,
            pid,
            process,
            source,
            states: States::new(units),
            gate: Gate::default(),
            counters: Counters::default(),
            layout: RwLock::new(layout),
            absent: Bits::new(units),
            unsettled: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_orphaned: AtomicBool::new(false),
            taken: Bits::new(runs),
            finished: Bits::new(runs),
            cursor: AtomicUsize::new(0),
            runs_left: AtomicUsize::new(runs),
            urgent: [const { AtomicUsize::new(usize::MAX) }; URGENT],
            next_urgent: AtomicUsize::new(0),
            contents,
        }
    }

    /// Returns the memory of a child that was forked. Called while the gate is shut, so that no copy is under way.
    pub(super) fn fork(&self, uffd: Userfaultfd) -> Self
    where
        S: Clone,
    {
        let (mut layout, unmapped) = self.layout().fork();
        let states = self.states.clone();
        unmapped.into_iter().for_each(|units| states.unset_removed(units));
        layout.drop_alternatives(|unit| states.is_wanted(unit));
        let contents = Arc::clone(&self.contents);
        let child = Self::new((self.pid, None), uffd, self.source.clone(), (contents, layout));
        child.lost.store(self.is_lost(), Ordering::Release);
        child.unsettled.store(true, Ordering::Release);
        Self { states, ..child }
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

    /// Notes that all changes that may have come before this process was forked are known.
    pub(super) fn settle_fork(&self) {
        self.gate.shut(|| self.layout_mut().settle_fork(|unit| self.states.is_wanted(unit)));
        self.unsettled.store(false, Ordering::Release);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Notes that nothing more can be restored. Returns whether that was known.
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

    /// Notes that the process has ended.
    pub(super) fn set_process_ended(&self) {
        self.is_orphaned.store(true, Ordering::Release);
        if self.is_gone() {
            self.set_ended();
        }
    }

    /// Whether nothing is missing any more.
    pub(super) fn is_complete(&self) -> bool {
        (0..self.contents.units).all(|unit| !self.states.is_wanted(unit) || self.absent.contains(unit))
    }

    /// Takes a run that nobody has taken: the one that was asked for, or the next one behind it.
    pub(super) fn take_run(&self) -> Option<usize> {
        let (start, count) = (self.cursor.load(Ordering::Relaxed), self.contents.runs.len());
        let mut runs = (start..count).chain(0..start.min(count));
        let run = runs.find(|run| self.take_this_run(*run))?;
        // Unless another one has been asked for since.
        let _ = self.cursor.compare_exchange(start, run + 1, Ordering::Relaxed, Ordering::Relaxed);
        Some(run)
    }

    /// Takes a run. Returns `false` if somebody else has taken it.
    pub(super) fn take_this_run(&self, run: usize) -> bool {
        !self.taken.contains(run) && self.taken.insert(run)
    }

    /// Whether somebody fills the run right now.
    pub(super) fn is_being_filled(&self, run: usize) -> bool {
        self.taken.contains(run) && !self.finished.contains(run)
    }

    /// Makes workers go on with this run.
    pub(super) fn ask_for_run(&self, run: usize) {
        self.cursor.store(run, Ordering::Relaxed);
    }

    /// Notes that a run that was taken is done. Returns whether it was the last one.
    pub(super) fn finish_run(&self, run: usize) -> bool {
        self.finished.insert(run);
        self.runs_left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(super) fn has_runs_left(&self) -> bool {
        self.runs_left.load(Ordering::Acquire) > 0
    }

    /// Asks the worker that fills the run of a unit to fill this one first.
    pub(super) fn set_urgent(&self, unit: usize) {
        let slot = self.next_urgent.fetch_add(1, Ordering::Relaxed) % URGENT;
        self.urgent[slot].store(unit, Ordering::Relaxed);
    }

    /// Returns the units that threads wait for.
    pub(super) fn urgent(&self) -> impl Iterator<Item = usize> {
        self.urgent.iter().map(|unit| unit.load(Ordering::Relaxed))
    }

    /// Reads the page of a unit.
    pub(super) fn load(&self, unit: usize, out: &mut Page) -> Result<(), Error> {
        let page = self.contents.page_of(unit);
        if self.is_lost() {
            return Err(Error::Lost { page });
        }
        load_page(&self.source, page, out).map_err(|source| Error::Damaged { page, source })
    }

    /// Fills the units from `first` on that are wanted, and wakes the threads that wait for them. Returns how many units are
    /// dealt with: fewer than all if the process is changing its memory, and events must be read before it goes on.
    pub(super) fn put(&self, first: usize, content: Content<'_>) -> Result<usize, Stop> {
        if self.is_unsettled() {
            return Ok(0);
        }
        let layout = self.layout();
        let bytes = |units: usize| units * PAGE_SIZE;
        let end = first + units_in(content.len());
        let mut unit = first;
        while unit < end {
            if !self.states.is_wanted(unit) {
                unit += 1;
                continue;
            }
            if layout.is_uncertain(unit) {
                let page = content.part(bytes(unit - first)..bytes(unit + 1 - first));
                if !self.put_somewhere(&layout, unit, page)? {
                    break;
                }
                unit += 1;
                continue;
            }
            // Without an address, it is moved right now: the event of that has not been read.
            let Some((address, count)) = layout.locate(unit) else { break };
            let part_end = end.min(unit + count);
            let is_next = |unit: &usize| self.states.is_wanted(*unit) && !layout.is_uncertain(*unit);
            let part_end = (unit + 1..part_end).find(|unit| !is_next(unit)).unwrap_or(part_end);
            let part = content.part(bytes(unit - first)..bytes(part_end - first));
            match self.put_at(&layout, address, unit, part)? {
                0 => break,
                done => unit += done,
            }
        }
        Ok(unit - first)
    }

    /// Fills units at an address. Returns how many are dealt with: 0 if the process is changing its memory.
    fn put_at(&self, layout: &Layout, address: u64, unit: usize, content: Content<'_>) -> Result<usize, Stop> {
        let mut part = content;
        loop {
            let progress = self.fill(address, part);
            let done = units_in(progress.done);
            (unit..unit + done).for_each(|unit| self.states.set_filled(unit));
            match progress.stopped {
                // The next call says what is wrong with the next unit.
                _ if done > 0 => return Ok(done),
                None => return Ok(units_in(part.len())),
                Some(Errno::AGAIN) => return Ok(0),
                Some(Errno::EXIST) => {
                    let _ = self.uffd.wake(address, PAGE_SIZE as u64);
                    self.states.set_filled(unit);
                    return Ok(1);
                }
                // A call cannot cross the end of a mapping.
                Some(Errno::NOENT) if units_in(part.len()) > 1 => {
                    part = part.part(0..units_in(part.len()).div_ceil(2) * PAGE_SIZE);
                }
                Some(Errno::NOENT) => {
                    let _ = self.uffd.wake(address, PAGE_SIZE as u64);
                    if self.uffd.is_changing() {
                        return Ok(0);
                    }
                    self.absent.insert(unit);
                    return Ok(1);
                }
                Some(error) => return Err(self.stop(layout, error)),
            }
        }
    }

    /// Fills a unit at the first of its places that is there. Returns `false` if the process is changing its memory.
    fn put_somewhere(&self, layout: &Layout, unit: usize, content: Content<'_>) -> Result<bool, Stop> {
        for address in layout.places(unit) {
            match self.fill(address, content).stopped {
                None => {}
                Some(Errno::EXIST) => {
                    let _ = self.uffd.wake(address, PAGE_SIZE as u64);
                }
                Some(Errno::NOENT) if !self.uffd.is_changing() => {
                    let _ = self.uffd.wake(address, PAGE_SIZE as u64);
                    continue;
                }
                Some(Errno::AGAIN | Errno::NOENT) => return Ok(false),
                Some(error) => return Err(self.stop(layout, error)),
            }
            self.states.set_filled(unit);
            return Ok(true);
        }
        self.absent.insert(unit);
        Ok(true)
    }

    fn fill(&self, address: u64, content: Content<'_>) -> Progress {
        let (progress, counter) = match content {
            Content::Bytes(bytes) => (self.uffd.copy(address, bytes), &self.counters.copied_bytes),
            Content::Zeros(len) => (self.uffd.zero(address, len), &self.counters.zero_bytes),
        };
        counter.fetch_add(progress.done, Ordering::Relaxed);
        progress
    }

    /// Fills a page that is in no unit, or whose content was given back. Returns `false` if the process is changing its memory.
    pub(super) fn put_zeros(&self, address: u64) -> Result<bool, Stop> {
        if self.is_unsettled() {
            return Ok(false);
        }
        match self.fill(address, Content::Zeros(PAGE_SIZE as u64)).stopped {
            None => Ok(true),
            Some(Errno::AGAIN) => Ok(false),
            Some(Errno::EXIST | Errno::NOENT) => {
                let _ = self.uffd.wake(address, PAGE_SIZE as u64);
                Ok(true)
            }
            Some(error) => Err(self.stop(&self.layout(), error)),
        }
    }

    /// Makes every access to a unit fail. Returns `false` if the process is changing its memory.
    pub(super) fn poison(&self, unit: usize) -> Result<bool, Stop> {
        let layout = self.layout();
        if !self.states.is_wanted(unit) {
            return Ok(true);
        }
        let places = layout.places(unit);
        if places.is_empty() {
            return Ok(false);
        }
        // Wherever it may be: it must not be filled with zeros there, either.
        let mut is_there = false;
        for address in places {
            match self.uffd.poison(address, PAGE_SIZE as u64).stopped {
                None => {
                    self.counters.poisoned.fetch_add(1, Ordering::Relaxed);
                    is_there = true;
                }
                Some(Errno::EXIST) => is_there = true,
                Some(Errno::NOENT) if !self.is_unsettled() && !self.uffd.is_changing() => {}
                Some(Errno::AGAIN | Errno::NOENT) => return Ok(false),
                Some(error) => return Err(self.stop(&layout, error)),
            }
        }
        if is_there {
            self.states.set_filled(unit);
        } else {
            self.absent.insert(unit);
        }
        Ok(true)
    }

    /// Interprets an error of the kernel.
    fn stop(&self, layout: &Layout, error: Errno) -> Stop {
        match error {
            Errno::SRCH => Stop::Ended,
            _ if self.is_gone_by(layout) => Stop::Ended,
            Errno::NOMEM => Stop::NoMemory,
            error => Stop::Failed(Error::system("filling a page of the process")(error)),
        }
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

    /// Returns whether nobody has this memory any more. A process may have begun another program, and its memory may live on after
    /// it, in a process that shares it.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone_by(&self.layout())
    }

    fn is_gone_by(&self, layout: &Layout) -> bool {
        layout.find(PROBE_ADDRESS).is_none() && self.uffd.is_gone()
    }

    /// Poisons all that is missing. What the process changes right now is tried again: the handler reads the events meanwhile.
    fn poison_missing(&self) -> bool {
        self.set_lost();
        let deadline = Instant::now() + POISON_PATIENCE;
        loop {
            match self.try_poison_missing() {
                Ok(true) | Err(Stop::Ended) => return true,
                Ok(false) if Instant::now() < deadline => std::thread::sleep(POISON_PAUSE),
                Ok(false) | Err(_) => return false,
            }
        }
    }

    /// Poisons what is missing, but for what the process is changing. Returns whether that was all.
    pub(super) fn try_poison_missing(&self) -> Result<bool, Stop> {
        let pieces: Vec<Piece> = self.layout().pieces().copied().collect();
        let missing = pieces.iter().flat_map(Piece::unit_range).filter(|unit| self.states.is_wanted(*unit));
        let mut is_complete = true;
        for unit in missing {
            is_complete &= self.poison(unit)?;
        }
        Ok(is_complete)
    }
}

fn units_in(bytes: u64) -> usize {
    usize::try_from(bytes).expect("in memory") / PAGE_SIZE
}
