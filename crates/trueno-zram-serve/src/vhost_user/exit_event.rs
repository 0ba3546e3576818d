//! Events that end the threads of queues.
#![allow(unsafe_code, reason = "closes descriptors that vhost-user-backend leaks")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

/// The event that ends the thread of a queue.
///
/// It is created before the thread: a thread without one would never end, and joining it would wait forever.
pub(super) struct ExitEvent {
    ours: EventNotifier,
    /// For vhost-user-backend. `None` once it has them.
    theirs: Mutex<Option<(EventConsumer, EventNotifier)>>,
    consumer: RawFd,
}

impl ExitEvent {
    pub(super) fn new() -> io::Result<Self> {
        let (consumer, notifier) = new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?;
        let (ours, number) = (notifier.try_clone()?, consumer.as_raw_fd());
        Ok(Self { ours, theirs: Mutex::new(Some((consumer, notifier))), consumer: number })
    }

    /// Returns the two ends for `VhostUserBackend::exit_event`, once.
    pub(super) fn hand_out(&self) -> Option<(EventConsumer, EventNotifier)> {
        self.theirs.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends the thread, if there is one.
    pub(super) fn notify(&self) {
        // It fails only if the event was notified 2^64 - 2 times before.
        let _ = self.ours.notify();
    }
}

impl Drop for ExitEvent {
    fn drop(&mut self) {
        if self.theirs.get_mut().unwrap_or_else(PoisonError::into_inner).is_none() {
            // SAFETY: `VringEpollHandler::new`, which alone asks for the event, turns the consumer into its number at once
            // (vhost-user-backend 0.24.0, which the workspace pins), and nothing ever closes it. So nothing else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(self.consumer) });
        }
    }
}
