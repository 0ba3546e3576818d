//! One call through the ring: pages of a batch are cut into slots, staged, submitted, polled for and delivered.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rayon::{Scope, ThreadPool, Yield};

use super::cuts::next_slot_pages;
use super::device::RingDevice;
use super::flight::Flight;
use super::pause::Pause;
use super::piece::{PIECE_PAGES, Piece};
use super::slot::{Slot, SlotState};
use super::stages::{Deliver, Stage, Submit};
use super::workers::{StagingWorkers, on_duty};
use super::{Outcome, Ring};
use crate::gpu::error::{GpuError, GpuResult};
use crate::progress::Progress;

/// How long the driving thread waits for a worker. Threads wake in a tenth of that.
const PATIENCE: Duration = Duration::from_millis(1);

/// What the pool sends back to the driving thread.
pub(super) enum Returned<D: RingDevice, T> {
    /// A piece of the slot whose first page is `slot_start`.
    Piece { slot_start: usize, piece: Piece<D>, staged: GpuResult<()> },
    /// A slot whose result was delivered, with the share used for it.
    Slot { slot: Slot<D>, share: T, delivered: GpuResult<()> },
    /// A worker panicked; what it worked on follows. The driving thread passes the panic on.
    Panic(Box<dyn Any + Send>),
}

/// The state of a call: where its slots are.
struct Run<'a, D: RingDevice, K: Deliver<D>> {
    pages: usize,
    /// The first page that is in no slot yet.
    next: usize,
    /// Slots whose pieces are with the pool, in page order.
    staging: VecDeque<Slot<D>>,
    flight: Flight<D>,
    /// Page ranges under delivery, or delivered before an earlier range.
    delivering: VecDeque<Delivery>,
    sink: &'a mut K,
    outcome: Outcome,
    from_pool: Receiver<Returned<D, K::Share>>,
    to_driver: Sender<Returned<D, K::Share>>,
}

/// Pages under delivery.
struct Delivery {
    pages: Range<usize>,
    is_done: bool,
}

impl<D: RingDevice> Ring<D> {
    /// Sends `pages` pages through the slots and waits for them.
    pub(super) fn drive<S: Stage<D>, Q: Submit<D>, K: Deliver<D>>(
        &mut self,
        pool: &ThreadPool,
        pages: usize,
        stage: Option<&S>,
        submit: &mut Q,
        sink: &mut K,
        progress: &dyn Progress,
    ) -> Outcome {
        if pages == 0 {
            return Outcome::default();
        }
        if let Some(reason) = self.device.loss() {
            return Outcome::failed(GpuError::ContextLost { reason });
        }
        if self.free.len() < self.shape.slots {
            return Outcome::failed(GpuError::ContextLost { reason: "an earlier run ended in a panic".to_owned() });
        }
        let (to_driver, from_pool) = channel();
        let mut run = Run {
            pages,
            next: 0,
            staging: VecDeque::with_capacity(self.shape.slots),
            flight: Flight::new(self.shape.time_limit),
            delivering: VecDeque::with_capacity(self.shape.slots),
            sink,
            outcome: Outcome::default(),
            from_pool,
            to_driver,
        };
        let workers = StagingWorkers::new();
        // A panic, of a worker or of the caller's `progress`, is passed on once no copy is in progress: unwinding frees memory
        // that copies use.
        let ended = pool.in_place_scope(|scope| {
            // The scope waits for the workers, so they must be stopped however this ends.
            let _stopped = workers.stopped_on_drop();
            // The caller may be a thread of the pool itself. It must not become one of the workers that it stops.
            let driving = || {
                if let Some(stage) = stage {
                    // The first worker to wake finds work; waking all of them takes the time of a piece.
                    while self.claim(&mut run, &workers, true, submit)? {}
                    let threads = pool.current_num_threads().min(pages.div_ceil(PIECE_PAGES));
                    workers.start(scope, threads, stage, &run.to_driver);
                }
                let (start, mut pause) = (Instant::now(), Pause::default());
                while run.outcome.pages_done < pages {
                    let moved = self.step(scope, &mut run, &workers, stage.is_some(), submit, progress)?;
                    // The pool may be busy with other calls. Then this thread stages, too, though it has better things to do.
                    let is_alone = !moved && !workers.has_worker() && start.elapsed() > PATIENCE;
                    let staged = is_alone && stage.is_some_and(|stage| workers.stage_next(stage, &run.to_driver));
                    // On a thread of the pool, deliveries may be waiting for this very thread.
                    let helped = !moved && rayon::yield_now() == Some(Yield::Executed);
                    pause.after(moved || staged || helped);
                }
                Ok(())
            };
            catch_unwind(AssertUnwindSafe(|| on_duty(driving)))
        });
        let (result, mut panic) = ended.map_or_else(|panic| (Ok(()), Some(panic)), |result| (result, None));
        // The pool is done: what it had is in the channel or was never taken, and goes back to where it belongs.
        workers.take_rest().for_each(|(slot_start, piece)| run.put_piece(slot_start, piece));
        while let Ok(returned) = run.from_pool.try_recv() {
            // A slot that was delivered while the run failed counts like any other: the caller has its pages. Further
            // failures are consequences of the first.
            let taken = catch_unwind(AssertUnwindSafe(|| self.take_back(&mut run, returned, progress)));
            panic = panic.or(taken.err());
        }
        self.free.extend(run.staging.drain(..).chain(std::iter::from_fn(|| run.flight.pop())));
        // Also after a success, so that the caller's memory is its own again, whatever happens to the device later.
        let settled = submit.settle(self.shape.time_limit);
        debug_assert_eq!(self.free.len(), self.shape.slots, "no slot is lost");
        debug_assert!(self.free.iter().all(Slot::is_whole), "no piece is lost");
        if let Some(panic) = panic {
            self.stop_after_panic();
            self.free.iter_mut().for_each(Slot::reset);
            resume_unwind(panic);
        }
        if let Err(error) = &result {
            self.stop_after(error);
            self.free.iter_mut().for_each(Slot::reset);
        }
        run.outcome.failure = result.and(settled).err();
        run.outcome
    }

    /// Moves every slot on that can move. Returns whether any did.
    fn step<'scope, 'a: 'scope, Q: Submit<D>, K: Deliver<D>>(
        &mut self,
        scope: &Scope<'scope>,
        run: &mut Run<'a, D, K>,
        workers: &StagingWorkers<D>,
        is_staged: bool,
        submit: &mut Q,
        progress: &dyn Progress,
    ) -> GpuResult<bool>
    where
        D: 'a,
        K::Share: 'a,
    {
        let mut moved = false;
        while let Ok(returned) = run.from_pool.try_recv() {
            moved = true;
            self.take_back(run, returned, progress)?;
        }
        while run.staging.front().is_some_and(Slot::is_whole) {
            let mut slot = run.staging.pop_front().expect("there is a first");
            slot.staged();
            run.flight.submit(&mut self.device, slot, submit)?;
            moved = true;
        }
        moved |= run.flight.poll(&mut self.device, submit)?;
        if let Some(slot) = run.flight.complete()
            && let Some(mut share) = run.sink.share(slot)
        {
            let mut slot = run.flight.pop().expect("there is a first");
            run.outcome.times += slot.times;
            run.delivering.push_back(Delivery { pages: slot.range.clone(), is_done: false });
            let to_driver = run.to_driver.clone();
            scope.spawn(move |_| {
                let delivered = handing_on_panics(&to_driver, || on_duty(|| K::deliver(&mut share, &mut slot)));
                // The receiver outlives the scope.
                let _ = to_driver.send(Returned::Slot { slot, share, delivered });
            });
            moved = true;
        }
        Ok(moved | self.claim(run, workers, is_staged, submit)?)
    }

    /// Starts the next slot of the call, if its turn has come. Returns whether it has.
    fn claim<Q: Submit<D>, K: Deliver<D>>(
        &mut self,
        run: &mut Run<'_, D, K>,
        workers: &StagingWorkers<D>,
        is_staged: bool,
        submit: &mut Q,
    ) -> GpuResult<bool> {
        // Half of the ring's pages are staged at the same time, so that idle workers find pieces while the last ones of a slot
        // are copied; the other half is in flight.
        let slot_pages = self.shape.call_slot_pages as usize;
        let staged_pages: usize = run.staging.iter().map(|slot| slot.range.len()).sum();
        if run.next == run.pages || staged_pages >= self.shape.slots.div_ceil(2) * slot_pages {
            return Ok(false);
        }
        // The slot that was freed last: more of its memory is in the caches. In turn, 8 slots were a fifth slower (H200).
        let Some(mut slot) = self.free.pop() else { return Ok(false) };
        let pages = next_slot_pages(run.next, run.pages - run.next, slot_pages);
        slot.claim(run.next..run.next + pages);
        run.next = slot.range.end;
        if is_staged {
            workers.give(slot.range.start, slot.take_pieces());
            run.staging.push_back(slot);
            return Ok(true);
        }
        run.flight.submit(&mut self.device, slot, submit).map(|()| true)
    }

    /// Puts what the pool sent back to where it belongs, and counts it.
    fn take_back<K: Deliver<D>>(
        &mut self,
        run: &mut Run<'_, D, K>,
        returned: Returned<D, K::Share>,
        progress: &dyn Progress,
    ) -> GpuResult<()> {
        match returned {
            Returned::Piece { slot_start, piece, staged } => {
                run.put_piece(slot_start, piece);
                staged
            }
            Returned::Slot { mut slot, share, delivered } => {
                run.sink.give_back(share);
                slot.enter(SlotState::Free);
                let pages = slot.range.clone();
                self.free.push(slot);
                delivered?;
                run.delivered(&pages, progress);
                Ok(())
            }
            Returned::Panic(panic) => resume_unwind(panic),
        }
    }
}

impl<D: RingDevice, K: Deliver<D>> Run<'_, D, K> {
    fn put_piece(&mut self, slot_start: usize, piece: Piece<D>) {
        let slot = self.staging.iter_mut().find(|slot| slot.range.start == slot_start);
        slot.expect("a slot waits for its pieces").put_piece(piece);
    }

    /// Notes a delivery. Pages are done when those before them are.
    fn delivered(&mut self, pages: &Range<usize>, progress: &dyn Progress) {
        let delivery = self.delivering.iter_mut().find(|delivery| delivery.pages == *pages);
        delivery.expect("what is delivered was noted before").is_done = true;
        while self.delivering.front().is_some_and(|delivery| delivery.is_done) {
            let done = self.delivering.pop_front().expect("there is a first").pages;
            self.outcome.pages_done = done.end;
            progress.pages_done(done.len());
        }
    }
}

/// Does some work of the pool. If it panics, the driving thread gets the panic, and the worker keeps what it was working on, to
/// send it back: copies may be in progress around it.
pub(super) fn handing_on_panics<D: RingDevice, T>(
    to_driver: &Sender<Returned<D, T>>,
    work: impl FnOnce() -> GpuResult<()>,
) -> GpuResult<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        // The receiver outlives the pool's work.
        let _ = to_driver.send(Returned::Panic(panic));
        Err(GpuError::ContextLost { reason: "a worker panicked".to_owned() })
    })
}
