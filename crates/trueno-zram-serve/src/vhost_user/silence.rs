//! The time until a virtual machine sends its first message.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A silence that lasts until the first message, or until the connection ends.
#[derive(Debug, Default)]
pub(super) struct Silence {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Silence {
    pub(super) fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Ends a silence that still lasts. Returns `false` if it was over already.
    pub(super) fn cut_short(&self) -> bool {
        !std::mem::replace(&mut *self.is_over.lock().unwrap_or_else(PoisonError::into_inner), true)
    }

    /// Waits for the end, at most this long. Returns whether the silence goes on.
    pub(super) fn lasts(&self, time: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_over, time, |is_over| !*is_over);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
