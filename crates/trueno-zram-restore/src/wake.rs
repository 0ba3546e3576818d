//! Waiting for descriptors, and waking a thread that does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::error::Error;

/// Wakes a thread that waits for this descriptor.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
        Ok(Self(fd))
    }

    pub(crate) fn wake(&self) {
        // Fails only if the thread was woken 2^64 times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Forgets that the thread was woken.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until a descriptor is ready, for at most this long. A signal ends the wait early.
pub(crate) fn wait_for(fds: &mut [PollFd<'_>], time: Option<&Timespec>) -> Result<(), Error> {
    match poll(fds, time) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::system("poll")(error)),
    }
}
