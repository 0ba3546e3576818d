//! The cores that stage: they stay awake for a run, take one piece after the other, and help to deliver in between.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::{Scope, Yield};

use super::device::Device;
use super::pause::Pause;
use super::piece::Piece;
use super::stages::Stage;
use super::{Returned, handing_on_panics};

/// Work for the crew, and whether the day is over.
///
/// To wake a sleeping thread costs more than a piece is worth: tens of microseconds on a virtual machine, on the thread that
/// drives. So the crew looks for work by itself: for pieces on the pile, and for parts of a delivery in the pool's own
/// queues. However much of either there is, all cores have work.
pub(super) struct Crew<D: Device> {
    pieces: Mutex<VecDeque<(usize, Piece<D>)>>,
    dismissed: AtomicBool,
}

/// Dismisses the crew when dropped.
pub(super) struct Dismissal<'a>(&'a AtomicBool);

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

thread_local! {
    /// Whether this thread works for a ring already: as one of the crew, or on a delivery.
    static ON_DUTY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, during which this thread enters no crew. A delivery that waits for a part of itself takes other work of the
/// pool meanwhile; were that the crew's, which ends with the run, the delivery would wait for ever.
pub(super) fn on_duty<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ON_DUTY.set(self.0);
        }
    }
    let _before = Before(ON_DUTY.replace(true));
    work()
}

impl<D: Device> Crew<D> {
    pub(super) fn new() -> Self {
        Self { pieces: Mutex::new(VecDeque::new()), dismissed: AtomicBool::new(false) }
    }

    pub(super) fn dismissed_at_the_end(&self) -> Dismissal<'_> {
        Dismissal(&self.dismissed)
    }

    /// Takes so many of the pool's threads.
    pub(super) fn hire<'scope, 'a: 'scope, S: Stage<D>, T: Send + 'a>(
        &'scope self,
        scope: &Scope<'scope>,
        threads: usize,
        stage: &'a S,
        to_driver: &Sender<Returned<D, T>>,
    ) where
        D: 'a,
    {
        let to_driver = to_driver.clone();
        // Addressed to each thread: jobs for any would all be taken by the first that looks for work.
        scope.spawn_broadcast(move |_, thread| {
            if thread.index() < threads && !ON_DUTY.get() {
                on_duty(|| self.work(stage, &to_driver));
            }
        });
    }

    /// Puts pieces of a slot on the pile.
    pub(super) fn give(&self, slot_start: usize, pieces: impl Iterator<Item = Piece<D>>) {
        self.pile().extend(pieces.map(|piece| (slot_start, piece)));
    }

    fn work<S: Stage<D>, T>(&self, stage: &S, to_driver: &Sender<Returned<D, T>>) {
        let mut pause = Pause::default();
        while !self.dismissed.load(Ordering::Acquire) {
            let staged = self.stage_next(stage, to_driver);
            // Deliveries free slots: there is always a hand for them.
            let delivered = rayon::yield_now() == Some(Yield::Executed);
            pause.after(staged || delivered);
        }
    }

    /// Stages the next piece. Whether there was one.
    pub(super) fn stage_next<S: Stage<D>, T>(&self, stage: &S, to_driver: &Sender<Returned<D, T>>) -> bool {
        let taken = self.pile().pop_front();
        let Some((slot_start, mut piece)) = taken else { return false };
        let staged = handing_on_panics(to_driver, || stage.stage(&mut piece));
        // The receiver outlives the crew.
        let _ = to_driver.send(Returned::Piece { slot_start, piece, staged });
        true
    }

    fn pile(&self) -> MutexGuard<'_, VecDeque<(usize, Piece<D>)>> {
        // A queue is whole between any two of its operations, whatever panicked.
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was not taken.
    pub(super) fn left(&self) -> impl Iterator<Item = (usize, Piece<D>)> + use<D> {
        std::mem::take(&mut *self.pile()).into_iter()
    }
}
