//! Sockets of a server: ending connections, time limits for clients, and keepalive.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

/// Idle time before the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Unanswered probes after which the connection ends.
const KEEPALIVE_PROBES: u32 = 4;

/// A connection that any thread can end.
pub trait Disconnect {
    /// Ends the connection for both sides: reads and writes of any thread fail from now on.
    fn disconnect(&self);
}

impl Disconnect for TcpStream {
    fn disconnect(&self) {
        // It fails only if the client has left already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Disconnect for UnixStream {
    fn disconnect(&self) {
        // As above.
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Makes the present and all later calls of `accept` on a listening socket return an error.
///
/// ```
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// trueno_zram_connections::stop_accepting(&listener);
/// assert!(listener.accept().is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stop_accepting(listener: impl AsFd) {
    // It fails only where the socket does not listen any more, and then there is nothing to stop.
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
}

/// Ends a TCP connection two minutes after the other machine has vanished, even if nothing is sent. The system of an idle client
/// answers for it, so idle clients stay connected.
///
/// # Errors
/// Those of the operating system.
///
/// ```no_run
/// let client = std::net::TcpStream::connect("10.0.0.1:10809")?;
/// trueno_zram_connections::enable_keepalive(&client)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?)
}

/// The time limit for a client that sends requests.
///
/// ```
/// use std::io::{Error, ErrorKind};
/// use trueno_zram_connections::{ClientTimeout, PausedAt};
/// let pause = || Error::from(ErrorKind::WouldBlock);
/// assert!(ClientTimeout::WithinRequest.after_pause(pause(), PausedAt::BetweenRequests).is_ok());
/// let error = ClientTimeout::WithinRequest.after_pause(pause(), PausedAt::WithinRequest).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::TimedOut);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTimeout {
    /// No limit beyond the stream's own: any error of the stream ends the connection, including a timeout.
    Unlimited,
    /// All requests end at this moment.
    Until(Instant),
    /// The time that one read of the stream may take, within a request. Between requests, a client may be idle for days.
    WithinRequest,
}

/// The point at which a client paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedAt {
    /// It may send another request, or none for a long time.
    BetweenRequests,
    /// It has not sent the rest of one.
    WithinRequest,
}

impl ClientTimeout {
    /// Returns `Ok` if the stream is to be read again, after a read that returned nothing in time.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the client took too long; `error`, that of the read, if the stream has a limit of its own.
    pub fn after_pause(self, error: io::Error, paused: PausedAt) -> io::Result<()> {
        match (self, paused) {
            // Sockets may wake up early. The next read finds out if there is time left.
            (Self::Until(_), _) | (Self::WithinRequest, PausedAt::BetweenRequests) => Ok(()),
            (Self::WithinRequest, PausedAt::WithinRequest) => Err(io::ErrorKind::TimedOut.into()),
            (Self::Unlimited, _) => Err(error),
        }
    }
}

/// Returns the moment when this time has passed. More than a year counts as a year, so that any duration is valid.
///
/// ```
/// use std::time::Duration;
/// let deadline = trueno_zram_connections::deadline_after(Duration::MAX);
/// assert!(trueno_zram_connections::time_left(deadline).is_ok());
/// ```
#[must_use]
pub fn deadline_after(time: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    Instant::now() + time.min(YEAR)
}

/// Returns the time left until a moment, as the timeout of a socket.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if the moment has come.
///
/// ```
/// use std::time::{Duration, Instant};
/// let now = Instant::now();
/// assert!(trueno_zram_connections::time_left(now + Duration::from_secs(60)).is_ok());
/// assert!(trueno_zram_connections::time_left(now).is_err());
/// ```
pub fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
