//! The message of a VMM that connects: Firecracker's list of regions, and its userfaultfd.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use trueno_zram_connections::{deadline_after, receive, time_left};

use super::regions::Regions;
use crate::error::Error;
use crate::uffd::Userfaultfd;

/// Firecracker sends some 130 bytes per region and has a handful of them.
const MESSAGE_LIMIT: usize = 32 << 10;

/// The message and the descriptors that a process has sent so far.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    message: Vec<u8>,
    userfaultfds: Vec<Arc<Userfaultfd>>,
    /// Descriptions of the other file descriptors.
    others: Vec<String>,
    /// A file descriptor came for which there was no room, or of which nothing is known.
    is_fd_lost: bool,
}

impl Handshake {
    /// Receives the message. The list of regions may come in several pieces.
    pub(crate) fn receive(&mut self, connection: &UnixStream, timeout: Duration) -> Result<(), Error> {
        let deadline = deadline_after(timeout);
        let timed_out = || Error::HandshakeTimeout { seconds: timeout.as_secs() };
        loop {
            let left = time_left(deadline).map_err(|_| timed_out())?;
            let set = connection.set_read_timeout(Some(left));
            set.map_err(|source| Error::System { call: "setting a socket's timeout", source })?;
            match self.receive_piece(connection) {
                Ok(0) => return Err(Error::HandshakeEnded { received: self.message.len() }),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(timed_out()),
                Err(source) => return Err(Error::System { call: "recvmsg", source }),
            }
            if self.is_fd_lost {
                // The kernel drops descriptors beyond the limit of this process.
                return Err(Error::System { call: "receiving a file descriptor", source: Errno::MFILE.into() });
            }
            if self.message.len() > MESSAGE_LIMIT {
                return Err(Error::MessageTooLong { limit: MESSAGE_LIMIT });
            }
            match serde_json::from_slice::<serde::de::IgnoredAny>(&self.message) {
                Err(error) if error.is_eof() => {}
                Err(error) => return Err(Error::Message(error)),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Receives what is left on a connection that has been shut down: its file descriptors are closed with the connection otherwise.
    pub(crate) fn drain(&mut self, connection: &UnixStream) {
        while self.receive_piece(connection).is_ok_and(|len_bytes| len_bytes > 0) {}
    }

    fn receive_piece(&mut self, connection: &UnixStream) -> io::Result<usize> {
        let mut piece = [0; 4096];
        let received = receive(connection, &mut piece)?;
        self.message.extend_from_slice(&piece[..received.len_bytes]);
        self.is_fd_lost |= received.is_truncated;
        for fd in received.fds {
            match Userfaultfd::new(fd) {
                Ok(uffd) => self.userfaultfds.push(Arc::new(uffd)),
                Err(Error::NotUserfaultfd { what }) => self.others.push(what),
                Err(_) => self.is_fd_lost = true,
            }
        }
        Ok(received.len_bytes)
    }

    /// Returns the regions of a complete message.
    pub(crate) fn regions(&self, content_len: u64) -> Result<Regions, Error> {
        Regions::parse(&self.message, content_len)
    }

    /// Returns the userfaultfd, if nothing else came with the message.
    pub(crate) fn userfaultfd(&self) -> Result<Arc<Userfaultfd>, Error> {
        match (&self.userfaultfds[..], &self.others[..]) {
            ([uffd], []) => Ok(Arc::clone(uffd)),
            ([], [what]) => Err(Error::NotUserfaultfd { what: what.clone() }),
            ([], []) => Err(Error::NoFd),
            _ => Err(Error::ExtraFds),
        }
    }

    /// Returns all userfaultfds.
    pub(crate) fn userfaultfds(&self) -> &[Arc<Userfaultfd>] {
        &self.userfaultfds
    }

    /// Returns `true` if file descriptors have come.
    pub(crate) fn has_fds(&self) -> bool {
        self.needs_handler() || !self.others.is_empty()
    }

    /// Returns `true` if the sender would hang or see zeros without the handler, whatever its message says: it has sent a
    /// userfaultfd, or something that may have been one.
    pub(crate) fn needs_handler(&self) -> bool {
        !self.userfaultfds.is_empty() || self.is_fd_lost
    }
}
