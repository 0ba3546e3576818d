//! Decides whether to wait for another request before replies are sent.

use std::time::Duration;

/// The time to wait for another request. A busy client sends one within it.
pub(super) const LINGER: Duration = Duration::from_micros(15);

/// Batches after which waiting is tried again, at first and at most.
const FIRST_PAUSE: u32 = 4;
const LONGEST_PAUSE: u32 = 64;

/// Learns whether a client sends requests while it waits for replies.
///
/// A client with many requests in flight sends the next one soon. Replies to several of them then go out with one
/// system call, which saves both sides time. A client that waits for its reply sends nothing before, so waiting for
/// another request would only delay it: after a wait without one, the next batches are sent at once.
#[derive(Debug)]
pub(super) struct Linger {
    /// Batches until waiting is tried again.
    left: u32,
    /// Batches without waiting after the next failure.
    pause: u32,
}

impl Linger {
    pub(super) fn new() -> Self {
        Self { left: FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    /// Returns `true` if the replies of this batch wait for another request.
    pub(super) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Records that a request arrived during the wait.
    pub(super) fn record_hit(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    /// Records that no request arrived during the wait.
    pub(super) fn record_miss(&mut self) {
        self.left = self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_waits_for_its_replies_is_seldom_delayed() {
        let mut linger = Linger::new();
        let mut waits = 0;
        for _ in 0..10_000 {
            if linger.is_due() {
                linger.record_miss();
                waits += 1;
            }
        }
        assert!((100..200).contains(&waits), "{waits}");
    }

    #[test]
    fn waiting_goes_on_while_it_pays_off_and_is_tried_again_soon_after() {
        let mut linger = Linger::new();
        (0..100).for_each(|_| {
            if linger.is_due() {
                linger.record_miss();
            }
        });
        while !linger.is_due() {}
        linger.record_hit();
        assert!(linger.is_due() && linger.is_due());
        linger.record_miss();
        assert_eq!((0..20).position(|_| linger.is_due()), Some(3));
    }
}
