//! The time that threads of a pipeline spend per stage, working or waiting.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::workers::Observer;

/// An activity of a pipeline's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Makes the page-locked memory of a GPU, beside the other stages.
    GpuMemory,
    /// Reads the input.
    Read,
    /// Compresses pages, and assembles their blocks with checksums.
    Compress,
    /// Checks blocks and restores their pages.
    Decode,
    /// Copies pages or blocks to or from the slots of a GPU, and assembles blocks with checksums.
    GpuSlots,
    /// Hashes the content.
    Hash,
    /// Writes the output.
    Write,
    /// Waits for another stage, or for the GPU.
    Wait,
}

/// The names of the stages, in the order of [`Stage`].
const STAGE_NAMES: [&str; 8] = ["GPU memory", "read", "compress", "decode", "GPU slots", "hash", "write", "wait"];

/// An observer that adds up the time of all threads per stage. Its text is one line: `read 0.210 s, compress 3.120 s, wait 0.020 s`.
///
/// ```
/// use std::time::Duration;
/// use trueno_zram_io::{Observer, Stage, Timeline};
/// let timeline = Timeline::default();
/// // Or by a pipeline: `Workers::new(&pool).with_observer(&timeline)`.
/// timeline.spent(Stage::Read, Duration::from_millis(15));
/// timeline.spent(Stage::Read, Duration::from_millis(5));
/// timeline.spent(Stage::Write, Duration::from_millis(1));
/// assert_eq!(timeline.time(Stage::Read), Duration::from_millis(20));
/// assert_eq!(timeline.to_string(), "read 0.020 s, write 0.001 s");
/// ```
#[derive(Debug, Default)]
pub struct Timeline {
    time_ns: [AtomicU64; STAGE_NAMES.len()],
}

impl Timeline {
    /// Returns the time of all threads for a stage.
    #[must_use]
    pub fn time(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.time_ns[stage as usize].load(Ordering::Relaxed))
    }
}

impl Observer for Timeline {
    fn spent(&self, stage: Stage, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.time_ns[stage as usize].fetch_add(time_ns, Ordering::Relaxed);
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (name, time_ns) in STAGE_NAMES.iter().zip(&self.time_ns) {
            let time = Duration::from_nanos(time_ns.load(Ordering::Relaxed));
            if !time.is_zero() {
                write!(f, "{comma}{name} {:.3} s", time.as_secs_f64())?;
                comma = ", ";
            }
        }
        Ok(())
    }
}

/// Runs `work`, and reports its time.
pub(crate) fn timed<T>(observer: &dyn Observer, stage: Stage, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    observer.spent(stage, start.elapsed());
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_its_name() {
        let timeline = Timeline::default();
        assert_eq!(timeline.to_string(), "");
        let stages = [
            (Stage::GpuMemory, "GPU memory"),
            (Stage::Read, "read"),
            (Stage::Compress, "compress"),
            (Stage::Decode, "decode"),
            (Stage::GpuSlots, "GPU slots"),
            (Stage::Hash, "hash"),
            (Stage::Write, "write"),
            (Stage::Wait, "wait"),
        ];
        for (stage, _) in stages {
            timeline.spent(stage, Duration::from_secs(stage as u64 + 1));
        }
        let expected: Vec<String> =
            stages.iter().map(|(stage, name)| format!("{name} {}.000 s", *stage as u64 + 1)).collect();
        assert_eq!(timeline.to_string(), expected.join(", "));
    }
}
