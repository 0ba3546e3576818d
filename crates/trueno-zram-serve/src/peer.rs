//! The process at the other end of a unix socket, and its user.

use std::io;
use std::os::unix::net::UnixStream;

use trueno_zram_connections::peer_credentials;

/// The user ID of root.
const ROOT: u32 = 0;

/// The reason why a client is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// The client belongs to another user.
    #[error("user {peer} may not use this socket; only user {own}, who runs the server, and root may")]
    OtherUser { peer: u32, own: u32 },
    /// The kernel does not report the user.
    #[error("the user at the other end of the socket cannot be found: {0}")]
    Unknown(#[source] io::Error),
}

/// Checks that a client runs as the effective user of this process, or as root. The mode of a socket's file has the same
/// effect, but can be changed, and does not protect a socket that was passed on.
pub(crate) fn check(client: &UnixStream) -> Result<(), PeerError> {
    let peer = peer_credentials(client).map_err(PeerError::Unknown)?.uid;
    check_user(peer, rustix::process::geteuid().as_raw())
}

fn check_user(peer: u32, own: u32) -> Result<(), PeerError> {
    if peer == own || peer == ROOT { Ok(()) } else { Err(PeerError::OtherUser { peer, own }) }
}

/// Returns the number of the process that has connected; `None` if the kernel does not name it here.
pub(crate) fn process_of(client: &UnixStream) -> Option<u32> {
    peer_credentials(client).ok()?.pid
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
        assert_eq!(peer_credentials(&one).unwrap().uid, rustix::process::geteuid().as_raw());
        assert_eq!(process_of(&one), Some(std::process::id()));
        check(&other).unwrap();
    }
}
