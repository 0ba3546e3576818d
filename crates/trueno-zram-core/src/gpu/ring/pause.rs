//! Waiting without sleeping too soon: waking a thread takes longer than most waits here.

use std::time::{Duration, Instant};

/// The time to spin before sleeping: longer than a stage of a large slot takes.
const SPIN_TIME: Duration = Duration::from_millis(2);
/// The time to sleep between two polls after that.
const SLEEP: Duration = Duration::from_micros(20);

/// Waits between two polls of the slots.
#[derive(Default)]
pub(crate) struct Pause {
    quiet_since: Option<Instant>,
}

impl Pause {
    /// Spins, or sleeps if nothing has moved for a while. Does neither if something has `moved`.
    pub(crate) fn after(&mut self, moved: bool) {
        if moved {
            self.quiet_since = None;
        } else if self.quiet_since.get_or_insert_with(Instant::now).elapsed() < SPIN_TIME {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(SLEEP);
        }
    }
}
