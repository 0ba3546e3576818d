//! Where a server listens: a unix socket or a TCP address.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The address of a server.
///
/// ```
/// use trueno_zram_serve::Endpoint;
/// let endpoint: Endpoint = "unix:/run/ram.sock".parse()?;
/// assert_eq!(endpoint.to_string(), "unix:/run/ram.sock");
/// assert!("tcp:127.0.0.1:10809".parse::<Endpoint>().is_ok());
/// assert!("ftp:example".parse::<Endpoint>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket with this path.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let Some(address) = text.strip_prefix("tcp:") else {
            return Err(format!("`{text}` is neither unix:PATH nor tcp:HOST:PORT"));
        };
        let mut found = address.to_socket_addrs().map_err(|error| format!("`{address}`: {error}"))?;
        found.next().map(Self::Tcp).ok_or_else(|| format!("`{address}` has no address"))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// A listening socket. The path of a unix socket is removed when it is dropped.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    pub(crate) fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Unix(path) => Ok(Self::Unix(bind_unix(path)?, path.clone())),
            Endpoint::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address)?)),
        }
    }

    /// The address, with the port that was chosen if it was 0.
    pub(crate) fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Unix(_, path) => Ok(Endpoint::Unix(path.clone())),
            Self::Tcp(listener) => listener.local_addr().map(Endpoint::Tcp),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Replies are batched already.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Makes the present and all later calls of `accept` return an error.
    pub(crate) fn stop(&self) {
        // It fails only where the socket does not listen, and then there is nothing to stop.
        let _ = rustix::net::shutdown(self.as_fd(), rustix::net::Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Someone else may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Binds a unix socket. A socket that a dead server left behind is replaced, one that is in use is not.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if is_socket && UnixStream::connect(path).err().is_some_and(refused) {
                std::fs::remove_file(path)?;
                return UnixListener::bind(path);
            }
            Err(error)
        }
        bound => bound,
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    pub(crate) fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    /// Limits how long a client may take to read replies.
    pub(crate) fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(time),
            Self::Tcp(stream) => stream.set_write_timeout(time),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
