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

impl Stage {
    /// All stages, in the order of the pipelines.
    pub const ALL: [Self; 8] = [
        Self::GpuMemory,
        Self::Read,
        Self::Compress,
        Self::Decode,
        Self::GpuSlots,
        Self::Hash,
        Self::Write,
        Self::Wait,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::GpuMemory => "GPU memory",
            Self::Read => "read",
            Self::Compress => "compress",
            Self::Decode => "decode",
            Self::GpuSlots => "GPU slots",
            Self::Hash => "hash",
            Self::Write => "write",
            Self::Wait => "wait",
        }
    }
}

/// The time of all threads per stage. Its text is one line: `read 0.210 s, compress 3.120 s, wait 0.020 s`.
///
/// ```
/// use std::time::Duration;
/// use trueno_zram_io::{Stage, Timeline};
/// let timeline = Timeline::default();
/// timeline.add(Stage::Read, Duration::from_millis(20));
/// timeline.add(Stage::Write, Duration::from_millis(1));
/// assert_eq!(timeline.to_string(), "read 0.020 s, write 0.001 s");
/// ```
#[derive(Debug, Default)]
pub struct Timeline {
    time_ns: [AtomicU64; Stage::ALL.len()],
}

impl Timeline {
    /// Adds time that a thread spent on a stage.
    pub fn add(&self, stage: Stage, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.time_ns[stage as usize].fetch_add(time_ns, Ordering::Relaxed);
    }

    /// The time of all threads for a stage.
    #[must_use]
    pub fn time(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.time_ns[stage as usize].load(Ordering::Relaxed))
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = Stage::ALL.into_iter().filter(|stage| !self.time(*stage).is_zero());
        for (number, stage) in used.enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} {:.3} s", stage.name(), self.time(stage).as_secs_f64())?;
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
