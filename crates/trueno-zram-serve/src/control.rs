//! The control socket: statistics, saving and loading of a running server's stores.
//!
//! A client sends one request as a line of JSON and gets one line back. Archives go through the same connection, in
//! chunks with their lengths before them, so that the server never opens files for others.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trueno_zram_archive::{ChainFile, FileId};
use trueno_zram_core::{Algorithm, CpuBatchCompressor};
use trueno_zram_store::{Store, StoreStats};

use crate::chunks::{ChunkReader, ChunkWriter};
use crate::endpoint::{Endpoint, Listener, Stream};

/// The longest request or reply line.
const MAX_LINE: u64 = 1 << 20;

/// Clients at the same time.
const MAX_CLIENTS: usize = 16;

/// How long the server waits for a client that sends or reads nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
enum Request {
    Stat,
    Save { export: String, algorithm: String },
    Load { export: String },
}

/// What the server answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Stat(Vec<ExportStat>),
    /// The server is ready to send or receive the archive.
    Ready,
    /// The archive was sent, or loaded: the length of its content.
    Done {
        content_bytes: u64,
    },
    Error(String),
}

/// The statistics of one export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportStat {
    /// The export's name.
    pub name: String,
    /// The algorithm, as `lz4` or `zstd:3`.
    pub algorithm: String,
    /// The files that pages are read from which were never written: an archive, its base, the base of that, and so on.
    #[serde(default)]
    pub files: Vec<ServedFile>,
    /// What the store holds and has done.
    #[serde(flatten)]
    pub stats: StoreStats,
}

/// A file that an export is read from. It must not be replaced while it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedFile {
    /// The path by which the server opened it.
    pub path: PathBuf,
    /// The device that it lies on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl From<&ChainFile> for ServedFile {
    fn from(file: &ChainFile) -> Self {
        let FileId { device, inode } = file.id;
        // A path that is not text is for people to read: the numbers tell the file from others.
        Self { path: file.path.to_string_lossy().into_owned().into(), device, inode }
    }
}

/// A store that a control socket serves.
#[derive(Clone, Debug)]
pub struct ServedStore {
    name: String,
    store: Arc<Store>,
    files: Vec<ServedFile>,
}

impl ServedStore {
    /// A store by its name.
    #[must_use]
    pub fn new(name: impl Into<String>, store: Arc<Store>) -> Self {
        Self { name: name.into(), store, files: Vec::new() }
    }

    /// Names the files that the store has its base from.
    #[must_use]
    pub fn with_files(self, files: &[ChainFile]) -> Self {
        Self { files: files.iter().map(ServedFile::from).collect(), ..self }
    }
}

/// Why a client's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The connection failed.
    #[error("the connection to the server failed")]
    Io(#[from] io::Error),
    /// The archive that the server sends could not be written.
    #[error("the archive cannot be written")]
    Output(#[source] io::Error),
    /// The server sent something that is not a reply.
    #[error("the server's reply is not understood")]
    Reply(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server refused the request, or failed.
    #[error("the server failed: {0}")]
    Server(String),
}

/// A running control socket. Dropping it stops it.
#[derive(Debug)]
pub struct ControlServer {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    listener: Listener,
    stores: Vec<ServedStore>,
    stopping: AtomicBool,
    clients: AtomicUsize,
}

impl ControlServer {
    /// Serves requests about the named stores on a unix socket that only this user may use.
    ///
    /// # Errors
    /// If the socket cannot be created, or no thread can be started.
    pub fn start(path: &Path, stores: Vec<ServedStore>) -> io::Result<Self> {
        let listener = Listener::bind(&Endpoint::Unix(path.to_owned()))?;
        let shared =
            Arc::new(Shared { listener, stores, stopping: AtomicBool::new(false), clients: AtomicUsize::new(0) });
        let acceptor = std::thread::Builder::new().name("control".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept_all()
        })?;
        Ok(Self { shared, acceptor: Some(acceptor) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.listener.stop();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn accept_all(self: &Arc<Self>) {
        loop {
            let accepted = self.listener.accept();
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            let Ok(Stream::Unix(stream)) = accepted else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if self.clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
                self.clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let shared = Arc::clone(self);
            let started = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
                // The error is the client's to see.
                let _ = shared.serve(&stream);
                shared.clients.fetch_sub(1, Ordering::Relaxed);
            });
            if started.is_err() {
                self.clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut input = BufReader::new(stream);
        let reply = match read_line(&mut input) {
            Ok(Request::Stat) => Reply::Stat(self.stat()),
            Ok(Request::Save { export, algorithm }) => {
                self.with_store(&export, |store| save(store, &algorithm, stream))
            }
            Ok(Request::Load { export }) => self.with_store(&export, |store| load(store, stream, &mut input)),
            Err(error) => Reply::Error(error.to_string()),
        };
        send_line(stream, &reply)
    }

    fn stat(&self) -> Vec<ExportStat> {
        let stat = |ServedStore { name, store, files }: &ServedStore| ExportStat {
            name: name.clone(),
            algorithm: store.algorithm().to_string(),
            files: files.clone(),
            stats: store.stats(),
        };
        self.stores.iter().map(stat).collect()
    }

    /// Finds a store by name. The empty name is the first one.
    fn with_store(&self, name: &str, work: impl FnOnce(&Arc<Store>) -> Result<u64, String>) -> Reply {
        let found = self.stores.iter().find(|known| name.is_empty() || known.name == name);
        match found.map(|found| work(&found.store)) {
            None => Reply::Error(format!("there is no export `{name}`")),
            Some(Ok(content_bytes)) => Reply::Done { content_bytes },
            Some(Err(message)) => Reply::Error(message),
        }
    }
}

fn save(store: &Arc<Store>, algorithm: &str, stream: &UnixStream) -> Result<u64, String> {
    let algorithm: Algorithm = algorithm.parse().map_err(|error| format!("{algorithm}: {error}"))?;
    let mut codec = CpuBatchCompressor::new(algorithm).map_err(|error| error.to_string())?;
    send_line(stream, &Reply::Ready).map_err(|error| error.to_string())?;
    let mut chunks = ChunkWriter::new(stream);
    let saved = store.save(&mut chunks, &mut codec).map(|(_, summary)| summary.content_len).map_err(describe);
    chunks.finish().map_err(|error| error.to_string())?;
    saved
}

fn load(store: &Arc<Store>, stream: &UnixStream, input: &mut (impl Read + Send)) -> Result<u64, String> {
    send_line(stream, &Reply::Ready).map_err(|error| error.to_string())?;
    let mut codec = CpuBatchCompressor::default();
    store.load(ChunkReader::new(input), &mut codec).map_err(describe)
}

/// The message of an error with those of its causes.
fn describe(error: trueno_zram_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn send_line(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
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

/// A connection to a control socket.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_serve::control::{ControlClient, ControlServer, ServedStore};
/// use trueno_zram_store::{Store, StoreOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("control");
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
/// let _server = ControlServer::start(&path, vec![ServedStore::new("ram", store)])?;
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
    /// If there is no server.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        let input = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, input })
    }

    /// Asks for the statistics of all exports.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn stat(mut self) -> Result<Vec<ExportStat>, ControlError> {
        send_line(&self.stream, &Request::Stat)?;
        match self.reply()? {
            Reply::Stat(exports) => Ok(exports),
            other => Err(unexpected(&other)),
        }
    }

    /// Saves an export as it is now to a page archive: a .zst file for Zstandard, else a .lz4 file. Returns the length of
    /// the content.
    ///
    /// # Errors
    /// [`ControlError`]. What was written to `out` is then not a whole archive.
    pub fn save(mut self, export: &str, algorithm: Algorithm, out: &mut impl Write) -> Result<u64, ControlError> {
        let (export, algorithm) = (export.to_owned(), algorithm.to_string());
        send_line(&self.stream, &Request::Save { export, algorithm })?;
        self.expect_ready()?;
        copy_archive(&mut ChunkReader::new(&mut self.input), out)?;
        self.expect_done()
    }

    /// Loads a page archive into an export. Returns the length of the content.
    ///
    /// # Errors
    /// [`ControlError`]. A part of the content may have been loaded.
    pub fn load(mut self, export: &str, archive: &mut impl Read) -> Result<u64, ControlError> {
        send_line(&self.stream, &Request::Load { export: export.to_owned() })?;
        self.expect_ready()?;
        let mut chunks = ChunkWriter::new(&self.stream);
        let sent = io::copy(archive, &mut chunks).and_then(|_| chunks.finish());
        // A server that refuses the archive stops reading it and says why.
        let done = self.expect_done();
        if matches!(done, Err(ControlError::Io(_))) {
            sent?;
        }
        done
    }

    fn reply(&mut self) -> Result<Reply, ControlError> {
        read_line(&mut self.input).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ControlError::Reply(Box::new(error)),
            _ => ControlError::Io(error),
        })
    }

    fn expect_ready(&mut self) -> Result<(), ControlError> {
        match self.reply()? {
            Reply::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn expect_done(&mut self) -> Result<u64, ControlError> {
        let reply = self.reply()?;
        let _ = self.stream.shutdown(Shutdown::Both);
        match reply {
            Reply::Done { content_bytes } => Ok(content_bytes),
            other => Err(unexpected(&other)),
        }
    }
}

/// Copies an archive from the connection, and tells which side fails.
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

fn unexpected(reply: &Reply) -> ControlError {
    match reply {
        Reply::Error(message) => ControlError::Server(message.clone()),
        other => ControlError::Reply(format!("{other:?}").into()),
    }
}
