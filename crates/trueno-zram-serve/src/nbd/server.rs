//! Listens, and gives each client a thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use trueno_zram_connections::{
    Admitted, ConnectionLimits, Connections, Disconnect, Patience, deadline_after, enable_keepalive,
};

use super::stream::{Buffered, Duplex};
use super::{Exports, handshake, transfer};
use crate::endpoint::{Endpoint, Listener, Stream};

/// What clients may take.
///
/// ```
/// use trueno_zram_serve::nbd::ServerLimits;
/// assert!(ServerLimits::default().max_connections >= 16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at the same time. One more ends the oldest of those that have not negotiated yet. If all have, it is
    /// disconnected at once: clients that have negotiated never leave for others.
    pub max_connections: usize,
    /// The time for the whole negotiation, however often the client sends a byte. It consists of a few short messages. A reply
    /// that the client does not read may add `write_timeout`.
    pub negotiation_timeout: Duration,
    /// The longest pause of a client in the middle of a request. A slow client that sends on is served, and a client may
    /// be silent between requests for as long as it likes.
    pub request_timeout: Duration,
    /// How long a client may leave a reply unread before it is disconnected.
    pub write_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_connections: 128,
            negotiation_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
        }
    }
}

/// A running server. Dropping it ends all connections and waits for their threads.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_serve::StoreExport;
/// use trueno_zram_serve::nbd::{Exports, NbdServer, ServerLimits};
/// use trueno_zram_store::{Store, StoreOptions};
///
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 30))?);
/// let exports = Exports::new().with("ram", Arc::new(StoreExport::new(store)));
/// let server = NbdServer::start(&"tcp:127.0.0.1:0".parse()?, exports, ServerLimits::default())?;
/// println!("nbd://{}", server.endpoint()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NbdServer {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    listener: Listener,
    exports: Arc<Exports>,
    limits: ServerLimits,
    stopping: AtomicBool,
    connections: Arc<Connections<Stream>>,
}

impl NbdServer {
    /// Listens and serves clients until the server is dropped.
    ///
    /// # Errors
    /// If the address is in use or not available, or no thread can be started.
    pub fn start(endpoint: &Endpoint, exports: Exports, limits: ServerLimits) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            listener: Listener::bind(endpoint)?,
            exports: Arc::new(exports),
            limits,
            stopping: AtomicBool::new(false),
            connections: Connections::new(ConnectionLimits::new(limits.max_connections)),
        });
        let acceptor = std::thread::Builder::new().name("nbd-accept".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept_all()
        })?;
        Ok(Self { shared, acceptor: Some(acceptor) })
    }

    /// Returns where the server listens.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn endpoint(&self) -> io::Result<Endpoint> {
        self.shared.listener.endpoint()
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.len()
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.listener.stop();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.shared.connections.end_all();
    }
}

impl Disconnect for Stream {
    fn disconnect(&self) {
        // A client that has left already cannot be disconnected.
        let _ = self.shutdown();
    }
}

impl Duplex for Stream {
    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&*self, bytes, RecvFlags::DONTWAIT) {
            Ok((read, _)) => Ok(Some(read)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn set_read_timeout(&mut self, time: Duration) -> io::Result<()> {
        // The standard library refuses a time limit of zero.
        let time = Some(time.max(Duration::from_millis(1)));
        match self {
            Self::Unix(stream) => stream.set_read_timeout(time),
            Self::Tcp(stream) => stream.set_read_timeout(time),
        }
    }
}

impl Shared {
    fn accept_all(&self) {
        loop {
            match self.listener.accept() {
                _ if self.stopping.load(Ordering::Relaxed) => return,
                Ok(stream) => {
                    // A client that cannot be served is disconnected. Others are not concerned.
                    let _ = self.start_connection(stream);
                }
                // Out of descriptors or memory, or the client left already: back off.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn start_connection(&self, stream: Stream) -> io::Result<()> {
        if let Stream::Tcp(stream) = &stream {
            enable_keepalive(stream)?;
        }
        stream.set_write_timeout(Some(self.limits.write_timeout))?;
        // Counted from here: a client may not lengthen its time by waiting for a place.
        let deadline = deadline_after(self.limits.negotiation_timeout);
        let Ok(place) = self.connections.admit(stream) else { return Ok(()) };
        let (exports, request_timeout) = (Arc::clone(&self.exports), self.limits.request_timeout);
        std::thread::Builder::new().name("nbd".to_owned()).spawn(move || {
            // The error is the client's to see.
            let _ = serve(&place, &exports, deadline, request_timeout);
            // The exports are let go before the server can see that the connection has ended.
            drop(exports);
        })?;
        Ok(())
    }
}

/// Serves one client within its time limits.
fn serve(place: &Admitted<Stream>, exports: &Exports, deadline: Instant, request_timeout: Duration) -> io::Result<()> {
    let mut stream = Buffered::new(place.connection().try_clone()?, Patience::Until(deadline));
    let Some(agreement) = handshake::negotiate(&mut stream, exports)? else { return Ok(()) };
    if place.establish().is_err() {
        return Ok(());
    }
    stream.wait_within_requests(request_timeout)?;
    transfer::serve(&mut stream, &agreement)
}
