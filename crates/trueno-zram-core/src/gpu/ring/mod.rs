//! The ring: batches of any size, cut into slots that are staged, sent, worked on and taken back at the same time.
//!
//! ```text
//! slot 0: [stage][H2D][kernel][D2H][deliver]
//! slot 1:        [stage][H2D][kernel][D2H][deliver]
//! slot 2:               [stage][H2D][kernel][D2H][deliver]
//! ```
//!
//! One thread, the caller's, drives: it queues copies and kernels and asks how far they are. Staging (pages into
//! page-locked memory) and delivering (results out of it) are work for the cores of a pool, which pieces of slots, and
//! slots, travel to and come back from. A core stages a piece by itself and waits for no other. Deliveries start in the
//! order of the pages, and where they are in no one's way, several are under way at a time.
//!
//! The ring knows nothing of the CPU's codec. When the device fails, it says how many pages were delivered, and why.

pub(crate) mod compress;
mod crew;
pub(crate) mod cuda;
pub(crate) mod decompress;
pub(crate) mod device;
pub(crate) mod entries;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod interpreter;
pub(crate) mod into_batch;
pub(crate) mod into_pages;
mod into_pinned;
mod pack;
mod pause;
mod piece;
mod slot;
mod stages;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rayon::{Scope, ThreadPool};

use super::error::{GpuError, GpuResult};
use crate::progress::Progress;
use crew::{Crew, on_duty};
use device::{Device, Mark};
use pause::Pause;
use piece::{PIECE_PAGES, Piece};
pub(crate) use slot::StageTimes;
use slot::{HostMemory, IndexCopy, Slot, SlotState};
use stages::{Deliver, Stage, Submit};

/// Slots and the device that they go through.
#[derive(Debug)]
pub(crate) struct Ring<D: Device> {
    device: D,
    /// All slots, between two runs.
    free: Vec<Slot<D>>,
    shape: RingShape,
}

/// The ring's measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    /// Slots in flight at most.
    pub(crate) slots: usize,
    /// Pages in a slot at most.
    pub(crate) slot_pages: u32,
    /// How long a slot may stay in one state before the device counts as hung.
    pub(crate) time_limit: Duration,
}

/// How a run ended. The default is that of a run without a device: nothing done, nothing failed.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Pages delivered, from the batch's start.
    pub(crate) pages_done: usize,
    /// The device's times for them.
    pub(crate) times: StageTimes,
    /// Why the rest was not.
    pub(crate) failure: Option<GpuError>,
}

impl Outcome {
    /// Nothing was done.
    fn failed(error: GpuError) -> Self {
        Self { failure: Some(error), ..Self::default() }
    }
}

/// What comes back from the pool.
enum Returned<D: Device, T> {
    /// A piece of the slot whose pages start there.
    Piece { slot_start: usize, piece: Piece<D>, staged: GpuResult<()> },
    /// A slot whose result was taken, with the share that it was taken with.
    Slot { slot: Slot<D>, share: T, delivered: GpuResult<()> },
    /// A task has panicked; what it had follows. The thread that drives panics in its stead.
    Panic(Box<dyn Any + Send>),
}

/// A run through the ring: where the slots are.
struct Run<'a, D: Device, K: Deliver<D>> {
    pages: usize,
    /// The first page that no slot has claimed.
    next: usize,
    /// Slots whose pieces are on the pool, in the order of their pages.
    staging: VecDeque<Slot<D>>,
    in_flight: VecDeque<Slot<D>>,
    /// The pages of slots that are on the pool to be delivered, or were before those of an earlier one.
    delivering: VecDeque<Delivery>,
    sink: &'a mut K,
    outcome: Outcome,
    from_pool: Receiver<Returned<D, K::Share>>,
    to_driver: Sender<Returned<D, K::Share>>,
}

/// Pages that are being delivered.
struct Delivery {
    pages: Range<usize>,
    is_done: bool,
}

impl<D: Device> Ring<D> {
    /// Allocates all slots.
    pub(crate) fn new(device: D, shape: RingShape) -> GpuResult<Self> {
        let free = (0..shape.slots).map(|_| Slot::new(&device, shape.slot_pages)).collect::<GpuResult<_>>()?;
        Ok(Self { device, free, shape })
    }

    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    pub(crate) fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Gives every slot the page-locked memory that a run will use.
    fn ensure(&mut self, needs: &[HostMemory]) -> GpuResult<()> {
        let (device, pages) = (&self.device, self.shape.slot_pages);
        self.free.iter_mut().try_for_each(|slot| slot.ensure(device, pages, needs))
    }

    /// Sends `pages` pages through the slots.
    fn drive<S: Stage<D>, Q: Submit<D>, K: Deliver<D>>(
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
            in_flight: VecDeque::with_capacity(self.shape.slots),
            delivering: VecDeque::with_capacity(self.shape.slots),
            sink,
            outcome: Outcome::default(),
            from_pool,
            to_driver,
        };
        let crew = Crew::new();
        // A panic, of a worker or of the caller's `progress`, is passed on when no copy is under way any more: unwinding frees
        // memory that copies use.
        let ended = pool.in_place_scope(|scope| {
            // However this ends, the crew is sent home: the scope waits for it.
            let _dismissed = crew.dismissed_at_the_end();
            catch_unwind(AssertUnwindSafe(|| {
                if let Some(stage) = stage {
                    let threads = pool.current_num_threads().min(pages.div_ceil(PIECE_PAGES));
                    crew.hire(scope, threads, stage, &run.to_driver);
                }
                let mut pause = Pause::default();
                while run.outcome.pages_done < pages {
                    let moved = self.step(scope, &mut run, &crew, stage, submit, progress)?;
                    // The pool may be busy with other runs, of other compressors: then this thread stages by itself.
                    let staged = !moved && stage.is_some_and(|stage| crew.stage_next(stage, &run.to_driver));
                    pause.after(moved || staged);
                }
                Ok(())
            }))
        });
        let (result, mut panic) = ended.map_or_else(|panic| (Ok(()), Some(panic)), |result| (result, None));
        // The pool has nothing any more: what it had is in the channel or on the pile, and goes back to where it belongs.
        crew.left().for_each(|(slot_start, piece)| run.put_piece(slot_start, piece));
        while let Ok(returned) = run.from_pool.try_recv() {
            // A slot that was delivered while the run failed counts like any other: its pages are with the caller. Further
            // failures are consequences.
            let taken = catch_unwind(AssertUnwindSafe(|| self.take_back(&mut run, returned, progress)));
            panic = panic.or(taken.err());
        }
        self.free.extend(run.staging.drain(..).chain(run.in_flight.drain(..)));
        // Also after a success, so that the caller's memory is its own again, whatever becomes of the device later.
        let settled = submit.settle(self.shape.time_limit);
        debug_assert_eq!(self.free.len(), self.shape.slots, "no slot is lost");
        debug_assert!(self.free.iter().all(Slot::is_whole), "no piece is lost");
        if let Some(panic) = panic {
            self.clear_after_panic();
            resume_unwind(panic);
        }
        if let Err(error) = &result {
            self.clear_after(error);
        }
        run.outcome.failure = result.and(settled).err();
        run.outcome
    }

    /// Moves every slot on that can move. Whether any did.
    fn step<'scope, 'a: 'scope, S: Stage<D>, Q: Submit<D>, K: Deliver<D>>(
        &mut self,
        scope: &Scope<'scope>,
        run: &mut Run<'a, D, K>,
        crew: &Crew<D>,
        stage: Option<&'a S>,
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
            run.in_flight.push_back(slot);
            self.start(run.in_flight.back_mut().expect("pushed just now"), submit)?;
            moved = true;
        }
        let mut is_next = true;
        for slot in &mut run.in_flight {
            // Results leave in order: where one is put may depend on the lengths of those before it.
            if is_next || slot.state() != SlotState::KernelInProgress {
                moved |= self.advance(slot, submit, &mut run.outcome.times)?;
            }
            is_next = matches!(slot.state(), SlotState::D2HInProgress | SlotState::Complete);
        }
        if let Some(slot) = run.in_flight.front()
            && slot.state() == SlotState::Complete
            && let Some(mut share) = run.sink.share(slot)
        {
            let mut slot = run.in_flight.pop_front().expect("there is a first");
            run.delivering.push_back(Delivery { pages: slot.range.clone(), is_done: false });
            let to_driver = run.to_driver.clone();
            scope.spawn(move |_| {
                let delivered = handing_on_panics(&to_driver, || on_duty(|| K::deliver(&mut share, &mut slot)));
                // The receiver outlives the scope.
                let _ = to_driver.send(Returned::Slot { slot, share, delivered });
            });
            moved = true;
        }
        if run.next < run.pages
            && run.staging.len() < self.staged_at_once()
            && let Some(mut slot) = self.free.pop()
        {
            let end = run.pages.min(run.next.saturating_add(self.shape.slot_pages as usize));
            slot.claim(run.next..end);
            run.next = end;
            match stage {
                Some(_) => {
                    let slot_start = slot.range.start;
                    crew.give(slot_start, slot.take_pieces());
                    run.staging.push_back(slot);
                }
                None => {
                    run.in_flight.push_back(slot);
                    self.start(run.in_flight.back_mut().expect("pushed just now"), submit)?;
                }
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Half of the slots are staged at the same time, so that idle cores find work while the last pieces of one slot are
    /// copied; the other half is under way.
    fn staged_at_once(&self) -> usize {
        self.shape.slots.div_ceil(2)
    }

    /// What the pool sends back goes to where it belongs, and counts.
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

    fn start<Q: Submit<D>>(&mut self, slot: &mut Slot<D>, submit: &mut Q) -> GpuResult<()> {
        if slot.crossing == 0 {
            // Nothing for the device: not one call.
            return Ok(());
        }
        submit.start(&mut self.device, slot)
    }

    /// Moves one slot on, as far as it has come.
    fn advance<Q: Submit<D>>(&mut self, slot: &mut Slot<D>, submit: &mut Q, times: &mut StageTimes) -> GpuResult<bool> {
        let kernel_done = match Q::INDEX_COPY {
            IndexCopy::Apart => Mark::IndexEnd,
            IndexCopy::None => Mark::KernelEnd,
        };
        let (mark, next) = match slot.state() {
            SlotState::H2DInProgress => (Mark::H2dEnd, SlotState::KernelInProgress),
            SlotState::KernelInProgress => (kernel_done, SlotState::D2HInProgress),
            SlotState::D2HInProgress => (Mark::D2hEnd, SlotState::Complete),
            SlotState::Complete | SlotState::Free => return Ok(false),
        };
        if slot.crossing > 0 {
            if !self.device.is_reached(&slot.device, mark)? {
                let timeout_ms = self.shape.time_limit.as_millis();
                let hangs = slot.waiting() > self.shape.time_limit;
                return if hangs { Err(GpuError::TimedOut { timeout_ms }) } else { Ok(false) };
            }
            match next {
                SlotState::D2HInProgress => submit.finish(&mut self.device, slot)?,
                SlotState::Complete => *times += slot.times(&self.device, Q::INDEX_COPY)?,
                _ => {}
            }
        }
        slot.enter(next);
        Ok(true)
    }

    /// Makes the slots free again after a failure, if the device lives.
    fn clear_after(&mut self, error: &GpuError) {
        if error.poisons_context() || matches!(error, GpuError::TimedOut { .. }) {
            self.device.give_up(&error.to_string());
        } else {
            self.empty_queues(&error.to_string());
        }
        self.free.iter_mut().for_each(Slot::reset);
    }

    /// The same after a panic, which is no fault of the device.
    fn clear_after_panic(&mut self) {
        if self.device.loss().is_none() {
            self.empty_queues("a run ended in a panic");
        }
        self.free.iter_mut().for_each(Slot::reset);
    }

    /// Waits until the device has done what is queued. If that takes too long it is given up, and its memory leaks.
    fn empty_queues(&mut self, why: &str) {
        if let Err(also) = self.device.drain(self.shape.time_limit) {
            self.device.give_up(&format!("{why}; then the queues could not be emptied: {also}"));
        }
    }
}

impl<D: Device, K: Deliver<D>> Run<'_, D, K> {
    fn put_piece(&mut self, slot_start: usize, piece: Piece<D>) {
        let slot = self.staging.iter_mut().find(|slot| slot.range.start == slot_start);
        slot.expect("a slot waits for its pieces").put_piece(piece);
    }

    /// Notes a delivery. Pages are done when those before them are.
    fn delivered(&mut self, pages: &Range<usize>, progress: &dyn Progress) {
        let delivery = self.delivering.iter_mut().find(|delivery| delivery.pages == *pages);
        delivery.expect("what is delivered was noted before").is_done = true;
        while let Some(done) = self.delivering.pop_front_if(|delivery| delivery.is_done) {
            self.outcome.pages_done = done.pages.end;
            progress.pages_done(done.pages.len());
        }
    }
}

/// Does some work of the pool. Should it panic, the thread that drives gets the panic, and the worker keeps what it was working
/// on, to send it back: copies may be under way around it.
fn handing_on_panics<D: Device, T>(
    to_driver: &Sender<Returned<D, T>>,
    work: impl FnOnce() -> GpuResult<()>,
) -> GpuResult<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        // The receiver outlives the pool's work.
        let _ = to_driver.send(Returned::Panic(panic));
        Err(GpuError::ContextLost { reason: "a worker panicked".to_owned() })
    })
}
