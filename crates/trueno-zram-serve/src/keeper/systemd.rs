//! systemd as the keeper of a service's store, by its file descriptor store.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use super::send_with_fds;

/// The names of the descriptors in systemd's store.
const SYSTEMD_NAMES: [&str; 2] = ["trueno-zram-table", "trueno-zram-slabs"];

/// The first descriptor that systemd passes.
const FIRST_FD: usize = 3;

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
    let numbers = SYSTEMD_NAMES.map(|wanted| names.split(':').position(|name| name == wanted).map(|at| FIRST_FD + at));
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
