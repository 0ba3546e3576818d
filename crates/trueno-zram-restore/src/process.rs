//! A process that depends on a handler: whether it runs, and its end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::Error;
use crate::socket::peer_process;

/// How long a process may take to end after SIGKILL.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A process, by a descriptor that never names another one.
#[derive(Debug)]
pub struct Process {
    process: OwnedFd,
}

impl Process {
    /// Opens the process at the other end of a connection.
    pub(crate) fn of_peer(connection: &UnixStream) -> Result<Self, Error> {
        Ok(Self { process: peer_process(connection).map_err(Error::Process)? })
    }

    /// Opens a process by its number.
    ///
    /// ```
    /// let process = trueno_zram_restore::Process::open(std::process::id())?;
    /// # drop(process);
    /// # Ok::<(), trueno_zram_restore::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Process`] if there is none.
    pub fn open(pid: u32) -> Result<Self, Error> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::Process(std::io::ErrorKind::NotFound.into()))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Error::Process(error.into()))?;
        Ok(Self { process })
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for the end of the process. Returns `false` if it still runs.
    pub(crate) fn ends_within(&self, patience: Duration) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let patience = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
        poll(&mut fds, Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    /// Ends the process. It would wait for ever for the next missing page.
    pub(crate) fn end(&self) {
        // Fails only if the process has ended already, or belongs to a user whom the handler may not signal.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// Ends the process, and waits until it has ended, so that it cannot see what happens to its memory next. Returns `false` if it
    /// still runs after some seconds.
    pub(crate) fn end_and_wait(&self) -> bool {
        self.end();
        self.ends_within(END_PATIENCE)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}
