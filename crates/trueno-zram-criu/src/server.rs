//! A page server: answers `criu lazy-pages`.

use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::thread;

use trueno_zram_core::PAGE_SIZE;

use crate::error::Error;
use crate::memory::{Memory, Place};
use crate::protocol::{CLOSED, RECORD_LEN, Request, encode_pages};
use crate::read_ahead::{CHUNK_PAGES, Chunk, ReadAhead};

/// The most pages in one reply: what `criu lazy-pages` asks for at most.
const MAX_REPLY_PAGES: u64 = 1024;

/// Serves the memory of processes to `criu lazy-pages`.
///
/// The client asks for a page when a process touches it, and for everything else in the background. A reply is sent once all
/// its pages are restored and checked, and has fewer pages than asked for if the rest is not ready yet: the client asks again.
#[derive(Debug)]
pub struct PageServer {
    memory: Memory,
    workers: usize,
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
        Self { memory, workers }
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
        let ahead = ReadAhead::new(&self.memory);
        thread::scope(|threads| {
            let _end = EndOnDrop(&ahead);
            for _ in 0..self.workers {
                // Without a worker, the connection's own thread restores everything.
                let _ = thread::Builder::new().name("read-ahead".into()).spawn_scoped(threads, || ahead.work());
            }
            Connection { stream, memory: &self.memory, ahead: &ahead, served: Served::default() }.run()
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
    memory: &'a Memory,
    ahead: &'a ReadAhead<'a>,
    served: Served,
}

impl<S: Read + Write> Connection<'_, S> {
    fn run(mut self) -> Result<Served, Error> {
        let mut request = 0;
        while let Some(record) = self.read_record(request)? {
            match Request::decode(&record) {
                Request::Get { pid, address, pages } => self.answer(request, pid, address, pages)?,
                Request::Close => {
                    self.stream.write_all(&CLOSED).map_err(Error::Connection)?;
                    self.served.closed = true;
                    break;
                }
                Request::Other { command } => return Err(Error::Command { request, command }),
            }
            request += 1;
        }
        Ok(self.served)
    }

    /// Reads a record; `None` if the connection ends before it.
    fn read_record(&mut self, request: u64) -> Result<Option<[u8; RECORD_LEN]>, Error> {
        let (mut record, mut received) = ([0; RECORD_LEN], 0);
        while received < RECORD_LEN {
            match self.stream.read(&mut record[received..]) {
                Ok(0) if received == 0 => return Ok(None),
                Ok(0) => return Err(Error::Ended { request, received }),
                Ok(count) => received += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Connection(error)),
            }
        }
        Ok(Some(record))
    }

    fn answer(&mut self, request: u64, pid: u64, address: u64, pages: u64) -> Result<(), Error> {
        if pages == 0 || !address.is_multiple_of(PAGE_SIZE as u64) {
            return Err(Error::Range { request, address, pages });
        }
        let place = self.memory.find(pid, address).ok_or(Error::NoPage { request, pid, address })?;
        let place = Place { pages: place.pages.min(pages).min(MAX_REPLY_PAGES), ..place };
        let pieces = if place.pages == 1 { self.fault(place) } else { self.transfer(place) };
        if pieces.is_empty() {
            return self.answer_page_by_page(pid, address, place);
        }
        let parts: Vec<&[u8]> = pieces.iter().map(Piece::bytes).collect();
        self.send(pid, address, &parts)
    }

    /// Returns a page that a process waits for, if it was restored ahead. Its whole chunk is restored where the page alone
    /// would take as long.
    fn fault(&self, place: Place) -> Vec<Piece> {
        let (chunk, within) = chunk_of(place.page);
        let id = (place.file, chunk);
        let is_quick = self.memory.file(place.file).is_located(place.page);
        let chunk = if is_quick { self.ahead.get_ready(id) } else { self.ahead.get(id) };
        chunk.map(|chunk| Piece { chunk, pages: within..within + 1 }).into_iter().collect()
    }

    /// Returns the first pages of a range: the chunk of the first, and those after it that are ready. None if the first
    /// chunk has a damaged page.
    fn transfer(&self, place: Place) -> Vec<Piece> {
        let Place { file, page, pages } = place;
        let (first, mut within) = chunk_of(page);
        let (last, _) = chunk_of(page + pages - 1);
        self.ahead.plan(file, first);
        let (mut pieces, mut left) = (Vec::new(), usize::try_from(pages).expect("a reply is small"));
        for number in first..=last {
            let id = (file, number);
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
    fn answer_page_by_page(&mut self, pid: u64, address: u64, place: Place) -> Result<(), Error> {
        let Place { file, page: first, pages } = place;
        let mut content = Vec::new();
        for page in first..first + pages.min(CHUNK_PAGES) {
            let mut out = [[0; PAGE_SIZE]];
            match self.memory.file(file).read(page, &mut out) {
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
