//! A server on a socket, for any protocol: accepts connections, limits their number, and serves each on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use trueno_zram_connections::{Admitted, ConnectionLimits, Connections, stop_accepting};

use crate::endpoint::{Endpoint, SocketListener, SocketStream};

/// The pause after a failed accept: out of descriptors or memory, or the client left already.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A protocol that a [`SocketServer`] serves.
pub(crate) trait Service: Send + Sync + 'static {
    /// Configures a new connection, on the thread that accepts: it must not wait for the client. Returns the deadline for the
    /// client's negotiation or request. It includes the time that the connection waits to be admitted.
    ///
    /// # Errors
    /// If the client is not served.
    fn prepare(&self, stream: &SocketStream) -> io::Result<Instant>;

    /// Serves a client to its end.
    ///
    /// # Errors
    /// An error of the connection, which ends it. Other clients are not affected.
    fn serve(&self, client: &Admitted<SocketStream>, deadline: Instant) -> io::Result<()>;
}

/// A listening socket and its connections. Dropping it ends all connections and waits for their threads.
#[derive(Debug)]
pub(crate) struct SocketServer {
    acceptor: Arc<Acceptor>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the accepting thread and the server share.
#[derive(Debug)]
struct Acceptor {
    /// The name of the threads.
    name: &'static str,
    listener: SocketListener,
    stopping: AtomicBool,
    connections: Arc<Connections<SocketStream>>,
}

impl SocketServer {
    /// Listens, and serves clients until the server is dropped.
    pub(crate) fn start(
        name: &'static str,
        endpoint: &Endpoint,
        limits: ConnectionLimits,
        service: impl Service,
    ) -> io::Result<Self> {
        let acceptor = Arc::new(Acceptor {
            name,
            listener: SocketListener::bind(endpoint)?,
            stopping: AtomicBool::new(false),
            connections: Connections::new(limits),
        });
        let thread = thread::Builder::new().name(name.to_owned()).spawn({
            let acceptor = Arc::clone(&acceptor);
            move || acceptor.accept_all(&Arc::new(service))
        })?;
        Ok(Self { acceptor, thread: Some(thread) })
    }

    pub(crate) fn endpoint(&self) -> io::Result<Endpoint> {
        self.acceptor.listener.endpoint()
    }

    /// Returns the number of clients.
    pub(crate) fn connections(&self) -> usize {
        self.acceptor.connections.len()
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.acceptor.stopping.store(true, Ordering::Relaxed);
        stop_accepting(&self.acceptor.listener);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.acceptor.connections.end_all();
    }
}

impl Acceptor {
    fn accept_all(&self, service: &Arc<impl Service>) {
        loop {
            match self.listener.accept() {
                _ if self.stopping.load(Ordering::Relaxed) => return,
                // A client that cannot be served is disconnected. Others are not affected.
                Ok(stream) => drop(self.start_connection(service, stream)),
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn start_connection(&self, service: &Arc<impl Service>, stream: SocketStream) -> io::Result<()> {
        let deadline = service.prepare(&stream)?;
        let Ok(client) = self.connections.admit(stream) else { return Ok(()) };
        let service = Arc::clone(service);
        thread::Builder::new().name(self.name.to_owned()).spawn(move || {
            let _ = service.serve(&client, deadline);
            // Released before the server can see that the connection has ended.
            drop(service);
        })?;
        Ok(())
    }
}
