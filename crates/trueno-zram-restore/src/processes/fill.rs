//! The background fill: runs of all processes, in the order of the source or from a fault on.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use trueno_zram_core::{PAGE_SIZE, Page};

use super::contents::{RUN_PAGES, SourceRun};
use super::memory::ProcessMemory;
use super::restore::ProcessRestore;
use crate::error::Error;
use crate::lazy_memory::{Content, Stop};
use crate::on_drop::OnDrop;
use crate::options::OnDamage;
use crate::read_intact::read_intact;
use crate::report::notify_poisoned;
use crate::unit_states::UnitStates;

/// Units that are filled by one call. With more, a thread that reads just behind the fill faults less often, but the handler may
/// have to wait longer for such a call: see `gate`.
const FILL_CALL_UNITS: usize = 64;
/// Runs of up to this many units that are there already are read again, rather than skipped.
const GAP_UNITS: usize = 16;
/// The delay before the background fill: processes that begin to run touch a few pages all over their memory first.
pub(super) const START_PAUSE: Duration = Duration::from_millis(10);
/// The same for the last worker, for which there may be no core.
pub(super) const LAST_START_PAUSE: Duration = Duration::from_millis(40);
/// The pause before memory is asked for again when the system has none.
const MEMORY_PAUSE: Duration = Duration::from_millis(20);

/// The memory of all processes, which workers take runs of.
#[derive(Default)]
pub(super) struct FillQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    memories: Vec<Arc<ProcessMemory>>,
    /// The memory to take from next: all processes make progress.
    next: usize,
    started: Option<Instant>,
    ended: bool,
}

impl QueueState {
    /// Returns the rest of a pause that follows the start; `None` before the start.
    fn rest_of(&self, pause: Duration) -> Option<Duration> {
        self.started.map(|started| pause.saturating_sub(started.elapsed()))
    }
}

impl FillQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the workers of the background fill.
    pub(super) fn start(&self) {
        self.lock().started = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Makes the workers end soon.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    pub(super) fn has_started(&self) -> bool {
        self.lock().started.is_some()
    }

    /// Returns `true` if the background fill has begun.
    pub(super) fn is_filling(&self) -> bool {
        self.lock().rest_of(START_PAUSE) == Some(Duration::ZERO)
    }

    pub(super) fn add(&self, memory: &Arc<ProcessMemory>) {
        self.lock().memories.push(Arc::clone(memory));
        self.changed.notify_all();
    }

    /// Forgets memory that is complete, so that its userfaultfd is closed.
    pub(super) fn remove(&self, memory: &Arc<ProcessMemory>) {
        self.lock().memories.retain(|other| !Arc::ptr_eq(other, memory));
    }

    /// Waits for a run, and for a pause after the start. `None` at the end.
    fn take(&self, start_pause: Duration) -> Option<(Arc<ProcessMemory>, usize)> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            let pause = state.rest_of(start_pause);
            if pause == Some(Duration::ZERO) {
                state.next = state.next.wrapping_add(1);
                while !state.memories.is_empty() {
                    let at = state.next % state.memories.len();
                    if let Some(run) = state.memories[at].progress.take_next() {
                        return Some((Arc::clone(&state.memories[at]), run));
                    }
                    state.memories.swap_remove(at);
                }
            }
            state = match pause.filter(|pause| !pause.is_zero()) {
                Some(pause) => self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Fills the memory of a process, on a worker or the handler.
pub(super) struct Filler<'a> {
    pub(super) restore: &'a ProcessRestore,
    pub(super) memory: &'a ProcessMemory,
    /// Called while the process changes its memory: the handler reads the events of it, and others let it do so.
    pub(super) wait: &'a mut dyn FnMut(),
}

impl ProcessRestore {
    /// Fills what no other worker has taken, until there is nothing left.
    pub(super) fn work(&self, start_pause: Duration) {
        let mut buffer = Vec::new();
        while let Some((memory, run)) = self.queue.take(start_pause) {
            Filler { restore: self, memory: &memory, wait: &mut thread::yield_now }.fill_run(run, &mut buffer);
        }
    }
}

impl Filler<'_> {
    /// Fills a run that the caller has taken, and notes what ends the filling.
    pub(super) fn fill_run(&mut self, number: usize, buffer: &mut Vec<Page>) {
        let (restore, memory) = (self.restore, self.memory);
        let _finish = OnDrop(|| {
            if thread::panicking() {
                restore.fail(memory, Error::FillPanicked);
            }
            restore.proofs.background.notice(&*memory.lazy.source);
            if memory.progress.finish(number) || memory.has_ended() {
                restore.wake.wake();
            }
        });
        buffer.resize(RUN_PAGES, [0; PAGE_SIZE]);
        if memory.has_ended() {
            return;
        }
        match self.try_fill_run(&memory.contents.runs[number], buffer) {
            // `NoMemory` was waited for.
            Ok(()) | Err(Stop::NoMemory) => {}
            Err(Stop::Ended) => memory.set_ended(),
            Err(Stop::Failed(error)) => restore.fail(memory, error),
        }
    }

    fn try_fill_run(&mut self, run: &SourceRun, buffer: &mut [Page]) -> Result<(), Stop> {
        let memory = self.memory;
        for part in parts_to_fill(&memory.lazy.states, run.units.clone()) {
            if memory.is_lost() {
                self.fill_each(part)?;
                continue;
            }
            read_intact(&*memory.lazy.source, run.pages_of(&part), buffer, &mut |pages, content| match content {
                Some(content) => self.fill_portion(run.unit_of(pages.start), content),
                None => self.fill_each(run.unit_of(pages.start)..run.unit_of(pages.end)),
            })?;
        }
        Ok(())
    }

    /// Fills pages, those that threads wait for first.
    fn fill_portion(&mut self, first: usize, pages: &[Page]) -> Result<(), Stop> {
        let calls: Vec<&[Page]> = pages.chunks(FILL_CALL_UNITS).collect();
        let mut left = vec![true; calls.len()];
        while let Some(call) =
            next_call(&left, self.memory.progress.urgent().filter_map(|unit| unit.checked_sub(first)))
        {
            left[call] = false;
            self.fill_call(first + call * FILL_CALL_UNITS, calls[call])?;
        }
        Ok(())
    }

    fn fill_call(&mut self, mut first: usize, pages: &[Page]) -> Result<(), Stop> {
        let memory = self.memory;
        for (content, count) in Content::runs_of(pages) {
            let mut done = 0;
            self.retry(|| {
                let rest = content.part(done * PAGE_SIZE..count * PAGE_SIZE);
                done += memory.lazy.gate.pass(|| memory.put(first + done, rest))?;
                Ok(done == count)
            })?;
            first += count;
        }
        Ok(())
    }

    /// Fills pages one by one. Those that are damaged are poisoned.
    fn fill_each(&mut self, units: Range<usize>) -> Result<(), Stop> {
        let (memory, mut page) = (self.memory, [[0; PAGE_SIZE]]);
        for unit in units.filter(|unit| memory.lazy.states.is_wanted(*unit)) {
            match memory.read(unit, &mut page) {
                Ok(()) => self.fill_call(unit, &page)?,
                Err(error) => self.poison_or_fail(unit, error)?,
            }
        }
        Ok(())
    }

    /// Poisons a page that cannot be restored, or fails if the process is to be ended instead.
    pub(super) fn poison_or_fail(&mut self, unit: usize, error: Error) -> Result<(), Stop> {
        let (restore, memory) = (self.restore, self.memory);
        if matches!(&error, Error::Damaged { source: trueno_zram_archive::Error::Disproven { .. }, .. }) {
            restore.proofs.record_failure();
            restore.wake.wake();
        }
        let is_ended = restore.options.on_damage == OnDamage::Kill && memory.process.is_some() && !memory.is_lost();
        if is_ended {
            return Err(Stop::Failed(error));
        }
        match self.retry(|| memory.lazy.gate.pass(|| memory.poison(unit))) {
            // The kernel cannot poison.
            Err(Stop::Failed(_)) => return Err(Stop::Failed(error)),
            other => other?,
        }
        notify_poisoned(&*restore.notify, &error);
        Ok(())
    }

    /// Repeats an attempt until it succeeds, while the process changes its memory or the system is out of memory.
    fn retry(&mut self, mut attempt: impl FnMut() -> Result<bool, Stop>) -> Result<(), Stop> {
        while !self.restore.is_shut_down() {
            match attempt() {
                Ok(true) => return Ok(()),
                // The handler must read the events, and the process go on, before anything can be filled.
                Ok(false) => (self.wait)(),
                Err(Stop::NoMemory) => thread::sleep(MEMORY_PAUSE),
                Err(stop) => return Err(stop),
            }
            if self.memory.has_ended() {
                return Err(Stop::Ended);
            }
        }
        Err(Stop::Failed(Error::ShuttingDown))
    }
}

/// Returns the next of the calls that are left: one for a unit that a thread waits for, or the first one.
fn next_call(left: &[bool], urgent: impl Iterator<Item = usize>) -> Option<usize> {
    let mut urgent = urgent.map(|unit| unit / FILL_CALL_UNITS);
    let urgent = urgent.find(|call| left.get(*call) == Some(&true));
    urgent.or_else(|| left.iter().position(|is_left| *is_left))
}

/// Returns the parts of a run that still have to be filled. If that is most of it, the whole run: a group of an archive is
/// restored faster as a whole. Units that are there already are not filled again.
fn parts_to_fill(states: &UnitStates, units: Range<usize>) -> Vec<Range<usize>> {
    if units.clone().filter(|unit| states.is_wanted(*unit)).count() * 2 > units.len() {
        return vec![units];
    }
    states.wanted_in(units, GAP_UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_threads_wait_for_come_first() {
        let urgent = [1000, 0, 3 * FILL_CALL_UNITS + 1];
        assert_eq!(next_call(&[true; 4], urgent.into_iter()), Some(0));
        assert_eq!(next_call(&[false, true, true, true], urgent.into_iter()), Some(3));
        assert_eq!(next_call(&[false, true, true, false], urgent.into_iter()), Some(1));
        assert_eq!(next_call(&[false; 4], urgent.into_iter()), None);
    }

    #[test]
    fn a_run_of_which_most_is_missing_is_filled_as_a_whole() {
        let states = UnitStates::new(300);
        (100..200).for_each(|unit| states.set_filled(unit));
        assert_eq!(parts_to_fill(&states, 50..250), [50..100, 200..250]);
        assert_eq!(parts_to_fill(&states, 49..250), vec![49..250]);
    }
}
