//! A page server: answers `criu lazy-pages`.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use trueno_zram_connections::{ClientTimeout, PausedAt, enable_keepalive};
use trueno_zram_core::PAGE_SIZE;

use crate::error::Error;
use crate::memory::{Memory, Place};
use crate::protocol::{CLOSED, RECORD_LEN, Request, encode_pages};
use crate::read_ahead::{CHUNK_PAGES, Chunk, ReadAhead};

/// The most pages in one reply: what `criu lazy-pages` asks for at most.
const MAX_REPLY_PAGES: u64 = 1024;

/// The longest pause of a client within a request, by default.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves the memory of processes to `criu lazy-pages`.
///
/// The client asks for a page when a process touches it, and for everything else in the background. A reply is sent once all
/// its pages are restored and checked, and has fewer pages than asked for if the rest is not ready yet: the client asks again.
#[derive(Debug)]
pub struct PageServer {
    memory: Memory,
    workers: usize,
    request_timeout: Duration,
}

/// What a client was sent.
///
/// ```
/// assert_eq!(trueno_zram_criu::Served::default().pages, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Replies with pages.
    pub replies: u64,
    /// Pages in them.
    pub pages: u64,
    /// Whether the client said that it was done. If it did not, the connection ended between two requests.
    pub closed: bool,
}

impl PageServer {
    /// Serves `memory`. Each connection has `workers` threads that restore pages ahead; with 0, its own thread does it all.
    ///
    /// ```
    /// use trueno_zram_criu::{Memory, PageServer};
    /// assert_eq!(PageServer::new(Memory::default(), 2).memory().len_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(memory: Memory, workers: usize) -> Self {
        Self { memory, workers, request_timeout: REQUEST_TIMEOUT }
    }

    /// Sets how long a client of [`serve_client`](Self::serve_client) may send nothing in the middle of a request of 32 bytes: a
    /// minute by default. Between requests it may be silent for as long as it likes.
    #[must_use]
    pub fn request_timeout(mut self, time: Duration) -> Self {
        self.request_timeout = time;
        self
    }

    /// Returns the memory that is served.
    ///
    /// ```
    /// # use trueno_zram_criu::{Memory, PageServer};
    /// assert_eq!(PageServer::new(Memory::default(), 2).memory().processes().count(), 0);
    /// ```
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Serves one client until it is done.
    ///
    /// # Errors
    /// [`Error::Connection`], and what the client did wrong. [`Error::Damaged`] if it asked for a page that cannot be
    /// restored. The connection should be closed then; the client fails, and no process sees other bytes.
    pub fn serve(&self, stream: impl Read + Write) -> Result<Served, Error> {
        self.run(stream, ClientTimeout::Unlimited, || true).map(Option::unwrap_or_default)
    }

    /// Like [`serve`](Self::serve), for one of many clients that may be silent. Calls `establish` at its first request, and gives
    /// it up if that returns `false`. Returns `None` if it left without a request.
    ///
    /// There is no time limit for the first request: `criu lazy-pages` sends it when a process runs, which is when all of them
    /// are restored.
    ///
    /// # Errors
    /// As above; [`Error::Stalled`] if the client stopped in the middle of a request, and [`Error::Displaced`].
    pub fn serve_client(&self, stream: &TcpStream, establish: impl FnOnce() -> bool) -> Result<Option<Served>, Error> {
        let set_timeout = |time| stream.set_read_timeout(time).map_err(Error::Connection);
        enable_keepalive(stream).map_err(Error::Connection)?;
        // The standard library refuses a time limit of zero.
        set_timeout(Some(self.request_timeout.max(Duration::from_millis(1))))?;
        let served = self.run(stream, ClientTimeout::WithinRequest, establish);
        // A client that waits for a damaged page is not disconnected. An error here must not hide that of the page.
        let reset = set_timeout(None);
        let served = served?;
        reset.map(|()| served)
    }

    fn run(
        &self,
        stream: impl Read + Write,
        patience: ClientTimeout,
        establish: impl FnOnce() -> bool,
    ) -> Result<Option<Served>, Error> {
        let ahead = ReadAhead::new(&self.memory);
        thread::scope(|threads| {
            let _end = EndOnDrop(&ahead);
            let mut connection =
                Connection { stream, patience, memory: &self.memory, ahead: &ahead, served: Served::default() };
            let Some(first) = connection.read_request(0)? else { return Ok(None) };
            if !establish() {
                return Err(Error::Displaced);
            }
            // Silent clients have no workers.
            for _ in 0..self.workers {
                // Without a worker, the connection's own thread restores everything.
                let _ = thread::Builder::new().name("read-ahead".into()).spawn_scoped(threads, || ahead.work());
            }
            connection.run(first).map(Some)
        })
    }
}

/// Lets the workers end, also on a panic.
struct EndOnDrop<'a, 'm>(&'a ReadAhead<'m>);

impl Drop for EndOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A part of a chunk.
struct Piece {
    chunk: Chunk,
    pages: Range<usize>,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        self.chunk[self.pages.clone()].as_flattened()
    }
}

struct Connection<'a, S> {
    stream: S,
    patience: ClientTimeout,
    memory: &'a Memory,
    ahead: &'a ReadAhead<'a>,
    served: Served,
}

impl<S: Read + Write> Connection<'_, S> {
    fn run(mut self, first: Request) -> Result<Served, Error> {
        let (mut number, mut next) = (0, Some(first));
        while let Some(request) = next {
            match request {
                Request::Get { pid, address, pages } => self.answer(number, pid, address, pages)?,
                Request::Close => {
                    self.stream.write_all(&CLOSED).map_err(Error::Connection)?;
                    self.served.closed = true;
                    break;
                }
            }
            number += 1;
            next = self.read_request(number)?;
        }
        Ok(self.served)
    }

    /// Reads a request; `None` if the connection ends before it.
    fn read_request(&mut self, request: u64) -> Result<Option<Request>, Error> {
        let (mut record, mut received) = ([0; RECORD_LEN], 0);
        while received < RECORD_LEN {
            match self.stream.read(&mut record[received..]) {
                Ok(0) if received == 0 => return Ok(None),
                Ok(0) => return Err(Error::Ended { request, received }),
                Ok(count) => received += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let silence = if received == 0 { PausedAt::BetweenRequests } else { PausedAt::WithinRequest };
                    self.patience.after_pause(error, silence).map_err(|error| match error.kind() {
                        io::ErrorKind::TimedOut => Error::Stalled { request, received },
                        _ => Error::Connection(error),
                    })?;
                }
                Err(error) => return Err(Error::Connection(error)),
            }
        }
        Request::decode(&record).map(Some).map_err(|command| Error::Command { request, command })
    }

    fn answer(&mut self, request: u64, pid: u64, address: u64, pages: u64) -> Result<(), Error> {
        if pages == 0 || !address.is_multiple_of(PAGE_SIZE as u64) {
            return Err(Error::Range { request, address, pages });
        }
        let place = self.memory.find(pid, address).ok_or(Error::NoPage { request, pid, address })?;
        let place = Place { pages: place.pages.min(pages).min(MAX_REPLY_PAGES), ..place };
        let pieces = if place.pages == 1 { self.fault(place) } else { self.transfer(place) };
        if pieces.is_empty() {
            return self.answer_page_by_page(address, place);
        }
        let parts: Vec<&[u8]> = pieces.iter().map(Piece::bytes).collect();
        self.send(pid, address, &parts)
    }

    /// Returns a page that a process waits for, if it was restored ahead. Its whole chunk is restored where the page alone
    /// would take as long.
    fn fault(&self, place: Place) -> Vec<Piece> {
        let (chunk, within) = chunk_of(place.page);
        let id = (place.pid, chunk);
        let is_quick = self.memory.pages(place.pid).is_located(place.page);
        let chunk = if is_quick { self.ahead.get_ready(id) } else { self.ahead.get(id) };
        chunk.map(|chunk| Piece { chunk, pages: within..within + 1 }).into_iter().collect()
    }

    /// Returns the first pages of a range: the chunk of the first, and those after it that are ready. None if the first
    /// chunk has a damaged page.
    fn transfer(&self, place: Place) -> Vec<Piece> {
        let Place { pid, page, pages } = place;
        let (first, mut within) = chunk_of(page);
        let (last, _) = chunk_of(page + pages - 1);
        self.ahead.plan(pid, first);
        let (mut pieces, mut left) = (Vec::new(), usize::try_from(pages).expect("a reply is small"));
        for number in first..=last {
            let id = (pid, number);
            let chunk = if number == first { self.ahead.get(id) } else { self.ahead.get_ready(id) };
            let Some(chunk) = chunk else { break };
            let end = chunk.len().min(within + left);
            left -= end - within;
            pieces.push(Piece { chunk, pages: within..end });
            within = 0;
        }
        pieces
    }

    /// Answers with pages that are read one by one, up to the first damaged one.
    fn answer_page_by_page(&mut self, address: u64, place: Place) -> Result<(), Error> {
        let Place { pid, page: first, pages } = place;
        let mut content = Vec::new();
        for page in first..first + pages.min(CHUNK_PAGES) {
            let mut out = [[0; PAGE_SIZE]];
            match self.memory.pages(pid).read(page, &mut out) {
                Ok(()) => content.extend(out),
                Err(source) if content.is_empty() => return Err(Error::Damaged { pid, address, page, source }),
                Err(_) => break,
            }
        }
        self.send(pid, address, &[content.as_flattened()])
    }

    /// Sends a record and its pages.
    fn send(&mut self, pid: u64, address: u64, parts: &[&[u8]]) -> Result<(), Error> {
        let pages = parts.iter().map(|part| part.len() as u64).sum::<u64>() / PAGE_SIZE as u64;
        let record = encode_pages(pid, address, pages);
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(&record));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            match self.stream.write_vectored(slices) {
                Ok(0) => return Err(Error::Connection(io::ErrorKind::WriteZero.into())),
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Connection(error)),
            }
        }
        self.served.replies += 1;
        self.served.pages += pages;
        Ok(())
    }
}

/// Returns the chunk of a page, and the page's number in it.
fn chunk_of(page: u64) -> (u64, usize) {
    (page / CHUNK_PAGES, usize::try_from(page % CHUNK_PAGES).expect("a chunk is small"))
}
