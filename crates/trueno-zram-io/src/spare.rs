//! Memory that lanes share: taken before work is claimed, given back when it is done.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::ordered::lock;

/// Pieces of memory. Their number bounds what waits for its turn.
#[derive(Debug)]
pub(crate) struct Spare<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    free: Vec<T>,
    has_stopped: bool,
}

impl<T> Spare<T> {
    pub(crate) fn new(free: Vec<T>) -> Self {
        Self { state: Mutex::new(State { free, has_stopped: false }), changed: Condvar::new() }
    }

    /// Takes a piece as soon as there is one; none once everything has stopped.
    ///
    /// No lane waits for ever: every piece that was taken belongs to a lane that works, or waits for a lane that does.
    pub(crate) fn take(&self) -> Option<T> {
        let has_none = |state: &mut State<T>| state.free.is_empty() && !state.has_stopped;
        let mut state = self.changed.wait_while(lock(&self.state), has_none).unwrap_or_else(PoisonError::into_inner);
        if state.has_stopped { None } else { state.free.pop() }
    }

    pub(crate) fn give(&self, piece: T) {
        lock(&self.state).free.push(piece);
        self.changed.notify_one();
    }

    /// Ends all lanes: at the end, after an error, and when a lane panics.
    pub(crate) fn stop(&self) {
        lock(&self.state).has_stopped = true;
        self.changed.notify_all();
    }

    /// Runs a lane, and ends the others when it panics.
    pub(crate) fn run<R>(&self, lane: impl FnOnce() -> R) -> R {
        struct StopOthers<'a, T>(&'a Spare<T>);
        impl<T> Drop for StopOthers<'_, T> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let stop_others = StopOthers(self);
        let result = lane();
        std::mem::forget(stop_others);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_wait_end_when_another_one_panics() {
        let spare = Spare::new(vec![()]);
        std::thread::scope(|scope| {
            let piece = spare.take();
            assert!(piece.is_some());
            let waiting = scope.spawn(|| spare.take());
            let panicking = scope.spawn(|| spare.run(|| panic!("as the test wants")));
            assert!(panicking.join().is_err());
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}
