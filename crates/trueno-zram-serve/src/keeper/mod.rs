//! Keepers: a process, or systemd, that holds the descriptors of a store so that its memory outlives its server.
//!
//! A server that starts asks a keeper for its store by [`claim`], or systemd by [`systemd_get`]. [`Keeper`] is the process.

mod client;
mod server;
mod systemd;

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

pub use client::{Claim, KeeperError, Vacancy, claim, remove};
pub use server::Keeper;
pub use systemd::{systemd_get, systemd_put, systemd_ready};

/// The longest name of a store.
const MAX_NAME: usize = 255;

/// Stores that a keeper holds at most.
const MAX_STORES: usize = 1024;

/// Requests, each followed by the name of a store.
mod request {
    pub(super) const CLAIM: u8 = b'C';
    pub(super) const GET: u8 = b'G';
    pub(super) const PUT: u8 = b'P';
    pub(super) const REMOVE: u8 = b'R';
}

/// Replies of a keeper.
mod reply {
    pub(super) const FOUND: u8 = b'F';
    pub(super) const NOT_FOUND: u8 = b'N';
    pub(super) const VACANT: u8 = b'V';
    /// Followed by the process that has the claim.
    pub(super) const CLAIMED: u8 = b'T';
    pub(super) const REFUSED: u8 = b'X';
    pub(super) const DONE: u8 = b'D';

    /// The longest reply: [`CLAIMED`] and the number of a process.
    pub(super) const MAX_LEN: usize = 1 + size_of::<u32>();
}

fn send(mut stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = send_with_fds(stream, bytes, fds)?;
    stream.write_all(&bytes[sent..])
}

/// Sends bytes with up to two descriptors. Returns the number of bytes sent.
fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    // With a time limit, a process that was stopped for a while gets EINTR.
    Ok(retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL))?)
}
