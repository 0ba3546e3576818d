//! VMs that are restored from one archive.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use trueno_zram_core::PAGE_SIZE;

use crate::error::Error;
use crate::fill::{Fill, Plan};
use crate::gate::Gate;
use crate::handler::Handler;
use crate::handshake::Handshake;
use crate::listen::{Client, serve_at_most};
use crate::options::{Notice, Options, Report};
use crate::process::{END_PATIENCE, Process};
use crate::session::{Counters, Session};
use crate::source::PagesByNumber;
use crate::states::{FirstSeen, States};
use crate::touches::{Touches, WINDOW_PAGES};
use crate::uffd::Userfaultfd;

/// Restores VMs from one source of pages: several at the same time, each page when it is first touched.
///
/// A VMM that depends on the handler is ended (SIGKILL) if it cannot be served any longer: on an error, on a panic, and by
/// [`end_all`](Self::end_all). It would wait for ever for its next page otherwise.
///
/// ```no_run
/// use std::os::unix::net::UnixListener;
/// use trueno_zram_archive::SharedReader;
/// use trueno_zram_restore::{LazyRestore, Options};
///
/// let archive = SharedReader::open(std::fs::File::open("guest.mem.lz4")?)?.expect("it has an index");
/// let restore = LazyRestore::new(archive, Options::default());
/// let listener = UnixListener::bind("uffd.sock")?;
/// restore.serve_all(&listener, None, |ended| println!("{ended:?}"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LazyRestore<S> {
    source: S,
    options: Options,
    prefetch: Touches,
    touched: Option<FirstSeen>,
    notify: Box<dyn Fn(Notice<'_>) + Send + Sync>,
    dependents: Dependents,
}

impl<S: PagesByNumber> LazyRestore<S> {
    /// Restores from `source`.
    pub fn new(source: S, options: Options) -> Self {
        let notify = Box::new(|_: Notice<'_>| {});
        Self { source, options, prefetch: Touches::default(), touched: None, notify, dependents: Dependents::default() }
    }

    /// Restores these windows before all others, in this order.
    #[must_use]
    pub fn prefetch(mut self, touches: Touches) -> Self {
        self.prefetch = touches;
        self.restart_record();
        self
    }

    /// Records the order in which VMs touch their memory, behind the windows that are prefetched. Windows that the
    /// background fill restores before they are touched are not recorded.
    #[must_use]
    pub fn record(mut self) -> Self {
        let windows = self.source.len_bytes().div_ceil(WINDOW_PAGES * PAGE_SIZE as u64);
        self.touched = Some(FirstSeen::new(usize::try_from(windows).unwrap_or(usize::MAX)));
        self.restart_record();
        self
    }

    fn restart_record(&mut self) {
        if let Some(touched) = &self.touched {
            self.prefetch.order.iter().for_each(|window| touched.add(*window));
        }
    }

    /// Calls `notify` with what happens while VMs run.
    #[must_use]
    pub fn on_notice(mut self, notify: impl Fn(Notice<'_>) + Send + Sync + 'static) -> Self {
        self.notify = Box::new(notify);
        self
    }

    /// Returns what was recorded so far; `None` if nothing is recorded.
    pub fn recorded(&self) -> Option<Touches> {
        self.touched.as_ref().map(|touched| Touches { order: touched.order() })
    }

    /// Ends all VMMs that depend on the handler, and takes no more: for a process that is about to end.
    pub fn end_all(&self) {
        self.dependents.end_all();
    }

    /// Accepts VMMs and serves each on a thread of its own, up to `limit` of them and [`Options::vms_at_a_time`] at a time.
    /// Returns when all have ended; nobody can connect to the socket any more then.
    ///
    /// A connection without a message in time does not count as a VMM. If there are too many connections, the oldest of those
    /// leaves for the next one.
    ///
    /// # Errors
    /// If no connection can be accepted any more. Errors of single VMMs are passed to `ended`.
    pub fn serve_all(
        &self,
        listener: &UnixListener,
        limit: Option<usize>,
        ended: impl Fn(Result<Report, Error>) + Sync,
    ) -> io::Result<()> {
        let vms_at_a_time = self.options.vms_at_a_time;
        let crowded = || (self.notify)(Notice::Crowded { vms_at_a_time });
        let serve = |client: &Client<'_, _>| ended(self.serve_client(client.connection(), || client.establish()));
        serve_at_most(vms_at_a_time, listener, limit, serve, crowded)
    }

    /// Serves a VMM until it has ended.
    ///
    /// # Errors
    /// If the VMM's message is malformed, or it could not be served until its end. If it depends on the handler, it was
    /// ended.
    pub fn serve(&self, connection: &UnixStream) -> Result<Report, Error> {
        self.serve_client(connection, || true)
    }

    /// Serves a VMM. Calls `establish` once it has spoken, and gives it up if that returns `false`.
    fn serve_client(&self, connection: &UnixStream, establish: impl Fn() -> bool) -> Result<Report, Error> {
        let given_up = |error| if establish() { error } else { Error::Displaced };
        let vmm = Arc::new(Process::of_peer(connection).map_err(given_up)?);
        let handshake = Handshake::receive(connection, self.source.len_bytes(), self.options.handshake_timeout);
        let (regions, fd) = match (handshake.regions, handshake.fd) {
            (regions, Ok(fd)) => (regions, fd),
            // It was silent, and does not count as a VMM.
            (Err(error @ Error::HandshakeTimeout { .. }), Err(_)) => return Err(error),
            (Err(error), Err(_)) | (Ok(_), Err(error)) => return Err(given_up(error)),
        };
        let is_established = establish();
        // Closed after the VMM has ended: without it, the kernel fills with zeros what is missing.
        let uffd = Userfaultfd::new(fd)?;
        // From here on the VMM is ended unless all goes well.
        let dependent = self.dependents.add(&vmm)?;
        if !is_established {
            return Err(Error::Displaced);
        }
        let regions = regions?;
        uffd.prepare()?;
        let session = Session {
            uffd: &uffd,
            vmm: &vmm,
            states: States::new(regions.unit_count()),
            regions,
            gate: Gate::default(),
            source: &self.source,
            options: &self.options,
            touched: self.touched.as_ref(),
            notify: &*self.notify,
            counters: Counters::default(),
        };
        let memory_bytes = session.regions.len_bytes();
        (self.notify)(Notice::Connected { regions: session.regions.iter().count(), memory_bytes });
        let complete = self.run(&session, &dependent)?;
        dependent.release();
        Ok(session.counters.report(memory_bytes, complete))
    }

    /// Runs the handler and the workers of the background fill. Returns whether all memory was restored.
    fn run(&self, session: &Session<'_, S>, dependent: &Dependent<'_>) -> Result<bool, Error> {
        let fill_ended =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
        let workers = self.options.workers.get();
        let fill = Fill::new(Plan::new(session, &self.prefetch.order), workers);
        let (fill, fill_ended) = (&fill, &fill_ended);
        thread::scope(|threads| {
            let stop = StopFill(fill);
            for _ in 0..if fill.is_active() { workers } else { 0 } {
                let leave = LeaveFill { fill, fill_ended };
                let work = move || {
                    let _leave = leave;
                    fill.work(session);
                };
                // Where no thread can be started, `work` is dropped, and pages are restored when they are touched.
                let _ = thread::Builder::new().name("fill".into()).spawn_scoped(threads, work);
            }
            let result = Handler::new(session, fill, fill_ended).run(|| dependent.release());
            drop(stop);
            result
        })
    }
}

impl<S> fmt::Debug for LazyRestore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyRestore({:?}, {} windows to prefetch)", self.options, self.prefetch.windows())
    }
}

/// Ends the fill, also on a panic of the handler.
struct StopFill<'a>(&'a Fill);

impl Drop for StopFill<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Notes the end of a worker, also on a panic, and wakes the handler.
struct LeaveFill<'a> {
    fill: &'a Fill,
    fill_ended: &'a std::os::fd::OwnedFd,
}

impl Drop for LeaveFill<'_> {
    fn drop(&mut self) {
        self.fill.leave();
        // Fails only if the handler was told 2^64 times.
        let _ = rustix::io::write(self.fill_ended, &1u64.to_ne_bytes());
    }
}

/// The VMMs that would hang without the handler; `None` once the process is about to end.
#[derive(Debug)]
struct Dependents(Mutex<Option<Vec<Arc<Process>>>>);

impl Default for Dependents {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Dependents {
    fn add(&self, vmm: &Arc<Process>) -> Result<Dependent<'_>, Error> {
        if !self.try_add(vmm) {
            vmm.end_and_wait();
            return Err(Error::ShuttingDown);
        }
        Ok(Dependent { dependents: self, vmm: Arc::clone(vmm), is_released: Cell::new(false) })
    }

    /// Adds a VMM. Returns `false` if the process is about to end.
    fn try_add(&self, vmm: &Arc<Process>) -> bool {
        let mut vmms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        vmms.as_mut().map(|vmms| vmms.push(Arc::clone(vmm))).is_some()
    }

    fn end_all(&self) {
        let vmms = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let vmms = vmms.unwrap_or_default();
        // All get the signal before the first is waited for.
        let deadline = Instant::now() + END_PATIENCE;
        let ending: Vec<_> = vmms.iter().filter(|vmm| vmm.end()).collect();
        for vmm in ending {
            vmm.ends_within(deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn remove(&self, vmm: &Arc<Process>) {
        let mut vmms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vmms) = &mut *vmms {
            vmms.retain(|other| !Arc::ptr_eq(other, vmm));
        }
    }
}

/// A VMM that is ended when this is dropped, unless it was released before.
#[derive(Debug)]
struct Dependent<'a> {
    dependents: &'a Dependents,
    vmm: Arc<Process>,
    is_released: Cell<bool>,
}

impl Dependent<'_> {
    fn release(&self) {
        self.is_released.set(true);
        self.dependents.remove(&self.vmm);
    }
}

impl Drop for Dependent<'_> {
    fn drop(&mut self) {
        if !self.is_released.get() {
            // It may have been taken by `end_all`, and not have ended yet.
            self.dependents.remove(&self.vmm);
            self.vmm.end_and_wait();
        }
    }
}
