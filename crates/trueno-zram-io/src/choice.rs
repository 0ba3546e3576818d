//! Whether a GPU makes a stream faster than the CPU alone, by what both cost on the stream itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Content that lanes have to have done themselves before their cost counts.
const MIN_CPU_BYTES: u64 = 4 << 20;

/// Content that has to have gone through the GPU before its cost counts.
const MIN_GPU_BYTES: u64 = 8 << 20;

/// Slots that are under way while the GPU is tried.
const TRIAL_SLOTS: usize = 3;

/// One in this many lanes stays at hand for the GPU.
const RESERVED_SHARE: usize = 4;

/// How much cheaper a byte through the GPU has to be for lanes. What a GPU saves is less than that where memory limits both.
const CLEARLY: f64 = 0.9;

/// Chooses between a GPU with lanes that help it, and lanes alone.
///
/// Lanes are what a stream is short of, with or without a GPU. A byte that goes through the GPU costs them the time to fill its
/// slot and to take its result; a byte without it, the time of the codec. Both are measured on the stream, with reading and
/// writing and with the time that lanes wait for locks. As long as the GPU's bytes cost less, it gets all slots, and lanes do
/// others only when no slot is free. If they cost more, it gets none.
///
/// The first slot is not measured: the driver may compile a kernel for it.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    cpu: Cost,
    gpu: Cost,
    /// Results of the GPU.
    gpu_results: AtomicU64,
}

/// The time of lanes for some content.
#[derive(Debug, Default)]
struct Cost {
    bytes: AtomicU64,
    time_ns: AtomicU64,
}

impl Cost {
    fn add(&self, bytes: u64, time: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.time_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Nanoseconds per byte; none before it has seen `least` bytes.
    fn per_byte(&self, least: u64) -> Option<f64> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        (bytes >= least).then(|| self.time_ns.load(Ordering::Relaxed) as f64 / bytes as f64)
    }
}

impl Choice {
    /// Counts content that a lane did without the GPU, and its time for it.
    pub(crate) fn helped(&self, bytes: u64, time: Duration) {
        self.cpu.add(bytes, time);
    }

    /// Counts a lane's time to fill a slot. Its bytes count when they are [taken](Self::taken).
    pub(crate) fn filled(&self, time: Duration) {
        if self.gpu_results.load(Ordering::Relaxed) > 0 {
            self.gpu.add(0, time);
        }
    }

    /// Counts a result of the GPU, and a lane's time to take it.
    pub(crate) fn taken(&self, bytes: u64, time: Duration) {
        if self.gpu_results.fetch_add(1, Ordering::Relaxed) > 0 {
            self.gpu.add(bytes, time);
        }
    }

    /// How many of `lanes` wait for the GPU before another one does its work without it.
    ///
    /// A lane that works for itself is gone for a while, and a GPU that is faster than all of them would wait for it. So some stay
    /// at hand. If many of them wait, the GPU is the slower part, and the others help.
    pub(crate) fn reserve(&self, lanes: usize) -> usize {
        if self.most_slots() == usize::MAX { lanes.div_ceil(RESERVED_SHARE) } else { 0 }
    }

    /// How many slots may be under way now.
    pub(crate) fn most_slots(&self) -> usize {
        let Some(cpu) = self.cpu.per_byte(MIN_CPU_BYTES) else { return 0 };
        match self.gpu.per_byte(MIN_GPU_BYTES) {
            None if self.gpu_results.load(Ordering::Relaxed) == 0 => 1,
            None => TRIAL_SLOTS,
            Some(gpu) if gpu < CLEARLY * cpu => usize::MAX,
            Some(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    /// A choice after lanes have done some content at 1 ms per MiB.
    fn with_known_lanes() -> Choice {
        let choice = Choice::default();
        assert_eq!(choice.most_slots(), 0, "lanes come first");
        choice.helped(8 * MIB, 8 * MS);
        choice
    }

    #[test]
    fn a_gpu_that_costs_lanes_less_gets_all_slots() {
        let choice = with_known_lanes();
        assert_eq!(choice.most_slots(), 1, "one slot tells whether the GPU works");
        choice.filled(1000 * MS);
        choice.taken(4 * MIB, MS);
        assert_eq!(choice.most_slots(), TRIAL_SLOTS);
        for _ in 0..3 {
            choice.filled(MS);
            choice.taken(4 * MIB, MS);
        }
        assert_eq!(choice.most_slots(), usize::MAX, "the first slot, with a kernel to compile, does not count");
        assert_eq!((choice.reserve(15), choice.reserve(1)), (4, 1));
    }

    #[test]
    fn a_gpu_that_costs_lanes_more_gets_none() {
        let choice = with_known_lanes();
        for _ in 0..4 {
            choice.filled(3 * MS);
            choice.taken(4 * MIB, MS);
        }
        assert_eq!(choice.most_slots(), 0, "as much as the lanes' own is no gain");
        // The content changes, and the codec takes longer.
        choice.helped(8 * MIB, 40 * MS);
        assert_eq!(choice.most_slots(), usize::MAX);
    }

    #[test]
    fn without_a_result_the_gpu_gets_one_slot() {
        let choice = with_known_lanes();
        choice.filled(MS);
        assert_eq!((choice.most_slots(), choice.reserve(15)), (1, 0), "lanes do not wait for it");
    }
}
