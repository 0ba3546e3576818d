//! Counters of a run: warp instructions by kind, shared-memory wavefronts, global sectors; in total, per warp and per
//! section.

use crate::inst::CountKind;
use std::ops::{AddAssign, Index};

/// Number of kinds of instructions.
const KINDS: usize = CountKind::Branch as usize + 1;

/// Counters. Indexing by [`CountKind`] returns warp instructions.
///
/// A warp instruction counts once, however many lanes execute it, even none, because a device issues it anyway.
///
/// ```
/// use trueno_gpu::{inst::CountKind, interp::Counts};
/// let counts = Counts::default();
/// assert_eq!(counts[CountKind::Alu], 0);
/// assert_eq!(counts.instructions(), 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    by_kind: [u64; KINDS],
    /// Passes through shared memory: 1 for an access without bank conflicts, and one more for each additional word of
    /// the busiest bank. Accesses of 8 and 16 bytes are served in half and quarter warps.
    pub shared_wavefronts: u64,
    /// 32-byte sectors that loads accessed, distinct within each instruction.
    pub global_sectors_read: u64,
    /// 32-byte sectors that stores accessed, distinct within each instruction.
    pub global_sectors_written: u64,
    /// 32-byte sectors that atomics accessed, distinct within each instruction.
    pub global_sectors_atomic: u64,
}

impl Counts {
    /// Returns the number of all warp instructions, including moves and branches.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::interp::Counts::default().instructions(), 0);
    /// ```
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.by_kind.iter().sum()
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

/// The counters of one warp.
///
/// ```
/// use trueno_gpu::KernelBuilder;
/// use trueno_gpu::interp::{Launch, DeviceMemory};
/// let kernel = KernelBuilder::new("nothing").with_warps_per_block(4).finish().unwrap();
/// let report = Launch::new(&kernel).grid(2).run(&mut DeviceMemory::new())?;
/// assert_eq!((report.warps[5].block, report.warps[5].warp), (1, 1));
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarpReport {
    /// The block.
    pub block: u32,
    /// Number of the warp in the block.
    pub warp: u32,
    /// The counters.
    pub counts: Counts,
}

/// The counters of a section of the kernel, over all warps.
///
/// ```
/// use trueno_gpu::KernelBuilder;
/// use trueno_gpu::interp::{Launch, DeviceMemory};
/// let k = KernelBuilder::new("sections");
/// k.section("wait");
/// k.sync_warp();
/// let report = Launch::new(&k.finish().unwrap()).run(&mut DeviceMemory::new())?;
/// let wait = report.sections.iter().find(|section| section.section.as_deref() == Some("wait"));
/// assert_eq!(wait.map(|section| section.counts), Some(report.total));
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionReport {
    /// Comment of the section; `None` for the code before the first.
    pub section: Option<String>,
    /// The counters.
    pub counts: Counts,
}

/// The counters of a run.
///
/// ```
/// use trueno_gpu::KernelBuilder;
/// use trueno_gpu::inst::CountKind;
/// use trueno_gpu::interp::{Launch, DeviceMemory};
/// let k = KernelBuilder::new("store_lanes");
/// k.param_ptr::<u32>("output").index(k.lane_id()).store(k.lane_id());
/// let mut memory = DeviceMemory::new();
/// let output = memory.add_uninit("output", 128);
/// let report = Launch::new(&k.finish().unwrap()).arg(output).run(&mut memory)?;
/// assert_eq!(report.warps.len(), 1);
/// assert!(report.total.instructions() > 0);
/// assert_eq!(report.total[CountKind::GlobalStore], 1);
/// assert_eq!(report.total.global_sectors_written, 4);
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LaunchReport {
    /// Total over all warps.
    pub total: Counts,
    /// Per warp, in order of blocks.
    pub warps: Vec<WarpReport>,
    /// Per section of the kernel, in order of first appearance. Sections with the same name are one.
    pub sections: Vec<SectionReport>,
}
