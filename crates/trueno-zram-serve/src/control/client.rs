//! The client of a control socket.

use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use trueno_zram_core::Algorithm;

use super::{ControlError, ControlReply, ControlRequest, ExportStat, read_line, send_line};
use crate::chunks::{ChunkReader, ChunkWriter};

/// A connection to a control socket.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_serve::control::{ControlClient, ControlLimits, ControlServer, ServedStore};
/// use trueno_zram_store::{Store, StoreOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("control");
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
/// let stores = vec![ServedStore::new("ram", store)];
/// let _server = ControlServer::start(&path, stores, ControlLimits::default())?;
/// let exports = ControlClient::connect(&path)?.stat()?;
/// assert_eq!(exports[0].stats.size_bytes, 1 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ControlClient {
    stream: UnixStream,
    input: BufReader<UnixStream>,
}

impl ControlClient {
    /// Connects to the control socket of a server.
    ///
    /// # Errors
    /// If no server listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        let input = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, input })
    }

    /// Limits the time that each reply may take. Without it, there is no limit: a reply comes after an archive was loaded.
    ///
    /// # Errors
    /// If the system refuses the limit: one of 0.
    pub fn with_timeout(self, timeout: Duration) -> io::Result<Self> {
        self.stream.set_read_timeout(Some(timeout))?;
        Ok(self)
    }

    /// Asks for the statistics of all exports.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn stat(mut self) -> Result<Vec<ExportStat>, ControlError> {
        match self.ask(&ControlRequest::Stat)? {
            ControlReply::Stat(exports) => Ok(exports),
            other => Err(unexpected(&other)),
        }
    }

    /// Saves an export as it is now to a page archive: a .zst file for Zstandard, else a .lz4 file. Returns the length of
    /// the content.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_serve::control::{ControlClient, ControlLimits, ControlServer, ServedStore};
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("control");
    /// # let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// # let _server = ControlServer::start(&path, vec![ServedStore::new("ram", store)], ControlLimits::default())?;
    /// use trueno_zram_core::Algorithm;
    /// let mut archive = Vec::new();
    /// assert_eq!(ControlClient::connect(&path)?.save("ram", Algorithm::Lz4, &mut archive)?, 1 << 20);
    /// assert_eq!(ControlClient::connect(&path)?.load("ram", &mut &archive[..])?, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ControlError`]. `out` then has an incomplete archive.
    pub fn save(mut self, export: &str, algorithm: Algorithm, out: &mut impl Write) -> Result<u64, ControlError> {
        let (export, algorithm) = (export.to_owned(), algorithm.to_string());
        self.expect_ready(&ControlRequest::Save { export, algorithm })?;
        copy_archive(&mut ChunkReader::new(&mut self.input), out)?;
        self.expect_done()
    }

    /// Loads a page archive into an export. Returns the length of the content. [`save`](Self::save) has an example.
    ///
    /// # Errors
    /// [`ControlError`]. A part of the content may have been loaded.
    pub fn load(mut self, export: &str, archive: &mut impl Read) -> Result<u64, ControlError> {
        self.expect_ready(&ControlRequest::Load { export: export.to_owned() })?;
        let mut chunks = ChunkWriter::new(&self.stream);
        let sent = io::copy(archive, &mut chunks).and_then(|_| chunks.finish());
        // A server that refuses the archive stops reading it and sends the reason.
        let done = self.expect_done();
        if matches!(done, Err(ControlError::Io(_))) {
            sent?;
        }
        done
    }

    /// Changes the length of an export. [`Store::resize`](trueno_zram_store::Store::resize) has the rules.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_serve::control::{ControlClient, ControlLimits, ControlServer, ServedStore};
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("control");
    /// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20).with_max_size_bytes(1 << 30))?);
    /// let _server = ControlServer::start(&path, vec![ServedStore::new("ram", store)], ControlLimits::default())?;
    /// ControlClient::connect(&path)?.resize("ram", 1 << 21)?;
    /// assert_eq!(ControlClient::connect(&path)?.stat()?[0].stats.size_bytes, 1 << 21);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ControlError`]. The length is then as it was.
    pub fn resize(mut self, export: &str, size_bytes: u64) -> Result<(), ControlError> {
        match self.ask(&ControlRequest::Resize { export: export.to_owned(), size_bytes })? {
            ControlReply::Resized { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks for the statistics of all exports as OpenMetrics text.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn metrics(mut self) -> Result<String, ControlError> {
        match self.ask(&ControlRequest::Metrics)? {
            ControlReply::Metrics(text) => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    fn reply(&mut self) -> Result<ControlReply, ControlError> {
        read_line(&mut self.input).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ControlError::Reply(Box::new(error)),
            _ => ControlError::Io(error),
        })
    }

    /// Sends the request and reads the reply.
    fn ask(&mut self, request: &ControlRequest) -> Result<ControlReply, ControlError> {
        let sent = send_line(&self.stream, request);
        // A server that refuses a client sends the reason, and does not wait for the request.
        let reply = self.reply();
        if matches!(reply, Err(ControlError::Io(_))) {
            sent?;
        }
        reply
    }

    fn expect_ready(&mut self, request: &ControlRequest) -> Result<(), ControlError> {
        match self.ask(request)? {
            ControlReply::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn expect_done(&mut self) -> Result<u64, ControlError> {
        let reply = self.reply()?;
        let _ = self.stream.shutdown(Shutdown::Both);
        match reply {
            ControlReply::Done { content_bytes } => Ok(content_bytes),
            other => Err(unexpected(&other)),
        }
    }
}

/// Copies an archive from the connection. The error names the side that failed.
fn copy_archive(connection: &mut impl Read, out: &mut impl Write) -> Result<(), ControlError> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let read = match connection.read(&mut bytes) {
            Ok(0) => return out.flush().map_err(ControlError::Output),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        out.write_all(&bytes[..read]).map_err(ControlError::Output)?;
    }
}

fn unexpected(reply: &ControlReply) -> ControlError {
    match reply {
        ControlReply::Error(message) => ControlError::Server(message.clone()),
        other => ControlError::Reply(format!("{other:?}").into()),
    }
}
