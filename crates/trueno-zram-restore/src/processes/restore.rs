//! Processes that are restored at the same time.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use trueno_zram_archive::Pages;

use super::contents::MemoryExtent;
use super::fill::{FillQueue, LAST_START_PAUSE, START_PAUSE};
use super::handler::ProcessHandler;
use super::memory::ProcessMemory;
use super::proof::SourceProofs;
use crate::error::Error;
use crate::latency::{FaultLatencies, LatencyRecorder};
use crate::on_drop::OnDrop;
use crate::options::RestoreOptions;
use crate::process_handle::Process;
use crate::report::{Notice, Notify, RestoreReport};
use crate::uffd::Userfaultfd;
use crate::wake::Wake;

/// The missing memory of a process, as the process hands it over. The example of [`ProcessRestore`] makes one.
pub struct MissingMemory {
    /// The number of the process in the dump, for notices.
    pub pid: u32,
    /// The userfaultfd that the memory is registered with.
    pub uffd: OwnedFd,
    /// The content.
    pub source: Arc<dyn Pages>,
    /// Addresses and their content, in the order of addresses.
    pub extents: Vec<MemoryExtent>,
}

impl MissingMemory {
    /// Makes every access to the memory fail: for memory that was handed over without a process that can be ended.
    ///
    /// ```no_run
    /// # use trueno_zram_restore::MissingMemory;
    /// # fn handed_over() -> MissingMemory { unimplemented!() }
    /// handed_over().poison();
    /// ```
    pub fn poison(self) {
        let Self { pid, uffd, source, extents } = self;
        let uffd = Userfaultfd::new(uffd).map(Arc::new);
        let prepared = uffd.and_then(|uffd| ProcessMemory::prepare(pid, &uffd, source, &extents));
        if let Ok(memory) = prepared {
            memory.end();
        }
    }
}

impl fmt::Debug for MissingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MissingMemory(process {}, {} extents)", self.pid, self.extents.len())
    }
}

/// Restores the memory of processes while they run: each page when it is first touched, everything else in the background.
///
/// Each process is handed over with its userfaultfd and the memory that is missing. Its moves, unmappings and discards of memory
/// are tracked meanwhile, and so are the children that it forks. Memory that is registered but in no extent becomes zeros.
/// Once nothing is missing, the userfaultfd is closed, and the process no longer depends on the handler.
///
/// A process never sees zeros in place of what is missing, with the exceptions in `docs/RESTORE.md`. If it cannot be restored, or
/// restoring ends early, it is ended (SIGKILL). Children that it has forked are not known by number: their missing pages are
/// poisoned, so that touching them fails.
///
/// ```no_run
/// use trueno_zram_restore::{MemoryExtent, Image, MissingMemory, Process, ProcessRestore, RestoreOptions};
/// # fn handed_over() -> std::os::fd::OwnedFd { unimplemented!() }
/// let image = std::sync::Arc::new(Image::new(vec![[7; 4096]; 3]));
/// let restore = ProcessRestore::new(RestoreOptions::default())?;
/// let extents = [MemoryExtent { address: 0x7f00_0000_0000, pages: 3, first_page: 0 }];
/// let memory = MissingMemory { pid: 42, uffd: handed_over(), source: image, extents: extents.into() };
/// restore.add(Process::open(42)?, memory)?;
/// restore.start_fill();
/// println!("{:?}", restore.run()?);
/// # Ok::<(), trueno_zram_restore::Error>(())
/// ```
pub struct ProcessRestore {
    pub(super) options: RestoreOptions,
    pub(super) notify: Box<Notify>,
    pub(super) queue: FillQueue,
    pub(super) proofs: SourceProofs,
    pub(super) latencies: LatencyRecorder,
    /// Memory that the handler does not know yet.
    added: Mutex<Vec<Arc<ProcessMemory>>>,
    /// All memory that is not complete.
    dependents: Mutex<Dependents>,
    /// Wakes the handler when something was added, or has ended.
    pub(super) wake: Wake,
    shut_down: AtomicBool,
    failed: AtomicU64,
}

#[derive(Default)]
struct Dependents {
    memories: Vec<Arc<ProcessMemory>>,
    ending: bool,
}

impl ProcessRestore {
    /// Restores with these options. Only `workers`, `on_damage`, `on_disproof` and `proof_patience` are used.
    ///
    /// ```
    /// use trueno_zram_restore::{ProcessRestore, RestoreOptions};
    /// let restore = ProcessRestore::new(RestoreOptions::default())?;
    /// restore.start_fill();
    /// // No process was added, so nothing is missing.
    /// assert!(restore.run()?.complete);
    /// assert_eq!(restore.failures(), 0);
    /// # Ok::<(), trueno_zram_restore::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::System`] if the system has no more descriptors.
    pub fn new(options: RestoreOptions) -> Result<Self, Error> {
        Ok(Self {
            options,
            notify: Box::new(|_| {}),
            queue: FillQueue::default(),
            proofs: SourceProofs::new(&options),
            latencies: LatencyRecorder::default(),
            added: Mutex::default(),
            dependents: Mutex::default(),
            wake: Wake::new()?,
            shut_down: AtomicBool::new(false),
            failed: AtomicU64::new(0),
        })
    }

    /// Calls `notify` with each event of a process.
    ///
    /// ```
    /// use trueno_zram_restore::{ProcessRestore, RestoreOptions};
    /// let restore = ProcessRestore::new(RestoreOptions::default())?.on_notice(|notice| eprintln!("{notice:?}"));
    /// # drop(restore);
    /// # Ok::<(), trueno_zram_restore::Error>(())
    /// ```
    #[must_use]
    pub fn on_notice(mut self, notify: impl Fn(Notice<'_>) + Send + Sync + 'static) -> Self {
        self.notify = Box::new(notify);
        self
    }

    /// Adds a process whose memory is missing. Its faults are answered from now on. The example of [`ProcessRestore`] adds one.
    ///
    /// # Errors
    /// If `memory.uffd` is not a userfaultfd with events for fork, remap, remove and unmap, or an extent makes no sense. The process
    /// has then been ended if it depends on the userfaultfd.
    pub fn add(&self, process: Process, memory: MissingMemory) -> Result<(), Error> {
        let MissingMemory { pid, uffd, source, extents } = memory;
        let uffd = Arc::new(Userfaultfd::new(uffd)?);
        let mut memory = ProcessMemory::prepare(pid, &uffd, source, &extents).inspect_err(|_| {
            // Before the userfaultfd is closed: the process must not see zeros in between.
            process.end_and_wait();
        })?;
        memory.process = Some(process);
        let memory = Arc::new(memory);
        if !self.add_dependent(&memory) {
            memory.end();
            return Err(Error::ShuttingDown);
        }
        self.lock_added().push(memory);
        self.wake.wake();
        Ok(())
    }

    /// Begins to restore everything in the background, and lets [`run`](Self::run) end when that is done: all processes were
    /// added, and are about to run. The example of [`new`](Self::new) begins and ends without any.
    pub fn start_fill(&self) {
        self.queue.start();
        self.wake.wake();
    }

    /// Answers faults until all memory is restored, or all processes have ended. The example of [`ProcessRestore`] restores one.
    ///
    /// # Errors
    /// If restoring ended early. All processes that were not complete have been ended then. The failure of a single process
    /// is passed to [`on_notice`](Self::on_notice), and to [`failures`](Self::failures).
    pub fn run(&self) -> Result<RestoreReport, Error> {
        let mut handler = ProcessHandler::new(self);
        // Dropped before the memory that the handler holds.
        let end = OnDrop(|| {
            // No handler will do so any more.
            self.lock_dependents().memories.iter().for_each(|memory| memory.settle_fork());
            self.end_all();
        });
        let report = thread::scope(|threads| {
            let _stop = OnDrop(|| {
                self.queue.end();
                self.proofs.background.end();
            });
            let workers = self.options.workers.get();
            for number in 1..=workers {
                let start_pause = if number > 1 && number == workers { LAST_START_PAUSE } else { START_PAUSE };
                // If no thread can be started, the handler restores everything.
                let _ =
                    thread::Builder::new().name("fill".into()).spawn_scoped(threads, move || self.work(start_pause));
            }
            if thread::Builder::new().name("proof".into()).spawn_scoped(threads, || self.prove()).is_err() {
                self.proofs.set_no_thread();
            }
            handler.run()
        })?;
        std::mem::forget(end);
        Ok(report)
    }

    /// Returns the latencies of the faults of all processes so far, except those that a thread of the background fill has answered.
    ///
    /// ```
    /// use trueno_zram_restore::{ProcessRestore, RestoreOptions};
    /// let restore = ProcessRestore::new(RestoreOptions::default())?;
    /// assert_eq!(restore.latencies().later.faults(), 0);
    /// # Ok::<(), trueno_zram_restore::Error>(())
    /// ```
    #[must_use]
    pub fn latencies(&self) -> FaultLatencies {
        self.latencies.snapshot()
    }

    /// Returns how many processes could not be restored.
    pub fn failures(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Ends all processes that are not complete, and takes no more: for a process that is about to end.
    ///
    /// ```
    /// use trueno_zram_restore::{Error, ProcessRestore, RestoreOptions};
    /// let restore = ProcessRestore::new(RestoreOptions::default())?;
    /// restore.end_all();
    /// assert!(matches!(restore.run(), Err(Error::ShuttingDown)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn end_all(&self) {
        let memories = {
            let mut dependents = self.lock_dependents();
            dependents.ending = true;
            std::mem::take(&mut dependents.memories)
        };
        // All at once, then one by one until they are gone. A process that has begun another program does not need this memory.
        let dependent = memories.iter().filter(|memory| !memory.is_gone());
        for process in dependent.filter_map(|memory| memory.process.as_ref()) {
            process.end();
        }
        for memory in &memories {
            memory.end();
        }
        self.shut_down.store(true, Ordering::Release);
        self.queue.end();
        self.wake.wake();
    }

    /// Returns `true` if [`end_all`](Self::end_all) is done: no handler is needed any more.
    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Returns `true` if [`end_all`](Self::end_all) was called.
    pub(super) fn is_shutting_down(&self) -> bool {
        self.lock_dependents().ending
    }

    /// Adds memory that depends on the handler. Returns `false` after [`end_all`](Self::end_all).
    pub(super) fn add_dependent(&self, memory: &Arc<ProcessMemory>) -> bool {
        let mut dependents = self.lock_dependents();
        if !dependents.ending {
            dependents.memories.push(Arc::clone(memory));
        }
        !dependents.ending
    }

    /// Removes memory that no longer depends on the handler.
    pub(super) fn remove_dependent(&self, memory: &Arc<ProcessMemory>) {
        self.lock_dependents().memories.retain(|other| !Arc::ptr_eq(other, memory));
    }

    /// Records that a process cannot be restored any further, and ends it.
    pub(super) fn fail(&self, memory: &ProcessMemory, error: Error) {
        if memory.set_lost() || self.is_shut_down() {
            return;
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
        (self.notify)(Notice::Failed { pid: memory.pid, error: &error });
        if let Some(process) = &memory.process {
            process.end();
        }
        self.wake.wake();
    }

    pub(super) fn lock_added(&self) -> MutexGuard<'_, Vec<Arc<ProcessMemory>>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_dependents(&self) -> MutexGuard<'_, Dependents> {
        self.dependents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProcessRestore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessRestore({:?})", self.options)
    }
}
