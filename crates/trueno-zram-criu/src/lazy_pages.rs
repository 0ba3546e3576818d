//! In place of `criu lazy-pages`: takes processes over from `criu restore`, and fills their memory.
//!
//! `criu restore --lazy-pages` connects to a Unix socket. Every process sends its number as 32 bits, and then, with one byte that
//! has no meaning, its userfaultfd. A zombie sends its number negated, and nothing else. When all processes are about to run, a
//! word of 32 bits says so, which is larger than the number of any process.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::net::sockopt::set_socket_passcred;
use trueno_zram_connections::{Received, serve_each};
use trueno_zram_restore::{FaultLatencies, Notice, Process, ProcessRestore, RestoreOptions, RestoreReport};

use crate::early_checks::EarlyChecks;
use crate::error::Error;
use crate::memory::DumpedMemory;

/// The name of the socket in the work directory of `criu restore --lazy-pages`.
pub const LAZY_PAGES_SOCKET: &str = "lazy-pages.socket";

/// "RSTF": all processes are restored, and about to run.
const FINISHED: i32 = 0x5253_5446;

/// Fills the memory of processes that `criu restore --lazy-pages` restores. The example of the [crate] serves some.
///
/// A process never sees zeros in place of what is missing, with the exceptions in `docs/RESTORE.md`: if its memory cannot be
/// restored, it is ended. See [`ProcessRestore`].
#[derive(Debug)]
pub struct LazyPages {
    memory: DumpedMemory,
    restore: ProcessRestore,
}

impl LazyPages {
    /// Restores from `memory`. Calls `notify` with what happens meanwhile.
    ///
    /// ```
    /// use trueno_zram_criu::{LazyPages, DumpedMemory};
    /// let daemon = LazyPages::new(DumpedMemory::default(), Default::default(), |_| {})?;
    /// assert_eq!(daemon.memory().len_bytes(), 0);
    /// # Ok::<(), trueno_zram_criu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Restore`] if the system has no more descriptors.
    pub fn new(
        memory: DumpedMemory,
        options: RestoreOptions,
        notify: impl Fn(Notice<'_>) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Ok(Self { memory, restore: ProcessRestore::new(options)?.on_notice(notify) })
    }

    /// Prepares a socket for [`serve`](Self::serve), before anybody can connect.
    ///
    /// The kernel then reports the sender of each message: numbers in the images may be those of another PID namespace.
    ///
    /// ```
    /// use trueno_zram_criu::{LAZY_PAGES_SOCKET, LazyPages};
    /// # let work_dir = tempfile::tempdir()?;
    /// # let work_dir = work_dir.path();
    /// let listener = std::os::unix::net::UnixListener::bind(work_dir.join(LAZY_PAGES_SOCKET))?;
    /// LazyPages::prepare_socket(&listener)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn prepare_socket(socket: impl AsFd) -> io::Result<()> {
        Ok(set_socket_passcred(socket, true)?)
    }

    /// Returns the memory that processes are restored from.
    #[must_use]
    pub fn memory(&self) -> &DumpedMemory {
        &self.memory
    }

    /// Accepts `criu restore` at a socket that [`prepare_socket`](Self::prepare_socket) has prepared, and serves its processes until
    /// their memory is complete, or they have ended.
    ///
    /// The first connection that sends something, or ends, is taken for `criu restore`. Silent connections do not keep it out, and are
    /// closed then. It connects long before it has a process to send, so there is no time limit.
    ///
    /// ```
    /// use std::os::unix::net::{UnixListener, UnixStream};
    /// use trueno_zram_criu::{DumpedMemory, Error, LazyPages};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("lazy-pages.socket");
    /// let daemon = LazyPages::new(DumpedMemory::default(), Default::default(), |_| {})?;
    /// let listener = UnixListener::bind(&path)?;
    /// LazyPages::prepare_socket(&listener)?;
    /// // A `criu restore` that fails at once.
    /// drop(UnixStream::connect(&path)?);
    /// assert!(matches!(daemon.serve(&listener), Err(Error::RestoreEnded)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Errors of the messages of `criu restore`, and [`Error::Restore`]. All processes that it had handed over have been ended then,
    /// except those that were complete. The failure of a single process is passed to `notify`; see [`failures`](Self::failures).
    pub fn serve(&self, listener: &UnixListener) -> Result<RestoreReport, Error> {
        let early = EarlyChecks::default();
        thread::scope(|threads| {
            // Without this thread, everything is checked when it is touched.
            let checks = || early.run(&self.memory);
            let _ = thread::Builder::new().name("early checks".into()).spawn_scoped(threads, checks);
            let served = self.accept(listener, &early);
            early.end();
            served
        })
    }

    /// Accepts `criu restore`, and serves it.
    fn accept(&self, listener: &UnixListener, early: &EarlyChecks) -> Result<RestoreReport, Error> {
        let served = Mutex::new(None);
        let accepted = serve_each(listener, Some(1), |client| {
            let first = receive_word(client.connection());
            if client.establish() {
                let report = self.serve_restore(client.connection(), first, early);
                *served.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
            }
        });
        let served = served.into_inner().unwrap_or_else(PoisonError::into_inner);
        served.unwrap_or_else(|| Err(accepted.map_or_else(Error::Connection, |()| Error::RestoreEnded)))
    }

    /// Serves the processes of `criu restore`, which has sent its first word.
    fn serve_restore(
        &self,
        connection: &UnixStream,
        first: Result<i32, Error>,
        early: &EarlyChecks,
    ) -> Result<RestoreReport, Error> {
        thread::scope(|threads| {
            let handler = threads.spawn(|| self.restore.run());
            let received = first.and_then(|first| self.receive_processes(connection, first));
            early.end();
            match &received {
                Ok(()) => self.restore.start_fill(),
                // The processes received so far would not be served.
                Err(_) => self.restore.end_all(),
            }
            let report = handler.join().unwrap_or(Err(trueno_zram_restore::Error::FillPanicked));
            received?;
            Ok(report?)
        })
    }

    /// Returns the latencies of faults so far. See [`ProcessRestore::latencies`].
    #[must_use]
    pub fn latencies(&self) -> FaultLatencies {
        self.restore.latencies()
    }

    /// Returns how many processes could not be restored. They were ended.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.restore.failures()
    }

    /// Ends all processes that are not complete: for a process that is about to end.
    ///
    /// ```no_run
    /// # use trueno_zram_criu::{DumpedMemory, LazyPages};
    /// # use std::os::unix::net::UnixListener;
    /// # let (memory, listener) = (DumpedMemory::default(), UnixListener::bind("lazy-pages.socket")?);
    /// let daemon = LazyPages::new(memory, Default::default(), |_| {})?;
    /// std::thread::scope(|threads| {
    ///     let served = threads.spawn(|| daemon.serve(&listener));
    ///     // At the end of the service, from another thread:
    ///     daemon.end_all();
    ///     served.join()
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn end_all(&self) {
        self.restore.end_all();
    }

    /// Receives all processes, the number of the first one having been received.
    fn receive_processes(&self, connection: &UnixStream, first: i32) -> Result<(), Error> {
        let mut word = first;
        loop {
            match word {
                FINISHED => return Ok(()),
                // A zombie has no memory.
                ..0 => {}
                pid => self.receive_process(connection, pid)?,
            }
            word = receive_word(connection)?;
        }
    }

    /// Receives the userfaultfd of a process, and starts to serve it.
    fn receive_process(&self, connection: &UnixStream, pid: i32) -> Result<(), Error> {
        let Received { mut fds, sender, is_truncated, .. } = receive(connection, &mut [0])?;
        let (Some(fd), true) = (fds.pop(), fds.is_empty() && !is_truncated) else {
            return Err(Error::NotOneFd { pid });
        };
        let number = pid.unsigned_abs();
        let known = self.memory.process(number.into());
        let opened = sender.ok_or(Error::NoSender { pid }).and_then(|sender| Ok(Process::open(sender)?));
        let process = match opened {
            Ok(process) => process,
            Err(error) => {
                // CRIU ends its processes once it finds the connection closed. Missing pages must not become zeros before.
                let _ = connection.shutdown(Shutdown::Both);
                if let Some(pages) = known {
                    pages.missing(number, fd).poison();
                }
                return Err(error);
            }
        };
        let Some(pages) = known else {
            // It has a userfaultfd, and would wait for its first page forever.
            process.end_before_closing(fd);
            return Err(Error::UnknownProcess { pid });
        };
        Ok(self.restore.add(process, pages.missing(number, fd))?)
    }
}

/// Receives the number of a process, or what stands in its place.
fn receive_word(connection: &UnixStream) -> Result<i32, Error> {
    let mut word = [0; 4];
    receive(connection, &mut word)?;
    Ok(i32::from_ne_bytes(word))
}

/// Receives bytes, and what comes with them.
fn receive(connection: &UnixStream, bytes: &mut [u8]) -> Result<Received, Error> {
    let mut all = Received::default();
    while all.len_bytes < bytes.len() {
        let piece =
            trueno_zram_connections::receive(connection, &mut bytes[all.len_bytes..]).map_err(Error::Connection)?;
        if piece.len_bytes == 0 {
            return Err(Error::RestoreEnded);
        }
        all.len_bytes += piece.len_bytes;
        all.fds.extend(piece.fds);
        all.sender = piece.sender;
        all.is_truncated |= piece.is_truncated;
    }
    Ok(all)
}
