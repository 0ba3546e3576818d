//! What a run counted: warp instructions by kind, shared-memory wavefronts, global sectors; in sum, by warp, by section.

use crate::inst::CountKind;
use std::ops::{AddAssign, Index};

/// All kinds of instructions, in the order of the counters.
const KINDS: [CountKind; 11] = [
    CountKind::Alu,
    CountKind::Move,
    CountKind::SharedLoad,
    CountKind::SharedStore,
    CountKind::GlobalLoad,
    CountKind::GlobalStore,
    CountKind::SharedAtomic,
    CountKind::GlobalAtomic,
    CountKind::Warp,
    CountKind::Barrier,
    CountKind::Branch,
];

/// Counters. Indexed by [`CountKind`] they give warp instructions.
///
/// A warp instruction counts once however many lanes run it, even none: a device issues it all the same.
///
/// ```
/// use trueno_gpu::{inst::CountKind, interp::Counts};
/// let counts = Counts::default();
/// assert_eq!(counts[CountKind::Alu], 0);
/// assert_eq!(counts.instructions(), 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    by_kind: [u64; KINDS.len()],
    /// Passes through shared memory: 1 for an access without bank conflicts, one more for each further word of the
    /// busiest bank. Accesses of 8 and 16 bytes go by half and quarter warps.
    pub shared_wavefronts: u64,
    /// 32-byte sectors that loads touched, distinct within each instruction.
    pub global_sectors_read: u64,
    /// 32-byte sectors that stores touched, distinct within each instruction.
    pub global_sectors_written: u64,
    /// 32-byte sectors that atomics touched, distinct within each instruction.
    pub global_sectors_atomic: u64,
}

impl Counts {
    /// All warp instructions, moves and branches included.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::interp::Counts::default().instructions(), 0);
    /// ```
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.by_kind.iter().sum()
    }

    /// The kinds with their counts, zeros left out.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::interp::Counts::default().kinds().count(), 0);
    /// ```
    pub fn kinds(&self) -> impl Iterator<Item = (CountKind, u64)> {
        KINDS.into_iter().zip(self.by_kind).filter(|(_, count)| *count > 0)
    }

    /// A counter as a figure for each of `units`: pages, bytes.
    ///
    /// ```
    /// use trueno_gpu::interp::Counts;
    /// assert_eq!(Counts::per(300, 200), 1.5);
    /// ```
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn per(count: u64, units: u64) -> f64 {
        count as f64 / units as f64
    }

    pub(super) fn add(&mut self, kind: CountKind, times: u64) {
        self.by_kind[kind as usize] += times;
    }
}

impl Index<CountKind> for Counts {
    type Output = u64;
    fn index(&self, kind: CountKind) -> &u64 {
        &self.by_kind[kind as usize]
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        for (sum, more) in self.by_kind.iter_mut().zip(other.by_kind) {
            *sum += more;
        }
        self.shared_wavefronts += other.shared_wavefronts;
        self.global_sectors_read += other.global_sectors_read;
        self.global_sectors_written += other.global_sectors_written;
        self.global_sectors_atomic += other.global_sectors_atomic;
    }
}

/// What one warp counted.
///
/// ```
/// use trueno_gpu::interp::{Launch, Memory};
/// # let case = &trueno_gpu::interp::suite::cases()[0];
/// # let mut memory = Memory::new();
/// # let (input, output) = (memory.add("input", &case.input), memory.add_uninit("output", case.expected.len()));
/// # let launch = Launch::new(&case.kernel).arg(input).arg(output);
/// let report = launch.run(&mut memory)?;
/// assert_eq!((report.warps[0].block, report.warps[0].warp), (0, 0));
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarpReport {
    /// Its block.
    pub block: u32,
    /// Its number in the block.
    pub warp: u32,
    /// Its counters.
    pub counts: Counts,
}

/// What a section of the kernel counted, over all warps.
///
/// ```
/// use trueno_gpu::interp::{Launch, Memory};
/// # let case = &trueno_gpu::interp::suite::cases()[0];
/// # let mut memory = Memory::new();
/// # let (input, output) = (memory.add("input", &case.input), memory.add_uninit("output", case.expected.len()));
/// # let launch = Launch::new(&case.kernel).arg(input).arg(output);
/// let report = launch.run(&mut memory)?;
/// assert_eq!(report.sections[0].section, None, "this kernel has no sections");
/// assert_eq!(report.sections[0].counts, report.total);
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionReport {
    /// The section's comment; `None` for what comes before the first.
    pub section: Option<String>,
    /// Its counters.
    pub counts: Counts,
}

/// What a run counted.
///
/// ```
/// use trueno_gpu::interp::{Launch, Memory};
/// use trueno_gpu::inst::CountKind;
/// # use trueno_gpu::interp::suite;
/// # let case = &suite::cases()[0];
/// # let mut memory = Memory::new();
/// # let input = memory.add("input", &case.input);
/// # let output = memory.add_uninit("output", case.expected.len());
/// # let kernel = &case.kernel;
/// let report = Launch::new(kernel).arg(input).arg(output).run(&mut memory)?;
/// assert_eq!(report.warps.len(), 1);
/// assert!(report.total.instructions() > 0);
/// assert_eq!(report.total[CountKind::GlobalStore], report.warps[0].counts[CountKind::GlobalStore]);
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The sum over all warps.
    pub total: Counts,
    /// By warp, in order of blocks.
    pub warps: Vec<WarpReport>,
    /// By section of the kernel, in order of first appearance; sections of the same name are one.
    pub sections: Vec<SectionReport>,
}
