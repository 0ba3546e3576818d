//! Listens, and gives each client a thread.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::stream::Duplex;
use super::{Exports, serve_stream};
use crate::endpoint::{Endpoint, Listener, Stream};

/// What clients may take.
///
/// ```
/// use trueno_zram_serve::nbd::ServerLimits;
/// assert!(ServerLimits::default().max_connections >= 16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at the same time. Further clients are disconnected at once.
    pub max_connections: usize,
    /// How long a client may leave a reply unread before it is disconnected.
    pub write_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { max_connections: 128, write_timeout: Duration::from_secs(60) }
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
    exports: Exports,
    limits: ServerLimits,
    stopping: AtomicBool,
    connections: Mutex<HashMap<u64, Connection>>,
}

/// A client that is being served.
#[derive(Debug)]
struct Connection {
    /// To end it.
    stream: Stream,
    thread: Option<JoinHandle<()>>,
}

impl NbdServer {
    /// Listens and serves clients until the server is dropped.
    ///
    /// # Errors
    /// If the address is in use or not available, or no thread can be started.
    pub fn start(endpoint: &Endpoint, exports: Exports, limits: ServerLimits) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            listener: Listener::bind(endpoint)?,
            exports,
            limits,
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
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
        self.shared.connections().len()
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.listener.stop();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let mut threads = Vec::new();
        for connection in self.shared.connections().values_mut() {
            // A client that has left already cannot be disconnected.
            let _ = connection.stream.shutdown();
            threads.extend(connection.thread.take());
        }
        for thread in threads {
            let _ = thread.join();
        }
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
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>) {
        for id in 0.. {
            match self.listener.accept() {
                _ if self.stopping.load(Ordering::Relaxed) => return,
                Ok(stream) => {
                    // A client that cannot be served is disconnected. Others are not concerned.
                    let _ = self.start_connection(id, stream);
                }
                // Out of descriptors or memory, or the client left already: wait for better times.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn start_connection(self: &Arc<Self>, id: u64, stream: Stream) -> io::Result<()> {
        let mut connections = self.connections();
        if connections.len() >= self.limits.max_connections {
            return Ok(());
        }
        stream.set_write_timeout(Some(self.limits.write_timeout))?;
        connections.insert(id, Connection { stream: stream.try_clone()?, thread: None });
        // The lock is held, so the thread cannot end before it is entered.
        let thread = std::thread::Builder::new().name("nbd".to_owned()).spawn({
            let shared = Arc::clone(self);
            move || {
                // The error is the client's to see.
                let _ = serve_stream(stream, &shared.exports);
                if let Some(connection) = shared.connections().remove(&id) {
                    let _ = connection.stream.shutdown();
                }
            }
        });
        match thread {
            Ok(thread) => {
                if let Some(connection) = connections.get_mut(&id) {
                    connection.thread = Some(thread);
                }
                Ok(())
            }
            Err(error) => {
                connections.remove(&id);
                Err(error)
            }
        }
    }
}
