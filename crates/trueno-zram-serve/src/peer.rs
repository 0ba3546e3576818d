//! The process at the other end of a unix socket, and its user.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The number of root.
const ROOT: u32 = 0;

/// Why a client is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// The client belongs to somebody else.
    #[error("user {peer} may not use this socket; only user {own}, who runs the server, and root may")]
    OtherUser { peer: u32, own: u32 },
    /// The kernel does not tell.
    #[error("the user at the other end of the socket cannot be found: {0}")]
    Unknown(#[source] io::Error),
}

/// Checks that a client runs as the effective user of this process, or as root. The mode of a socket's file says the same, but
/// can be changed, and does not protect a socket that was passed on.
pub(crate) fn check(client: &UnixStream) -> Result<(), PeerError> {
    let peer = credentials_of(client).map_err(PeerError::Unknown)?.uid;
    check_user(peer, rustix::process::geteuid().as_raw())
}

fn check_user(peer: u32, own: u32) -> Result<(), PeerError> {
    if peer == own || peer == ROOT { Ok(()) } else { Err(PeerError::OtherUser { peer, own }) }
}

/// Returns the number of the process that has connected; `None` if the kernel does not name it here.
pub(crate) fn process_of(client: &UnixStream) -> Option<u32> {
    credentials_of(client).ok()?.pid.try_into().ok().filter(|process| *process > 0)
}

/// Returns the process that has connected and its effective user, at the time when it did.
// Not `rustix::net::sockopt::socket_peercred`: its process number is never 0, but the kernel gives 0 for a client in another PID
// namespace, such as the host of a container.
fn credentials_of(client: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let expected_len = size_of::<libc::ucred>();
    let mut len = libc::socklen_t::try_from(expected_len).map_err(io::Error::other)?;
    let place = (&raw mut credentials).cast();
    // SAFETY: `credentials` lives until the call returns and has `len` bytes, and any bytes are valid for its three numbers.
    let result =
        unsafe { libc::getsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len) };
    match result {
        0 if usize::try_from(len).is_ok_and(|len| len == expected_len) => Ok(credentials),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_user_and_root_are_served_and_nobody_else() {
        for (peer, own, is_served) in
            [(0, 0, true), (1000, 1000, true), (0, 1000, true), (1000, 0, false), (1, 2, false)]
        {
            assert_eq!(check_user(peer, own).is_ok(), is_served, "user {peer} at a server of user {own}");
        }
    }

    #[test]
    fn the_other_end_of_a_socket_pair_is_this_process() {
        let (one, other) = UnixStream::pair().unwrap();
        assert_eq!(credentials_of(&one).unwrap().uid, rustix::process::geteuid().as_raw());
        assert_eq!(process_of(&one), Some(std::process::id()));
        check(&other).unwrap();
    }
}
