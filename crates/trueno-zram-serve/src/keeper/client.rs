//! Requests of servers to a keeper.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use trueno_zram_connections::{Received, receive};

use super::{MAX_NAME, MAX_STORES, reply, request, send};

/// The time that a server waits for a keeper.
const TIMEOUT: Duration = Duration::from_secs(5);

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
    let (answer, fds) = call(&keeper, request::CLAIM, name, &[])?;
    match (&answer[..], <[OwnedFd; 2]>::try_from(fds)) {
        ([reply::FOUND], Ok(fds)) => Ok(Claim::Kept(fds)),
        ([reply::VACANT], _) => Ok(Claim::Vacant(Vacancy { keeper, name: name.to_owned() })),
        ([reply::CLAIMED, process @ ..], _) => {
            let process = u32::from_ne_bytes(process.try_into().map_err(|_| KeeperError::Answer)?);
            Err(KeeperError::Claimed { name: name.to_owned(), process: Some(process).filter(|process| *process > 0) })
        }
        ([reply::REFUSED], _) => Err(KeeperError::Full { name: name.to_owned() }),
        // Older keepers do not support claims. Their stores can be used: the lock of the table shows whether a server does.
        ([reply::NOT_FOUND], _) => match call(&connect(path)?, request::GET, name, &[])? {
            (answer, fds) if answer == [reply::FOUND] => {
                fds.try_into().map(Claim::Kept).map_err(|_| KeeperError::Answer)
            }
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
        match &call(&self.keeper, request::PUT, &self.name, &fds)?.0[..] {
            [reply::DONE] => Ok(()),
            [reply::NOT_FOUND] => Err(KeeperError::Taken { name: self.name }),
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
    call(&connect(path)?, request::REMOVE, name, &[])?;
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
    let mut answer = vec![0; reply::MAX_LEN];
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
