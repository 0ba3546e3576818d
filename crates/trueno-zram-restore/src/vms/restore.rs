//! VMs that are restored from one archive.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;

use trueno_zram_archive::Pages;
use trueno_zram_connections::{ClientConnection, ConnectionLimits, serve_each_within};
use trueno_zram_core::PAGE_SIZE;

use super::fill::BackgroundFill;
use super::handler::{Prover, VmHandler};
use super::proof::SessionProof;
use super::session::Session;
use super::touches::{TouchRecorder, Touches, WINDOW_PAGES};
use super::vmms::{ConnectedVmm, VmmSocket, Vmms};
use crate::disproofs::{self, Disproofs};
use crate::error::Error;
use crate::latency::{FaultLatencies, LatencyRecorder};
use crate::lazy_memory::LazyMemory;
use crate::on_drop::OnDrop;
use crate::options::RestoreOptions;
use crate::report::{Notice, RestoreReport};
use crate::unit_states::UnitStates;

/// Restores VMs from one source of pages: several at the same time, each page when it is first touched.
///
/// A VMM that has handed its userfaultfd over is ended (SIGKILL) if it cannot be served, or not any longer: on an error, on a panic,
/// by [`end_all`](Self::end_all), and if it still waits when serving ends. Otherwise it would wait forever for its next
/// page. If the memory belongs to another process, its missing pages are poisoned ([`Notice::Ended`]).
///
/// ```no_run
/// use std::os::unix::net::UnixListener;
/// use trueno_zram_archive::Archive;
/// use trueno_zram_restore::{LazyRestore, RestoreOptions};
///
/// let restore = LazyRestore::new(Archive::open("guest.mem.lz4")?, RestoreOptions::default());
/// let listener = UnixListener::bind("uffd.sock")?;
/// restore.serve_all(&listener, None, |ended| println!("{ended:?}"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LazyRestore {
    source: Arc<dyn Pages>,
    options: RestoreOptions,
    prefetch: Touches,
    recorder: Option<TouchRecorder>,
    vmms: Vmms,
    disproofs: Disproofs,
    latencies: LatencyRecorder,
}

impl LazyRestore {
    /// Restores from `source`.
    ///
    /// ```
    /// use trueno_zram_restore::{Image, LazyRestore, RestoreOptions};
    /// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
    /// assert!(restore.recorded().is_none());
    /// ```
    pub fn new(source: impl Pages + 'static, options: RestoreOptions) -> Self {
        let source = Arc::new(source);
        Self {
            source,
            options,
            prefetch: Touches::default(),
            recorder: None,
            vmms: Vmms::default(),
            disproofs: Disproofs::default(),
            latencies: LatencyRecorder::default(),
        }
    }

    /// Restores these windows before all others, in this order.
    ///
    /// ```
    /// use trueno_zram_restore::{Image, LazyRestore, RestoreOptions, Touches};
    /// let touches = Touches::read("trueno-zram touches 1\n16\n".as_bytes())?;
    /// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default()).prefetch(touches).record();
    /// assert_eq!(restore.recorded().map(|touches| touches.windows()), Some(1));
    /// # Ok::<(), trueno_zram_restore::Error>(())
    /// ```
    #[must_use]
    pub fn prefetch(mut self, touches: Touches) -> Self {
        self.prefetch = touches;
        self.record_prefetched();
        self
    }

    /// Records the order in which VMs touch their memory, behind the windows that are prefetched. Windows that the
    /// background fill restores before they are touched are not recorded.
    ///
    /// ```
    /// use trueno_zram_restore::{Image, LazyRestore, RestoreOptions};
    /// let options = RestoreOptions::default().with_background_fill(false);
    /// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), options).record();
    /// assert_eq!(restore.recorded().map(|touches| touches.windows()), Some(0));
    /// ```
    #[must_use]
    pub fn record(mut self) -> Self {
        let windows = self.source.len_bytes().div_ceil(WINDOW_PAGES * PAGE_SIZE as u64);
        self.recorder = Some(TouchRecorder::new(usize::try_from(windows).unwrap_or(usize::MAX)));
        self.record_prefetched();
        self
    }

    fn record_prefetched(&mut self) {
        if let Some(recorder) = &self.recorder {
            self.prefetch.order.iter().for_each(|window| recorder.record(*window));
        }
    }

    /// Calls `notify` with each event of a VM.
    ///
    /// ```
    /// use trueno_zram_restore::{Image, LazyRestore, Notice, RestoreOptions};
    /// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default()).on_notice(|notice| {
    ///     if let Notice::Poisoned { page, error } = notice {
    ///         eprintln!("page {page}: {error}");
    ///     }
    /// });
    /// # drop(restore);
    /// ```
    #[must_use]
    pub fn on_notice(mut self, notify: impl Fn(Notice<'_>) + Send + Sync + 'static) -> Self {
        self.vmms.notify = Box::new(notify);
        self
    }

    /// Returns what was recorded so far; `None` if nothing is recorded.
    pub fn recorded(&self) -> Option<Touches> {
        self.recorder.as_ref().map(TouchRecorder::touches)
    }

    /// Returns the latencies of the faults of all VMs so far. The example of [`FaultLatencies`] asks for some.
    #[must_use]
    pub fn latencies(&self) -> FaultLatencies {
        self.latencies.snapshot()
    }

    /// Ends all VMMs that depend on the handler, and takes no more: for a process that is about to end. That includes those that have
    /// connected and wait to be served.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use trueno_zram_restore::{Error, Image, LazyRestore, RestoreOptions};
    /// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
    /// restore.end_all();
    /// let refused = restore.serve(&UnixStream::pair()?.0);
    /// assert!(matches!(refused, Err(Error::ShuttingDown)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn end_all(&self) {
        self.vmms.end_all();
    }

    /// Makes [`end_all`](Self::end_all) end the VMMs that connect to a socket before [`serve_all`](Self::serve_all) is called with it.
    /// The socket need not listen yet. It becomes non-blocking.
    ///
    /// ```no_run
    /// # use trueno_zram_restore::{Image, LazyRestore, RestoreOptions};
    /// # let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
    /// use std::os::fd::AsFd;
    /// let listener = std::os::unix::net::UnixListener::bind("uffd.sock")?;
    /// restore.adopt_socket(listener.as_fd())?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn adopt_socket(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.vmms.adopt(socket).map(drop)
    }

    /// Accepts VMMs and serves each on a thread of its own, up to `limit` of them and [`RestoreOptions::vms_at_a_time`] at a time.
    /// Returns when all have ended, or after [`end_all`](Self::end_all); the socket then accepts no more connections. VMMs
    /// that have connected by then and were not served are ended. The socket becomes non-blocking.
    ///
    /// A connection without a message in time does not count as a VMM. If there are too many connections, the oldest of these
    /// is closed to make room for the next.
    ///
    /// ```no_run
    /// # use trueno_zram_restore::{Image, LazyRestore, RestoreOptions};
    /// # let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
    /// let listener = std::os::unix::net::UnixListener::bind("uffd.sock")?;
    /// restore.serve_all(&listener, Some(1), |ended| match ended {
    ///     Ok(report) => println!("{} faults", report.faults),
    ///     Err(error) => eprintln!("{error}"),
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no connection can be accepted any more. Errors of single VMMs are passed to `ended`.
    pub fn serve_all(
        &self,
        listener: &UnixListener,
        limit: Option<usize>,
        ended: impl Fn(Result<RestoreReport, Error>) + Sync,
    ) -> io::Result<()> {
        let vms_at_a_time = self.options.vms_at_a_time;
        let crowded = || (self.vmms.notify)(Notice::Crowded { vms_at_a_time });
        let serve =
            |client: &ClientConnection<'_, _>| ended(self.serve_client(client.connection(), || client.establish()));
        let socket = VmmSocket::new(&self.vmms, listener)?;
        let limits = ConnectionLimits::new(vms_at_a_time.get()).with_total(limit);
        match serve_each_within(limits, &socket, serve, crowded) {
            Err(_) if self.vmms.is_closed() => Ok(()),
            served => served,
        }
    }

    /// Serves a VMM until it has ended.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use trueno_zram_restore::{Error, Image, LazyRestore, RestoreOptions};
    /// let restore = LazyRestore::new(Image::new(vec![[7; 4096]; 32]), RestoreOptions::default());
    /// let (vmm, ours) = UnixStream::pair()?;
    /// drop(vmm);
    /// assert!(matches!(restore.serve(&ours), Err(Error::HandshakeEnded { received: 0 })));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the VMM's message is malformed, or it could not be served until its end. If it depends on the handler, it was
    /// ended.
    pub fn serve(&self, connection: &UnixStream) -> Result<RestoreReport, Error> {
        let clone = connection.try_clone().map_err(|source| Error::System { call: "duplicating a socket", source })?;
        self.serve_client(&self.vmms.add(clone)?, || true)
    }

    /// Serves a VMM. Calls `establish` once it has spoken, and gives it up if that returns `false`.
    fn serve_client(&self, vmm: &ConnectedVmm<'_>, establish: impl Fn() -> bool) -> Result<RestoreReport, Error> {
        let served = self.serve_connected(vmm, establish);
        vmm.end();
        served
    }

    fn serve_connected(&self, vmm: &ConnectedVmm<'_>, establish: impl Fn() -> bool) -> Result<RestoreReport, Error> {
        let (regions, uffd) = vmm.receive(|handshake, connection| {
            let received = handshake.receive(connection, self.options.handshake_timeout);
            // Silent connections do not count as VMMs.
            let is_silent = matches!(received, Err(Error::HandshakeTimeout { .. })) && !handshake.has_fds();
            if !is_silent && !establish() {
                return Err(Error::Displaced);
            }
            received?;
            Ok((handshake.regions(self.source.len_bytes())?, handshake.userfaultfd()?))
        })??;
        uffd.prepare_for_vm()?;
        let session = Session {
            lazy: LazyMemory::new(uffd, Arc::clone(&self.source), UnitStates::new(regions.unit_count())),
            vmm: vmm.process()?,
            regions,
            options: &self.options,
            recorder: self.recorder.as_ref(),
            notify: &*self.vmms.notify,
            proof: SessionProof::new(&self.options),
            disproofs: &self.disproofs,
            latencies: LatencyRecorder::default(),
            latencies_of_all: &self.latencies,
        };
        let memory_bytes = session.regions.len_bytes();
        (session.notify)(Notice::Connected { regions: session.regions.iter().count(), memory_bytes });
        let complete = self.run(&session, vmm)?;
        vmm.release();
        let mut report = RestoreReport { memory_bytes, complete, ..RestoreReport::default() };
        // The VM has ended. Was it shown what was saved?
        report.unproven = !complete && !disproofs::prove_remaining(&*self.source, || self.vmms.is_closed());
        self.disproofs.refresh(&*self.source);
        report.disproven_pages = session.restored_disproven();
        report.latencies = session.latencies.snapshot();
        session.lazy.counters.add_to(&mut report);
        Ok(report)
    }

    /// Runs the handler and the workers of the background fill. Returns `true` if all memory was restored.
    fn run(&self, session: &Session<'_>, vmm: &ConnectedVmm<'_>) -> Result<bool, Error> {
        let workers = self.options.workers.get();
        let fill = &BackgroundFill::new(session, &self.prefetch.order, workers)?;
        self.disproofs.add_handler(&fill.ended);
        self.disproofs.refresh(&*self.source);
        thread::scope(|threads| {
            let _stop = OnDrop(|| {
                fill.stop();
                session.proof.background.end();
            });
            let prove = || session.prove(&fill.ended);
            let has_thread = thread::Builder::new().name("proof".into()).spawn_scoped(threads, prove).is_ok();
            let prover = if has_thread { Prover::Thread } else { Prover::Handler };
            for _ in 0..if fill.is_active() { workers } else { 0 } {
                let leave = OnDrop(|| fill.leave());
                let work = move || {
                    let _leave = leave;
                    fill.work();
                };
                // If no thread can be started, `work` is dropped, and pages are restored when they are touched.
                let _ = thread::Builder::new().name("fill".into()).spawn_scoped(threads, work);
            }
            VmHandler::new(session, fill, vmm, prover).run()
        })
    }
}

impl fmt::Debug for LazyRestore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyRestore({:?}, {} windows to prefetch)", self.options, self.prefetch.windows())
    }
}
