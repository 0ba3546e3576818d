//! How VMs and processes are restored, and what is reported of them.

use std::num::NonZeroUsize;
use std::time::Duration;

use trueno_zram_connections::MAX_CONNECTIONS;

use crate::error::Error;

/// What happens to a VM or a process that touches a page that cannot be restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// The access fails as on broken memory (SIGBUS, or a machine check in the guest), and the VM goes on if it can. Where
    /// the kernel cannot do that (before Linux 6.6), the VM is ended.
    #[default]
    Poison,
    /// The VM is ended.
    Kill,
}

/// Tuning options of a [`LazyRestore`](crate::LazyRestore).
///
/// ```
/// use trueno_zram_restore::{OnDamage, Options};
/// let options = Options { on_damage: OnDamage::Kill, ..Options::default() };
/// assert_eq!(options.around_bytes, 64 << 10);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The block around a fault that is restored with it, while no other fault waits. 4096 or less disables it.
    pub around_bytes: u64,
    /// How long the handler looks for the next fault before it sleeps. Waking it takes some 40 µs on an idle core.
    pub spin: Duration,
    /// Whether all memory is restored in the background. Otherwise only what is touched, and what was recorded.
    pub background_fill: bool,
    /// Threads that restore memory in the background.
    pub workers: NonZeroUsize,
    /// What happens if a page cannot be restored.
    pub on_damage: OnDamage,
    /// How long a VMM may take for its first message.
    pub handshake_timeout: Duration,
    /// VMs that are restored at the same time. More of them wait.
    pub vms_at_a_time: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            around_bytes: 64 << 10,
            spin: Duration::from_micros(500),
            background_fill: true,
            workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            on_damage: OnDamage::default(),
            handshake_timeout: Duration::from_secs(10),
            vms_at_a_time: NonZeroUsize::new(MAX_CONNECTIONS).expect("it is not 0"),
        }
    }
}

/// What was done for a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Memory of the VM in bytes.
    pub memory_bytes: u64,
    /// Faults that were answered.
    pub faults: u64,
    /// Bytes that were copied, on faults or ahead of them.
    pub copied_bytes: u64,
    /// Bytes that were mapped as zeros.
    pub zero_bytes: u64,
    /// Bytes that the VM gave back.
    pub removed_bytes: u64,
    /// Faults on damaged pages, answered by poison.
    pub poisoned: u64,
    /// Whether all memory was restored, and the VM no longer needed the handler.
    pub complete: bool,
}

/// The end of a VMM that could not be served any longer before its memory was complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was ended (SIGKILL).
    Killed,
    /// Every access to what is missing fails as on broken memory: the process that connected could not be ended, or the memory is not its
    /// own.
    Poisoned,
    /// Neither was possible. It waits for missing pages for ever, or they become zeros.
    Unprotected,
}

/// Told what happens while VMs and processes run.
pub(crate) type Notify = dyn Fn(Notice<'_>) + Send + Sync;

/// Something worth telling while a VM runs.
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
        /// What is wrong with it.
        error: &'a trueno_zram_archive::Error,
    },
    /// Memory ran short; the rest is restored when it is touched.
    FillStopped,
    /// All memory is restored: the VM or the process no longer needs the handler.
    Complete,
    /// A VMM has connected while as many are served as may be at a time. It waits until one has ended. Told once.
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
        /// Why.
        error: &'a Error,
    },
}

impl Notice<'_> {
    /// Tells that a page was poisoned, if it is damaged.
    pub(crate) fn poisoned(notify: &Notify, error: &Error) {
        if let Error::Damaged { page, source } = error {
            notify(Notice::Poisoned { page: *page, error: source });
        }
    }
}
