//! The network block device protocol, as a server.
//!
//! Fixed newstyle negotiation, structured replies, block status (`base:allocation`), trim, write zeroes, fast zero, FUA,
//! several connections to one export, several exports. No TLS: serve on a unix socket, or on the loopback interface.
//!
//! Each connection has a thread. It reads as many requests as have arrived with one system call, and sends the replies
//! with one.
//!
//! A client has a limited time for the whole negotiation, and for pauses within a request. Between requests it may be silent for
//! as long as it likes. If there are too many connections, those that have not negotiated leave first.

mod handshake;
mod linger;
mod protocol;
mod server;
mod stream;
mod transfer;

use std::io::{self, Read, Write};
use std::sync::Arc;

use trueno_zram_connections::ClientTimeout;

use crate::export::Export;
use stream::{AnyStream, BufferedStream};

pub use server::{NbdLimits, NbdServer};

/// The exports of a server. The first one is also the default, whose name is empty.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_serve::StoreExport;
/// use trueno_zram_serve::nbd::Exports;
/// use trueno_zram_store::{Store, StoreOptions};
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
/// let exports = Exports::new().with("ram", Arc::new(StoreExport::new(store)));
/// # Ok::<(), trueno_zram_store::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Exports {
    exports: Vec<NamedExport>,
}

#[derive(Clone, Debug)]
struct NamedExport {
    name: String,
    export: Arc<dyn Export>,
}

impl Exports {
    /// Creates a list without exports.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an export.
    #[must_use]
    pub fn with(mut self, name: &str, export: Arc<dyn Export>) -> Self {
        self.exports.push(NamedExport { name: name.to_owned(), export });
        self
    }

    fn find(&self, name: &[u8]) -> Option<NamedExport> {
        if name.is_empty() {
            return self.exports.first().cloned();
        }
        self.exports.iter().find(|export| export.name.as_bytes() == name).cloned()
    }

    fn iter(&self) -> impl Iterator<Item = &NamedExport> {
        self.exports.iter()
    }
}

/// Serves one client on a stream, from the first byte to the last.
///
/// The server answers any input as the protocol says, or ends the connection. The memory that it takes for a
/// client does not exceed a few MiB and the longest read, 32 MiB. It waits for the client for as long as the stream does.
///
/// For streams that [`NbdServer`] does not listen for, such as one with encryption.
///
/// ```
/// use std::io::Read;
/// use std::net::Shutdown;
/// use std::os::unix::net::UnixStream;
/// use trueno_zram_serve::nbd::{Exports, serve_connection};
/// let (ours, mut theirs) = UnixStream::pair()?;
/// theirs.shutdown(Shutdown::Write)?; // this client leaves without a word
/// serve_connection(ours, &Exports::new())?;
/// let mut greeting = [0; 8];
/// theirs.read_exact(&mut greeting)?;
/// assert_eq!(&greeting, b"NBDMAGIC");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// An error of the stream. A client that does not keep to the protocol is not an error.
pub fn serve_connection(stream: impl Read + Write, exports: &Exports) -> io::Result<()> {
    let mut stream = BufferedStream::new(AnyStream(stream), ClientTimeout::Unlimited);
    match handshake::negotiate(&mut stream, exports)? {
        Some(agreement) => transfer::serve(&mut stream, &agreement),
        None => Ok(()),
    }
}
