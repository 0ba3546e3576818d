//! Keepers: a process, or systemd, that holds the descriptors of a store so that its memory outlives its server.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use trueno_zram_connections::{Received, receive};
use trueno_zram_io::UnixSocket;

use crate::peer;

/// The longest name of a store.
const MAX_NAME: usize = 255;

/// Stores that a keeper holds at most.
const MAX_STORES: usize = 1024;

/// Clients of a keeper at the same time. One more displaces the one that has been silent for the longest time.
const MAX_CLIENTS: usize = 256;

/// The time that a server waits for a keeper.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pause of a keeper that has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

const CLAIM: u8 = b'C';
const GET: u8 = b'G';
const PUT: u8 = b'P';
const REMOVE: u8 = b'R';
const FOUND: u8 = b'F';
const NOT_FOUND: u8 = b'N';
const VACANT: u8 = b'V';
/// Followed by the process that has the claim.
const CLAIMED: u8 = b'T';
const REFUSED: u8 = b'X';
const DONE: u8 = b'D';

/// The longest answer: [`CLAIMED`] and the number of a process.
const MAX_ANSWER: usize = 1 + size_of::<u32>();

/// The names of the descriptors in systemd's store.
const SYSTEMD_NAMES: [&str; 2] = ["trueno-zram-table", "trueno-zram-slabs"];

/// Holds descriptors of stores for servers that come and go.
///
/// It only holds descriptors and never touches the memory. One thread answers each request as it arrives and never waits for a
/// client, so a silent client does not delay others.
///
/// If several servers [`claim`] a name that is not kept, the first one creates the store. A kept store
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
            (CLAIM | GET, _) if self.stores.contains_key(name) => {
                send(stream, &[FOUND], &self.stores[name].each_ref().map(AsFd::as_fd))?;
            }
            (CLAIM, _) => match self.claimed_by(name) {
                None if self.stores.len() < MAX_STORES => {
                    send(stream, &[VACANT], &[])?;
                    return Ok(Some(KeeperClient { claim: Some(name.to_vec()), ..client }));
                }
                None => send(stream, &[REFUSED], &[])?,
                Some(process) => send(stream, &[&[CLAIMED], &process.to_ne_bytes()[..]].concat(), &[])?,
            },
            (PUT, Ok(fds)) if self.may_put(name) => {
                self.stores.insert(name.to_vec(), fds);
                // A client that does not get the answer has given up, and its store is empty.
                send(stream, &[DONE], &[]).inspect_err(|_| drop(self.stores.remove(name)))?;
            }
            (REMOVE, _) => {
                self.stores.remove(name);
                send(stream, &[DONE], &[])?;
            }
            _ => send(stream, &[NOT_FOUND], &[])?,
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

/// The reason why a keeper does not serve a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// There is no keeper, or the connection to it failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another process is creating a store with this name.
    #[error("{} is creating a store named `{name}`; give this server another --name", process_text(*process))]
    Claimed {
        /// The name of the store.
        name: String,
        /// The other process, if it is known.
        process: Option<u32>,
    },
    /// The keeper holds as many stores as it can.
    #[error("the keeper holds {MAX_STORES} stores, the most it can; start another keeper for `{name}`")]
    Full {
        /// The name of the store.
        name: String,
    },
    /// Another program gave the keeper a store with this name without a claim.
    #[error("the keeper was given another store named `{name}`; start again, or give another --name")]
    Taken {
        /// The name of the store.
        name: String,
    },
    /// The keeper is older than this program, and holds no store with this name.
    #[error("the keeper is older than this program and cannot hold a new store `{name}`; start another keeper")]
    Outdated {
        /// The name of the store.
        name: String,
    },
    /// The answer is not a keeper's.
    #[error("the keeper's answer is not understood")]
    Answer,
}

fn process_text(process: Option<u32>) -> String {
    process.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"))
}

/// The right to a name.
#[derive(Debug)]
pub enum Claim {
    /// The descriptors of the store that is kept. Another server may be using it, which
    /// [`attach`](trueno_zram_store::Store::attach) detects.
    Kept([OwnedFd; 2]),
    /// No store has the name, and no other process can create one until this is dropped.
    Vacant(Vacancy),
}

/// A name that no other process can give to a store. It is free again when this value is dropped or its process ends.
#[derive(Debug)]
pub struct Vacancy {
    keeper: UnixStream,
    name: String,
}

/// Asks a keeper for the store of a name, or for the right to create it.
///
/// ```no_run
/// use trueno_zram_serve::keeper::{self, Claim};
/// use trueno_zram_store::{Store, StoreOptions};
/// let store = match keeper::claim("keeper.sock".as_ref(), "ram")? {
///     Claim::Kept(fds) => Store::attach(fds)?,
///     Claim::Vacant(vacancy) => {
///         let store = Store::create(&StoreOptions::new(1 << 30))?;
///         vacancy.put(store.fds())?;
///         store
///     }
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`KeeperError`].
pub fn claim(path: &Path, name: &str) -> Result<Claim, KeeperError> {
    let keeper = connect(path)?;
    let (answer, fds) = call(&keeper, CLAIM, name, &[])?;
    match (&answer[..], <[OwnedFd; 2]>::try_from(fds)) {
        ([FOUND], Ok(fds)) => Ok(Claim::Kept(fds)),
        ([VACANT], _) => Ok(Claim::Vacant(Vacancy { keeper, name: name.to_owned() })),
        ([CLAIMED, process @ ..], _) => {
            let process = u32::from_ne_bytes(process.try_into().map_err(|_| KeeperError::Answer)?);
            Err(KeeperError::Claimed { name: name.to_owned(), process: Some(process).filter(|process| *process > 0) })
        }
        ([REFUSED], _) => Err(KeeperError::Full { name: name.to_owned() }),
        // Older keepers do not support claims. Their stores can be used: the lock of the table shows whether a server does.
        ([NOT_FOUND], _) => match call(&connect(path)?, GET, name, &[])? {
            (answer, fds) if answer == [FOUND] => fds.try_into().map(Claim::Kept).map_err(|_| KeeperError::Answer),
            _ => Err(KeeperError::Outdated { name: name.to_owned() }),
        },
        _ => Err(KeeperError::Answer),
    }
}

impl Vacancy {
    /// Gives the keeper the descriptors of the store, from [`Store::fds`](trueno_zram_store::Store::fds).
    ///
    /// # Errors
    /// [`KeeperError`].
    pub fn put(self, fds: [BorrowedFd<'_>; 2]) -> Result<(), KeeperError> {
        match &call(&self.keeper, PUT, &self.name, &fds)?.0[..] {
            [DONE] => Ok(()),
            [NOT_FOUND] => Err(KeeperError::Taken { name: self.name }),
            _ => Err(KeeperError::Answer),
        }
    }
}

/// Makes a keeper forget a store. Its memory is freed when its server ends.
///
/// ```no_run
/// trueno_zram_serve::keeper::remove("keeper.sock".as_ref(), "ram")?;
/// # Ok::<(), trueno_zram_serve::keeper::KeeperError>(())
/// ```
///
/// # Errors
/// [`KeeperError::Io`].
pub fn remove(path: &Path, name: &str) -> Result<(), KeeperError> {
    call(&connect(path)?, REMOVE, name, &[])?;
    Ok(())
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let keeper = UnixStream::connect(path)?;
    keeper.set_read_timeout(Some(TIMEOUT))?;
    keeper.set_write_timeout(Some(TIMEOUT))?;
    Ok(keeper)
}

/// Sends a request and waits for the answer, with the descriptors that come with it.
fn call(keeper: &UnixStream, command: u8, name: &str, fds: &[BorrowedFd<'_>]) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    if name.len() > MAX_NAME {
        let message = format!("a name of {} bytes is too long for a keeper; {MAX_NAME} is the most", name.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    send(keeper, &[&[command], name.as_bytes()].concat(), fds)?;
    let mut answer = vec![0; MAX_ANSWER];
    let Received { len_bytes, fds, .. } = receive(keeper, &mut answer).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, format!("the keeper has not answered for {} s", TIMEOUT.as_secs()))
        }
        _ => error,
    })?;
    if len_bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the keeper closed the connection"));
    }
    answer.truncate(len_bytes);
    Ok((answer, fds))
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

/// Returns the descriptors that systemd kept for this service, if there are any.
///
/// ```no_run
/// use trueno_zram_serve::keeper::{systemd_get, systemd_put, systemd_ready};
/// use trueno_zram_store::{Store, StoreOptions};
/// let store = match systemd_get()? {
///     Some(fds) => Store::attach(fds)?,
///     None => {
///         let store = Store::create(&StoreOptions::new(1 << 30))?;
///         systemd_put(store.fds())?;
///         store
///     }
/// };
/// systemd_ready();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If a descriptor that systemd names cannot be opened.
pub fn systemd_get() -> io::Result<Option<[OwnedFd; 2]>> {
    let for_us = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let Ok(names) = std::env::var("LISTEN_FDNAMES") else { return Ok(None) };
    if !for_us {
        return Ok(None);
    }
    // The first descriptor that systemd passes is 3.
    let numbers = SYSTEMD_NAMES.map(|wanted| names.split(':').position(|name| name == wanted).map(|at| at + 3));
    let [Some(table), Some(slabs)] = numbers else { return Ok(None) };
    let open = |number| File::options().read(true).write(true).open(format!("/proc/self/fd/{number}"));
    Ok(Some([open(table)?.into(), open(slabs)?.into()]))
}

/// Asks systemd to keep a store's descriptors (`FileDescriptorStoreMax=2` in the unit). Returns `false` without systemd.
/// [`systemd_get`] has an example.
///
/// # Errors
/// If systemd's socket does not accept them.
pub fn systemd_put(fds: [BorrowedFd<'_>; 2]) -> io::Result<bool> {
    let Some(socket) = notify_socket()? else { return Ok(false) };
    for (name, fd) in SYSTEMD_NAMES.iter().zip(fds) {
        send_with_fds(&socket, format!("FDSTORE=1\nFDNAME={name}").as_bytes(), &[fd])?;
    }
    Ok(true)
}

/// Notifies systemd that the service is ready (`Type=notify`). Does nothing without systemd. [`systemd_get`] has an example.
pub fn systemd_ready() {
    if let Ok(Some(socket)) = notify_socket() {
        // Without the message, the service is started all the same.
        let _ = socket.send(b"READY=1");
    }
}

/// Connects to the socket for messages to systemd. Returns `None` without systemd.
fn notify_socket() -> io::Result<Option<UnixDatagram>> {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return Ok(None) };
    let socket = UnixDatagram::unbound()?;
    match path.strip_prefix('@') {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.connect_addr(&address)?;
        }
        None => socket.connect(&path)?,
    }
    Ok(Some(socket))
}
