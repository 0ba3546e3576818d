//! Keeps copies of the background fill apart from the reading of events.
//!
//! The VMM that removes pages waits until the event is read, and drops the pages right afterwards. A copy that was decided
//! upon before the event, and reaches the kernel after the pages were dropped, would bring old content back. Hence no copy is
//! under way while events are read and noted. The handler waits for the copies that have begun: at most one per worker.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Turns to spin before the processor is left to others.
const SPINS: u32 = 200;

/// Lets workers copy, or the handler read events. It never sleeps: waking a thread takes longer than any of these.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    inside: AtomicUsize,
}

impl Gate {
    /// Waits until the gate is open, and runs `copy`.
    pub(crate) fn pass<T>(&self, copy: impl FnOnce() -> T) -> T {
        loop {
            wait_while(|| self.closed.load(Ordering::Relaxed));
            self.inside.fetch_add(1, Ordering::SeqCst);
            let inside = Inside(&self.inside);
            // Either the handler sees this thread inside, or this thread sees the gate closed.
            if !self.closed.load(Ordering::SeqCst) {
                return copy();
            }
            drop(inside);
        }
    }

    /// Closes the gate, waits until nobody is inside, and runs `read`. Only one thread may call this.
    pub(crate) fn shut<T>(&self, read: impl FnOnce() -> T) -> T {
        self.closed.store(true, Ordering::SeqCst);
        let open = Open(&self.closed);
        wait_while(|| self.inside.load(Ordering::SeqCst) > 0);
        let result = read();
        drop(open);
        result
    }
}

/// Leaves the gate, also on a panic.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Opens the gate, also on a panic.
struct Open<'a>(&'a AtomicBool);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn wait_while(condition: impl Fn() -> bool) {
    let mut turns = 0;
    while condition() {
        if turns < SPINS {
            turns += 1;
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
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
    fn a_panic_leaves_the_gate_open() {
        let gate = Gate::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gate.shut(|| panic!("of the test"))));
        assert!(panicked.is_err());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gate.pass(|| panic!("of the test"))));
        assert!(panicked.is_err());
        assert_eq!(gate.shut(|| 1) + gate.pass(|| 2), 3);
    }
}
