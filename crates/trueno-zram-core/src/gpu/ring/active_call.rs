//! One call through the ring: pages of a batch are cut into slots, staged, submitted, polled for and delivered.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rayon::{Scope, ThreadPool, Yield};

use super::deliver::Deliver;
use super::device::RingDevice;
use super::flight::Flight;
use super::pause::Pause;
use super::piece::{PIECE_PAGES, SlotPiece};
use super::slot::{RingSlot, SlotState};
use super::slot_sizes::next_slot_pages;
use super::stage::Stage;
use super::transfer::SlotTransfer;
use super::workers::{StagingWorkers, run_busy};
use super::{CallOutcome, Ring};
use crate::gpu::error::{GpuError, GpuResult};
use crate::progress::Progress;

/// The time that the driving thread waits for a worker. Threads wake in a tenth of that.
const MAX_WORKER_WAIT: Duration = Duration::from_millis(1);

/// A piece or a slot that the pool sends back to the driving thread.
pub(super) enum Returned<D: RingDevice, T> {
    /// A piece of the slot whose first page is `slot_start`.
    Piece { slot_start: usize, piece: SlotPiece<D>, staged: WorkResult },
    /// A slot whose result was delivered, with the share used for it.
    Slot { slot: RingSlot<D>, share: T, delivered: WorkResult },
}

/// The result of some work of the pool. If it panicked, what it was working on is sent back all the same, since copies may be in
/// progress around it, and the driving thread passes the panic on.
pub(super) type WorkResult = std::thread::Result<GpuResult<()>>;

/// A call: its pages, and what happens to them.
pub(super) struct RingCall<'a, D: RingDevice, K> {
    /// The number of pages.
    pub(super) pages: usize,
    /// Copies pages to page-locked memory, on the pool; `None` if they are in page-locked memory.
    pub(super) stage: Option<&'a Stage<'a, D>>,
    pub(super) transfer: SlotTransfer<'a, D>,
    /// Takes the results.
    pub(super) sink: &'a mut K,
    pub(super) progress: &'a dyn Progress,
}

/// The state of a call: where its slots are.
struct ActiveCall<'a, D: RingDevice, K: Deliver<D>> {
    ring: &'a mut Ring<D>,
    pages: usize,
    /// The first page that is in no slot yet.
    next: usize,
    /// `true` if the pages are staged. If not, they are in page-locked memory.
    is_staged: bool,
    /// Slots whose pieces are with the pool, in page order.
    staging: VecDeque<RingSlot<D>>,
    flight: Flight<'a, D>,
    /// Page ranges under delivery, or delivered before an earlier range.
    delivering: VecDeque<Delivery>,
    sink: &'a mut K,
    progress: &'a dyn Progress,
    outcome: CallOutcome,
    from_pool: Receiver<Returned<D, K::Share>>,
    to_driver: Sender<Returned<D, K::Share>>,
}

/// Pages under delivery.
struct Delivery {
    pages: Range<usize>,
    is_done: bool,
}

impl<D: RingDevice> Ring<D> {
    /// Sends the pages of a call through the slots and waits for them.
    pub(super) fn drive<K: Deliver<D>>(&mut self, pool: &ThreadPool, call: RingCall<'_, D, K>) -> CallOutcome {
        let RingCall { pages, stage, transfer, sink, progress } = call;
        let (allocator, slot_pages) = (self.device.allocator(), self.shape.call_slot_pages);
        let ensured = self.free.iter_mut().try_for_each(|slot| slot.ensure(&allocator, slot_pages, &transfer));
        if let Err(error) = ensured {
            return CallOutcome::failed(error);
        }
        if pages == 0 {
            return CallOutcome::default();
        }
        if let Some(reason) = self.device.loss() {
            return CallOutcome::failed(GpuError::ContextLost { reason });
        }
        if self.free.len() < self.shape.slots {
            return CallOutcome::failed(GpuError::ContextLost { reason: "an earlier run ended in a panic".to_owned() });
        }
        let (to_driver, from_pool) = channel();
        let mut run = ActiveCall {
            pages,
            next: 0,
            is_staged: stage.is_some(),
            staging: VecDeque::with_capacity(self.shape.slots),
            flight: Flight::new(transfer, self.shape.time_limit),
            delivering: VecDeque::with_capacity(self.shape.slots),
            ring: self,
            sink,
            progress,
            outcome: CallOutcome::default(),
            from_pool,
            to_driver,
        };
        let workers = StagingWorkers::new();
        // A panic, of a worker or of the caller's `progress`, is passed on once no copy is in progress: unwinding frees memory
        // that copies use.
        let ended = pool.in_place_scope(|scope| {
            // The caller may be a thread of the pool itself. It must not become one of the workers that it stops.
            let driving = || {
                if let Some(stage) = stage {
                    // The first worker to wake finds work; waking all of them takes the time of a piece.
                    while run.claim(&workers)? {}
                    let threads = pool.current_num_threads().min(pages.div_ceil(PIECE_PAGES));
                    workers.start(scope, threads, stage, &run.to_driver);
                }
                let (start, mut pause) = (Instant::now(), Pause::default());
                while run.outcome.pages_done < pages {
                    let moved = run.step(scope, &workers)?;
                    // The pool may be busy with other calls. Then this thread stages, too, although that delays its own work.
                    let is_alone = !moved && !workers.has_worker() && start.elapsed() > MAX_WORKER_WAIT;
                    let staged = is_alone && stage.is_some_and(|stage| workers.stage_next(stage, &run.to_driver));
                    // On a thread of the pool, deliveries may be waiting for this very thread.
                    let helped = !moved && rayon::yield_now() == Some(Yield::Executed);
                    pause.after(moved || staged || helped);
                }
                Ok(())
            };
            let ended = run_busy(driving);
            // The scope waits for the workers, so they are stopped however this ends.
            workers.stop();
            ended
        });
        run.end(ended, workers.take_unstaged())
    }
}

impl<D: RingDevice, K: Deliver<D>> ActiveCall<'_, D, K> {
    /// Advances every slot that can advance. Returns `true` if any did.
    fn step<'scope>(&mut self, scope: &Scope<'scope>, workers: &StagingWorkers<D>) -> GpuResult<bool>
    where
        K::Share: 'scope,
    {
        let mut moved = false;
        while let Ok(returned) = self.from_pool.try_recv() {
            moved = true;
            self.take_back(returned)?;
        }
        while self.staging.front().is_some_and(RingSlot::has_all_pieces) {
            let mut slot = self.staging.pop_front().expect("there is a first");
            slot.finish_staging();
            self.flight.push(slot);
            self.flight.start_newest(&mut self.ring.device)?;
            moved = true;
        }
        moved |= self.flight.poll(&mut self.ring.device)?;
        if let Some(slot) = self.flight.complete()
            && let Some(mut share) = self.sink.share(slot)
        {
            let mut slot = self.flight.pop().expect("there is a first");
            self.outcome.times.add_stages(slot.times);
            self.delivering.push_back(Delivery { pages: slot.range.clone(), is_done: false });
            let to_driver = self.to_driver.clone();
            scope.spawn(move |_| {
                let delivered = run_busy(|| K::deliver(&mut share, &mut slot));
                // The receiver outlives the scope.
                let _ = to_driver.send(Returned::Slot { slot, share, delivered });
            });
            moved = true;
        }
        Ok(moved | self.claim(workers)?)
    }

    /// Starts the next slot of the call, if there is room for it. Returns `false` if not.
    fn claim(&mut self, workers: &StagingWorkers<D>) -> GpuResult<bool> {
        // Half of the ring's pages are staged at the same time, so that idle workers find pieces while the last ones of a slot
        // are copied; the other half is in flight.
        let slot_pages = self.ring.shape.call_slot_pages as usize;
        let staged_pages: usize = self.staging.iter().map(|slot| slot.range.len()).sum();
        if self.next == self.pages || staged_pages >= self.ring.shape.slots.div_ceil(2) * slot_pages {
            return Ok(false);
        }
        // The slot that was freed last: more of its memory is in the caches. In turn, 8 slots were a fifth slower (H200).
        let Some(mut slot) = self.ring.free.pop() else { return Ok(false) };
        let pages = next_slot_pages(self.next, self.pages - self.next, slot_pages);
        slot.claim(self.next..self.next + pages);
        self.next = slot.range.end;
        if self.is_staged {
            workers.queue_pieces(slot.range.start, slot.take_pieces());
            self.staging.push_back(slot);
            return Ok(true);
        }
        self.flight.push(slot);
        self.flight.start_newest(&mut self.ring.device)?;
        Ok(true)
    }

    /// Puts a returned piece or slot back in its place, and counts it.
    fn take_back(&mut self, returned: Returned<D, K::Share>) -> GpuResult<()> {
        match returned {
            Returned::Piece { slot_start, piece, staged } => {
                self.put_piece(slot_start, piece);
                staged.unwrap_or_else(|panic| resume_unwind(panic))
            }
            Returned::Slot { mut slot, share, delivered } => {
                self.sink.give_back(share);
                slot.enter(SlotState::Free);
                self.outcome.unrestored.append(&mut slot.unrestored);
                let pages = slot.range.clone();
                self.ring.free.push(slot);
                delivered.unwrap_or_else(|panic| resume_unwind(panic))?;
                self.delivered(&pages);
                Ok(())
            }
        }
    }

    fn put_piece(&mut self, slot_start: usize, piece: SlotPiece<D>) {
        let slot = self.staging.iter_mut().find(|slot| slot.range.start == slot_start);
        slot.expect("a slot waits for its pieces").put_piece(piece);
    }

    /// Notes a delivery. Pages are done when those before them are.
    fn delivered(&mut self, pages: &Range<usize>) {
        let delivery = self.delivering.iter_mut().find(|delivery| delivery.pages == *pages);
        delivery.expect("what is delivered was noted before").is_done = true;
        while self.delivering.front().is_some_and(|delivery| delivery.is_done) {
            let done = self.delivering.pop_front().expect("there is a first").pages;
            self.outcome.pages_done = done.end;
            self.progress.pages_done(done.len());
        }
    }

    /// Ends the call. The pool is done: what it had is in the channel or was never taken, and goes back to where it belongs.
    fn end(mut self, ended: WorkResult, not_staged: impl Iterator<Item = (usize, SlotPiece<D>)>) -> CallOutcome {
        let (result, mut panic) = ended.map_or_else(|panic| (Ok(()), Some(panic)), |result| (result, None));
        not_staged.for_each(|(slot_start, piece)| self.put_piece(slot_start, piece));
        while let Ok(returned) = self.from_pool.try_recv() {
            // A slot that was delivered while the run failed counts like any other: the caller has its pages. Further
            // failures are consequences of the first.
            let taken = catch_unwind(AssertUnwindSafe(|| self.take_back(returned)));
            panic = panic.or(taken.err());
        }
        let Self { ring, staging, mut flight, mut outcome, .. } = self;
        ring.free.extend(staging.into_iter().chain(std::iter::from_fn(|| flight.pop())));
        // Also after a success, so that the caller's memory is its own again, whatever happens to the device later.
        let settled = flight.settle();
        debug_assert_eq!(ring.free.len(), ring.shape.slots, "no slot is lost");
        debug_assert!(ring.free.iter().all(RingSlot::has_all_pieces), "no piece is lost");
        if let Some(panic) = panic {
            ring.stop("a run ended in a panic");
            ring.free.iter_mut().for_each(RingSlot::reset);
            resume_unwind(panic);
        }
        if let Err(error) = &result {
            ring.stop_after(error);
            ring.free.iter_mut().for_each(RingSlot::reset);
        }
        outcome.failure = result.and(settled).err();
        // All pages after `pages_done` are left anyway.
        outcome.unrestored.retain(|left| left.page < outcome.pages_done);
        outcome
    }
}
