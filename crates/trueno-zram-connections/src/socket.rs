//! Ends, time limits and keepalive of a server's sockets.

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
    /// Ends the connection for both sides. Whoever reads from it or writes to it fails from now on.
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
pub fn stop_accepting(listener: impl AsFd) {
    // It fails only where the socket does not listen any more, and then there is nothing to stop.
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
}

/// Ends a TCP connection two minutes after the other machine has vanished, even if nothing is sent. The system of an idle client
/// answers for it, so idle clients stay.
///
/// # Errors
/// Those of the operating system.
pub fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?)
}

/// Returns the moment after this time. A time limit of more than a year is one of a year, so that any duration will do.
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

/// Returns the time until a moment, to wait for a socket.
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
