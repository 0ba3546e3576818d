//! A file that another program hands over.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::error::Error;
use crate::handshake::receive_piece;

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
    let mut fds = Vec::new();
    let received = match receive_piece(stream, &mut [0; 4096], &mut fds) {
        Err(Error::System { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
            return Err(Error::HandshakeTimeout { seconds: patience.as_secs() });
        }
        received => received?,
    };
    match fds.pop() {
        Some(fd) => Ok(fd.into()),
        None if received == 0 => Err(Error::HandshakeEnded { received }),
        None => Err(Error::NoFd),
    }
}
