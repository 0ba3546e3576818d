//! The address of a server, a unix socket or a TCP address, and its sockets.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use trueno_zram_connections::Disconnect;
use trueno_zram_io::UnixSocket;

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

impl Endpoint {
    /// Returns `true` if clients on other machines may reach it.
    ///
    /// ```
    /// # use trueno_zram_serve::Endpoint;
    /// assert!("tcp:0.0.0.0:10809".parse::<Endpoint>()?.is_remote());
    /// assert!(!"tcp:[::1]:10809".parse::<Endpoint>()?.is_remote());
    /// # Ok::<(), String>(())
    /// ```
    #[must_use]
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tcp(address) => !address.ip().to_canonical().is_loopback(),
        }
    }
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

/// A listening socket. Dropping it removes the path of a unix socket, unless another server has replaced it.
#[derive(Debug)]
pub(crate) enum SocketListener {
    Unix(UnixSocket),
    Tcp(TcpListener),
}

impl SocketListener {
    /// Listens. Only the owner may connect to a unix socket; [`UnixSocket::bind`] has the rest.
    pub(crate) fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Unix(path) => UnixSocket::bind(path).map(Self::Unix),
            Endpoint::Tcp(address) => TcpListener::bind(address).map(Self::Tcp),
        }
    }

    /// Returns the address, with the port that the system chose if it was 0.
    pub(crate) fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Self::Unix(socket) => Ok(Endpoint::Unix(socket.path().to_owned())),
            Self::Tcp(listener) => listener.local_addr().map(Endpoint::Tcp),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<SocketStream> {
        match self {
            Self::Unix(socket) => socket.listener().accept().map(|(stream, _)| SocketStream::Unix(stream)),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Replies are batched already.
                stream.set_nodelay(true)?;
                Ok(SocketStream::Tcp(stream))
            }
        }
    }
}

impl AsFd for SocketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum SocketStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl SocketStream {
    /// Limits how long a read may wait for the client.
    pub(crate) fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(time),
            Self::Tcp(stream) => stream.set_read_timeout(time),
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

impl AsFd for SocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Disconnect for SocketStream {
    fn disconnect(&self) {
        match self {
            Self::Unix(stream) => stream.disconnect(),
            Self::Tcp(stream) => stream.disconnect(),
        }
    }
}

impl Read for &SocketStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            SocketStream::Unix(stream) => (&mut &*stream).read(bytes),
            SocketStream::Tcp(stream) => (&mut &*stream).read(bytes),
        }
    }
}

impl Write for &SocketStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            SocketStream::Unix(stream) => (&mut &*stream).write(bytes),
            SocketStream::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
