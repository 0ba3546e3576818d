//! Accepts the connections of a listening socket, and serves each on a thread of its own, up to a limit.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::connections::{Admitted, ConnectionLimits, Connections};
use crate::socket::{Disconnect, stop_accepting};

/// The number of connections that [`serve_each`] serves at a time.
pub const MAX_CONNECTIONS: usize = 128;

/// The pause before another attempt, when descriptors or memory are short.
const PAUSE: Duration = Duration::from_millis(10);

/// A listening socket.
///
/// ```
/// use std::io;
/// use std::net::{TcpListener, TcpStream};
/// use std::os::fd::{AsFd, BorrowedFd};
/// use trueno_zram_connections::Listen;
///
/// struct Tcp(TcpListener);
///
/// impl AsFd for Tcp {
///     fn as_fd(&self) -> BorrowedFd<'_> {
///         self.0.as_fd()
///     }
/// }
///
/// impl Listen for Tcp {
///     type Connection = TcpStream;
///
///     fn accept(&self) -> io::Result<TcpStream> {
///         self.0.accept().map(|(stream, _)| stream)
///     }
/// }
/// # let listener = Tcp(TcpListener::bind("127.0.0.1:0")?);
/// # let client = TcpStream::connect(listener.0.local_addr()?)?;
/// # assert_eq!(listener.accept()?.peer_addr()?, client.local_addr()?);
/// # Ok::<(), io::Error>(())
/// ```
pub trait Listen: AsFd + Sync {
    /// Its connections.
    type Connection: Disconnect + Send + Sync;

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Those of the operating system.
    fn accept(&self) -> io::Result<Self::Connection>;
}

impl Listen for UnixListener {
    type Connection = UnixStream;

    fn accept(&self) -> io::Result<UnixStream> {
        Self::accept(self).map(|(stream, _)| stream)
    }
}

/// Accepts the next connection. If descriptors or memory are short, or if the client has left already, it waits a little and tries
/// again.
///
/// # Errors
/// Any other error of `accept`.
fn accept_next<C>(mut accept: impl FnMut() -> io::Result<C>) -> io::Result<C> {
    loop {
        match accept() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_transient(&error) => thread::sleep(PAUSE),
            accepted => return accepted,
        }
    }
}

/// A connection that is served by [`serve_each`]. The [crate]'s documentation has an example.
#[derive(Debug)]
pub struct ClientConnection<'a, L: Listen> {
    listener: &'a L,
    connections: &'a Connections<L::Connection>,
    admitted: Admitted<L::Connection>,
}

impl<L: Listen> ClientConnection<'_, L> {
    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &L::Connection {
        self.admitted.connection()
    }

    /// Marks the connection as established: it counts from now on, and is not displaced by others. Returns `false` if it was
    /// displaced already, or if enough others were served: it has been disconnected, and the caller must stop serving it.
    #[must_use]
    pub fn establish(&self) -> bool {
        let is_established = self.admitted.establish().is_ok();
        if self.connections.is_closed() {
            // No more clients are served: wakes the thread that accepts.
            stop_accepting(self.listener);
        }
        is_established
    }
}

/// Accepts connections, and serves each on a thread of its own, [`MAX_CONNECTIONS`] at a time, until `total` of them were
/// [established](ClientConnection::establish). Returns when all have ended. The socket then accepts no more connections,
/// and those that waited in its queue were closed.
///
/// When all places are taken, the next connection displaces the oldest one that is not established. If all are, it waits. If no
/// thread can be started, the caller's thread serves the connection, and others wait.
///
/// The example of the [crate] serves one client.
///
/// # Errors
/// Those of `accept`, except for a shortage of descriptors or memory, which it waits out. Established connections are served to
/// their end before it returns.
pub fn serve_each<L: Listen>(
    listener: &L,
    total: Option<usize>,
    serve: impl Fn(&ClientConnection<'_, L>) + Sync,
) -> io::Result<()> {
    serve_each_within(ConnectionLimits::new(MAX_CONNECTIONS).with_total(total), listener, serve, || {})
}

/// Like [`serve_each`], within any limits. Calls `on_crowded` when a connection has to wait for the first time.
///
/// ```
/// use std::os::unix::net::{UnixListener, UnixStream};
/// use trueno_zram_connections::{ConnectionLimits, serve_each_within};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("socket");
/// let listener = UnixListener::bind(&path)?;
/// let _client = UnixStream::connect(&path)?;
/// let limits = ConnectionLimits::new(4).with_total(Some(1));
/// serve_each_within(limits, &listener, |client| assert!(client.establish()), || println!("four clients are served"))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of [`serve_each`].
pub fn serve_each_within<L: Listen>(
    limits: ConnectionLimits,
    listener: &L,
    serve: impl Fn(&ClientConnection<'_, L>) + Sync,
    on_crowded: impl FnOnce(),
) -> io::Result<()> {
    let connections = Connections::new(limits);
    let (connections, serve, mut on_crowded) = (&connections, &serve, Some(on_crowded));
    thread::scope(|threads| {
        let _stop = StopOnDrop(listener);
        while !connections.is_closed() {
            let accepted = accept_next(|| listener.accept());
            if connections.is_closed() {
                break;
            }
            // Silent clients would keep this from returning.
            let connection = accepted.inspect_err(|_| connections.close())?;
            let admitted = connections.admit(connection).or_else(|connection| {
                if let Some(on_crowded) = on_crowded.take_if(|_| !connections.is_closed()) {
                    on_crowded();
                }
                connections.admit_or_wait(connection).ok_or(())
            });
            let Ok(admitted) = admitted else { break };
            let client = Arc::new(ClientConnection { listener, connections, admitted });
            let theirs = Arc::clone(&client);
            let work = move || serve(&theirs);
            if thread::Builder::new().name("client".into()).spawn_scoped(threads, work).is_err() {
                serve(&client);
            }
        }
        Ok(())
    })
}

/// Stops a listener when dropped: it accepts no more connections, and those that wait in the queue are closed.
struct StopOnDrop<'a, L: Listen>(&'a L);

impl<L: Listen> Drop for StopOnDrop<'_, L> {
    fn drop(&mut self) {
        stop_accepting(self.0);
        // A socket that was shut down does not wait. The queue has an end: nothing is added to it.
        while self.0.accept().is_ok() {}
    }
}

/// Returns `true` if a later connection may still be accepted: a client left, a network is down, or a resource is exhausted.
/// accept(2) also lists EOPNOTSUPP among the errors of a network, but a socket that cannot accept at all gives it as well.
fn is_transient(error: &io::Error) -> bool {
    const TRANSIENT: [Errno; 12] = [
        Errno::CONNABORTED,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::NONET,
        Errno::NETDOWN,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
    ];
    error.raw_os_error().is_some_and(|code| TRANSIENT.iter().any(|errno| errno.raw_os_error() == code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn errors_that_pass_do_not_end_the_listening_and_others_do() {
        let errors = [
            Errno::MFILE,
            Errno::CONNABORTED,
            Errno::INTR,
            Errno::NFILE,
            Errno::NOPROTOOPT,
            Errno::NONET,
            Errno::INVAL,
        ];
        let mut answers = errors.iter().map(|errno| Err((*errno).into()));
        let failed = accept_next(|| answers.next().unwrap_or(Ok(()))).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        accept_next(|| answers.next().unwrap_or(Ok(()))).unwrap();
    }

    /// Serves clients at a socket until `limit` of them have spoken, while `connect` runs. Each gets `+` for its first byte.
    fn serve_while(
        at_a_time: usize,
        limit: usize,
        crowded: impl FnOnce() + Send,
        connect: impl FnOnce(&dyn Fn() -> UnixStream),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let now = AtomicUsize::new(0);
        let serve = |client: &ClientConnection<'_, UnixListener>| {
            assert!(now.fetch_add(1, Ordering::SeqCst) < at_a_time);
            let (mut stream, mut byte) = (client.connection(), [0]);
            if stream.read_exact(&mut byte).is_ok() && client.establish() {
                stream.write_all(b"+").unwrap();
                // Until the client leaves.
                let _ = stream.read(&mut byte);
            }
            now.fetch_sub(1, Ordering::SeqCst);
        };
        let limits = ConnectionLimits::new(at_a_time).with_total(Some(limit));
        thread::scope(|threads| {
            let served = threads.spawn(|| serve_each_within(limits, &listener, serve, crowded));
            connect(&|| UnixStream::connect(&path).unwrap());
            served.join().unwrap().unwrap();
        });
        assert!(UnixStream::connect(&path).is_err(), "nobody is served any more");
    }

    fn speak(mut stream: &UnixStream) {
        stream.write_all(b"?").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn silent_connections_neither_count_nor_lock_others_out() {
        serve_while(
            3,
            2,
            || panic!("there is room"),
            |connect| {
                let mut silent: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
                let first = connect();
                speak(&first);
                silent.extend((0..20).map(|_| connect()));
                speak(&connect());
                // Those that were left have been disconnected.
                assert!(silent.iter_mut().all(|stream| stream.read(&mut [0]).is_ok_and(|read| read == 0)));
            },
        );
    }

    #[test]
    fn connections_wait_while_all_others_have_spoken_which_is_reported_once() {
        let (report, waits) = std::sync::mpsc::channel();
        serve_while(
            1,
            4,
            move || report.send(()).unwrap(),
            |connect| {
                let first = connect();
                speak(&first);
                let second = connect();
                waits.recv_timeout(Duration::from_secs(600)).expect("a notice that one waits");
                drop(first);
                speak(&second);
                drop(second);
                speak(&connect());
                speak(&connect());
            },
        );
        assert!(waits.try_recv().is_err(), "one notice");
    }
}
