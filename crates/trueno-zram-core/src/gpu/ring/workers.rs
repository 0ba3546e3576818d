//! The threads that stage: they stay awake for a call, take one piece after the other, and help to deliver in between.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::{Scope, Yield};

use super::active_call::Returned;
use super::device::RingDevice;
use super::pause::Pause;
use super::piece::SlotPiece;
use super::stage::Stage;

/// The queue of pieces to stage, and whether the workers are to stop.
///
/// Waking a sleeping thread costs more than staging a piece: tens of microseconds on a virtual machine, on the driving thread.
/// So the workers look for work by themselves: for pieces in this queue, and for parts of a delivery in the pool's own
/// queues. Whichever of the two there is, all threads share it.
pub(super) struct StagingWorkers<D: RingDevice> {
    pieces: Mutex<VecDeque<(usize, SlotPiece<D>)>>,
    stopped: AtomicBool,
    has_worker: AtomicBool,
}

thread_local! {
    /// `true` while this thread works for a ring, by staging or by delivering.
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, during which this thread does not become a staging worker, and catches its panics. A delivery that waits for a
/// part of itself runs other jobs of the pool meanwhile. If that were a staging worker, which ends with the call, the delivery
/// would never end.
pub(super) fn run_busy<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = IS_BUSY.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_BUSY.set(before);
    result
}

impl<D: RingDevice> StagingWorkers<D> {
    pub(super) fn new() -> Self {
        Self {
            pieces: Mutex::new(VecDeque::new()),
            stopped: AtomicBool::new(false),
            has_worker: AtomicBool::new(false),
        }
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Makes `threads` of the pool's threads staging workers.
    pub(super) fn start<'scope, T: Send + 'scope>(
        &'scope self,
        scope: &Scope<'scope>,
        threads: usize,
        stage: &'scope Stage<'scope, D>,
        to_driver: &Sender<Returned<D, T>>,
    ) {
        let to_driver = to_driver.clone();
        // A broadcast, since the first thread to look for work would take all jobs that any thread may run.
        scope.spawn_broadcast(move |_, thread| {
            if thread.index() < threads && !IS_BUSY.get() {
                self.has_worker.store(true, Ordering::Release);
                run_busy(|| self.work(stage, &to_driver)).unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
    }

    /// Queues pieces of a slot.
    pub(super) fn queue_pieces(&self, slot_start: usize, pieces: impl Iterator<Item = SlotPiece<D>>) {
        self.queue().extend(pieces.map(|piece| (slot_start, piece)));
    }

    fn work<T>(&self, stage: &Stage<'_, D>, to_driver: &Sender<Returned<D, T>>) {
        let mut pause = Pause::default();
        while !self.stopped.load(Ordering::Acquire) {
            let staged = self.stage_next(stage, to_driver);
            // Deliveries free slots, so they are looked for after every piece.
            let delivered = rayon::yield_now() == Some(Yield::Executed);
            pause.after(staged || delivered);
        }
    }

    /// Returns `true` if a thread of the pool has started to stage. If not, all are busy with calls of other compressors.
    pub(super) fn has_worker(&self) -> bool {
        self.has_worker.load(Ordering::Acquire)
    }

    /// Stages the next piece. Returns `false` if there is none.
    pub(super) fn stage_next<T>(&self, stage: &Stage<'_, D>, to_driver: &Sender<Returned<D, T>>) -> bool {
        let taken = self.queue().pop_front();
        let Some((slot_start, mut piece)) = taken else { return false };
        let staged = catch_unwind(AssertUnwindSafe(|| stage(&mut piece)));
        // The receiver outlives the workers.
        let _ = to_driver.send(Returned::Piece { slot_start, piece, staged });
        true
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(usize, SlotPiece<D>)>> {
        // The queue is consistent even after a panic.
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the pieces that no worker took.
    pub(super) fn take_unstaged(&self) -> impl Iterator<Item = (usize, SlotPiece<D>)> + use<D> {
        std::mem::take(&mut *self.queue()).into_iter()
    }
}
