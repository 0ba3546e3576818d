//! The rule for opening a GPU while the CPU works: it must pay for the start and the end of CUDA.

use std::time::Duration;

use super::chooser::Placement;
use crate::page::PAGE_SIZE;

/// The time that CUDA takes to start and adds to the end of a process: 0.32 to 0.35 s on an H200 with 16 cores.
const START_AND_END: Duration = Duration::from_millis(350);

/// The GPU is opened if the CPU would take this many times as long as the start and the end of CUDA: only a part of what is left can
/// run on the GPU, and restoring is hardly faster there.
const MIN_TIMES_LONGER: f64 = 1.5;

/// The CPU's rate counts from this time on. Before it, threads start and memory is touched for the first time.
const MIN_ELAPSED: Duration = Duration::from_millis(10);

/// Work on the CPU before a GPU is opened if the length of the content is unknown.
const MIN_WORK_OF_UNKNOWN_LEN: Duration = Duration::from_millis(300);

/// Codecs that work for a smaller share of the time wait for their input. A GPU would wait as well.
const MIN_BUSY_SHARE: f64 = 0.5;

/// A GPU that becomes ready when the CPU needs no longer than this for the rest is not used.
const MIN_TIME_TO_JOIN: Duration = Duration::from_millis(30);

/// The work that the CPU has done, and the work that is left.
///
/// ```
/// use std::time::Duration;
/// use trueno_zram_core::gpu::CpuProgress;
/// let gigabytes = |left: u64| CpuProgress {
///     done_bytes: 1 << 30,
///     left_bytes: Some(left << 30),
///     elapsed: Duration::from_millis(125),
///     busy: Duration::from_millis(120),
/// };
/// assert!(!gigabytes(2).is_worth_a_gpu(), "done in a quarter of a second");
/// assert!(gigabytes(8).is_worth_a_gpu());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuProgress {
    /// The bytes of pages that the CPU has compressed or restored.
    pub done_bytes: u64,
    /// The bytes of pages that are left, if that is known.
    pub left_bytes: Option<u64>,
    /// The time since the start of the work.
    pub elapsed: Duration,
    /// The time that a thread has spent in its codec, as the mean of all threads.
    pub busy: Duration,
}

impl CpuProgress {
    /// Returns `true` if a GPU is worth opening.
    ///
    /// If the amount of work is known, what is left must take the CPU, at the rate so far, one and a half times as long as CUDA takes to
    /// start and to end. If it is unknown, the CPU must have worked for 300 ms, and at least half of the time: else the input is what
    /// it waits for.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trueno_zram_core::gpu::CpuProgress;
    /// let (elapsed, busy) = (Duration::from_secs(1), Duration::from_millis(400));
    /// let slow_pipe = CpuProgress { done_bytes: 1 << 30, left_bytes: None, elapsed, busy };
    /// assert!(!slow_pipe.is_worth_a_gpu());
    /// assert!(CpuProgress { busy: Duration::from_millis(900), ..slow_pipe }.is_worth_a_gpu());
    /// ```
    #[must_use]
    pub fn is_worth_a_gpu(&self) -> bool {
        let min_bytes = (Placement::MIN_GPU_PAGES * PAGE_SIZE) as u64;
        if self.done_bytes < min_bytes || self.elapsed < MIN_ELAPSED {
            return false;
        }
        match self.seconds_left() {
            Some(seconds) => seconds > MIN_TIMES_LONGER * START_AND_END.as_secs_f64(),
            None => {
                self.busy >= MIN_WORK_OF_UNKNOWN_LEN
                    && self.busy.as_secs_f64() >= MIN_BUSY_SHARE * self.elapsed.as_secs_f64()
            }
        }
    }

    /// Returns `true` if enough is left for a GPU that is open.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trueno_zram_core::gpu::CpuProgress;
    /// let second = Duration::from_secs(1);
    /// let progress = CpuProgress { done_bytes: 1 << 30, left_bytes: Some(1 << 20), elapsed: second, busy: second };
    /// assert!(!progress.is_worth_joining(), "the CPU is done in a millisecond");
    /// ```
    #[must_use]
    pub fn is_worth_joining(&self) -> bool {
        self.seconds_left().is_none_or(|seconds| seconds > MIN_TIME_TO_JOIN.as_secs_f64())
    }

    /// Returns the time that the rest takes the CPU at the rate so far; `None` if the rest is unknown.
    fn seconds_left(&self) -> Option<f64> {
        let left = self.left_bytes? as f64;
        // Without progress, any rest takes for ever.
        Some(if left == 0.0 { 0.0 } else { left * self.elapsed.as_secs_f64() / self.done_bytes as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MIB: u64 = 1 << 20;

    /// A CPU that does 8 MiB per millisecond, after 20 ms.
    fn with_left(left_bytes: Option<u64>) -> CpuProgress {
        CpuProgress { done_bytes: 160 * MIB, left_bytes, elapsed: 20 * MS, busy: 20 * MS }
    }

    #[test]
    fn a_known_length_is_worth_a_gpu_if_the_rest_takes_longer_than_cuda() {
        for (left_mib, worth) in [(0, false), (64, false), (2048, false), (4100, false), (4300, true), (32_768, true)] {
            assert_eq!(with_left(Some(left_mib * MIB)).is_worth_a_gpu(), worth, "{left_mib} MiB");
        }
        assert!(with_left(Some(u64::MAX)).is_worth_a_gpu());
    }

    #[test]
    fn the_first_moments_tell_nothing() {
        let much = with_left(Some(1 << 40));
        assert!(!CpuProgress { elapsed: 9 * MS, ..much }.is_worth_a_gpu());
        assert!(!CpuProgress { done_bytes: 999 * 4096, ..much }.is_worth_a_gpu());
        assert!(!CpuProgress { done_bytes: 0, ..much }.is_worth_a_gpu());
    }

    #[test]
    fn an_unknown_length_is_worth_a_gpu_after_some_work_unless_the_input_is_slow() {
        let pipe =
            |elapsed_ms, busy_ms| CpuProgress { elapsed: elapsed_ms * MS, busy: busy_ms * MS, ..with_left(None) };
        for (elapsed_ms, busy_ms, worth) in
            [(299, 299, false), (300, 300, true), (600, 300, true), (601, 300, false), (60_000, 3_000, false)]
        {
            assert_eq!(pipe(elapsed_ms, busy_ms).is_worth_a_gpu(), worth, "{busy_ms} of {elapsed_ms} ms");
        }
    }

    #[test]
    fn a_gpu_joins_unless_the_cpu_is_nearly_done() {
        assert!(with_left(None).is_worth_joining());
        assert!(!with_left(Some(200 * MIB)).is_worth_joining(), "25 ms");
        assert!(with_left(Some(300 * MIB)).is_worth_joining());
        assert!(!CpuProgress { done_bytes: 0, ..with_left(Some(0)) }.is_worth_joining(), "nothing is left");
        assert!(CpuProgress { done_bytes: 0, ..with_left(Some(1)) }.is_worth_joining());
    }
}
