//! The thread that drives a GPU: takes results as soon as they are ready, and leaves the stream to others in between. And the
//! lanes beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use trueno_zram_core::Result;

use crate::error::Error;

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
            thread::sleep(SLEEP);
        } else {
            let start = Instant::now();
            while start.elapsed() < BETWEEN_LOOKS {
                std::hint::spin_loop();
            }
        }
    }
}

/// Runs `drive` and all `lanes` on threads of their own, and returns when they have ended. `has_ended` is set when the lanes
/// have: it ends the driver, once it has drained the GPU.
pub(crate) fn run_beside<L: FnOnce() + Send>(
    drive: impl FnOnce() + Send,
    lanes: impl Iterator<Item = L>,
    has_ended: &AtomicBool,
) -> std::result::Result<(), Error> {
    thread::scope(|scope| {
        let driver = thread::Builder::new().name("gpu".into());
        let driver = driver.spawn_scoped(scope, drive).map_err(Error::Thread)?;
        let mut running = Vec::new();
        let mut failed = None;
        for (number, lane) in lanes.enumerate() {
            match thread::Builder::new().name(format!("lane-{number}")).spawn_scoped(scope, lane) {
                Ok(lane) => running.push(lane),
                // Those that run do all the work.
                Err(error) => {
                    failed = running.is_empty().then_some(error);
                    break;
                }
            }
        }
        let panics: Vec<_> = running.into_iter().filter_map(|lane| lane.join().err()).collect();
        has_ended.store(true, Ordering::Release);
        if let Some(panic) = panics.into_iter().chain(driver.join().err()).next() {
            std::panic::resume_unwind(panic);
        }
        failed.map_or(Ok(()), |error| Err(Error::Thread(error)))
    })
}
