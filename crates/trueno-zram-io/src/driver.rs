//! The thread that drives a GPU: takes results as soon as they are ready, and leaves the stream to others in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trueno_zram_core::Result;

/// Time between two looks, which other threads have to fill and submit slots: each look holds the stream's lock.
const BETWEEN_LOOKS: Duration = Duration::from_micros(5);
/// After this long without a result, the thread sleeps between two looks.
const SLEEPS_AFTER: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(50);

/// Calls `take` for every result until `has_ended` is set and nothing is left. `try_next` returns a result if one is ready,
/// `pending` the number of slots that have none yet.
pub(crate) fn drive<T, E: From<trueno_zram_core::Error>>(
    try_next: impl Fn() -> Result<Option<T>>,
    pending: impl Fn() -> usize,
    has_ended: &AtomicBool,
    mut take: impl FnMut(T) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut quiet_since = Instant::now();
    loop {
        // Asked first: what is submitted afterwards is seen by the look.
        let has_ended = has_ended.load(Ordering::Acquire);
        if let Some(result) = try_next()? {
            take(result)?;
            quiet_since = Instant::now();
            continue;
        }
        if has_ended && pending() == 0 {
            return Ok(());
        }
        if quiet_since.elapsed() > SLEEPS_AFTER {
            std::thread::sleep(SLEEP);
        } else {
            let start = Instant::now();
            while start.elapsed() < BETWEEN_LOOKS {
                std::hint::spin_loop();
            }
        }
    }
}
