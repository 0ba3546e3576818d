//! The message of a VMM that connects: Firecracker's list of regions, and its userfaultfd.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::Error;
use crate::regions::Regions;
use crate::socket::receive;

/// Firecracker sends some 130 bytes per region and has a handful of them.
const MESSAGE_LIMIT: usize = 32 << 10;

/// What a VMM sent: its regions, or what is wrong with them, and the file descriptors that came with them.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) regions: Result<Regions, Error>,
    /// The file descriptor. The VMM depends on the handler if it is a userfaultfd, whatever the message says.
    pub(crate) fd: Result<OwnedFd, Error>,
}

impl Handshake {
    /// Receives the message. The list of regions may come in several pieces.
    pub(crate) fn receive(connection: &UnixStream, content_len: u64, patience: Duration) -> Self {
        let mut fds = Vec::new();
        let regions =
            receive_message(connection, &mut fds, patience).and_then(|message| Regions::parse(&message, content_len));
        let fd = match fds.len() {
            0 => Err(Error::NoFd),
            1 => fds.pop().ok_or(Error::NoFd),
            _ => Err(Error::ExtraFds),
        };
        Self { regions, fd }
    }
}

/// Reads until the JSON is complete.
fn receive_message(connection: &UnixStream, fds: &mut Vec<OwnedFd>, patience: Duration) -> Result<Vec<u8>, Error> {
    let deadline = Instant::now() + patience;
    let timeout = || Error::HandshakeTimeout { seconds: patience.as_secs() };
    let (mut message, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timeout());
        }
        let set = connection.set_read_timeout(Some(left));
        set.map_err(|source| Error::System { call: "setting a socket's timeout", source })?;
        let len = match receive_piece(connection, &mut piece, fds) {
            Ok(len) => len,
            Err(Error::System { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(timeout());
            }
            Err(error) => return Err(error),
        };
        if len == 0 {
            return Err(Error::HandshakeEnded { received: message.len() });
        }
        message.extend_from_slice(&piece[..len]);
        match serde_json::from_slice::<serde::de::IgnoredAny>(&message) {
            Err(error) if error.is_eof() && message.len() <= MESSAGE_LIMIT => {}
            Err(error) if error.is_eof() => return Err(Error::MessageTooLong { limit: MESSAGE_LIMIT }),
            _ if message.len() > MESSAGE_LIMIT => return Err(Error::MessageTooLong { limit: MESSAGE_LIMIT }),
            Err(error) => return Err(Error::Message(error)),
            Ok(_) => return Ok(message),
        }
    }
}

pub(crate) fn receive_piece(connection: &UnixStream, piece: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<usize, Error> {
    let received = receive(connection, piece).map_err(|source| Error::System { call: "recvmsg", source })?;
    if received.is_truncated && received.fds.is_empty() {
        // The kernel drops what this process has no number left for.
        return Err(Error::System { call: "receiving a file descriptor", source: Errno::MFILE.into() });
    }
    fds.extend(received.fds);
    if received.is_truncated || fds.len() > 1 {
        return Err(Error::ExtraFds);
    }
    Ok(received.len_bytes)
}
