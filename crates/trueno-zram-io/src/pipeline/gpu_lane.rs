//! A GPU in a pipeline: lanes fill its slots and take its results, one thread drives it, and a few make its slots.
//!
//! A lane does what is due: it places a unit, takes a result, or fills a free slot. One that finds nothing to do waits, or does a
//! unit itself if it can. So the GPU comes first once it is known to pay, and no core idles behind a GPU that is slower than the
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
use crate::pipeline::in_order::lock;
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{NextStep, Pipeline, PipelineState, Work};

/// Threads that make slots. The driver serialises a part of that work, so more would not be faster.
const MAKERS: usize = 3;

/// Time between two looks at the GPU: each asks the driver about every slot.
const BETWEEN_LOOKS: Duration = Duration::from_micros(3);
/// After this long without a result, the thread sleeps between two looks.
const SLEEPS_AFTER: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(50);

/// Pause before a maker checks again if a slot is wanted.
const MAKER_SLEEP: Duration = Duration::from_micros(500);

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

/// Slots of a stream, wherever they are.
#[derive(Debug)]
pub(crate) struct Slots<Slot, Done, Unit> {
    /// Free slots.
    free: Vec<Slot>,
    /// Slots that were not made yet. Making one takes a millisecond or more: page-locked memory.
    unmade: usize,
    /// Slots there are.
    made: usize,
    /// Slots that are being filled, are filled, or are submitted, and results that no lane has taken.
    under_way: usize,
    /// Slots that were filled and not submitted, with their units and the units' numbers.
    filled: VecDeque<(Slot, (u64, Unit))>,
    /// Results that no lane has taken.
    results: VecDeque<(Done, (u64, Unit))>,
}

/// Slots that lanes and the threads beside them share.
pub(crate) type SharedSlots<Slot, Done, Unit> = Mutex<Slots<Slot, Done, Unit>>;

/// The slots of a kind of work.
pub(crate) type SlotsOf<W> = SharedSlots<<W as SlotWork>::Slot, <W as SlotWork>::Done, <W as Work>::Unit>;

impl<Slot, Done, Unit> Slots<Slot, Done, Unit> {
    /// At most `max_slots`, none of which is made yet.
    pub(crate) fn new(max_slots: usize) -> Self {
        Self {
            free: Vec::new(),
            unmade: max_slots,
            made: 0,
            under_way: 0,
            filled: VecDeque::new(),
            results: VecDeque::new(),
        }
    }

    /// Reserves a slot for the caller to make, if none is free and fewer than `wanted` exist.
    fn begin_making(&mut self, wanted: usize) -> bool {
        let begins = self.unmade > 0 && self.free.is_empty() && self.made < wanted;
        if begins {
            self.unmade -= 1;
            self.made += 1;
        }
        begins
    }

    /// Adds a slot that was made. Without memory for it, there are no more from now on.
    fn end_making(&mut self, slot: Option<Slot>) {
        if slot.is_none() {
            self.made -= 1;
            self.unmade = 0;
        }
        self.free.extend(slot);
    }

    /// Takes a slot to fill, if fewer than `max_slots` are in use.
    fn take(&mut self, max_slots: usize) -> Option<Slot> {
        if self.made - self.free.len() >= max_slots {
            return None;
        }
        let slot = self.free.pop()?;
        self.under_way += 1;
        Some(slot)
    }

    /// Ends the filling of a slot that is not needed.
    fn put_back(&mut self, slot: Slot) {
        self.under_way -= 1;
        self.free.push(slot);
    }

    /// Ends the filling of a slot that is lost to an error.
    fn discard(&mut self) {
        self.under_way -= 1;
        self.made -= 1;
    }

    /// Takes the oldest result.
    fn take_result(&mut self) -> Option<(Done, (u64, Unit))> {
        let result = self.results.pop_front()?;
        self.under_way -= 1;
        Some(result)
    }

    /// Adds a slot whose result is not needed any more.
    pub(crate) fn put_free(&mut self, slot: Slot) {
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
    is_alone: bool,
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
        let is_alone = !lanes.iter().any(|lane| pipeline.work.can_help(lane));
        let (chooser, has_ended) = (Chooser::default(), AtomicBool::new(false));
        let gpu = &Self { pipeline, stream, slots, lanes: lanes.len(), is_alone, chooser, has_ended };
        let guard = |thread: &dyn Fn() -> trueno_zram_core::Result<()>| {
            pipeline.guard(|| Ok(thread().map_err(Error::Codec)?));
        };
        let (drive, make) = (|| guard(&|| gpu.drive()), || guard(&|| gpu.make_slots()));
        let lanes = lanes.into_iter().map(|mut lane| move || pipeline.guard(|| gpu.run_lane(&mut lane)));
        thread::scope(|scope| {
            let mut others = start(scope, "gpu", [drive])?;
            let started = start(scope, "slots", [make; MAKERS]).and_then(|makers| {
                others.extend(makers);
                start(scope, "lane", lanes)
            });
            let panics =
                started.map(|lanes| lanes.into_iter().filter_map(|lane| lane.join().err()).collect::<Vec<_>>());
            // Ends the others, once the GPU is drained.
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
            // Asked first: what lanes have left by then is seen below.
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
            } else if is_quiet && quiet_since.elapsed() > SLEEPS_AFTER {
                thread::sleep(SLEEP);
            } else if is_quiet {
                let start = Instant::now();
                while start.elapsed() < BETWEEN_LOOKS {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Makes slots as they are wanted, until all are made or the lanes have ended.
    fn make_slots(&self) -> trueno_zram_core::Result<()> {
        while !self.has_ended.load(Ordering::Acquire) && lock(self.slots).unmade > 0 {
            let wanted = self.max_slots(!self.is_alone);
            if lock(self.slots).begin_making(wanted) {
                let slot = timed(self.pipeline.observer, Stage::GpuMemory, || self.stream.try_slot());
                let made = slot.as_ref().is_ok_and(Option::is_some);
                lock(self.slots).end_making(slot?);
                if made {
                    self.pipeline.notify_one();
                }
            } else {
                thread::sleep(MAKER_SLEEP);
            }
        }
        Ok(())
    }

    /// The number of slots that may be in use, as far as a lane is concerned that can help or cannot.
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
            if state.has_ended && slots.under_way == 0 {
                // It was the last one.
                self.pipeline.wake_all();
            }
            return NextStep::Do(Task::Collect(done, unit));
        }
        if state.may_claim() {
            if let Some(slot) = slots.take(self.max_slots(can_help)) {
                return NextStep::Do(Task::Fill(slot, state.take_unit().flatten()));
            }
            if can_help && state.waiting >= self.chooser.reserved_lanes(self.lanes) {
                return NextStep::Do(Task::Help(state.take_unit().flatten()));
            }
        }
        if state.has_ended && slots.under_way == 0 { NextStep::End } else { NextStep::Wait }
    }

    /// Claims a unit and fills a slot with it.
    fn fill(&self, mut slot: W::Slot, unit: Option<W::Unit>, lane: &mut W::Lane) -> Result<(), W::Error> {
        let (start, work) = (Instant::now(), &self.pipeline.work);
        let mut unit = unit.unwrap_or_else(|| work.unit());
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
                lock(self.slots).put_back(slot);
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
    /// Wakes a lane. None is between its look at the state and its wait.
    fn notify_one(&self) {
        drop(lock(&self.state));
        self.changed.notify_one();
    }

    /// Wakes all lanes, to see whether they can end.
    fn notify_all(&self) {
        drop(lock(&self.state));
        self.wake_all();
    }

    /// Wakes all lanes, for a caller that has the state.
    fn wake_all(&self) {
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
    fn slots_are_made_when_all_are_in_use_and_never_too_many() {
        let mut slots = Slots::<u32, (), ()>::new(2);
        assert_eq!(slots.take(usize::MAX), None, "none is made");
        assert!(slots.begin_making(usize::MAX) && slots.begin_making(usize::MAX) && !slots.begin_making(usize::MAX));
        slots.end_making(Some(1));
        assert_eq!(slots.unmade, 0);
        assert_eq!((slots.take(1), slots.take(usize::MAX)), (None, Some(1)), "the one being made is in use");
        slots.end_making(None);
        slots.filled.push_back((1, (0, ())));
        assert_eq!((slots.filled.pop_front(), slots.under_way), (Some((1, (0, ()))), 1));
        slots.results.push_back(((), (0, ())));
        assert_eq!(slots.take_result(), Some(((), (0, ()))));
        slots.put_free(1);
        assert!(slots.under_way == 0 && slots.take(1) == Some(1));
    }

    #[test]
    fn no_slot_is_made_while_one_is_free_or_enough_are_there() {
        let mut slots = Slots::<u32, (), ()>::new(5);
        assert!(!slots.begin_making(0));
        assert!(slots.begin_making(1) && !slots.begin_making(1));
        slots.end_making(Some(1));
        assert!(!slots.begin_making(9), "one is free");
        assert_eq!(slots.take(9), Some(1));
        assert!(slots.begin_making(9));
    }
}
