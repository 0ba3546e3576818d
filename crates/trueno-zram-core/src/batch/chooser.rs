//! Chooses between a GPU and the CPU, by what pages cost on each.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::codec::nanoseconds;
use crate::gpu::MIN_GPU_PAGES;
use crate::page::PAGE_SIZE;

/// Content that has to have gone through the GPU before its cost counts.
const MIN_GPU_BYTES: u64 = 8 << 20;

/// Slots that are in flight while the GPU is tried.
const TRIAL_SLOTS: usize = 3;

/// One in this many lanes is reserved for the GPU.
const RESERVED_SHARE: usize = 4;

/// The most that a byte through the GPU may cost, as a share of its cost on the CPU. What a GPU saves is less than the rest where
/// memory limits both.
const MAX_GPU_COST_RATIO: f64 = 0.9;

/// The side that compressed or restored a batch.
///
/// ```
/// use trueno_zram_core::{BatchCompressor, Placement, gpu::{GpuBatchConfig, GpuOptions}};
/// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
/// compressor.compress(&[[7; 4096]; 10])?;
/// assert_eq!(compressor.last_placement(), Some(Placement::Cpu), "ten pages are not worth the transfer to a GPU");
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// All pages on the GPU.
    Gpu,
    /// All pages on the CPU.
    Cpu,
}

impl Placement {
    /// The CPU does this many pages before a GPU is tried, and all batches of fewer pages.
    ///
    /// ```
    /// assert!(trueno_zram_core::Placement::MIN_GPU_PAGES > 1);
    /// ```
    pub const MIN_GPU_PAGES: usize = MIN_GPU_PAGES;
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        })
    }
}

/// Chooses between a GPU and the CPU, for one direction.
///
/// CPU threads are what both are short of. A byte that goes through the GPU costs them the time to hand its page over and to take
/// the result; a byte without it, the time of the codec. Both are measured on the content itself, with reading and writing and
/// with the time that threads wait for locks. As long as the GPU's bytes cost less, it gets all pages that it can take. If they
/// cost more, it gets none.
///
/// The CPU comes first: [`Placement::MIN_GPU_PAGES`] tell its cost. The GPU's first result is not measured, since the driver may
/// compile a kernel for it. It reads no clock: the caller supplies the times, and the same times lead to the same choices.
///
/// ```
/// use std::time::Duration;
/// use trueno_zram_core::gpu::Chooser;
/// let chooser = Chooser::default();
/// assert_eq!(chooser.max_slots(), 0, "the CPU comes first");
/// chooser.record_cpu(8 << 20, Duration::from_millis(8));
/// for _ in 0..4 {
///     chooser.record_result(4 << 20, Duration::from_millis(1));
/// }
/// assert_eq!(chooser.max_slots(), usize::MAX, "a byte through the GPU costs a quarter");
/// ```
#[derive(Debug, Default)]
pub struct Chooser {
    cpu: Cost,
    gpu: Cost,
    /// Results of the GPU.
    gpu_results: AtomicU64,
}

/// The time of threads for some content.
#[derive(Debug, Default)]
struct Cost {
    bytes: AtomicU64,
    time_ns: AtomicU64,
}

impl Cost {
    fn add(&self, bytes: u64, time: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.time_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Nanoseconds per byte; none before it has seen `least` bytes.
    fn per_byte(&self, least: u64) -> Option<f64> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        (bytes >= least).then(|| self.time_ns.load(Ordering::Relaxed) as f64 / bytes as f64)
    }
}

impl Chooser {
    /// Counts content that was done on the CPU, and the time for it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trueno_zram_core::gpu::Chooser;
    /// let chooser = Chooser::default();
    /// chooser.record_cpu(8 << 20, Duration::from_millis(8));
    /// assert_eq!(chooser.max_slots(), 1, "the cost on the CPU is known, so the GPU is tried");
    /// ```
    pub fn record_cpu(&self, bytes: u64, time: Duration) {
        self.cpu.add(bytes, time);
    }

    /// Counts the time to fill a slot. Its bytes count with its [result](Self::record_result).
    ///
    /// ```
    /// use std::time::Duration;
    /// use trueno_zram_core::gpu::Chooser;
    /// # let (chooser, bytes) = (Chooser::default(), 4 << 20);
    /// let start = std::time::Instant::now();
    /// // ... fill a slot, and submit it ...
    /// chooser.record_fill(start.elapsed());
    /// // ... later, when the caller has taken its result ...
    /// chooser.record_result(bytes, Duration::from_millis(1));
    /// ```
    pub fn record_fill(&self, time: Duration) {
        if self.gpu_results.load(Ordering::Relaxed) > 0 {
            self.gpu.add(0, time);
        }
    }

    /// Counts a result of the GPU, and the time to take it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trueno_zram_core::gpu::Chooser;
    /// let chooser = Chooser::default();
    /// chooser.record_cpu(8 << 20, Duration::from_millis(8));
    /// for _ in 0..4 {
    ///     chooser.record_result(4 << 20, Duration::from_millis(40));
    /// }
    /// assert_eq!(chooser.max_slots(), 0, "a byte through the GPU costs ten times as much");
    /// ```
    pub fn record_result(&self, bytes: u64, time: Duration) {
        if self.gpu_results.fetch_add(1, Ordering::Relaxed) > 0 {
            self.gpu.add(bytes, time);
        }
    }

    /// Returns how many of `lanes` threads wait for the GPU before another one works without it.
    ///
    /// A thread that works for itself is gone for a while, and a GPU that is faster than all of them would wait for it. So some are
    /// reserved. If many of them wait, the GPU is the slower part, and the others help.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trueno_zram_core::gpu::Chooser;
    /// let chooser = Chooser::default();
    /// assert_eq!(chooser.reserved_lanes(16), 0, "the GPU is not in use yet");
    /// chooser.record_cpu(8 << 20, Duration::from_millis(8));
    /// for _ in 0..4 {
    ///     chooser.record_result(4 << 20, Duration::from_millis(1));
    /// }
    /// assert_eq!(chooser.reserved_lanes(16), 4);
    /// ```
    #[must_use]
    pub fn reserved_lanes(&self, lanes: usize) -> usize {
        if self.max_slots() == usize::MAX { lanes.div_ceil(RESERVED_SHARE) } else { 0 }
    }

    /// Returns the number of slots that may be in flight now: 0 for none, `usize::MAX` for all.
    ///
    /// ```
    /// use trueno_zram_core::gpu::Chooser;
    /// let (chooser, in_flight) = (Chooser::default(), 0);
    /// if in_flight < chooser.max_slots() {
    ///     println!("submit one more slot");
    /// }
    /// ```
    #[must_use]
    pub fn max_slots(&self) -> usize {
        let min_cpu_bytes = (Placement::MIN_GPU_PAGES * PAGE_SIZE) as u64;
        let Some(cpu) = self.cpu.per_byte(min_cpu_bytes) else { return 0 };
        match self.gpu.per_byte(MIN_GPU_BYTES) {
            None if self.gpu_results.load(Ordering::Relaxed) == 0 => 1,
            None => TRIAL_SLOTS,
            Some(gpu) if gpu < MAX_GPU_COST_RATIO * cpu => usize::MAX,
            Some(_) => 0,
        }
    }

    /// Returns where a batch goes as a whole.
    ///
    /// ```
    /// use trueno_zram_core::{Placement, gpu::Chooser};
    /// assert_eq!(Chooser::default().placement(10), Placement::Cpu, "ten pages are not worth the transfer");
    /// ```
    #[must_use]
    pub fn placement(&self, pages: usize) -> Placement {
        if pages < Placement::MIN_GPU_PAGES || self.max_slots() == 0 { Placement::Cpu } else { Placement::Gpu }
    }

    /// Counts a batch that was done as a whole.
    pub(super) fn record(&self, placement: Placement, pages: usize, time: Duration) {
        let bytes = (pages * PAGE_SIZE) as u64;
        match placement {
            Placement::Gpu => self.record_result(bytes, time),
            // Small batches have a cost of their own, and no choice.
            Placement::Cpu if pages >= Placement::MIN_GPU_PAGES => self.record_cpu(bytes, time),
            Placement::Cpu => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    /// A chooser after lanes have done some content at 1 ms per MiB.
    fn with_known_lanes() -> Chooser {
        let chooser = Chooser::default();
        assert_eq!(chooser.max_slots(), 0, "lanes come first");
        chooser.record_cpu(8 * MIB, 8 * MS);
        chooser
    }

    #[test]
    fn a_gpu_that_costs_lanes_less_gets_all_slots() {
        let chooser = with_known_lanes();
        assert_eq!(chooser.max_slots(), 1, "one slot tells whether the GPU works");
        chooser.record_fill(1000 * MS);
        chooser.record_result(4 * MIB, MS);
        assert_eq!(chooser.max_slots(), TRIAL_SLOTS);
        for _ in 0..3 {
            chooser.record_fill(MS);
            chooser.record_result(4 * MIB, MS);
        }
        assert_eq!(chooser.max_slots(), usize::MAX, "the first slot, with a kernel to compile, does not count");
        assert_eq!((chooser.reserved_lanes(15), chooser.reserved_lanes(1)), (4, 1));
    }

    #[test]
    fn a_gpu_that_costs_lanes_more_gets_none() {
        let chooser = with_known_lanes();
        for _ in 0..4 {
            chooser.record_fill(3 * MS);
            chooser.record_result(4 * MIB, MS);
        }
        assert_eq!(chooser.max_slots(), 0, "as much as the lanes' own is no gain");
        // The content changes, and the codec takes longer.
        chooser.record_cpu(8 * MIB, 40 * MS);
        assert_eq!(chooser.max_slots(), usize::MAX);
    }

    #[test]
    fn without_a_result_the_gpu_gets_one_slot() {
        let chooser = with_known_lanes();
        chooser.record_fill(MS);
        assert_eq!((chooser.max_slots(), chooser.reserved_lanes(15)), (1, 0), "lanes do not wait for it");
    }

    /// Milliseconds per 1,024 pages on the GPU and on the CPU, and where batches end up.
    #[test]
    fn batches_settle_on_the_faster_side_and_leave_it_when_it_gets_slow() {
        for (gpu_ms, cpu_ms, expected) in [(1, 6, Placement::Gpu), (6, 1, Placement::Cpu)] {
            let chooser = Chooser::default();
            let run = |gpu_ms, cpu_ms| {
                let placement = chooser.placement(1024);
                chooser.record(placement, 1024, MS * if placement == Placement::Gpu { gpu_ms } else { cpu_ms });
                placement
            };
            let first: Vec<_> = (0..20).map(|_| run(gpu_ms, cpu_ms)).collect();
            assert_eq!(first[..2], [Placement::Cpu, Placement::Gpu], "each is tried");
            assert!(first[5..].iter().all(|placement| *placement == expected), "{first:?}");
            let (gpu_ms, cpu_ms) = if expected == Placement::Gpu { (50, cpu_ms) } else { (gpu_ms, 50) };
            let later: Vec<_> = (0..50).map(|_| run(gpu_ms, cpu_ms)).collect();
            assert!(later[40..].iter().all(|placement| *placement != expected), "{later:?}");
        }
    }

    #[test]
    fn small_batches_go_to_the_cpu_and_play_no_part() {
        let chooser = with_known_lanes();
        assert_eq!(chooser.placement(Placement::MIN_GPU_PAGES - 1), Placement::Cpu);
        assert_eq!(chooser.placement(Placement::MIN_GPU_PAGES), Placement::Gpu);
        chooser.record(Placement::Cpu, 10, 1000 * MS);
        assert_eq!(chooser.cpu.per_byte(1), with_known_lanes().cpu.per_byte(1));
    }
}
