//! A GPU in a pipeline: lanes fill its slots and take its results, one thread drives it, and a few allocate its slots.
//!
//! A lane does what is due: it writes a unit, takes a result, or fills a free slot. One that finds nothing to do waits, or does a
//! unit itself if it can. So the GPU comes first once it is known to pay, and no core waits for a GPU that is slower than the
//! CPU.
//!
//! Lanes never touch the stream itself: calls of the driver take tens of microseconds under its lock, for which all of them would
//! queue. They leave filled slots in [`Slots`], and find results and free slots there.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use trueno_zram_core::gpu::{Chooser, PageStream};

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

impl<Slot, Done, Unit> Slots<Slot, Done, Unit> {
    /// Prepares for at most `max_slots`, none of which is allocated yet.
    pub(crate) fn new(max_slots: usize) -> Self {
        Self {
            free: Vec::new(),
            unallocated: max_slots,
            allocated: 0,
            in_flight: 0,
            filled: VecDeque::new(),
            results: VecDeque::new(),
        }
    }

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

/// A GPU that works in a pipeline.
pub(crate) struct GpuLane<'a, W: SlotWork, St> {
    pipeline: &'a Pipeline<'a, W>,
    stream: &'a St,
    slots: &'a SlotsOf<W>,
    /// The number of lanes.
    lanes: usize,
    /// No lane can help: the GPU does everything.
    gpu_only: bool,
    chooser: Chooser,
    /// All lanes have ended.
    has_ended: AtomicBool,
}

impl<'a, W: SlotWork, St> GpuLane<'a, W, St>
where
    St: PageStream<Slot = W::Slot, Done = W::Done, Tag = (u64, W::Unit)>,
{
    /// Runs lanes with the GPU, all on threads of their own, until everything is done or something fails.
    pub(crate) fn run(
        pipeline: &'a Pipeline<'a, W>,
        stream: &'a St,
        slots: &'a SlotsOf<W>,
        lanes: Vec<W::Lane>,
    ) -> Result<(), Error> {
        let gpu_only = !lanes.iter().any(|lane| pipeline.work.can_help(lane));
        let (chooser, has_ended) = (Chooser::default(), AtomicBool::new(false));
        let gpu = &Self { pipeline, stream, slots, lanes: lanes.len(), gpu_only, chooser, has_ended };
        let guard = |thread: &dyn Fn() -> trueno_zram_core::Result<()>| {
            pipeline.guard(|| Ok(thread().map_err(Error::Codec)?));
        };
        let (drive, allocate) = (|| guard(&|| gpu.drive()), || guard(&|| gpu.allocate_slots()));
        let lanes = lanes.into_iter().map(|mut lane| move || pipeline.guard(|| gpu.run_lane(&mut lane)));
        thread::scope(|scope| {
            let mut others = start(scope, "gpu", [drive])?;
            let started = start(scope, "slots", [allocate; SLOT_THREADS]).and_then(|threads| {
                others.extend(threads);
                start(scope, "lane", lanes)
            });
            let panics =
                started.map(|lanes| lanes.into_iter().filter_map(|lane| lane.join().err()).collect::<Vec<_>>());
            // Ends the other threads, once the GPU is drained.
            gpu.has_ended.store(true, Ordering::Release);
            let others = others.into_iter().filter_map(|thread| thread.join().err());
            match panics?.into_iter().chain(others).next() {
                Some(panic) => std::panic::resume_unwind(panic),
                None => Ok(()),
            }
        })
    }

    /// Submits slots that lanes have filled, and takes results, until the lanes have ended and nothing is left.
    fn drive(&self) -> trueno_zram_core::Result<()> {
        let mut submitted = 0;
        let mut quiet_since = Instant::now();
        loop {
            // Loaded first: slots that lanes have filled by then are submitted below.
            let has_ended = self.has_ended.load(Ordering::Acquire);
            let filled = std::mem::take(&mut lock(self.slots).filled);
            let is_quiet = filled.is_empty();
            for (slot, unit) in filled {
                self.stream.submit(slot, unit)?;
                submitted += 1;
            }
            if let Some(result) = self.stream.try_next()? {
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
    fn allocate_slots(&self) -> trueno_zram_core::Result<()> {
        while !self.has_ended.load(Ordering::Acquire) && lock(self.slots).unallocated > 0 {
            let wanted = self.max_slots(!self.gpu_only);
            if lock(self.slots).begin_allocation(wanted) {
                let slot = timed(self.pipeline.observer, Stage::GpuMemory, || self.stream.try_slot());
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

    fn run_lane(&self, lane: &mut W::Lane) -> Result<(), W::Error> {
        let can_help = self.pipeline.work.can_help(lane);
        self.pipeline.do_tasks(
            |state| self.next(state, can_help),
            |task| match task {
                Task::Collect(done, (number, unit)) => self.collect(done, number, unit),
                Task::Fill(slot, unit) => self.fill(slot, unit, lane),
                Task::Help(unit) => {
                    let start = Instant::now();
                    let bytes = self.pipeline.run_unit(lane, unit)?;
                    self.chooser.record_cpu(bytes, start.elapsed());
                    Ok(())
                }
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
                return NextStep::Do(Task::Fill(slot, state.take_unit().flatten()));
            }
            if can_help && state.waiting_lanes >= self.chooser.reserved_lanes(self.lanes) {
                return NextStep::Do(Task::Help(state.take_unit().flatten()));
            }
        }
        if state.has_ended && slots.in_flight == 0 { NextStep::End } else { NextStep::Wait }
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
        let bytes = self.pipeline.work.content_len(&unit);
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
        let mut slots = Slots::<u32, (), ()>::new(2);
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
        let mut slots = Slots::<u32, (), ()>::new(5);
        assert!(!slots.begin_allocation(0));
        assert!(slots.begin_allocation(1) && !slots.begin_allocation(1));
        slots.end_allocation(Some(1));
        assert!(!slots.begin_allocation(9), "one is free");
        assert_eq!(slots.take(9), Some(1));
        assert!(slots.begin_allocation(9));
    }
}
