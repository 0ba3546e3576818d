//! Chooses where a batch goes, by the measured rates of the GPU, the CPU and both together.

use std::fmt;
use std::time::Duration;

use crate::gpu::{BackendSelection, select_backend};

/// The runner-up is measured again once every this many batches of a class.
const RETRY_EVERY: u64 = 64;
/// A runner-up that is slower than the best by more than this factor is not measured again.
const HOPELESS_FACTOR: u64 = 2;
/// Both together are not tried if one side is slower by this factor: sharing costs more than it could add.
const UNEVEN_FACTOR: u64 = 20;
/// Each side of a shared batch gets at least this fraction of it: fewer pages do not allow a measurement.
const MIN_SHARE: usize = 32;
/// Classes of batch sizes: one per power of two.
const CLASSES: usize = usize::BITS as usize;

/// Where a batch was compressed or restored.
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
    /// The first pages on the GPU and the others on the CPU, at the same time.
    Both,
}

impl Placement {
    /// Smaller batches always go to the CPU, which finishes them before a GPU could start.
    ///
    /// ```
    /// assert!(trueno_zram_core::Placement::MIN_GPU_PAGES > 1);
    /// ```
    pub const MIN_GPU_PAGES: usize = 64;
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
            Self::Both => "GPU and CPU",
        })
    }
}

/// The operation on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Compress,
    Decompress,
}

/// A rate in pages per 1,000 seconds. It is an integer, so that the same times always lead to the same choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rate(u64);

impl Rate {
    /// Returns `None` if there are no pages or no time passed.
    fn of(pages: usize, time: Duration) -> Option<Self> {
        const NANOSECONDS: u128 = 1_000_000_000_000;
        let rate = (pages as u128 * NANOSECONDS).checked_div(time.as_nanos())?;
        (pages > 0).then(|| Self(u64::try_from(rate).unwrap_or(u64::MAX).max(1)))
    }

    /// Updates an average with a new measurement, which counts a quarter. A single disturbed measurement does not
    /// change the choice; a lasting change does so within a few batches.
    fn follow(known: &mut Option<Self>, measured: Self) {
        let rate = known.map_or(measured, |Self(known)| Self(known - known / 4 + measured.0 / 4));
        *known = Some(rate);
    }

    fn is_within(self, factor: u64, of: Self) -> bool {
        self.0.saturating_mul(factor) >= of.0
    }
}

/// One side's part of a shared batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) pages: usize,
    pub(crate) time: Duration,
}

/// The measured rate of each placement, for each direction and batch size.
///
/// It reads no clock: the caller supplies the times, and the same times lead to the same choices.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    compress: Measurements,
    decompress: Measurements,
}

#[derive(Clone, Debug)]
struct Measurements {
    classes: [Class; CLASSES],
    /// Whether the GPU was used before. The first use allocates page-locked memory, so its time is not representative.
    gpu_is_warm: bool,
}

/// Batches of 2^n to 2^(n + 1) - 1 pages.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    batches: u64,
    rates: PerPlacement<Option<Rate>>,
    /// The rates of the GPU and the CPU while the other side is working too.
    sides: Option<(Rate, Rate)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PerPlacement<T> {
    gpu: T,
    cpu: T,
    both: T,
}

impl<T> PerPlacement<T> {
    fn get_mut(&mut self, choice: Placement) -> &mut T {
        match choice {
            Placement::Gpu => &mut self.gpu,
            Placement::Cpu => &mut self.cpu,
            Placement::Both => &mut self.both,
        }
    }

    fn get(&self, choice: Placement) -> &T {
        match choice {
            Placement::Gpu => &self.gpu,
            Placement::Cpu => &self.cpu,
            Placement::Both => &self.both,
        }
    }
}

impl Rates {
    /// Creates an empty set of measurements.
    pub(crate) fn new() -> Self {
        let unknown = Measurements { classes: [Class::default(); CLASSES], gpu_is_warm: false };
        Self { compress: unknown.clone(), decompress: unknown }
    }

    /// Returns where the next batch of `pages` pages should go, given a GPU.
    pub(crate) fn choose(&mut self, direction: Direction, pages: usize) -> Placement {
        if pages < Placement::MIN_GPU_PAGES {
            return Placement::Cpu;
        }
        let class = self.of(direction).class(pages);
        class.batches += 1;
        class.choose(pages)
    }

    /// Returns how many of the first pages of a shared batch the GPU should get for both sides to end at the same time.
    pub(crate) fn head_pages(&mut self, direction: Direction, pages: usize) -> usize {
        let class = self.of(direction).class(pages);
        let Some((gpu, cpu)) = class.sides.or(class.rates.gpu.zip(class.rates.cpu)) else {
            return pages / 2;
        };
        let (gpu, cpu) = (u128::from(gpu.0), u128::from(cpu.0));
        let head_pages = usize::try_from(pages as u128 * gpu / (gpu + cpu)).expect("the head is a part of the pages");
        let least = pages.div_ceil(MIN_SHARE).min(pages / 2);
        head_pages.clamp(least, pages - least)
    }

    /// Records the time of a batch.
    pub(crate) fn record(&mut self, direction: Direction, choice: Placement, pages: usize, time: Duration) {
        let measurements = self.of(direction);
        let Some(rate) = Rate::of(pages, time) else { return };
        if choice == Placement::Cpu || std::mem::replace(&mut measurements.gpu_is_warm, true) {
            Rate::follow(measurements.class(pages).rates.get_mut(choice), rate);
        }
    }

    /// Records the times of the two sides of a shared batch.
    pub(crate) fn record_sides(&mut self, direction: Direction, gpu: Part, cpu: Part) {
        let class = self.of(direction).class(gpu.pages + cpu.pages);
        let (Some(gpu), Some(cpu)) = (Rate::of(gpu.pages, gpu.time), Rate::of(cpu.pages, cpu.time)) else { return };
        let (mut known_gpu, mut known_cpu) = class.sides.unzip();
        Rate::follow(&mut known_gpu, gpu);
        Rate::follow(&mut known_cpu, cpu);
        class.sides = known_gpu.zip(known_cpu);
    }

    fn of(&mut self, direction: Direction) -> &mut Measurements {
        match direction {
            Direction::Compress => &mut self.compress,
            Direction::Decompress => &mut self.decompress,
        }
    }
}

impl Measurements {
    fn class(&mut self, pages: usize) -> &mut Class {
        &mut self.classes[pages.max(1).ilog2() as usize]
    }
}

impl Class {
    fn choose(&self, pages: usize) -> Placement {
        let order = match select_backend(pages, true) {
            BackendSelection::Gpu => [Placement::Gpu, Placement::Cpu, Placement::Both],
            BackendSelection::Simd | BackendSelection::Scalar => [Placement::Cpu, Placement::Gpu, Placement::Both],
        };
        let rate = |choice: &Placement| *self.rates.get(*choice);
        if let Some(untried) = order.iter().find(|choice| rate(choice).is_none() && self.may_pay(**choice)) {
            return *untried;
        }
        // Ties go to the earlier placement in the order.
        let known = || order.iter().rev().filter(|choice| rate(choice).is_some());
        let best = *known().max_by_key(|choice| rate(choice)).expect("both single sides have been measured");
        let runner_up = known().filter(|choice| **choice != best).max_by_key(|choice| rate(choice));
        let is_close = |choice: &&Placement| {
            rate(choice).zip(rate(&best)).is_some_and(|(rate, best)| rate.is_within(HOPELESS_FACTOR, best))
        };
        match runner_up.filter(is_close) {
            Some(runner_up) if self.batches.is_multiple_of(RETRY_EVERY) => *runner_up,
            _ => best,
        }
    }

    /// Returns `true` if a placement that was never measured could be the best.
    fn may_pay(&self, choice: Placement) -> bool {
        match (choice, self.rates.gpu, self.rates.cpu) {
            (Placement::Both, Some(gpu), Some(cpu)) => gpu.min(cpu).is_within(UNEVEN_FACTOR, gpu.max(cpu)),
            (Placement::Both, ..) => false,
            (Placement::Gpu | Placement::Cpu, ..) => true,
        }
    }
}

#[cfg(test)]
mod tests;
