//! The control socket: statistics, saving, loading and resizing of a running server's stores.
//!
//! A client sends one request as a line of JSON and gets one line back. Archives go through the same connection, in
//! chunks with their lengths before them, so that the server never opens files for others.
//!
//! Only the server's user and root are served. Saves and loads leave a reserve of connections, so that statistics are always
//! available, and clients that send no request leave first.

mod client;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trueno_zram_connections::{Admitted, ConnectionLimits, EstablishError, deadline_after};
use trueno_zram_core::{Algorithm, CpuBatchCompressor};
use trueno_zram_io::{ChainFile, FileId};
use trueno_zram_store::{Store, StoreStats};

use crate::chunks::{ChunkReader, ChunkWriter};
use crate::endpoint::{Endpoint, SocketStream};
use crate::metrics;
use crate::peer;
use crate::request_reader::RequestReader;
use crate::server::{Service, SocketServer};

pub use client::ControlClient;

/// The longest request or reply line.
const MAX_LINE: u64 = 1 << 20;

/// Limits on the clients of a control socket.
///
/// ```
/// use trueno_zram_serve::control::ControlLimits;
/// let limits = ControlLimits::default();
/// assert!(limits.max_transfers < limits.max_connections, "the rest is for statistics");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlLimits {
    /// Connections at the same time. One more ends the oldest of those that do not save or load.
    pub max_connections: usize,
    /// Saves and loads at the same time. More are refused.
    pub max_transfers: usize,
    /// The time for a whole request.
    pub request_timeout: Duration,
    /// The longest pause of a client while an archive is saved or loaded.
    pub idle_timeout: Duration,
}

impl Default for ControlLimits {
    fn default() -> Self {
        Self {
            max_connections: 16,
            max_transfers: 8,
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

impl ControlLimits {
    /// Sets the number of connections at the same time.
    #[must_use]
    pub fn with_max_connections(self, max_connections: usize) -> Self {
        Self { max_connections, ..self }
    }

    /// Sets the number of saves and loads at the same time.
    #[must_use]
    pub fn with_max_transfers(self, max_transfers: usize) -> Self {
        Self { max_transfers, ..self }
    }

    /// Sets the time for a whole request.
    #[must_use]
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }

    /// Sets the longest pause within an archive.
    #[must_use]
    pub fn with_idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout, ..self }
    }
}

/// A request of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
enum ControlRequest {
    Stat,
    Save { export: String, algorithm: String },
    Load { export: String },
    Resize { export: String, size_bytes: u64 },
    Metrics,
}

/// An answer of the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ControlReply {
    Stat(Vec<ExportStat>),
    /// The server is ready to send or receive the archive.
    Ready,
    /// The archive was sent, or loaded: the length of its content.
    Done {
        content_bytes: u64,
    },
    /// The store has this length now.
    Resized {
        size_bytes: u64,
    },
    /// The statistics as OpenMetrics text.
    Metrics(String),
    Error(String),
}

/// The statistics of one export.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExportStat {
    /// The export's name.
    pub name: String,
    /// The algorithm, as `lz4` or `zstd:3`.
    pub algorithm: String,
    /// The files from which pages that were never written are read: an archive, its base, the base of that, and so on.
    #[serde(default)]
    pub files: Vec<ServedFile>,
    /// The statistics of the store.
    #[serde(flatten)]
    pub stats: StoreStats,
}

/// A file that an export is read from. It must not be replaced while it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServedFile {
    /// The path with which the server opened it.
    pub path: PathBuf,
    /// The device of its file system.
    pub device: u64,
    /// Its inode number there.
    pub inode: u64,
}

impl From<&ChainFile> for ServedFile {
    fn from(file: &ChainFile) -> Self {
        let FileId { device, inode } = file.id;
        // A path that is not text is only displayed: the numbers identify the file.
        Self { path: file.path.to_string_lossy().into_owned().into(), device, inode }
    }
}

/// A store that a control socket serves.
///
/// ```no_run
/// use std::sync::Arc;
/// use trueno_zram_io::ArchiveOpener;
/// use trueno_zram_serve::control::ServedStore;
/// use trueno_zram_store::{Store, StoreOptions};
/// let chain = ArchiveOpener::new().open_chain("tuesday.tzd".as_ref())?.expect("the file has an index");
/// let files = chain.files.clone();
/// let store = Store::create(&StoreOptions::new(1 << 30))?.with_base(chain.archive)?;
/// let served = ServedStore::new("disk", Arc::new(store)).with_files(&files);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServedStore {
    name: String,
    store: Arc<Store>,
    files: Vec<ServedFile>,
}

impl ServedStore {
    /// Names a store.
    #[must_use]
    pub fn new(name: impl Into<String>, store: Arc<Store>) -> Self {
        Self { name: name.into(), store, files: Vec::new() }
    }

    /// Sets the files that the store's base is read from.
    #[must_use]
    pub fn with_files(self, files: &[ChainFile]) -> Self {
        Self { files: files.iter().map(ServedFile::from).collect(), ..self }
    }

    /// Returns the statistics of the store.
    pub(crate) fn stat(&self) -> ExportStat {
        let Self { name, store, files } = self;
        let algorithm = store.algorithm().to_string();
        ExportStat { name: name.clone(), algorithm, files: files.clone(), stats: store.stats() }
    }
}

/// The reason why a client's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The connection failed.
    #[error("the connection to the server failed")]
    Io(#[from] io::Error),
    /// The archive that the server sends could not be written.
    #[error("the archive cannot be written")]
    Output(#[source] io::Error),
    /// The server's reply is not valid.
    #[error("the server's reply is not understood")]
    Reply(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server refused the request, or failed.
    #[error("the server failed: {0}")]
    Server(String),
}

/// A running control socket. Dropping it ends all connections and waits for their threads. [`ControlClient`] has an example.
#[derive(Debug)]
pub struct ControlServer {
    server: SocketServer,
}

impl ControlServer {
    /// Serves requests about the named stores on a unix socket that only this user and root may use.
    ///
    /// # Errors
    /// If the socket cannot be created, or no thread can be started.
    pub fn start(path: &Path, stores: Vec<ServedStore>, limits: ControlLimits) -> io::Result<Self> {
        let connection_limits = ConnectionLimits::new(limits.max_connections).with_established(limits.max_transfers);
        let endpoint = Endpoint::Unix(path.to_owned());
        let service = ControlService { stores, limits };
        Ok(Self { server: SocketServer::start("control", &endpoint, connection_limits, service)? })
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.server.connections()
    }
}

/// Answers requests.
#[derive(Debug)]
struct ControlService {
    stores: Vec<ServedStore>,
    limits: ControlLimits,
}

impl Service for ControlService {
    fn prepare(&self, stream: &SocketStream) -> io::Result<Instant> {
        let deadline = deadline_after(self.limits.request_timeout);
        stream.set_write_timeout(Some(self.limits.idle_timeout))?;
        if let SocketStream::Unix(unix) = stream
            && let Err(refusal) = peer::check(unix)
        {
            // A line fits into the buffer of a new socket, so this does not wait.
            send_line(stream, &ControlReply::Error(refusal.to_string()))?;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(deadline)
    }

    fn serve(&self, client: &Admitted<SocketStream>, deadline: Instant) -> io::Result<()> {
        let stream = client.connection();
        let mut input = BufReader::new(RequestReader { stream, deadline: Some(deadline) });
        let request = read_line(&mut input);
        input.get_mut().deadline = None;
        stream.set_read_timeout(Some(self.limits.idle_timeout))?;
        let reply = match request {
            Ok(ControlRequest::Stat) => ControlReply::Stat(self.stat()),
            Ok(ControlRequest::Save { export, algorithm }) => {
                self.transfer(client, &export, |store| save(store, &algorithm, stream))?
            }
            Ok(ControlRequest::Load { export }) => {
                self.transfer(client, &export, |store| load(store, stream, &mut input))?
            }
            Ok(ControlRequest::Resize { export, size_bytes }) => self.resize(&export, size_bytes),
            Ok(ControlRequest::Metrics) => ControlReply::Metrics(metrics::text(&self.stat())),
            Err(error) => ControlReply::Error(error.to_string()),
        };
        send_line(stream, &reply)
    }
}

impl ControlService {
    /// Saves or loads a store, unless too many transfers are under way.
    fn transfer(
        &self,
        client: &Admitted<SocketStream>,
        export: &str,
        work: impl FnOnce(&Arc<Store>) -> Result<u64, String>,
    ) -> io::Result<ControlReply> {
        let done = match client.establish() {
            Ok(()) => self.find(export).and_then(work),
            Err(EstablishError::Full) => Err(format!(
                "{} saves and loads are under way, which is the most there may be; try again when one has ended",
                self.limits.max_transfers
            )),
            Err(EstablishError::Displaced) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        Ok(done.map_or_else(ControlReply::Error, |content_bytes| ControlReply::Done { content_bytes }))
    }

    fn stat(&self) -> Vec<ExportStat> {
        self.stores.iter().map(ServedStore::stat).collect()
    }

    fn resize(&self, export: &str, size_bytes: u64) -> ControlReply {
        let resized = self.find(export).and_then(|store| {
            store.resize(size_bytes).map_err(|error| describe(&error))?;
            Ok(ControlReply::Resized { size_bytes })
        });
        resized.unwrap_or_else(ControlReply::Error)
    }

    /// Finds a store by name. The empty name is that of the first one.
    fn find(&self, name: &str) -> Result<&Arc<Store>, String> {
        let found = self.stores.iter().find(|known| name.is_empty() || known.name == name);
        found.map(|found| &found.store).ok_or_else(|| format!("there is no export `{name}`"))
    }
}

fn save(store: &Arc<Store>, algorithm: &str, stream: &SocketStream) -> Result<u64, String> {
    let algorithm: Algorithm = algorithm.parse().map_err(|error| format!("{algorithm}: {error}"))?;
    let mut codec = CpuBatchCompressor::new(algorithm).map_err(|error| error.to_string())?;
    send_line(stream, &ControlReply::Ready).map_err(|error| error.to_string())?;
    let mut chunks = ChunkWriter::new(stream);
    let saved =
        store.save(&mut chunks, &mut codec).map(|(_, summary)| summary.content_len).map_err(|error| describe(&error));
    chunks.finish().map_err(|error| error.to_string())?;
    saved
}

fn load(store: &Arc<Store>, stream: &SocketStream, input: &mut (impl Read + Send)) -> Result<u64, String> {
    send_line(stream, &ControlReply::Ready).map_err(|error| error.to_string())?;
    let mut codec = CpuBatchCompressor::default();
    store.load(ChunkReader::new(input), &mut codec).map_err(|error| describe(&error))
}

/// The message of an error with those of its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn send_line(mut stream: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn read_line<T: for<'a> Deserialize<'a>>(input: &mut impl BufRead) -> io::Result<T> {
    let mut line = Vec::new();
    input.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&line)?)
}
