//! The time that a user waits for each file.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Measures from the start of the process to the end of the first file, and from there to the end of the next one.
///
/// So starting threads and opening a GPU count, and the times of all files add up to that of the process.
#[derive(Clone, Debug)]
pub(crate) struct Stopwatch {
    lap_start: Arc<Mutex<Instant>>,
}

impl Default for Stopwatch {
    /// Starts. The parser of the command line does that, a moment after the process has started.
    fn default() -> Self {
        Self { lap_start: Arc::new(Mutex::new(Instant::now())) }
    }
}

impl Stopwatch {
    /// Returns the time since the last call, or since the start.
    pub(crate) fn lap(&self) -> Duration {
        let now = Instant::now();
        let mut lap_start = self.lap_start.lock().unwrap_or_else(PoisonError::into_inner);
        now.duration_since(std::mem::replace(&mut *lap_start, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_add_up_to_the_whole_time() {
        let before = Instant::now();
        let stopwatch = Stopwatch::default();
        let started = Instant::now();
        let laps: Duration = (0..10).map(|_| stopwatch.clone().lap()).sum();
        let at_least = started.elapsed();
        let last = stopwatch.lap();
        assert!(laps + last >= at_least && laps + last <= before.elapsed());
    }
}
