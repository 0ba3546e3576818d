//! Notices while VMs and processes are restored, and the report at the end.

use std::num::NonZeroUsize;
use std::ops::Range;

use crate::error::Error;
use crate::latency::FaultLatencies;

/// The work done for a VM, or for all processes.
///
/// ```
/// use trueno_zram_restore::{ProcessRestore, RestoreOptions};
/// let restore = ProcessRestore::new(RestoreOptions::default())?;
/// restore.start_fill();
/// let report = restore.run()?;
/// assert_eq!((report.memory_bytes, report.complete), (0, true));
/// # Ok::<(), trueno_zram_restore::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The memory of the VM, or of all processes, in bytes.
    pub memory_bytes: u64,
    /// Faults that were answered.
    pub faults: u64,
    /// Bytes that were copied, on faults or ahead of them.
    pub copied_bytes: u64,
    /// Bytes that were mapped as zeros.
    pub zero_bytes: u64,
    /// Bytes that were given back, and unmapped.
    pub removed_bytes: u64,
    /// Pages that were poisoned: damaged ones, and missing ones of groups whose proof has failed.
    pub poisoned: u64,
    /// Pages that were restored before the proof of their group failed. They may differ from the pages that were saved.
    pub disproven_pages: u64,
    /// `true` if the proof of pages that were restored could not be read.
    pub unproven: bool,
    /// Latencies of the faults.
    pub latencies: FaultLatencies,
    /// `true` if all memory was restored, and the VM or the processes no longer needed the handler.
    pub complete: bool,
}

/// The fate of a VMM that could no longer be served although its memory was incomplete. [`Notice`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was ended (SIGKILL).
    Killed,
    /// Accesses to missing pages fail as on broken memory: the process that connected could not be ended, or the memory belongs
    /// to another one.
    Poisoned,
    /// Neither was possible. It waits for missing pages forever, or they become zeros.
    Unprotected,
}

/// Receives notices while VMs and processes run.
pub(crate) type Notify = dyn Fn(Notice<'_>) + Send + Sync;

/// An event of a running restore.
///
/// ```
/// use trueno_zram_restore::{Ending, Notice};
/// fn warning(notice: &Notice<'_>) -> Option<String> {
///     match notice {
///         Notice::Poisoned { page, error } => Some(format!("page {page} was poisoned: {error}")),
///         Notice::Ended(Ending::Unprotected) => Some("end the VM: it would see zeros".into()),
///         _ => None,
///     }
/// }
/// assert_eq!(warning(&Notice::Complete), None);
/// assert!(warning(&Notice::Ended(Ending::Unprotected)).is_some());
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A VMM has connected; its memory is served.
    Connected {
        /// Its number of regions.
        regions: usize,
        /// Their length.
        memory_bytes: u64,
    },
    /// A page cannot be restored, and was poisoned: one that a VM touched, or any of a process.
    Poisoned {
        /// The page in the archive.
        page: u64,
        /// The reason.
        error: &'a trueno_zram_archive::Error,
    },
    /// The proof of pages has failed. All reads of them fail from now on, and those that are missing are poisoned. A VM or
    /// a process that has some of them goes on with them, or is ended.
    Disproven {
        /// The pages in the archive.
        pages: Range<u64>,
        /// The number of them that were restored before.
        restored: u64,
        /// The reason.
        error: &'a trueno_zram_archive::Error,
    },
    /// The proof of pages that were restored cannot be read. It is tried again, while the VM or the process goes on.
    Unproven {
        /// The reason.
        error: &'a trueno_zram_archive::Error,
    },
    /// Memory ran short; the rest is restored when it is touched.
    FillStopped,
    /// All memory is restored: the VM or the process no longer needs the handler.
    Complete,
    /// A VMM has connected while the most VMs allowed at a time are served. It waits until one has ended. Reported once.
    Crowded {
        /// VMs that are restored at the same time.
        vms_at_a_time: NonZeroUsize,
    },
    /// A VMM that has handed its userfaultfd over is not served any longer, or was never served.
    Ended(Ending),
    /// A process cannot be restored any further. It was ended; a child that it forked fails where it touches missing memory.
    Failed {
        /// The process, by its number in the dump.
        pid: u32,
        /// The reason.
        error: &'a Error,
    },
}

/// Notifies that a page was poisoned, if it was damaged.
pub(crate) fn notify_poisoned(notify: &Notify, error: &Error) {
    if let Error::Damaged { page, source } = error {
        notify(Notice::Poisoned { page: *page, error: source });
    }
}
