//! Lets a store's memory outlive its server: a process that holds its descriptors, or systemd.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::endpoint::{Endpoint, Listener, Stream};

/// The longest name of a store.
const MAX_NAME: usize = 255;

/// Stores that a keeper holds at most.
const MAX_STORES: usize = 1024;

/// How long a keeper waits for a client.
const PATIENCE: Duration = Duration::from_secs(5);

const GET: u8 = b'G';
const PUT: u8 = b'P';
const REMOVE: u8 = b'R';
const FOUND: u8 = b'F';
const NOT_FOUND: u8 = b'N';
const DONE: u8 = b'D';

/// The names of the descriptors in systemd's store.
const SYSTEMD_NAMES: [&str; 2] = ["trueno-zram-table", "trueno-zram-slabs"];

/// Holds descriptors of stores for servers that come and go.
///
/// It has nothing to do with the memory but to hold it, so there is no reason for it to die.
#[derive(Debug)]
pub struct Keeper {
    listener: Listener,
    stores: HashMap<Vec<u8>, [OwnedFd; 2]>,
}

impl Keeper {
    /// Listens on a unix socket that only this user may use.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = Listener::bind(&Endpoint::Unix(path.to_owned()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, stores: HashMap::new() })
    }

    /// Serves requests for ever, one after the other.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            self.serve_one()?;
        }
    }

    /// Serves one request.
    ///
    /// # Errors
    /// If the socket fails. A client that fails is not an error.
    pub fn serve_one(&mut self) -> io::Result<()> {
        if let Stream::Unix(client) = self.listener.accept()? {
            let _ = self.serve(&client);
        }
        Ok(())
    }

    fn serve(&mut self, client: &UnixStream) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let mut message = [0; 1 + MAX_NAME];
        let (len, fds) = receive(client, &mut message)?;
        let Some((command, name)) = message[..len].split_first() else { return Ok(()) };
        match (*command, <[OwnedFd; 2]>::try_from(fds)) {
            (PUT, Ok(fds)) if self.stores.len() < MAX_STORES => {
                self.stores.insert(name.to_vec(), fds);
                send(client, &[DONE], &[])
            }
            (REMOVE, _) => {
                self.stores.remove(name);
                send(client, &[DONE], &[])
            }
            (GET, _) => match self.stores.get(name) {
                Some(fds) => send(client, &[FOUND], &fds.each_ref().map(AsFd::as_fd)),
                None => send(client, &[NOT_FOUND], &[]),
            },
            _ => send(client, &[NOT_FOUND], &[]),
        }
    }
}

/// Asks a keeper for the descriptors of a store.
///
/// # Errors
/// If there is no keeper, or it does not answer as one.
pub fn get(path: &Path, name: &str) -> io::Result<Option<[OwnedFd; 2]>> {
    let (answer, fds) = call(path, GET, name, &[])?;
    match (answer, <[OwnedFd; 2]>::try_from(fds)) {
        (FOUND, Ok(fds)) => Ok(Some(fds)),
        (NOT_FOUND, _) => Ok(None),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the keeper's answer is not understood")),
    }
}

/// Gives a keeper the descriptors of a store, from [`Store::fds`](trueno_zram_store::Store::fds).
///
/// # Errors
/// If there is no keeper, or it does not accept them.
pub fn put(path: &Path, name: &str, fds: [BorrowedFd<'_>; 2]) -> io::Result<()> {
    match call(path, PUT, name, &fds)?.0 {
        DONE => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the keeper does not accept the store")),
    }
}

/// Makes a keeper forget a store. Its memory is freed when its server ends.
///
/// # Errors
/// If there is no keeper.
pub fn remove(path: &Path, name: &str) -> io::Result<()> {
    call(path, REMOVE, name, &[]).map(drop)
}

fn call(path: &Path, command: u8, name: &str, fds: &[BorrowedFd<'_>]) -> io::Result<(u8, Vec<OwnedFd>)> {
    if name.len() > MAX_NAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of the store is too long"));
    }
    let keeper = UnixStream::connect(path)?;
    keeper.set_read_timeout(Some(PATIENCE))?;
    send(&keeper, &[&[command], name.as_bytes()].concat(), fds)?;
    let mut answer = [0; 1];
    let (len, fds) = receive(&keeper, &mut answer)?;
    if len == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((answer[0], fds))
}

fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}

/// Receives a message and the descriptors that came with it. Messages here are short enough not to be divided.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((received.bytes, fds.flatten().collect()))
}

/// The descriptors that systemd kept for this service, if it did.
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
///
/// # Errors
/// If systemd's socket does not accept them.
pub fn systemd_put(fds: [BorrowedFd<'_>; 2]) -> io::Result<bool> {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return Ok(false) };
    let socket = UnixDatagram::unbound()?;
    match path.strip_prefix('@') {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.connect_addr(&address)?;
        }
        None => socket.connect(&path)?,
    }
    for (name, fd) in SYSTEMD_NAMES.iter().zip(fds) {
        let message = format!("FDSTORE=1\nFDNAME={name}");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&socket, &[IoSlice::new(message.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    Ok(true)
}

/// Tells systemd that the service is ready (`Type=notify`). Does nothing without systemd.
pub fn systemd_ready() {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    // A service that cannot say so is started all the same.
    let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1", path));
}
