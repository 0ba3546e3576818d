//! A listening unix socket: it has its permissions from the start, and its path goes with its server.
//!
//! - Only the owner may connect, with any umask. `bind` gives the file the permissions that the socket has, less the
//!   umask, so there is no moment at which others may.
//! - Only a socket that a dead server left behind is replaced. A socket in use stays, and so does any other file.
//! - Of several servers that find the same dead socket, one gets the path: each holds a lock on the folder while it looks at
//!   the socket, removes it and binds its own.
//! - A server that ends, also by a signal, removes the path only if its own socket is still there. Its listener is open until
//!   then, so the number of its file cannot have been reused.
//!
//! One race remains: if the path is removed by hand, and another program binds it between two system calls of a server that
//! replaces the same dead socket, the other program's socket is removed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fchmod, flock, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::files::folder;
use crate::files::regular_file::FileId;
use crate::interrupt::{self, Cleanup};

/// The permissions of every socket: its owner may connect.
const SOCKET_MODE: u32 = 0o600;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Attempts to lock a folder, and the pause between them: 10 s in all.
const LOCK_ATTEMPTS: u32 = 1000;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The reason why a path cannot be used for a socket. Inside of an [`io::Error`] of the kind [`io::ErrorKind::AddrInUse`].
///
/// ```
/// use trueno_zram_io::{SocketRefusal, UnixSocket};
/// let error = UnixSocket::bind("/dev/null".as_ref()).unwrap_err();
/// let refusal: Option<&SocketRefusal> = error.get_ref().and_then(|inner| inner.downcast_ref());
/// assert_eq!(refusal, Some(&SocketRefusal::NotSocket));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocketRefusal {
    /// A server has it.
    #[error("in use by a running server; end it, or give another path")]
    InUse,
    /// The path leads to a file of another kind.
    #[error("exists already, and is not a socket; remove it, or give another path")]
    NotSocket,
    /// A server has ended and left it, but another process keeps the folder locked.
    #[error("left behind by a dead server, but another process has locked the folder; remove it, or give another path")]
    FolderLocked,
}

impl From<SocketRefusal> for io::Error {
    fn from(refusal: SocketRefusal) -> Self {
        Self::new(io::ErrorKind::AddrInUse, refusal)
    }
}

/// A listening unix socket. Its path is removed when it is dropped, and before a signal ends the process
/// ([`interrupt`]), unless somebody else has replaced it.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use trueno_zram_io::UnixSocket;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("socket");
/// let socket = UnixSocket::bind(&path)?;
/// assert!(UnixSocket::bind(&path).is_err(), "it is in use");
/// let _client = UnixStream::connect(&path)?;
/// socket.listener().accept()?;
/// drop(socket);
/// assert!(!path.exists());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct UnixSocket {
    /// Removes the path. Dropped first: while the listener is open, no other file has the number of its file.
    _removal: Cleanup,
    listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Listens at `path`. A socket that a dead server left behind is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] with a [`SocketRefusal`] if something is there that must stay, and those of the operating
    /// system.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Self::bind_prepared(path, |_| Ok(()))
    }

    /// Like [`bind`](Self::bind), with options that `prepare` sets before anybody can connect.
    ///
    /// ```
    /// use trueno_zram_io::UnixSocket;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("socket");
    /// let socket = UnixSocket::bind_prepared(&path, |socket| {
    ///     Ok(rustix::net::sockopt::set_socket_recv_buffer_size(socket, 1 << 20)?)
    /// })?;
    /// assert_eq!(socket.path(), path);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind) and of `prepare`.
    pub fn bind_prepared(path: &Path, prepare: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<Self> {
        let socket = private_socket()?;
        prepare(socket.as_fd())?;
        let removal = match bind_to_new(&socket, path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let _lock = lock_folder(folder(path))?;
                remove_dead(path)?;
                bind_to_new(&socket, path).map_err(|error| match error.kind() {
                    // Somebody was faster.
                    io::ErrorKind::AddrInUse => SocketRefusal::InUse.into(),
                    _ => error,
                })?
            }
            bound => bound?,
        };
        // From here on, the path is removed if something fails.
        let bound = Self { _removal: removal, listener: socket.into(), path: path.to_owned() };
        bound.give_owner_access()?;
        listen(&bound.listener, BACKLOG)?;
        Ok(bound)
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the socket to accept connections from.
    #[must_use]
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Restores the owner's permissions that the umask has removed. No other user gets more.
    fn give_owner_access(&self) -> io::Result<()> {
        let path = self.path();
        if fs::symlink_metadata(path)?.mode() & 0o777 != SOCKET_MODE {
            fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
        }
        Ok(())
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Creates a socket whose file will have no other permissions than [`SOCKET_MODE`].
fn private_socket() -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::from_raw_mode(SOCKET_MODE))?;
    Ok(socket)
}

/// Binds a socket to a path that must not exist. The result removes the path if it still leads to the socket.
fn bind_to_new(socket: &OwnedFd, path: &Path) -> io::Result<Cleanup> {
    let address = SocketAddrUnix::new(path)?;
    // No signal between the creation of the file and that of the action that removes it.
    let mut pending = interrupt::pending_actions();
    bind(socket, &address)?;
    let (file, path) = (FileId::of(&fs::symlink_metadata(path)?), path.to_owned());
    Ok(pending.add_cleanup(move || {
        if fs::symlink_metadata(&path).is_ok_and(|there| FileId::of(&there) == file) {
            // There is nothing left to do if that fails.
            let _ = fs::remove_file(&path);
        }
    }))
}

/// Removes a socket that no process has.
fn remove_dead(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => return Err(SocketRefusal::NotSocket.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    // Connecting a socket of another type shows whether there is a server, and makes no connection: some servers serve a
    // single client. It also finds a socket that does not listen yet.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Ok(()) | Err(Errno::PROTOTYPE) => Err(SocketRefusal::InUse.into()),
        Err(error) => Err(error.into()),
    }
}

/// Locks a folder against all others that replace sockets in it, until the result is dropped.
fn lock_folder(folder: &Path) -> io::Result<OwnedFd> {
    let folder = openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..LOCK_ATTEMPTS {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => thread::sleep(LOCK_PAUSE),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(()) => return Ok(folder),
        }
    }
    Err(SocketRefusal::FolderLocked.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::sync::Barrier;

    use super::*;

    fn refusal(bound: io::Result<UnixSocket>) -> SocketRefusal {
        let error = bound.expect_err("the path is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        *error.get_ref().and_then(|inner| inner.downcast_ref()).expect("a refusal")
    }

    /// Leaves a socket as a server does that was killed.
    fn leave_dead(path: &Path) {
        drop(UnixListener::bind(path).unwrap());
        assert!(path.symlink_metadata().unwrap().file_type().is_socket());
    }

    #[test]
    fn only_dead_sockets_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), b"content").unwrap();
        assert_eq!(refusal(UnixSocket::bind(&at("file"))), SocketRefusal::NotSocket);
        assert_eq!(fs::read(at("file")).unwrap(), b"content");
        fs::create_dir(at("folder")).unwrap();
        assert_eq!(refusal(UnixSocket::bind(&at("folder"))), SocketRefusal::NotSocket);
        leave_dead(&at("dead"));
        std::os::unix::fs::symlink(at("dead"), at("link")).unwrap();
        assert_eq!(refusal(UnixSocket::bind(&at("link"))), SocketRefusal::NotSocket);
        let _datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
        assert_eq!(refusal(UnixSocket::bind(&at("datagrams"))), SocketRefusal::InUse);
        let socket = UnixSocket::bind(&at("dead")).unwrap();
        assert_eq!(refusal(UnixSocket::bind(&at("dead"))), SocketRefusal::InUse);
        UnixStream::connect(at("dead")).unwrap();
        drop(socket);
        assert!(!at("dead").exists());
        assert!(UnixSocket::bind(&at(&"long".repeat(50))).is_err());
        assert!(UnixSocket::bind(&at("absent/socket")).is_err());
    }

    #[test]
    fn a_server_is_not_disturbed_by_others_that_want_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = UnixSocket::bind(&path).unwrap();
        assert_eq!(refusal(UnixSocket::bind(&path)), SocketRefusal::InUse);
        socket.listener().set_nonblocking(true).unwrap();
        assert_eq!(socket.listener().accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "no client came");
    }

    #[test]
    fn a_socket_that_does_not_listen_yet_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let early = private_socket().unwrap();
        bind(&early, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(refusal(UnixSocket::bind(&path)), SocketRefusal::InUse);
    }

    #[test]
    fn the_path_of_another_server_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = UnixSocket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = UnixSocket::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        second.listener().accept().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"content").unwrap();
        drop(second);
        assert_eq!(fs::read(&path).unwrap(), b"content");
    }

    #[test]
    fn one_of_many_servers_gets_the_path_of_a_dead_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for _ in 0..50 {
            leave_dead(&path);
            let start = Barrier::new(4);
            let bound: Vec<_> = thread::scope(|threads| {
                let bind = || {
                    start.wait();
                    UnixSocket::bind(&path)
                };
                let started: Vec<_> = (0..4).map(|_| threads.spawn(bind)).collect();
                started.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let (bound, refused): (Vec<_>, Vec<_>) = bound.into_iter().partition(Result::is_ok);
            assert_eq!(bound.len(), 1);
            refused.into_iter().for_each(|refused| assert_eq!(refusal(refused), SocketRefusal::InUse));
            let server = bound.into_iter().next().unwrap().unwrap();
            let _client = UnixStream::connect(&path).unwrap();
            server.listener().accept().unwrap();
        }
        assert!(!path.exists());
    }

    #[test]
    fn nobody_else_may_connect_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = private_socket().unwrap();
        let removal = bind_to_new(&socket, &path).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().mode() & 0o177, 0);
        drop(removal);
        assert!(!path.exists());
    }

    #[test]
    fn options_are_set_before_clients_can_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let prepare = |socket: BorrowedFd<'_>| {
            assert!(!path.exists());
            assert_eq!(rustix::net::sockopt::socket_type(socket)?, SocketType::STREAM);
            Ok(())
        };
        let socket = UnixSocket::bind_prepared(&path, prepare).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().mode() & 0o777, SOCKET_MODE);
        drop(socket);
        let failed = UnixSocket::bind_prepared(&path, |_| Err(io::ErrorKind::Unsupported.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert!(!path.exists());
    }
}
