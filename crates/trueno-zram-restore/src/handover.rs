//! A file that another program hands over.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use trueno_zram_connections::{Received, receive};

use crate::error::Error;

/// Receives one file descriptor over a Unix socket: any message of up to 4096 bytes, with the file as `SCM_RIGHTS`.
///
/// ```no_run
/// # let stream = std::os::unix::net::UnixStream::connect("socket")?;
/// let file = trueno_zram_restore::receive_file(&stream, std::time::Duration::from_secs(10))?;
/// println!("{} bytes to fill", file.metadata()?.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::NoFd`] and [`Error::ExtraFds`] if there is none or more than one; [`Error::HandshakeTimeout`];
/// [`Error::HandshakeEnded`]; [`Error::System`].
pub fn receive_file(stream: &UnixStream, patience: Duration) -> Result<File, Error> {
    let set = stream.set_read_timeout(Some(patience));
    set.map_err(|source| Error::System { call: "setting a socket's timeout", source })?;
    let Received { len_bytes, mut fds, is_truncated, .. } =
        receive(stream, &mut [0; 4096]).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => Error::HandshakeTimeout { seconds: patience.as_secs() },
            _ => Error::System { call: "recvmsg", source },
        })?;
    match fds.pop() {
        _ if is_truncated => Err(Error::fd_lost()),
        Some(_) if !fds.is_empty() => Err(Error::ExtraFds),
        Some(fd) => Ok(fd.into()),
        None if len_bytes == 0 => Err(Error::HandshakeEnded { received: 0 }),
        None => Err(Error::NoFd),
    }
}
