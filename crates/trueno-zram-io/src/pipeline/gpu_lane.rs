//! A GPU in a pipeline: lanes fill its slots and take its results, one thread drives it, and a few allocate its slots.
//!
//! A lane does what is due: it writes a unit, takes a result, or fills a free slot. One that finds nothing to do waits, or does a
//! unit itself if it can. So the GPU comes first once it is known to pay, and no core waits for a GPU that is slower than the
//! CPU.
//!
//! Lanes never touch the stream itself: calls of the driver take tens of microseconds under its lock, for which all of them would
//! queue. They leave filled slots in [`Slots`], and find results and free slots there.
//!
//! A GPU may join while lanes work: until then there are no slots. It is opened only if that pays, and no lane waits for it.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use trueno_zram_core::gpu::{BatchDevice, Chooser, CpuProgress, GpuBatchCompressor, LazyGpu, PageStream};

use crate::error::Error;
use crate::lock::lock;
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{NextStep, Pipeline, PipelineState, Work};

/// Threads that allocate slots. The driver serialises a part of that work, so more would not be faster.
const SLOT_THREADS: usize = 3;

/// The pause between two polls of the GPU: each asks the driver about every slot.
const POLL_INTERVAL: Duration = Duration::from_micros(3);
/// After this long without a result, the thread sleeps between two polls.
const MAX_SPIN: Duration = Duration::from_millis(2);
const SLEEP_INTERVAL: Duration = Duration::from_micros(50);

/// The pause before a thread checks again if a slot is wanted.
const ALLOCATION_INTERVAL: Duration = Duration::from_micros(500);

/// The pause before a thread checks again if a GPU is worth opening, or is open.
const OPENING_INTERVAL: Duration = Duration::from_millis(1);

/// From this number of lanes on, one of them ends when a GPU joins, so that the thread that drives it has a core to itself.
const MIN_LANES_TO_END_ONE: usize = 4;

/// Work that a GPU can do.
pub(crate) trait SlotWork: Work {
    /// Memory that is filled for the GPU.
    type Slot: Send;
    /// The GPU's result for a slot.
    type Done: Send;

    /// Claims what comes next, for a slot. Otherwise like [`Work::claim`].
    fn claim_for(
        &self,
        source: &mut Self::Source,
        slot: &mut Self::Slot,
        unit: &mut Self::Unit,
    ) -> Result<bool, Self::Error>;

    /// Fills a slot with a claimed unit. Returns `false` if the unit is to be [run](Work::run) instead: it is not for the GPU.
    fn fill(&self, unit: &mut Self::Unit, slot: &mut Self::Slot) -> Result<bool, Self::Error>;

    /// Completes a unit with the GPU's result.
    fn collect(&self, unit: &mut Self::Unit, done: Self::Done) -> Result<(), Self::Error>;

    /// Returns `true` if a lane may run units that a GPU could do.
    fn can_help(&self, lane: &Self::Lane) -> bool;
}

/// All slots of a stream: free, filled, or with a result.
#[derive(Debug)]
pub(crate) struct Slots<Slot, Done, Unit> {
    /// Free slots.
    free: Vec<Slot>,
    /// Slots that may still be allocated. That takes a millisecond or more each: page-locked memory.
    unallocated: usize,
    /// Slots that are allocated, or are being allocated.
    allocated: usize,
    /// Slots that are being filled, are filled, or are submitted, and results that no lane has taken.
    in_flight: usize,
    /// Filled slots that are not submitted yet, with their units and the units' numbers.
    filled: VecDeque<(Slot, (u64, Unit))>,
    /// Results that no lane has taken.
    results: VecDeque<(Done, (u64, Unit))>,
}

/// Slots that lanes and the threads beside them share.
pub(crate) type SharedSlots<Slot, Done, Unit> = Mutex<Slots<Slot, Done, Unit>>;

/// The slots of a kind of work.
pub(crate) type SlotsOf<W> = SharedSlots<<W as SlotWork>::Slot, <W as SlotWork>::Done, <W as Work>::Unit>;

impl<Slot, Done, Unit> Default for Slots<Slot, Done, Unit> {
    fn default() -> Self {
        Self {
            free: Vec::new(),
            unallocated: 0,
            allocated: 0,
            in_flight: 0,
            filled: VecDeque::new(),
            results: VecDeque::new(),
        }
    }
}

impl<Slot, Done, Unit> Slots<Slot, Done, Unit> {
    /// Reserves a slot for the caller to allocate, if none is free and fewer than `wanted` exist.
    fn begin_allocation(&mut self, wanted: usize) -> bool {
        let begins = self.unallocated > 0 && self.free.is_empty() && self.allocated < wanted;
        if begins {
            self.unallocated -= 1;
            self.allocated += 1;
        }
        begins
    }

    /// Adds a slot that was allocated; `None` if there was no memory, so that no more are allocated.
    fn end_allocation(&mut self, slot: Option<Slot>) {
        if slot.is_none() {
            self.allocated -= 1;
            self.unallocated = 0;
        }
        self.free.extend(slot);
    }

    /// Takes a slot to fill, if fewer than `max_slots` are in use.
    fn take(&mut self, max_slots: usize) -> Option<Slot> {
        if self.allocated - self.free.len() >= max_slots {
            return None;
        }
        let slot = self.free.pop()?;
        self.in_flight += 1;
        Some(slot)
    }

    /// Returns a slot that was taken, but is not needed.
    fn cancel_fill(&mut self, slot: Slot) {
        self.in_flight -= 1;
        self.free.push(slot);
    }

    /// Removes a slot that was taken, and is lost to an error.
    fn discard(&mut self) {
        self.in_flight -= 1;
        self.allocated -= 1;
    }

    /// Takes the oldest result.
    fn take_result(&mut self) -> Option<(Done, (u64, Unit))> {
        let result = self.results.pop_front()?;
        self.in_flight -= 1;
        Some(result)
    }

    /// Frees a slot whose result is not needed any more.
    pub(crate) fn release(&mut self, slot: Slot) {
        self.free.push(slot);
    }
}

/// The next step of a lane.
enum Task<W: SlotWork> {
    Collect(W::Done, (u64, W::Unit)),
    Fill(W::Slot, Option<W::Unit>),
    Help(Option<W::Unit>),
}

/// A pipeline with a GPU, or with one that may join.
pub(crate) struct GpuLane<'a, W: SlotWork> {
    pipeline: &'a Pipeline<'a, W>,
    slots: &'a SlotsOf<W>,
    /// The number of lanes that were planned.
    lanes: usize,
    /// The number of lanes that the system had threads for; 0 until that is known.
    started: AtomicUsize,
    /// No lane can help: the GPU does everything.
    gpu_only: bool,
    chooser: Chooser,
    /// The work of lanes that help.
    helped: Helped,
    /// The GPU works, and one lane may end.
    has_joined: AtomicBool,
    /// All lanes have ended.
    has_ended: AtomicBool,
}

/// The work that lanes have done themselves.
struct Helped {
    start: Instant,
    bytes: AtomicU64,
    /// The time in which lanes have run units, without the time to claim them: an input may be slow.
    run_ns: AtomicU64,
}

impl Helped {
    fn record(&self, bytes: u64, run: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.run_ns.fetch_add(u64::try_from(run.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn progress(&self, lanes: usize, total_bytes: Option<u64>) -> CpuProgress {
        let done_bytes = self.bytes.load(Ordering::Relaxed);
        CpuProgress {
            done_bytes,
            left_bytes: total_bytes.map(|total| total.saturating_sub(done_bytes)),
            elapsed: self.start.elapsed(),
            busy: Duration::from_nanos(self.run_ns.load(Ordering::Relaxed) / lanes.max(1) as u64),
        }
    }
}

impl<'a, W: SlotWork> GpuLane<'a, W> {
    /// Runs lanes on threads of their own until everything is done or something fails. One more thread runs `drive`, which calls
    /// [`drive`](Self::drive) with the stream of a GPU.
    pub(crate) fn run(
        pipeline: &'a Pipeline<'a, W>,
        slots: &'a SlotsOf<W>,
        lanes: Vec<W::Lane>,
        drive: impl FnOnce(&Self) -> trueno_zram_core::Result<()> + Send,
    ) -> Result<(), Error> {
        let gpu = &Self {
            pipeline,
            slots,
            lanes: lanes.len(),
            started: AtomicUsize::new(0),
            gpu_only: !lanes.iter().any(|lane| pipeline.work.can_help(lane)),
            chooser: Chooser::default(),
            helped: Helped { start: Instant::now(), bytes: AtomicU64::new(0), run_ns: AtomicU64::new(0) },
            has_joined: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        };
        let drive = || pipeline.guard(|| Ok(drive(gpu).map_err(Error::Codec)?));
        let lanes = lanes.into_iter().enumerate();
        let lanes = lanes.map(|(number, mut lane)| move || pipeline.guard(|| gpu.run_lane(number, &mut lane)));
        thread::scope(|scope| {
            let driver = start(scope, "gpu", [drive])?;
            let panics = start(scope, "lane", lanes).map(|lanes| {
                gpu.started.store(lanes.len(), Ordering::Release);
                join_all(lanes)
            });
            // Ends the driver, once the GPU is drained.
            gpu.has_ended.store(true, Ordering::Release);
            driver.iter().for_each(|driver| driver.thread().unpark());
            resume_first(panics?.into_iter().chain(join_all(driver)));
            Ok(())
        })
    }

    /// Opens a GPU if that pays for the `total_bytes` of all pages, and returns it once it is open. Returns `None` if lanes go on
    /// without it: they end first, it cannot be used, or too little is left.
    pub(crate) fn open<'g, D: BatchDevice>(
        &self,
        gpu: &'g mut LazyGpu<D>,
        total_bytes: Option<u64>,
    ) -> Option<&'g mut GpuBatchCompressor<D>> {
        let progress = || self.helped.progress(self.lanes, total_bytes);
        while !(gpu.was_opened() || progress().is_worth_a_gpu()) {
            self.pause()?;
        }
        gpu.open();
        while gpu.get().is_none() {
            if gpu.failure().is_some() {
                return None;
            }
            self.pause()?;
        }
        if progress().is_worth_joining() { gpu.get() } else { None }
    }

    /// Waits for a moment. Returns `None` when all lanes have ended.
    fn pause(&self) -> Option<()> {
        if self.has_ended.load(Ordering::Acquire) {
            return None;
        }
        thread::park_timeout(OPENING_INTERVAL);
        Some(())
    }

    /// Lets a GPU work through `stream`, until the lanes have ended.
    pub(crate) fn drive<St>(&self, stream: &St)
    where
        St: PageStream<Slot = W::Slot, Done = W::Done, Tag = (u64, W::Unit)>,
    {
        self.pipeline.allow_units(stream.max_slots());
        lock(self.slots).unallocated = stream.max_slots();
        self.has_joined.store(true, Ordering::Release);
        let guard = |thread: &dyn Fn() -> trueno_zram_core::Result<()>| {
            self.pipeline.guard(|| Ok(thread().map_err(Error::Codec)?));
        };
        let allocate = || guard(&|| self.allocate_slots(stream));
        let panics = thread::scope(|scope| {
            let allocators = match start(scope, "slots", [allocate; SLOT_THREADS]) {
                Ok(allocators) => allocators,
                // Lanes that cannot help would wait for ever.
                Err(error) => {
                    self.pipeline.guard(|| Err(error.into()));
                    Vec::new()
                }
            };
            guard(&|| self.submit_and_take(stream));
            join_all(allocators)
        });
        resume_first(panics.into_iter());
    }

    /// Submits slots that lanes have filled, and takes results, until the lanes have ended and nothing is left.
    fn submit_and_take<St>(&self, stream: &St) -> trueno_zram_core::Result<()>
    where
        St: PageStream<Slot = W::Slot, Done = W::Done, Tag = (u64, W::Unit)>,
    {
        let mut submitted = 0;
        let mut quiet_since = Instant::now();
        loop {
            // Loaded first: slots that lanes have filled by then are submitted below.
            let has_ended = self.has_ended.load(Ordering::Acquire);
            let filled = std::mem::take(&mut lock(self.slots).filled);
            let is_quiet = filled.is_empty();
            for (slot, unit) in filled {
                stream.submit(slot, unit)?;
                submitted += 1;
            }
            if let Some(result) = stream.try_next()? {
                submitted -= 1;
                lock(self.slots).results.push_back(result);
                self.pipeline.notify_one();
                quiet_since = Instant::now();
            } else if has_ended && is_quiet && submitted == 0 {
                return Ok(());
            } else if is_quiet && quiet_since.elapsed() > MAX_SPIN {
                thread::sleep(SLEEP_INTERVAL);
            } else if is_quiet {
                let start = Instant::now();
                while start.elapsed() < POLL_INTERVAL {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Allocates slots as they are wanted, until all are allocated or the lanes have ended.
    fn allocate_slots<St: PageStream<Slot = W::Slot>>(&self, stream: &St) -> trueno_zram_core::Result<()> {
        while !self.has_ended.load(Ordering::Acquire) && lock(self.slots).unallocated > 0 {
            let wanted = self.max_slots(!self.gpu_only);
            if lock(self.slots).begin_allocation(wanted) {
                let slot = timed(self.pipeline.observer, Stage::GpuMemory, || stream.try_slot());
                let made = slot.as_ref().is_ok_and(Option::is_some);
                lock(self.slots).end_allocation(slot?);
                if made {
                    self.pipeline.notify_one();
                }
            } else {
                thread::sleep(ALLOCATION_INTERVAL);
            }
        }
        Ok(())
    }

    /// Returns the number of slots that may be in use, for a lane that can or cannot help.
    fn max_slots(&self, can_help: bool) -> usize {
        if can_help { self.chooser.max_slots() } else { usize::MAX }
    }

    fn run_lane(&self, number: usize, lane: &mut W::Lane) -> Result<(), W::Error> {
        let can_help = self.pipeline.work.can_help(lane);
        let may_end = || {
            let started = self.started.load(Ordering::Acquire);
            number == 0 && can_help && started >= MIN_LANES_TO_END_ONE && self.has_joined.load(Ordering::Acquire)
        };
        self.pipeline.do_tasks(
            |state| if may_end() { NextStep::End } else { self.next(state, can_help) },
            |task| match task {
                Task::Collect(done, (number, unit)) => self.collect(done, number, unit),
                Task::Fill(slot, unit) => self.fill(slot, unit, lane),
                Task::Help(unit) => self.help(unit, lane),
            },
        )
    }

    fn next(&self, state: &mut PipelineState<W>, can_help: bool) -> NextStep<Task<W>> {
        let mut slots = lock(self.slots);
        if let Some((done, unit)) = slots.take_result() {
            if state.has_ended && slots.in_flight == 0 {
                // It was the last one.
                self.pipeline.changed.notify_all();
            }
            return NextStep::Do(Task::Collect(done, unit));
        }
        if state.may_claim() {
            if let Some(slot) = slots.take(self.max_slots(can_help)) {
                match state.take_unit() {
                    Some(unit) => return NextStep::Do(Task::Fill(slot, unit)),
                    None => slots.cancel_fill(slot),
                }
            } else if can_help
                && state.waiting_lanes >= self.chooser.reserved_lanes(self.lanes)
                && let Some(unit) = state.take_unit()
            {
                return NextStep::Do(Task::Help(unit));
            }
        }
        if state.has_ended && slots.in_flight == 0 { NextStep::End } else { NextStep::Wait }
    }

    /// Claims a unit and runs it without the GPU.
    fn help(&self, unit: Option<W::Unit>, lane: &mut W::Lane) -> Result<(), W::Error> {
        let start = Instant::now();
        let Some((number, unit)) = self.pipeline.claim_unit(lane, unit)? else { return Ok(()) };
        let claimed = Instant::now();
        let bytes = self.pipeline.run_claimed(lane, number, unit)?;
        self.helped.record(bytes, claimed.elapsed());
        self.chooser.record_cpu(bytes, start.elapsed());
        Ok(())
    }

    /// Claims a unit and fills a slot with it.
    fn fill(&self, mut slot: W::Slot, unit: Option<W::Unit>, lane: &mut W::Lane) -> Result<(), W::Error> {
        let (start, work) = (Instant::now(), &self.pipeline.work);
        let mut unit = unit.unwrap_or_else(|| work.new_unit());
        let number = self.pipeline.claim(|source| work.claim_for(source, &mut slot, &mut unit));
        let filled = number.and_then(|number| {
            let is_filled = number.is_some() && work.fill(&mut unit, &mut slot)?;
            Ok((number, is_filled))
        });
        match filled {
            Ok((Some(number), true)) => {
                lock(self.slots).filled.push_back((slot, (number, unit)));
                self.chooser.record_fill(start.elapsed());
                Ok(())
            }
            Ok((number, _)) => {
                lock(self.slots).cancel_fill(slot);
                self.pipeline.notify_all();
                match number {
                    Some(number) => self.pipeline.run_claimed(lane, number, unit).map(drop),
                    None => {
                        self.pipeline.recycle(unit);
                        Ok(())
                    }
                }
            }
            Err(error) => {
                lock(self.slots).discard();
                Err(error)
            }
        }
    }

    /// Completes a unit with the GPU's result, and hands it on.
    fn collect(&self, done: W::Done, number: u64, mut unit: W::Unit) -> Result<(), W::Error> {
        let start = Instant::now();
        self.pipeline.work.collect(&mut unit, done)?;
        // It may have freed a slot.
        self.pipeline.notify_one();
        let bytes = self.pipeline.work.coded_bytes(&unit);
        self.pipeline.deliver(number, unit)?;
        self.chooser.record_result(bytes, start.elapsed());
        Ok(())
    }
}

impl<W: Work> Pipeline<'_, W> {
    /// Wakes a lane. The lock is taken first: no lane is between its check of the state and its wait.
    fn notify_one(&self) {
        drop(lock(&self.state));
        self.changed.notify_one();
    }

    /// Wakes all lanes, so that they check if they can end.
    fn notify_all(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }
}

/// Waits for threads, and returns what those that panicked have thrown.
fn join_all(threads: Vec<ScopedJoinHandle<'_, ()>>) -> Vec<Box<dyn Any + Send>> {
    threads.into_iter().filter_map(|thread| thread.join().err()).collect()
}

/// Passes on the first panic.
fn resume_first(mut panics: impl Iterator<Item = Box<dyn Any + Send>>) {
    if let Some(panic) = panics.next() {
        std::panic::resume_unwind(panic);
    }
}

/// Starts threads of this name. If some cannot be started, those that run do all the work.
fn start<'scope, T: FnOnce() + Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    threads: impl IntoIterator<Item = T>,
) -> Result<Vec<ScopedJoinHandle<'scope, ()>>, Error> {
    let mut started = Vec::new();
    for (number, thread) in threads.into_iter().enumerate() {
        match thread::Builder::new().name(format!("{name}-{number}")).spawn_scoped(scope, thread) {
            Ok(thread) => started.push(thread),
            Err(error) if started.is_empty() => return Err(Error::Thread(error)),
            Err(_) => break,
        }
    }
    Ok(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_allocated_when_all_are_in_use_and_never_too_many() {
        let mut slots = Slots::<u32, (), ()> { unallocated: 2, ..Slots::default() };
        assert_eq!(slots.take(usize::MAX), None, "none is allocated");
        assert!(
            slots.begin_allocation(usize::MAX)
                && slots.begin_allocation(usize::MAX)
                && !slots.begin_allocation(usize::MAX)
        );
        slots.end_allocation(Some(1));
        assert_eq!(slots.unallocated, 0);
        assert_eq!((slots.take(1), slots.take(usize::MAX)), (None, Some(1)), "the one being allocated is in use");
        slots.end_allocation(None);
        slots.filled.push_back((1, (0, ())));
        assert_eq!((slots.filled.pop_front(), slots.in_flight), (Some((1, (0, ()))), 1));
        slots.results.push_back(((), (0, ())));
        assert_eq!(slots.take_result(), Some(((), (0, ()))));
        slots.release(1);
        assert!(slots.in_flight == 0 && slots.take(1) == Some(1));
    }

    #[test]
    fn no_slot_is_allocated_while_one_is_free_or_enough_are_there() {
        let mut slots = Slots::<u32, (), ()> { unallocated: 5, ..Slots::default() };
        assert!(!slots.begin_allocation(0));
        assert!(slots.begin_allocation(1) && !slots.begin_allocation(1));
        slots.end_allocation(Some(1));
        assert!(!slots.begin_allocation(9), "one is free");
        assert_eq!(slots.take(9), Some(1));
        assert!(slots.begin_allocation(9));
    }
}
