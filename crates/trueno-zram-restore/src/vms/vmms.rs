//! The VMMs that have connected, their handshakes, and SIGKILL for those that cannot be served to their end.
//!
//! A VMM that has handed its userfaultfd over waits forever for its next page, or sees zeros once the userfaultfd is closed. So it is
//! ended (SIGKILL), unless it was released: on an error, on a panic, and in the queue of a socket that is no longer served,
//! whether its message was read or not. A process that has handed nothing over is disconnected, and left alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use trueno_zram_connections::{Disconnect, Listen, stop_accepting};

use super::handshake::Handshake;
use super::regions::{Region, Regions};
use crate::error::Error;
use crate::event::Events;
use crate::process_handle::{END_TIMEOUT, Process};
use crate::report::{Ending, Notice, Notify};
use crate::uffd::{PROBE_ADDRESS, Userfaultfd};

/// All VMMs that are connected, and the sockets that they connect to.
pub(crate) struct Vmms {
    state: Mutex<VmmsState>,
    /// Receives notices while VMs run.
    pub(crate) notify: Box<Notify>,
}

#[derive(Debug, Default)]
struct VmmsState {
    /// The process is about to end.
    is_closed: bool,
    sockets: Vec<Arc<UnixListener>>,
    vmms: Vec<Arc<Vmm>>,
}

impl Default for Vmms {
    fn default() -> Self {
        Self { state: Mutex::default(), notify: Box::new(|_| {}) }
    }
}

impl Vmms {
    /// Makes [`end_all`](Self::end_all) end the VMMs that connect to a socket, which may not listen yet.
    pub(crate) fn adopt(&self, socket: BorrowedFd<'_>) -> io::Result<Arc<UnixListener>> {
        let socket = Arc::new(UnixListener::from(socket.try_clone_to_owned()?));
        // The kernel must not wait for a connection while the state is locked.
        socket.set_nonblocking(true)?;
        let mut state = self.lock();
        state.sockets.push(Arc::clone(&socket));
        if state.is_closed {
            shutdown(&*socket, Shutdown::Both)?;
        }
        Ok(socket)
    }

    /// Adds a VMM. If the process is about to end, the VMM is ended.
    pub(crate) fn add(&self, connection: UnixStream) -> Result<ConnectedVmm<'_>, Error> {
        let (connected, is_closed) = self.lock().add(self, connection);
        if is_closed { Err(Error::ShuttingDown) } else { Ok(connected) }
    }

    /// Returns `true` if the process is about to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Ends all VMMs that need the handler, also those that wait in the queues of the sockets. The sockets accept no more connections.
    pub(crate) fn end_all(&self) {
        let vmms = {
            let mut state = self.lock();
            let VmmsState { is_closed, sockets, vmms } = &mut *state;
            *is_closed = true;
            for socket in &*sockets {
                stop_accepting(&**socket);
                vmms.extend(std::iter::from_fn(|| socket.accept().ok()).map(|(queued, _)| Arc::new(Vmm::new(queued))));
            }
            std::mem::take(vmms)
        };
        // Threads that wait for a message stop at once.
        vmms.iter().for_each(|vmm| vmm.connection.disconnect());
        // All get the signal before the first is waited for.
        vmms.iter().for_each(|vmm| vmm.signal());
        let deadline = Instant::now() + END_TIMEOUT;
        for ending in vmms.iter().filter_map(|vmm| vmm.end(deadline)).filter(|ending| *ending != Ending::Killed) {
            (self.notify)(Notice::Ended(ending));
        }
    }

    fn lock(&self) -> MutexGuard<'_, VmmsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VmmsState {
    /// Adds a VMM. Returns it, and whether it must be dropped, without the lock, since the process is about to end.
    fn add<'a>(&mut self, vmms: &'a Vmms, connection: UnixStream) -> (ConnectedVmm<'a>, bool) {
        let vmm = Arc::new(Vmm::new(connection));
        self.vmms.push(Arc::clone(&vmm));
        (ConnectedVmm { vmms, vmm }, self.is_closed)
    }
}

/// A socket that VMMs connect to. Each of them is known to [`Vmms`] from the moment that it is accepted.
pub(crate) struct VmmSocket<'a> {
    vmms: &'a Vmms,
    socket: Arc<UnixListener>,
}

impl<'a> VmmSocket<'a> {
    pub(crate) fn new(vmms: &'a Vmms, listener: &UnixListener) -> io::Result<Self> {
        Ok(Self { vmms, socket: vmms.adopt(listener.as_fd())? })
    }
}

impl AsFd for VmmSocket<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<'a> Listen for VmmSocket<'a> {
    type Connection = ConnectedVmm<'a>;

    fn accept(&self) -> io::Result<ConnectedVmm<'a>> {
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            poll(&mut fds, None)?;
            let is_shut = fds[0].revents().contains(PollFlags::HUP);
            let mut state = self.vmms.lock();
            match self.socket.accept() {
                Ok((connection, _)) => {
                    let (connected, is_closed) = state.add(self.vmms, connection);
                    drop(state);
                    if !is_closed {
                        return Ok(connected);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_shut => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for VmmSocket<'_> {
    fn drop(&mut self) {
        self.vmms.lock().sockets.retain(|socket| !Arc::ptr_eq(socket, &self.socket));
    }
}

/// A VMM that is ended when this is dropped, if it needs the handler.
pub(crate) struct ConnectedVmm<'a> {
    vmms: &'a Vmms,
    vmm: Arc<Vmm>,
}

impl ConnectedVmm<'_> {
    /// Returns the process at the other end.
    pub(crate) fn process(&self) -> Result<&Process, Error> {
        let found = self.vmm.process.as_ref();
        found.map_err(|error| {
            Error::Process(error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error))
        })
    }

    /// Receives its message with `receive`, and returns the result.
    ///
    /// # Errors
    /// [`Error::ShuttingDown`] if it was given up meanwhile.
    pub(crate) fn receive<T>(&self, receive: impl FnOnce(&mut Handshake, &UnixStream) -> T) -> Result<T, Error> {
        let mut handover = self.vmm.lock();
        let result = receive(&mut handover.handshake, &self.vmm.connection);
        if handover.is_settled || self.vmms.is_closed() { Err(Error::ShuttingDown) } else { Ok(result) }
    }

    /// Records that the VMM does not need the handler any longer.
    pub(crate) fn release(&self) {
        self.vmm.lock().is_settled = true;
    }

    /// Ends the VMM if it needs the handler.
    pub(crate) fn end(&self) {
        if let Some(ending) = self.vmm.end(Instant::now() + END_TIMEOUT) {
            (self.vmms.notify)(Notice::Ended(ending));
        }
    }
}

impl Disconnect for ConnectedVmm<'_> {
    fn disconnect(&self) {
        self.vmm.connection.disconnect();
    }
}

impl Drop for ConnectedVmm<'_> {
    fn drop(&mut self) {
        self.end();
        self.vmms.lock().vmms.retain(|vmm| !Arc::ptr_eq(vmm, &self.vmm));
    }
}

/// A process that has connected.
#[derive(Debug)]
struct Vmm {
    connection: UnixStream,
    process: io::Result<Process>,
    /// Locked while its message is received.
    handover: Mutex<Handover>,
}

#[derive(Debug, Default)]
struct Handover {
    handshake: Handshake,
    /// The VMM does not need the handler any longer, or was given up.
    is_settled: bool,
}

impl Vmm {
    fn new(connection: UnixStream) -> Self {
        Self { process: Process::of_peer(&connection), connection, handover: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Handover> {
        self.handover.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disconnects the process, and receives what it has sent. Nothing can come after that. Returns `None` if it does not need the handler.
    fn stop(&self) -> Option<MutexGuard<'_, Handover>> {
        self.connection.disconnect();
        // Threads that receive a message of it stop now.
        let mut handover = self.lock();
        handover.handshake.drain(&self.connection);
        (!handover.is_settled && handover.handshake.needs_handler()).then_some(handover)
    }

    /// Sends the process SIGKILL if it needs the handler.
    fn signal(&self) {
        if let (Some(_), Ok(process)) = (self.stop(), &self.process) {
            process.end();
        }
    }

    /// Makes sure that no process sees zeros once the userfaultfd is closed, and that none waits for it forever. Returns what was done
    /// for that; `None` if the process did not need the handler.
    fn end(&self, deadline: Instant) -> Option<Ending> {
        let mut handover = self.stop()?;
        handover.is_settled = true;
        let has_ended = self.process.as_ref().is_ok_and(|process| {
            process.end();
            process.ends_within(deadline.saturating_duration_since(Instant::now()))
        });
        // Even if the message does not fit the archive, memory may be missing.
        let regions = handover.handshake.regions(u64::MAX).ok();
        let uffds = handover.handshake.userfaultfds();
        if has_ended && uffds.iter().all(|uffd| is_gone(uffd, regions.as_ref())) {
            return Some(Ending::Killed);
        }
        // The process must not be signalled, or the memory belongs to another one.
        let regions: Vec<&Region> = regions.iter().flat_map(Regions::iter).collect();
        let is_poisoned = !regions.is_empty()
            && !uffds.is_empty()
            && uffds.iter().all(|uffd| regions.iter().all(|region| poison_missing(uffd, region, deadline)));
        Some(if is_poisoned { Ending::Poisoned } else { Ending::Unprotected })
    }
}

/// Returns `true` if no process has the memory of a userfaultfd any more. Returns `false` if that is unknown.
fn is_gone(uffd: &Userfaultfd, regions: Option<&Regions>) -> bool {
    regions.is_none_or(|regions| regions.find(PROBE_ADDRESS).is_none()) && uffd.is_gone()
}

/// Makes every access to missing pages of a region fail. Returns `false` if the kernel cannot do that.
fn poison_missing(uffd: &Userfaultfd, region: &Region, deadline: Instant) -> bool {
    // A process that changes its memory waits until the event is read. The userfaultfd may have been made to wait for events.
    let mut events = Events::new();
    let can_read = uffd.set_nonblocking().is_ok();
    region.units().all(|unit| {
        let address = region.address_of(unit);
        loop {
            match uffd.poison(address, region.unit_len).stopped {
                None | Some(Errno::SRCH) => return true,
                Some(Errno::EXIST | Errno::NOENT) => {
                    let _ = uffd.wake(address, region.unit_len);
                    return true;
                }
                Some(Errno::AGAIN) if can_read && Instant::now() < deadline => {
                    let _ = events.read(uffd);
                    std::thread::yield_now();
                }
                Some(_) => return false,
            }
        }
    })
}
