//! Ends a process that depends on a handler, and waits for its end, through a pidfd.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use trueno_zram_connections::peer_process;

use crate::error::Error;
use crate::uffd::Userfaultfd;

/// The time that a process may take to end after SIGKILL.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A process, held by a pidfd, which never refers to another process even if the number is reused.
///
/// ```
/// use trueno_zram_restore::{Error, Process};
/// assert!(Process::open(std::process::id()).is_ok());
/// assert!(matches!(Process::open(0), Err(Error::Process(_))));
/// ```
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
}

impl Process {
    /// Opens the process at the other end of a connection.
    pub(crate) fn of_peer(connection: &UnixStream) -> io::Result<Self> {
        Ok(Self { pidfd: peer_process(connection)? })
    }

    /// Opens a process by its number. The example of [`Process`] opens one.
    ///
    /// # Errors
    /// [`Error::Process`] if there is none.
    pub fn open(pid: u32) -> Result<Self, Error> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::Process(io::ErrorKind::NotFound.into()))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Error::Process(error.into()))?;
        Ok(Self { pidfd })
    }

    /// Ends a process (SIGKILL) that was handed over with its userfaultfd, but cannot be restored. The userfaultfd is closed after
    /// that, since the process would see zeros. Nothing happens if `uffd` is something else.
    ///
    /// ```no_run
    /// # fn handed_over() -> std::os::fd::OwnedFd { unimplemented!() }
    /// trueno_zram_restore::Process::open(42)?.end_before_closing(handed_over());
    /// # Ok::<(), trueno_zram_restore::Error>(())
    /// ```
    pub fn end_before_closing(&self, uffd: OwnedFd) {
        if let Ok(uffd) = Userfaultfd::new(uffd) {
            self.end_and_wait();
            drop(uffd);
        }
    }

    /// Returns `true` if the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for the end of the process. Returns `false` if it still runs.
    pub(crate) fn ends_within(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut fds, Some(&left)) {
                Err(Errno::INTR) => {}
                polled => return polled.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Ends the process. It would wait forever for the next missing page. Returns `false` if it belongs to a user whom the handler may
    /// not signal.
    pub(crate) fn end(&self) -> bool {
        pidfd_send_signal(&self.pidfd, Signal::KILL) != Err(Errno::PERM)
    }

    /// Ends the process, and waits until it has ended, so that it cannot see what happens to its memory next. Returns `false` if it
    /// still runs after some seconds, or cannot be ended.
    pub(crate) fn end_and_wait(&self) -> bool {
        self.ends_within(if self.end() { END_TIMEOUT } else { Duration::ZERO })
    }

    /// Returns `true` if the process has more than one thread, or may have.
    pub(crate) fn has_more_threads(&self) -> bool {
        self.thread_count().is_none_or(|threads| threads > 1)
    }

    fn thread_count(&self) -> Option<u64> {
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.pidfd.as_raw_fd())).ok()?;
        let pid: u32 = field(&about, "Pid:")?;
        field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "Threads:")
    }
}

/// Returns the value of a field in a file of `/proc`.
fn field<T: FromStr>(text: &str, name: &str) -> Option<T> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_process_are_counted() {
        let this = Process::open(std::process::id()).unwrap();
        std::thread::scope(|threads| {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            threads.spawn(move || ended.recv());
            assert!(this.has_more_threads());
            drop(end);
        });
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert_eq!(process.thread_count(), Some(1));
        assert!(process.end_and_wait());
        child.wait().unwrap();
        assert!(process.has_more_threads(), "nothing is known of it any more");
    }
}
