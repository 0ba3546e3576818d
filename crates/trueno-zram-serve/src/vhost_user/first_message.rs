//! The wait for the first message of a virtual machine.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The first message of a connection. It is awaited until it arrives, or until the connection ends.
#[derive(Debug, Default)]
pub(super) struct FirstMessage {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl FirstMessage {
    /// Ends the wait: the message has arrived, or the connection has ended.
    pub(super) fn end_wait(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Ends the wait for a message that is still awaited. Returns `false` if the wait was over already.
    pub(super) fn give_up(&self) -> bool {
        !std::mem::replace(&mut *self.is_over.lock().unwrap_or_else(PoisonError::into_inner), true)
    }

    /// Waits for `time` at most. Returns `true` if the message is still awaited then.
    pub(super) fn is_awaited_after(&self, time: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_over, time, |is_over| !*is_over);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
