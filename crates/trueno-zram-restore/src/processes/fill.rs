//! The background fill: runs of all processes, in the order of the source or from a fault on.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use trueno_zram_core::{PAGE_SIZE, Page};

use super::contents::Run;
use super::memory::ProcessMemory;
use super::restore::ProcessRestore;
use crate::error::Error;
use crate::options::{Notice, OnDamage};
use crate::session::{Content, Stop};
use crate::source::PagesByNumber;

/// Units that are filled by one call. More take fewer faults of a thread that reads behind the fill; the handler may have to wait
/// for such a call: see `gate`.
const FILL_CALL_UNITS: usize = 64;
/// Units that are read though they are there already, rather than begin anew behind them.
const GAP_UNITS: usize = 16;
/// How long workers leave the cores to processes that begin to run. They touch a few pages all over their memory first.
pub(super) const START_PAUSE: Duration = Duration::from_millis(10);
/// The same for the last worker, which there may be no core for.
pub(super) const LAST_START_PAUSE: Duration = Duration::from_millis(40);
/// How long to wait for the system to have memory again.
const MEMORY_PAUSE: Duration = Duration::from_millis(20);

/// What workers take runs from.
#[derive(Debug)]
pub(super) struct Queue<S> {
    state: Mutex<State<S>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<S> {
    memories: Vec<Arc<ProcessMemory<S>>>,
    /// The memory to take from next: all processes make progress.
    next: usize,
    started: Option<Instant>,
    ended: bool,
}

impl<S> State<S> {
    /// Returns what is left of a pause after the start; `None` if that is not known.
    fn rest_of(&self, pause: Duration) -> Option<Duration> {
        self.started.map(|started| pause.saturating_sub(started.elapsed()))
    }
}

impl<S> Default for Queue<S> {
    fn default() -> Self {
        let state = State { memories: Vec::new(), next: 0, started: None, ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<S: PagesByNumber> Queue<S> {
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the workers begin.
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

    /// Returns whether the background fill has begun.
    pub(super) fn is_filling(&self) -> bool {
        self.lock().rest_of(START_PAUSE) == Some(Duration::ZERO)
    }

    pub(super) fn add(&self, memory: &Arc<ProcessMemory<S>>) {
        self.lock().memories.push(Arc::clone(memory));
        self.changed.notify_all();
    }

    /// Forgets memory that is complete, so that its userfaultfd is closed.
    pub(super) fn remove(&self, memory: &Arc<ProcessMemory<S>>) {
        self.lock().memories.retain(|other| !Arc::ptr_eq(other, memory));
    }

    /// Waits for a run, and for a pause after the start. `None` at the end.
    fn take(&self, start_pause: Duration) -> Option<(Arc<ProcessMemory<S>>, usize)> {
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
                    if let Some(run) = state.memories[at].take_run() {
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

/// A thread's memory for the pages of a run.
pub(super) type RunBuffer = Vec<Page>;

/// What a thread does while the process changes its memory: the handler reads the events of it, and others let it do so.
pub(super) type Wait<'a> = dyn FnMut() + 'a;

impl<S: PagesByNumber> ProcessRestore<S> {
    /// Fills what no other worker has taken, until there is nothing left.
    pub(super) fn work(&self, start_pause: Duration) {
        let mut buffer = RunBuffer::new();
        while let Some((memory, run)) = self.queue.take(start_pause) {
            self.fill_run(&memory, run, &mut buffer, &mut thread::yield_now);
        }
    }

    /// Fills a run that the caller has taken, and notes what ends the filling.
    pub(super) fn fill_run(
        &self,
        memory: &ProcessMemory<S>,
        number: usize,
        buffer: &mut RunBuffer,
        wait: &mut Wait<'_>,
    ) {
        let _finish = FinishRun { restore: self, memory, number };
        buffer.resize(super::contents::RUN_PAGES, [0; PAGE_SIZE]);
        if memory.has_ended() {
            return;
        }
        match self.try_fill_run(memory, &memory.contents.runs[number], buffer, wait) {
            Ok(()) => {}
            Err(Stop::Ended) => memory.set_ended(),
            // `NoMemory` was waited for.
            Err(Stop::NoMemory) => {}
            Err(Stop::Failed(error)) => self.fail(memory, error),
        }
    }

    fn try_fill_run(
        &self,
        memory: &ProcessMemory<S>,
        run: &Run,
        buffer: &mut RunBuffer,
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        for wanted in parts_to_fill(memory, run.units.clone()) {
            let first = run.first_page + (wanted.start - run.units.start) as u64;
            let mut result = Ok(());
            if memory.is_lost() {
                self.fill_each(memory, wanted, wait)?;
                continue;
            }
            memory.source.visit(first..first + wanted.len() as u64, buffer, &mut |number, portion| {
                let unit = wanted.start + usize::try_from(number - first).expect("units are in memory");
                result = match portion {
                    Ok(pages) => self.fill_portion(memory, unit, pages, wait),
                    // All that are left of the run: the source says so of those that fit the buffer, which all do.
                    Err(_) => self.fill_each(memory, unit..wanted.end, wait),
                };
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            result?;
        }
        Ok(())
    }

    /// Fills pages, those that threads wait for first.
    fn fill_portion(
        &self,
        memory: &ProcessMemory<S>,
        first: usize,
        pages: &[Page],
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        let mut left: Vec<bool> = vec![true; pages.len().div_ceil(FILL_CALL_UNITS)];
        let call_of = |unit: usize| unit.checked_sub(first).map(|unit| unit / FILL_CALL_UNITS);
        let mut next = 0;
        while next < left.len() {
            let mut urgent = memory.urgent().filter_map(call_of);
            let call = urgent.find(|call| left.get(*call) == Some(&true)).unwrap_or(next);
            if std::mem::replace(&mut left[call], false) {
                let start = call * FILL_CALL_UNITS;
                let end = pages.len().min(start + FILL_CALL_UNITS);
                self.fill_call(memory, first + start, &pages[start..end], wait)?;
            }
            while left.get(next) == Some(&false) {
                next += 1;
            }
        }
        Ok(())
    }

    fn fill_call(
        &self,
        memory: &ProcessMemory<S>,
        mut first: usize,
        pages: &[Page],
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        for (content, count) in Content::runs_of(pages) {
            let mut done = 0;
            self.persist(memory, wait, || {
                let rest = content.part(done * PAGE_SIZE..count * PAGE_SIZE);
                done += memory.gate.pass(|| memory.put(first + done, rest))?;
                Ok(done == count)
            })?;
            first += count;
        }
        Ok(())
    }

    /// Fills pages one by one, where one of them is damaged. That one is poisoned.
    fn fill_each(&self, memory: &ProcessMemory<S>, units: Range<usize>, wait: &mut Wait<'_>) -> Result<(), Stop> {
        let mut page = [[0; PAGE_SIZE]];
        for unit in units.filter(|unit| memory.states.is_wanted(*unit)) {
            match memory.load(unit, &mut page[0]) {
                Ok(()) => self.fill_call(memory, unit, &page, wait)?,
                Err(error) => self.give_up(memory, unit, error, wait)?,
            }
        }
        Ok(())
    }

    /// Deals with a page that cannot be restored: poisons it, or has the process ended.
    pub(super) fn give_up(
        &self,
        memory: &ProcessMemory<S>,
        unit: usize,
        error: Error,
        wait: &mut Wait<'_>,
    ) -> Result<(), Stop> {
        let is_ended = self.options.on_damage == OnDamage::Kill && memory.process.is_some() && !memory.is_lost();
        if is_ended {
            return Err(Stop::Failed(error));
        }
        match self.persist(memory, wait, || memory.gate.pass(|| memory.poison(unit))) {
            // The kernel cannot poison.
            Err(Stop::Failed(_)) => return Err(Stop::Failed(error)),
            other => other?,
        }
        if let Error::Damaged { page, source } = &error {
            (self.notify)(Notice::Poisoned { page: *page, error: source });
        }
        Ok(())
    }

    /// Tries until it succeeds, while the process changes its memory or the system has none.
    fn persist(
        &self,
        memory: &ProcessMemory<S>,
        wait: &mut Wait<'_>,
        mut attempt: impl FnMut() -> Result<bool, Stop>,
    ) -> Result<(), Stop> {
        while !self.is_ending() {
            match attempt() {
                Ok(true) => return Ok(()),
                // The handler must read the events, and the process go on, before anything can be filled.
                Ok(false) => wait(),
                Err(Stop::NoMemory) => thread::sleep(MEMORY_PAUSE),
                Err(stop) => return Err(stop),
            }
            if memory.has_ended() {
                return Err(Stop::Ended);
            }
        }
        Err(Stop::Failed(Error::ShuttingDown))
    }
}

/// Notes the end of a run, also on a panic, and wakes the handler if it was the last one.
struct FinishRun<'a, S: PagesByNumber> {
    restore: &'a ProcessRestore<S>,
    memory: &'a ProcessMemory<S>,
    number: usize,
}

impl<S: PagesByNumber> Drop for FinishRun<'_, S> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.restore.fail(self.memory, Error::Worker);
        }
        if self.memory.finish_run(self.number) || self.memory.has_ended() {
            self.restore.wake();
        }
    }
}

/// Returns the parts of a run that still have to be filled. If that is most of it, the whole run: a group of an archive is
/// restored faster as a whole. What is there already is not filled again.
fn parts_to_fill<S: PagesByNumber>(memory: &ProcessMemory<S>, units: Range<usize>) -> Vec<Range<usize>> {
    let wanted = || units.clone().filter(|unit| memory.states.is_wanted(*unit));
    if wanted().count() * 2 > units.len() {
        return vec![units];
    }
    let mut parts: Vec<Range<usize>> = Vec::new();
    for unit in wanted() {
        match parts.last_mut() {
            Some(part) if unit - part.end < GAP_UNITS => part.end = unit + 1,
            _ => parts.push(unit..unit + 1),
        }
    }
    parts
}
