//! The pipeline: lanes claim units of work in order, run them in parallel, and hand them on in order.

#[cfg(feature = "gpu")]
pub(crate) mod gpu_lane;
pub(crate) mod held_slots;
pub(crate) mod in_order;
pub(crate) mod timeline;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use rayon::ThreadPool;
use trueno_zram_archive::ContentHash;

use crate::error::Error;
use crate::lock::lock;
use crate::pipeline::in_order::InOrder;
use crate::pipeline::timeline::{Stage, timed};
use crate::workers::Observer;

/// The most bytes of finished units that wait to be written.
const MAX_QUEUED_BYTES: usize = 16 << 20;

/// The work of a pipeline.
pub(crate) trait Work: Sync {
    /// The source of claims. One lane at a time has it.
    type Source: Send;
    /// A unit of work and its memory, which is used again.
    type Unit: Send;
    /// The state that each lane has for itself: a codec, and buffers.
    type Lane: Send;
    /// The stage that follows the order of the claims. One lane at a time has it.
    type Ordered: Send;
    /// Errors that end the pipeline.
    type Error: From<Error> + Send;

    /// Allocates the memory of a unit.
    fn new_unit(&self) -> Self::Unit;

    /// Claims what comes next. Returns `false` at the end. Other lanes wait meanwhile.
    fn claim(
        &self,
        source: &mut Self::Source,
        lane: &mut Self::Lane,
        unit: &mut Self::Unit,
    ) -> Result<bool, Self::Error>;

    /// Runs a unit, in parallel with other lanes.
    fn run(&self, lane: &mut Self::Lane, unit: &mut Self::Unit) -> Result<(), Self::Error>;

    /// Returns the bytes of the pages of a unit that a codec has worked on: not those of holes.
    fn coded_bytes(&self, unit: &Self::Unit) -> u64;

    /// Returns `false` if units are complete once they are run.
    fn is_ordered(&self) -> bool {
        true
    }

    /// Hashes the content of a unit, in order.
    fn hash(&self, _unit: &Self::Unit, _hash: &mut ContentHash) {}

    /// Takes a unit in order. Returns `true` if it has an offset now, and is to be [written](Self::write) there.
    fn in_order(&self, ordered: &mut Self::Ordered, unit: &mut Self::Unit) -> Result<bool, Self::Error>;

    /// Writes a unit at its offset, in parallel with other lanes.
    fn write(&self, _unit: &mut Self::Unit) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns the number of lanes that may write units at the same time.
    fn max_writers(&self) -> usize {
        0
    }

    /// Returns the bytes that a unit takes while it waits to be written.
    fn queued_bytes(&self, _unit: &Self::Unit) -> usize {
        0
    }

    /// Frees the GPU slot that a unit holds, before its memory is used again.
    fn release(&self, _unit: &mut Self::Unit) {}
}

/// Work in progress: claims, the memory of units, their order, and the first error.
///
/// A lane that is early leaves its unit for the lane that has the one before, so that no lane waits for another. The number of
/// units bounds the work in flight.
pub(crate) struct Pipeline<'a, W: Work> {
    pub(crate) work: W,
    claims: Mutex<ClaimState<W::Source>>,
    /// The stage that hashes the content; `None` if it is not hashed.
    hash: Option<InOrder<(u64, W::Unit), ContentHash>>,
    ordered: InOrder<W::Unit, W::Ordered>,
    state: Mutex<PipelineState<W>>,
    /// The state changed.
    changed: Condvar,
    pub(crate) observer: &'a dyn Observer,
}

struct ClaimState<S> {
    source: S,
    next_number: u64,
    has_ended: bool,
}

/// The state that lanes check before each step.
pub(crate) struct PipelineState<W: Work> {
    /// Units whose memory can be used again.
    free_units: Vec<W::Unit>,
    /// Units that may still be allocated.
    unallocated_units: usize,
    to_write: VecDeque<W::Unit>,
    /// The bytes of the units in `to_write`.
    queued_bytes: usize,
    /// Lanes that write units now.
    writing: usize,
    /// Lanes that wait for something to do.
    pub(crate) waiting_lanes: usize,
    /// Everything is claimed.
    pub(crate) has_ended: bool,
    /// A lane failed or panicked.
    has_stopped: bool,
    /// The first error.
    error: Option<W::Error>,
}

impl<W: Work> PipelineState<W> {
    /// Returns `true` if more may be claimed: the bytes of units that wait to be written are bounded.
    pub(crate) fn may_claim(&self) -> bool {
        !self.has_ended && self.queued_bytes < MAX_QUEUED_BYTES
    }

    /// Takes memory for a unit, unless too many are in flight. `Some(None)`: the caller allocates it.
    pub(crate) fn take_unit(&mut self) -> Option<Option<W::Unit>> {
        let unit = self.free_units.pop();
        if unit.is_none() {
            self.unallocated_units = self.unallocated_units.checked_sub(1)?;
        }
        Some(unit)
    }
}

/// The next step of a lane.
pub(crate) enum NextStep<T> {
    Do(T),
    Wait,
    End,
}

/// The parts of a pipeline that has done all of its work.
pub(crate) struct Finished<W: Work> {
    pub(crate) work: W,
    pub(crate) source: W::Source,
    pub(crate) hash: Option<ContentHash>,
    pub(crate) ordered: W::Ordered,
}

/// Stops all lanes when dropped: one that panics must not keep the others waiting for its unit.
struct StopOthers<'p, 'a, W: Work>(&'p Pipeline<'a, W>);

impl<W: Work> Drop for StopOthers<'_, '_, W> {
    fn drop(&mut self) {
        lock(&self.0.state).has_stopped = true;
        self.0.changed.notify_all();
    }
}

impl<'a, W: Work> Pipeline<'a, W> {
    /// Prepares a pipeline with at most `max_units` in flight.
    pub(crate) fn new(
        work: W,
        source: W::Source,
        ordered: W::Ordered,
        max_units: usize,
        observer: &'a dyn Observer,
    ) -> Self {
        let state = PipelineState {
            free_units: Vec::new(),
            unallocated_units: max_units,
            to_write: VecDeque::new(),
            queued_bytes: 0,
            writing: 0,
            waiting_lanes: 0,
            has_ended: false,
            has_stopped: false,
            error: None,
        };
        Self {
            work,
            claims: Mutex::new(ClaimState { source, next_number: 0, has_ended: false }),
            hash: None,
            ordered: InOrder::new(ordered),
            state: Mutex::new(state),
            changed: Condvar::new(),
            observer,
        }
    }

    /// Adds a stage that hashes the content in order, if there is a hash.
    pub(crate) fn with_hash(self, hash: Option<ContentHash>) -> Self {
        Self { hash: hash.map(InOrder::new), ..self }
    }

    /// Allows this many more units in flight.
    #[cfg(feature = "gpu")]
    fn allow_units(&self, more: usize) {
        lock(&self.state).unallocated_units += more;
        self.changed.notify_all();
    }

    /// Runs lanes on the workers of `pool`, until everything is done or something fails.
    pub(crate) fn run_on(&self, pool: &ThreadPool, lanes: impl Iterator<Item = W::Lane> + Send) {
        pool.scope(|scope| {
            for mut lane in lanes {
                scope.spawn(move |_| self.guard(|| self.run_lane(&mut lane)));
            }
        });
    }

    fn run_lane(&self, lane: &mut W::Lane) -> Result<(), W::Error> {
        let next = |state: &mut PipelineState<W>| match state.has_ended {
            // Each completion checks again, so no unit is left behind.
            true => NextStep::End,
            false if state.may_claim() => state.take_unit().map_or(NextStep::Wait, NextStep::Do),
            false => NextStep::Wait,
        };
        self.do_tasks(next, |unit| self.run_unit(lane, unit))
    }

    /// Runs a thread of the pipeline to its end. The first error of all of them is kept.
    pub(crate) fn guard(&self, thread: impl FnOnce() -> Result<(), W::Error>) {
        let stop_others = StopOthers(self);
        match thread() {
            Ok(()) => std::mem::forget(stop_others),
            Err(error) => {
                lock(&self.state).error.get_or_insert(error);
            }
        }
    }

    /// Runs tasks until `next` returns [`NextStep::End`]. Units that wait to be written come first.
    pub(crate) fn do_tasks<T>(
        &self,
        next: impl Fn(&mut PipelineState<W>) -> NextStep<T>,
        mut task: impl FnMut(T) -> Result<(), W::Error>,
    ) -> Result<(), W::Error> {
        let mut state = lock(&self.state);
        loop {
            if state.has_stopped {
                return Ok(());
            }
            if let Some(unit) = self.take_to_write(&mut state) {
                drop(state);
                self.write_unit(unit)?;
                state = lock(&self.state);
                continue;
            }
            match next(&mut state) {
                NextStep::Do(found) => {
                    drop(state);
                    task(found)?;
                    state = lock(&self.state);
                }
                NextStep::Wait => {
                    state.waiting_lanes += 1;
                    state = timed(self.observer, Stage::Wait, || self.changed.wait(state))
                        .unwrap_or_else(PoisonError::into_inner);
                    state.waiting_lanes -= 1;
                }
                NextStep::End => {
                    // Other lanes may wait for the same condition.
                    self.changed.notify_all();
                    return Ok(());
                }
            }
        }
    }

    /// Takes a unit to write, unless enough lanes do so already.
    fn take_to_write(&self, state: &mut PipelineState<W>) -> Option<W::Unit> {
        if state.writing >= self.work.max_writers() {
            return None;
        }
        let unit = state.to_write.pop_front()?;
        state.writing += 1;
        state.queued_bytes -= self.work.queued_bytes(&unit);
        Some(unit)
    }

    fn write_unit(&self, mut unit: W::Unit) -> Result<(), W::Error> {
        self.work.write(&mut unit)?;
        let mut state = lock(&self.state);
        state.writing -= 1;
        state.free_units.push(unit);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Claims a unit, runs it, and hands it on.
    fn run_unit(&self, lane: &mut W::Lane, unit: Option<W::Unit>) -> Result<(), W::Error> {
        match self.claim_unit(lane, unit)? {
            Some((number, unit)) => self.run_claimed(lane, number, unit).map(drop),
            None => Ok(()),
        }
    }

    /// Claims a unit, and returns it with its number; `None` at the end. Without memory for a unit, it allocates some.
    pub(crate) fn claim_unit(
        &self,
        lane: &mut W::Lane,
        unit: Option<W::Unit>,
    ) -> Result<Option<(u64, W::Unit)>, W::Error> {
        let mut unit = unit.unwrap_or_else(|| self.work.new_unit());
        match self.claim(|source| self.work.claim(source, lane, &mut unit))? {
            Some(number) => Ok(Some((number, unit))),
            None => {
                self.recycle(unit);
                Ok(None)
            }
        }
    }

    /// Runs a unit that is claimed, and hands it on. Returns the bytes of the pages that a codec has worked on.
    pub(crate) fn run_claimed(&self, lane: &mut W::Lane, number: u64, mut unit: W::Unit) -> Result<u64, W::Error> {
        self.work.run(lane, &mut unit)?;
        let bytes = self.work.coded_bytes(&unit);
        self.deliver(number, unit)?;
        Ok(bytes)
    }

    /// Claims the next unit with `claim`, and numbers it; `None` at the end, which the other lanes notice as well.
    pub(crate) fn claim(
        &self,
        claim: impl FnOnce(&mut W::Source) -> Result<bool, W::Error>,
    ) -> Result<Option<u64>, W::Error> {
        let mut claims = lock(&self.claims);
        // A source that fails has ended for the other lanes as well.
        if std::mem::replace(&mut claims.has_ended, true) {
            return Ok(None);
        }
        if timed(self.observer, Stage::Read, || claim(&mut claims.source))? {
            let number = claims.next_number;
            claims.next_number += 1;
            claims.has_ended = false;
            return Ok(Some(number));
        }
        drop(claims);
        lock(&self.state).has_ended = true;
        self.changed.notify_all();
        Ok(None)
    }

    /// Hands a unit on, with all others that are due.
    pub(crate) fn deliver(&self, number: u64, unit: W::Unit) -> Result<(), W::Error> {
        if !self.work.is_ordered() {
            self.recycle(unit);
            return Ok(());
        }
        let Some(hash) = &self.hash else { return self.take_in_order(number, unit) };
        let mut hashed = Vec::new();
        hash.submit(number, (number, unit), |hash, (number, unit)| {
            timed(self.observer, Stage::Hash, || self.work.hash(&unit, hash));
            hashed.push((number, unit));
            Ok::<(), W::Error>(())
        })?;
        hashed.into_iter().try_for_each(|(number, unit)| self.take_in_order(number, unit))
    }

    fn take_in_order(&self, number: u64, unit: W::Unit) -> Result<(), W::Error> {
        self.ordered.submit(number, unit, |ordered, mut unit| {
            if !self.work.in_order(ordered, &mut unit)? {
                self.recycle(unit);
                return Ok(());
            }
            self.work.release(&mut unit);
            let mut state = lock(&self.state);
            state.queued_bytes += self.work.queued_bytes(&unit);
            state.to_write.push_back(unit);
            drop(state);
            // For the unit to write, and for the slot that it released.
            self.changed.notify_one();
            self.changed.notify_one();
            Ok(())
        })
    }

    /// Gives the memory of a unit back.
    pub(crate) fn recycle(&self, mut unit: W::Unit) {
        self.work.release(&mut unit);
        lock(&self.state).free_units.push(unit);
        self.changed.notify_one();
    }

    /// Returns what is left once all lanes have ended.
    ///
    /// # Errors
    /// The first error of any lane.
    pub(crate) fn finish(self) -> Result<Finished<W>, W::Error> {
        if let Some(error) = self.state.into_inner().unwrap_or_else(PoisonError::into_inner).error {
            return Err(error);
        }
        let claims = self.claims.into_inner().unwrap_or_else(PoisonError::into_inner);
        let hash = self.hash.map(|hash| hash.into_stage().expect("no lane failed"));
        let ordered = self.ordered.into_stage().expect("no lane failed");
        Ok(Finished { work: self.work, source: claims.source, hash, ordered })
    }
}
