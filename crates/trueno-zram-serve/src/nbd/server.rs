//! The server of NBD clients on a socket, and its limits.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use trueno_zram_connections::{Admitted, ClientTimeout, ConnectionLimits, deadline_after, enable_keepalive};

use super::stream::{BufferedStream, Duplex};
use super::{Exports, handshake, transfer};
use crate::endpoint::{Endpoint, SocketStream};
use crate::server::{Service, SocketServer};

/// Limits on the clients of a server.
///
/// ```
/// use trueno_zram_serve::nbd::NbdLimits;
/// assert!(NbdLimits::default().max_connections >= 16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NbdLimits {
    /// Connections at the same time. One more ends the oldest of those that have not negotiated yet. If all have, it is
    /// disconnected at once: clients that have negotiated never leave for others.
    pub max_connections: usize,
    /// The time for the whole negotiation, however often the client sends a byte. It consists of a few short messages. A reply
    /// that the client does not read may add `write_timeout`.
    pub negotiation_timeout: Duration,
    /// The longest pause of a client in the middle of a request. A slow client that sends on is served, and a client may
    /// be silent between requests for as long as it likes.
    pub request_timeout: Duration,
    /// The time after which a client that does not read its replies is disconnected.
    pub write_timeout: Duration,
}

impl Default for NbdLimits {
    fn default() -> Self {
        Self {
            max_connections: 128,
            negotiation_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
        }
    }
}

impl NbdLimits {
    /// Sets the number of connections at the same time.
    #[must_use]
    pub fn with_max_connections(self, max_connections: usize) -> Self {
        Self { max_connections, ..self }
    }

    /// Sets the time for the whole negotiation.
    #[must_use]
    pub fn with_negotiation_timeout(self, negotiation_timeout: Duration) -> Self {
        Self { negotiation_timeout, ..self }
    }

    /// Sets the longest pause within a request.
    #[must_use]
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }

    /// Sets the time for which a reply may stay unread.
    #[must_use]
    pub fn with_write_timeout(self, write_timeout: Duration) -> Self {
        Self { write_timeout, ..self }
    }
}

/// A running server. Dropping it ends all connections and waits for their threads.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_serve::StoreExport;
/// use trueno_zram_serve::nbd::{Exports, NbdServer, NbdLimits};
/// use trueno_zram_store::{Store, StoreOptions};
///
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 30))?);
/// let exports = Exports::new().with("ram", Arc::new(StoreExport::new(store)));
/// let server = NbdServer::start(&"tcp:127.0.0.1:0".parse()?, exports, NbdLimits::default())?;
/// println!("nbd://{}", server.endpoint()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NbdServer {
    server: SocketServer,
}

impl NbdServer {
    /// Listens and serves clients until the server is dropped.
    ///
    /// # Errors
    /// If the address is in use or not available, or no thread can be started.
    pub fn start(endpoint: &Endpoint, exports: Exports, limits: NbdLimits) -> io::Result<Self> {
        let connection_limits = ConnectionLimits::new(limits.max_connections);
        let server = SocketServer::start("nbd", endpoint, connection_limits, NbdService { exports, limits })?;
        Ok(Self { server })
    }

    /// Returns the address, with the port that the system chose if it was 0.
    ///
    /// # Errors
    /// If the system does not report the address.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        self.server.endpoint()
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.server.connections()
    }
}

/// Serves exports to each client within its time limits.
#[derive(Debug)]
struct NbdService {
    exports: Exports,
    limits: NbdLimits,
}

impl Service for NbdService {
    fn prepare(&self, stream: &SocketStream) -> io::Result<Instant> {
        if let SocketStream::Tcp(stream) = stream {
            enable_keepalive(stream)?;
        }
        stream.set_write_timeout(Some(self.limits.write_timeout))?;
        Ok(deadline_after(self.limits.negotiation_timeout))
    }

    fn serve(&self, client: &Admitted<SocketStream>, deadline: Instant) -> io::Result<()> {
        let mut stream = BufferedStream::new(client.connection(), ClientTimeout::Until(deadline));
        let Some(agreement) = handshake::negotiate(&mut stream, &self.exports)? else { return Ok(()) };
        if client.establish().is_err() {
            return Ok(());
        }
        stream.wait_within_requests(self.limits.request_timeout)?;
        transfer::serve(&mut stream, &agreement)
    }
}

impl Duplex for &SocketStream {
    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(*self, bytes, RecvFlags::DONTWAIT) {
            Ok((read, _)) => Ok(Some(read)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn set_read_timeout(&mut self, time: Duration) -> io::Result<()> {
        // The standard library refuses a time limit of zero.
        SocketStream::set_read_timeout(self, Some(time.max(Duration::from_millis(1))))
    }
}
