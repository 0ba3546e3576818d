//! The keeper's process: holds descriptors, and answers requests on one thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use trueno_zram_connections::{Received, receive};
use trueno_zram_io::UnixSocket;

use super::{MAX_NAME, MAX_STORES, reply, request, send};
use crate::peer;

/// Clients of a keeper at the same time. One more displaces the one that has been silent for the longest time.
const MAX_CLIENTS: usize = 256;

/// The pause of a keeper that has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Holds descriptors of stores for servers that come and go.
///
/// It only holds descriptors and never touches the memory. One thread answers each request as it arrives and never waits for a
/// client, so a silent client does not delay others.
///
/// If several servers [`claim`](super::claim) a name that is not kept, the first one creates the store. A kept store
/// goes to every server that claims it: the lock of the store's table lets only one of them
/// [`attach`](trueno_zram_store::Store::attach), and ends with that process, even if the keeper has ended.
///
/// ```no_run
/// use trueno_zram_serve::keeper::Keeper;
/// Keeper::bind("keeper.sock".as_ref())?.run()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Keeper {
    socket: UnixSocket,
    stores: HashMap<Vec<u8>, [OwnedFd; 2]>,
    /// Ordered by their last message, the oldest first.
    clients: Vec<KeeperClient>,
}

/// A connection. It ends with the answer, unless that granted a claim.
#[derive(Debug)]
struct KeeperClient {
    stream: UnixStream,
    /// The name that this client is creating a store for.
    claim: Option<Vec<u8>>,
}

impl Keeper {
    /// Listens on a unix socket that only this user may use.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: UnixSocket::bind(path)?, stores: HashMap::new(), clients: Vec::new() })
    }

    /// Serves requests forever.
    ///
    /// # Errors
    /// If the socket fails. Neither a client that fails nor a lack of descriptors is an error.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            let (has_new, ready) = ready.split_first().map_or((false, &[][..]), |(new, ready)| (*new, ready));
            // From the back, so that clients that go or move to the end leave the others where they are.
            for index in (0..ready.len()).rev().filter(|index| ready[*index]) {
                let client = self.clients.remove(index);
                if let Ok(Some(client)) = self.answer(client) {
                    self.clients.push(client);
                }
            }
            if has_new {
                self.accept();
            }
        }
    }

    /// Waits for events. Returns `true` for the listening socket if a client connects, and for each client that has sent something
    /// or left.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let streams = self.clients.iter().map(|client| client.stream.as_fd());
        let fds = std::iter::once(self.socket.as_fd()).chain(streams);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, None) {
            Ok(_) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self) {
        let accepted = self.socket.listener().accept();
        if accepted.as_ref().is_ok_and(|(stream, _)| peer::check(stream).is_err()) {
            return;
        }
        if (self.clients.len() >= MAX_CLIENTS || accepted.is_err())
            && let Some(silent) = self.clients.iter().position(|client| client.claim.is_none())
        {
            self.clients.remove(silent);
        }
        match accepted {
            Ok((stream, _)) if self.clients.len() < MAX_CLIENTS && stream.set_nonblocking(true).is_ok() => {
                self.clients.push(KeeperClient { stream, claim: None });
            }
            Ok(_) => {}
            // Out of descriptors, or the client left already.
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }

    /// Answers a request. Returns the client if it has a claim now.
    fn answer(&mut self, client: KeeperClient) -> io::Result<Option<KeeperClient>> {
        let stream = &client.stream;
        let mut message = [0; 1 + MAX_NAME];
        let Received { len_bytes, fds, .. } = receive(stream, &mut message)?;
        let Some((command, name)) = message[..len_bytes].split_first() else { return Ok(None) };
        match (*command, <[OwnedFd; 2]>::try_from(fds)) {
            (request::CLAIM | request::GET, _) if self.stores.contains_key(name) => {
                send(stream, &[reply::FOUND], &self.stores[name].each_ref().map(AsFd::as_fd))?;
            }
            (request::CLAIM, _) => match self.claimed_by(name) {
                None if self.stores.len() < MAX_STORES => {
                    send(stream, &[reply::VACANT], &[])?;
                    return Ok(Some(KeeperClient { claim: Some(name.to_vec()), ..client }));
                }
                None => send(stream, &[reply::REFUSED], &[])?,
                Some(process) => send(stream, &[&[reply::CLAIMED], &process.to_ne_bytes()[..]].concat(), &[])?,
            },
            (request::PUT, Ok(fds)) if self.may_put(name) => {
                self.stores.insert(name.to_vec(), fds);
                // A client that does not get the answer has given up, and its store is empty.
                send(stream, &[reply::DONE], &[]).inspect_err(|_| drop(self.stores.remove(name)))?;
            }
            (request::REMOVE, _) => {
                self.stores.remove(name);
                send(stream, &[reply::DONE], &[])?;
            }
            _ => send(stream, &[reply::NOT_FOUND], &[])?,
        }
        Ok(None)
    }

    /// Returns `true` if a store may get this name. A kept store is never replaced: a server may be using it.
    fn may_put(&self, name: &[u8]) -> bool {
        self.stores.len() < MAX_STORES && !self.stores.contains_key(name) && self.claimed_by(name).is_none()
    }

    /// Returns the living process that has claimed a name.
    fn claimed_by(&self, name: &[u8]) -> Option<u32> {
        let mut claims = self.clients.iter().filter(|client| client.claim.as_deref() == Some(name));
        let holder = claims.find(|client| !has_left(&client.stream))?;
        // Process 0 stands for an unknown one.
        Some(peer::process_of(&holder.stream).unwrap_or(0))
    }
}

/// Returns `true` if the other end is closed, and everything that it sent was read.
fn has_left(stream: &UnixStream) -> bool {
    match recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, len)) => len == 0,
        Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
    }
}
