//! Streams of slots through a GPU, with the CPU behind it.

mod compress;
mod decompress;

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use compress::{CompressStream, CompressedSlot, PageSlot};
pub use decompress::{DecompressStream, PackedSlot, RestoredSlot};

use super::gpu::GpuBatchCompressor;
use super::result::BatchTimes;
use crate::arena::IndexEntry;
use crate::gpu::ring::device::Device;
use crate::gpu::ring::pause::Pause;
use crate::gpu::ring::session::{Cause, Direction, Failed, Filled, Finished, Session};
use crate::gpu::ring::{Lease, Outcome, StageTimes};

/// What both kinds of streams do: slots out, slots in, results in order.
///
/// There is no thread behind it. Every thread that waits takes the lock for a moment, moves the slots on, and looks again.
#[derive(Debug)]
struct Stream<'a, D: Device> {
    state: Mutex<State<'a, D>>,
    slot_pages: usize,
}

#[derive(Debug)]
struct State<'a, D: Device> {
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
enum Submitted<D: Device> {
    /// In the session's flight, which has the same order.
    InFlight,
    /// Here, to be done by the CPU.
    ForCpu(Filled<D>),
}

/// A result, or pages that the CPU is to do.
enum Next<D: Device> {
    ByDevice(Finished<D>),
    ForCpu(Filled<D>),
}

impl<'a, D: Device> Stream<'a, D> {
    fn new(compressor: &'a mut GpuBatchCompressor<D>, direction: Direction) -> Self {
        let shape = compressor.ring_shape();
        let session = match &compressor.ring {
            Some(ring) => Session::new(ring, direction),
            None => Session::without_device(shape, direction),
        };
        let (submitted, is_closed, last_done) = (VecDeque::new(), false, None);
        let state = Mutex::new(State { compressor, session, submitted, is_closed, last_done });
        Self { state, slot_pages: shape.slot_pages as usize }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a, D>> {
        // Every slot is in one place between any two operations, whatever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks again and again until `look` has an answer.
    fn wait_for<T>(&self, mut look: impl FnMut(&mut State<'a, D>) -> Option<T>) -> T {
        let mut pause = Pause::default();
        loop {
            // The lock is held for the look alone.
            let answer = look(&mut self.lock());
            if let Some(answer) = answer {
                return answer;
            }
            pause.after(false);
        }
    }

    fn slot(&self) -> Lease<D> {
        self.wait_for(State::slot)
    }

    fn try_slot(&self) -> Option<Lease<D>> {
        self.lock().slot()
    }

    fn submit(&self, lease: Lease<D>, pages: usize, entries: Vec<IndexEntry>) {
        self.lock().submit(Filled { lease, pages, entries, submitted: Instant::now() });
    }

    fn close(&self) {
        self.lock().is_closed = true;
    }

    fn pending(&self) -> usize {
        self.lock().submitted.len()
    }

    /// The next result, as `finish` makes it, if it is ready.
    fn try_next<T>(&self, finish: impl Fn(&mut State<'a, D>, Next<D>) -> T) -> Option<T> {
        let state = &mut *self.lock();
        state.poll().map(|next| finish(state, next))
    }

    /// Waits for the next result. `None` if the stream is closed and nothing is left.
    fn next<T>(&self, finish: impl Fn(&mut State<'a, D>, Next<D>) -> T) -> Option<T> {
        self.wait_for(|state| match state.poll() {
            Some(next) => Some(Some(finish(state, next))),
            None if state.is_closed && state.submitted.is_empty() => Some(None),
            None => None,
        })
    }
}

impl<D: Device> State<'_, D> {
    /// A slot to fill. If there is none, slots in flight are moved on.
    fn slot(&mut self) -> Option<Lease<D>> {
        loop {
            match self.session.slot(self.compressor.ring.as_deref_mut()) {
                Ok(Some(slot)) => return Some(slot),
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

    fn submit(&mut self, filled: Filled<D>) {
        let pages = filled.pages;
        let left = match &mut self.compressor.ring {
            Some(ring) => {
                self.submitted.push_back(Submitted::InFlight);
                self.session.submit(ring, filled)
            }
            None => {
                self.submitted.push_back(Submitted::InFlight);
                Ok(Some(filled))
            }
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

impl<D: Device> Drop for Stream<'_, D> {
    /// Waits for slots in flight, no longer than the time limit. Their results are lost.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = &state.compressor.ring {
            state.session.end(ring);
        }
    }
}
