//! Streams of slots through a GPU, with the CPU behind it.

mod compress;
mod decompress;

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

pub use compress::{CompressStream, CompressedSlot, PageSlot};
pub use decompress::{DecompressStream, PackedSlot, RestoredSlot};

use super::gpu::GpuBatchCompressor;
use super::result::BatchTimes;
use crate::arena::IndexEntry;
use crate::error::Result;
use crate::gpu::GpuError;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::pause::Pause;
use crate::gpu::ring::session::{Cause, Direction, Failed, Filled, Finished, Made, Offer, Session};
use crate::gpu::ring::{Lease, Outcome, StageTimes};

/// The part shared by both kinds of streams: slots out, slots in, results in order.
///
/// There is no thread behind it. Every thread that waits takes the lock for a moment, moves the slots on, and looks again.
#[derive(Debug)]
struct Stream<'a, D: RingDevice> {
    state: Mutex<State<'a, D>>,
    slot_pages: usize,
    /// The process that started it.
    process: u32,
}

#[derive(Debug)]
struct State<'a, D: RingDevice> {
    compressor: &'a mut GpuBatchCompressor<D>,
    session: Session<D>,
    /// Slots that were submitted and not taken, in order.
    submitted: VecDeque<Submitted<D>>,
    is_closed: bool,
    /// When the result before was ready.
    last_done: Option<Instant>,
}

/// Where a submitted slot is.
#[derive(Debug)]
enum Submitted<D: RingDevice> {
    /// In the session's flight, which has the same order.
    InFlight,
    /// Here, to be done by the CPU.
    ForCpu(Filled<D>),
}

/// A result, or pages that the CPU is to do.
enum Next<D: RingDevice> {
    ByDevice(Finished<D>),
    ForCpu(Filled<D>),
}

impl<'a, D: RingDevice> Stream<'a, D> {
    fn new(compressor: &'a mut GpuBatchCompressor<D>, direction: Direction) -> Self {
        let (shape, process) = (compressor.ring_shape(), compressor.process);
        let session = match &compressor.ring {
            Some(ring) => Session::new(ring, direction),
            None => Session::without_device(shape, direction),
        };
        let (submitted, is_closed, last_done) = (VecDeque::new(), false, None);
        let state = Mutex::new(State { compressor, session, submitted, is_closed, last_done });
        Self { state, slot_pages: shape.slot_pages as usize, process }
    }

    /// Refuses to work in a forked child. Another thread may have held the lock when the process forked, so this comes first.
    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(GpuError::OtherProcess { owner: self.process }.into())
    }

    fn lock(&self) -> MutexGuard<'_, State<'a, D>> {
        // Every slot is in one place between any two operations: the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks again and again until `look` has an answer. While another thread has the lock, that one moves the slots on.
    fn wait_for<T>(&self, mut look: impl FnMut(&mut State<'a, D>) -> Option<T>) -> T {
        let mut pause = Pause::default();
        loop {
            let answer = match self.state.try_lock() {
                Ok(mut state) => look(&mut state),
                Err(TryLockError::Poisoned(state)) => look(&mut state.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(answer) = answer {
                return answer;
            }
            pause.after(false);
        }
    }

    fn slot(&self) -> Result<Lease<D>> {
        self.check_process()?;
        loop {
            let offer = self.wait_for(State::slot);
            if let Some(lease) = self.accept(offer) {
                return Ok(lease);
            }
        }
    }

    fn try_slot(&self) -> Result<Option<Lease<D>>> {
        self.check_process()?;
        loop {
            let Some(offer) = self.lock().slot() else { return Ok(None) };
            if let Some(lease) = self.accept(offer) {
                return Ok(Some(lease));
            }
        }
    }

    /// Takes a slot that is offered. One that has to be made is made without the lock. `None` if that failed: then there are
    /// others, or there is no device.
    fn accept(&self, offer: Offer<D>) -> Option<Lease<D>> {
        match offer {
            Offer::Slot(lease) => Some(lease),
            Offer::Make(maker) => {
                let made = maker.make();
                self.lock().keep(made)
            }
        }
    }

    fn submit(&self, lease: Lease<D>, pages: usize, entries: Vec<IndexEntry>) -> Result<()> {
        self.check_process()?;
        self.lock().submit(Filled { lease, pages, entries, submitted: Instant::now() });
        Ok(())
    }

    fn close(&self) {
        self.lock().is_closed = true;
    }

    fn pending(&self) -> usize {
        self.lock().submitted.len()
    }

    /// The next result, as `finish` makes it, if it is ready.
    fn try_next<T>(&self, finish: impl Fn(&mut State<'a, D>, Next<D>) -> Result<T>) -> Result<Option<T>> {
        self.check_process()?;
        let state = &mut *self.lock();
        state.poll().map(|next| finish(state, next)).transpose()
    }

    /// Waits for the next result. `None` if the stream is closed and nothing is left.
    fn next<T>(&self, finish: impl Fn(&mut State<'a, D>, Next<D>) -> Result<T>) -> Result<Option<T>> {
        self.check_process()?;
        self.wait_for(|state| match state.poll() {
            Some(next) => Some(finish(state, next).map(Some)),
            None if state.is_closed && state.submitted.is_empty() => Some(Ok(None)),
            None => None,
        })
    }
}

impl<D: RingDevice> State<'_, D> {
    /// A slot to fill, or the way to one. If there is neither, slots in flight are moved on.
    fn slot(&mut self) -> Option<Offer<D>> {
        loop {
            match self.session.slot(self.compressor.ring.as_deref()) {
                Ok(Some(offer)) => return Some(offer),
                Ok(None) => break,
                Err(failed) => self.fail(failed),
            }
        }
        if let Some(ring) = &mut self.compressor.ring
            && let Err(failed) = self.session.advance(ring)
        {
            self.fail(failed);
        }
        None
    }

    /// Takes a slot that was made, if it was.
    fn keep(&mut self, made: Made<D>) -> Option<Lease<D>> {
        match self.session.keep(self.compressor.ring.as_deref(), made) {
            Ok(lease) => lease,
            Err(failed) => {
                self.fail(failed);
                None
            }
        }
    }

    fn submit(&mut self, filled: Filled<D>) {
        let pages = filled.pages;
        self.submitted.push_back(Submitted::InFlight);
        let left = match &mut self.compressor.ring {
            Some(ring) => self.session.submit(ring, filled),
            None => Ok(Some(filled)),
        };
        match left {
            Ok(None) => {}
            Ok(Some(filled)) => {
                // Memory that is not the device's, or there is no device.
                self.compressor.note(&Outcome::default(), pages);
                self.submitted.pop_back();
                self.submitted.push_back(Submitted::ForCpu(filled));
            }
            Err(failed) => self.fail(failed),
        }
    }

    /// Moves slots on; the next result, if it is ready.
    fn poll(&mut self) -> Option<Next<D>> {
        while let Some(Submitted::InFlight) = self.submitted.front() {
            let ring = self.compressor.ring.as_deref_mut().expect("slots are in flight on a device");
            match self.session.poll(ring) {
                Ok(Some(finished)) => {
                    self.submitted.pop_front();
                    // The device works: failures are counted from here again.
                    self.compressor.note(&Outcome::default(), 0);
                    return Some(Next::ByDevice(finished));
                }
                Ok(None) => return None,
                Err(failed) => self.fail(failed),
            }
        }
        match self.submitted.pop_front()? {
            Submitted::ForCpu(filled) => Some(Next::ForCpu(filled)),
            Submitted::InFlight => None,
        }
    }

    /// Leaves the slots that were in flight to the CPU, and counts that.
    fn fail(&mut self, failed: Failed<D>) {
        let Failed { cause, slots } = failed;
        let pages = slots.iter().map(|slot| slot.pages).sum();
        let in_flight = self.submitted.iter_mut().filter(|slot| matches!(slot, Submitted::InFlight));
        in_flight.zip(slots).for_each(|(place, slot)| *place = Submitted::ForCpu(slot));
        match cause {
            Cause::Error(error) => drop(self.compressor.note(&Outcome::failed(error), pages)),
            Cause::Panic(panic) => {
                self.compressor.note_panic(pages);
                resume_unwind(panic);
            }
        }
    }

    /// The times of a result. Slots overlap, so a slot's total starts no earlier than the result before it.
    fn times(&mut self, stages: StageTimes, submitted: Instant) -> BatchTimes {
        let now = Instant::now();
        let start = self.last_done.replace(now).map_or(submitted, |last| last.max(submitted));
        BatchTimes::new(stages, now.saturating_duration_since(start))
    }
}

impl<D: RingDevice> Drop for Stream<'_, D> {
    /// Waits for slots in flight, no longer than the time limit. Their results are lost.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = &state.compressor.ring {
            state.session.end(ring);
        }
    }
}
