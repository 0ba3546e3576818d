//! The process of a VMM: whether it runs, and its end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use crate::error::Error;
use crate::uffd::peer_process;

/// The process at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Vmm {
    process: OwnedFd,
}

impl Vmm {
    pub(crate) fn of(connection: &UnixStream) -> Result<Self, Error> {
        Ok(Self { process: peer_process(connection).map_err(Error::Process)? })
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Ends the process. It would wait for ever for the next missing page.
    pub(crate) fn end(&self) {
        // Fails only if the process has ended already, or belongs to a user whom the handler may not signal.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }
}

impl AsFd for Vmm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}
