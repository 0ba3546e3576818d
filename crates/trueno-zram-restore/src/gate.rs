//! Keeps copies of the background fill apart from the reading of events.
//!
//! The VMM that removes pages waits until the event is read, and drops the pages right afterwards. A copy that was decided
//! upon before the event, and reaches the kernel after the pages were dropped, would bring old content back. Hence no copy is
//! under way while events are read and noted. The handler waits for the copies that have begun: at most one per worker.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::{hint, thread};

use crate::on_drop::OnDrop;

/// Spins before yielding.
const SPINS: u32 = 200;
/// Yields after that, before a worker sleeps. Reading events takes less time than waking a thread. But a handler that waits for a
/// core, or for the copy of a worker without one, takes much longer.
const YIELDS: u32 = 8;

/// Admits either workers that copy, or the handler that reads events.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    inside: AtomicUsize,
    /// Workers that sleep until the gate is open, or are about to.
    sleepers: AtomicUsize,
    falling_asleep: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    /// Waits until the gate is open, and runs `copy`.
    pub(crate) fn pass<T>(&self, copy: impl FnOnce() -> T) -> T {
        loop {
            self.wait_until_open();
            self.inside.fetch_add(1, Ordering::SeqCst);
            let inside = OnDrop(|| {
                self.inside.fetch_sub(1, Ordering::SeqCst);
            });
            // Either the handler sees this thread inside, or this thread sees the gate closed.
            if !self.closed.load(Ordering::SeqCst) {
                return copy();
            }
            drop(inside);
        }
    }

    /// Closes the gate, waits until no worker is inside, and runs `read`. Only one thread may call this.
    pub(crate) fn shut<T>(&self, read: impl FnOnce() -> T) -> T {
        self.closed.store(true, Ordering::SeqCst);
        let _open = OnDrop(|| self.open());
        while !wait_while(|| self.inside.load(Ordering::SeqCst) > 0) {}
        read()
    }

    fn wait_until_open(&self) {
        if wait_while(|| self.closed.load(Ordering::Relaxed)) {
            return;
        }
        let held = self.falling_asleep.lock().unwrap_or_else(PoisonError::into_inner);
        // Either the handler sees this thread sleep, or this thread sees the gate open.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let woken = self.opened.wait_while(held, |()| self.closed.load(Ordering::SeqCst));
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(woken);
    }

    fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A thread that still saw the gate closed sleeps by the time that the lock is free.
            drop(self.falling_asleep.lock());
            self.opened.notify_all();
        }
    }
}

/// Spins, then yields a few times. Returns `true` if the condition no longer holds.
#[must_use]
fn wait_while(condition: impl Fn() -> bool) -> bool {
    for turn in 0..SPINS + YIELDS {
        if !condition() {
            return true;
        }
        if turn < SPINS { hint::spin_loop() } else { thread::yield_now() }
    }
    !condition()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_copies_while_events_are_read() {
        let (gate, copying, stop) = (Gate::default(), AtomicUsize::new(0), AtomicBool::new(false));
        let copies = AtomicUsize::new(0);
        thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        gate.pass(|| {
                            copying.fetch_add(1, Ordering::SeqCst);
                            hint::spin_loop();
                            copying.fetch_sub(1, Ordering::SeqCst);
                        });
                        copies.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..2000 {
                gate.shut(|| {
                    for _ in 0..20 {
                        assert_eq!(copying.load(Ordering::SeqCst), 0);
                    }
                });
            }
            while copies.load(Ordering::SeqCst) < 100 {
                thread::yield_now();
            }
            stop.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn workers_that_sleep_are_woken() {
        let (gate, passed) = (Gate::default(), AtomicUsize::new(0));
        thread::scope(|threads| {
            gate.shut(|| {
                for _ in 0..3 {
                    threads.spawn(|| gate.pass(|| passed.fetch_add(1, Ordering::SeqCst)));
                }
                while gate.sleepers.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
                assert_eq!(passed.load(Ordering::SeqCst), 0);
            });
        });
        assert_eq!((passed.into_inner(), gate.sleepers.into_inner()), (3, 0));
    }

    #[test]
    fn a_panic_leaves_the_gate_open() {
        let gate = Gate::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gate.shut(|| panic!("of the test"))));
        assert!(panicked.is_err());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gate.pass(|| panic!("of the test"))));
        assert!(panicked.is_err());
        assert_eq!(gate.shut(|| 1) + gate.pass(|| 2), 3);
    }
}
