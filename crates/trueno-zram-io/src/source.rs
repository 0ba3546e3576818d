//! Sources of pages: what a pipeline reads. Ranges are claimed in order and read by many threads.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;
use rustix::io::Errno;
use trueno_zram_archive::PageArchive;
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::{Error, Operation};
use crate::mapped_input::MappedInput;

/// Holes shorter than this are read like data: the zeros cost less than a batch that is cut short.
const MIN_HOLE_BYTES: u64 = 1 << 20;

/// Pages that a thread reads at a time if several read one range.
const READ_PAGES: usize = 256;

/// What a pipeline reads.
pub trait PageSource: Send {
    /// What can go wrong, the pipeline's own errors included.
    type Error: From<Error> + Send;

    /// Bytes of content, if that is known.
    fn len_bytes(&self) -> Option<u64>;

    /// Claims what comes next, at most as much as `room` holds unless it is zeros. All but the last are whole pages.
    /// Called by one thread at a time; a source that can be read at any position leaves the reading to
    /// [`ClaimedRange::read`], which runs outside the pipeline's lock.
    ///
    /// # Errors
    /// Any that ends the pipeline. The source is not asked again.
    fn claim(&mut self, room: &mut [Page]) -> Result<Claim, Self::Error>;

    /// Sections to keep in the archive's index, by name. Asked for once, after the end.
    ///
    /// # Errors
    /// Any that ends the pipeline.
    fn sections(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>, Self::Error> {
        Ok(Vec::new())
    }
}

/// The next part of a source.
#[derive(Debug)]
pub enum Claim {
    /// A part of a file, of memory or of an archive, to be read outside the lock.
    Range(ClaimedRange),
    /// This many bytes are in the room, from its start.
    Filled(usize),
    /// This many zero bytes: whole pages.
    Zeros(u64),
    /// The end.
    End,
}

/// A part of a source that belongs to whoever claimed it.
#[derive(Debug)]
pub struct ClaimedRange {
    from: Place,
    len_bytes: usize,
}

/// Where a claimed range lies.
#[derive(Debug)]
enum Place {
    File(Arc<NamedFile>, u64),
    /// From this page on.
    Memory(Arc<Vec<Page>>, usize),
    /// From this page on.
    Archive(Arc<NamedArchive>, u64),
}

/// An archive or a delta, with the name that messages use.
#[derive(Debug)]
pub struct NamedArchive {
    /// The archive.
    pub archive: PageArchive,
    /// Its name.
    pub name: String,
}

#[derive(Debug)]
struct NamedFile {
    file: File,
    name: String,
    /// Where its content starts, and how long it is.
    start: u64,
    len_bytes: u64,
    /// The file as a mapping, if somebody asked for it; none if it cannot be mapped.
    mapped: OnceLock<Option<MappedInput>>,
}

impl NamedFile {
    fn new(file: File, name: String, start: u64, len_bytes: u64) -> Self {
        Self { file, name, start, len_bytes, mapped: OnceLock::new() }
    }

    fn mapped(&self) -> Option<&MappedInput> {
        let is_whole = || self.start == 0 && self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let map = || is_whole().then(|| MappedInput::new(&self.file, self.len_bytes)).flatten();
        self.mapped.get_or_init(map).as_ref()
    }
}

/// What comes next in an input that is read span by span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSpan {
    /// This many bytes are in the buffer, from its start. Fewer than fit does not mean the end.
    Data(usize),
    /// This many zero bytes: whole pages.
    Zeros(u64),
    /// The end.
    End,
}

/// A file was changed while it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Changed {
    #[error("ended at byte {at} of {len_bytes}: it became shorter while it was read")]
    Shorter { at: u64, len_bytes: u64 },
    #[error("went from {from} to {to} bytes while it was read")]
    Resized { from: u64, to: u64 },
}

impl ClaimedRange {
    /// Whole pages that are in memory already. They are copied outside the pipeline's lock.
    ///
    /// # Panics
    /// If there are fewer pages.
    #[must_use]
    pub fn in_memory(pages: &Arc<Vec<Page>>, range: Range<usize>) -> Self {
        let len_bytes = pages[range.clone()].as_flattened().len();
        Self { from: Place::Memory(Arc::clone(pages), range.start), len_bytes }
    }

    /// Pages of an archive, from `first` on. They are restored outside the pipeline's lock. The last one may be shorter.
    #[must_use]
    pub fn in_archive(from: &Arc<NamedArchive>, first: u64, pages: usize) -> Self {
        let left = from.archive.content_len().saturating_sub(first.saturating_mul(PAGE_SIZE as u64));
        let len_bytes = usize::try_from(left).unwrap_or(usize::MAX).min(pages * PAGE_SIZE);
        Self { from: Place::Archive(Arc::clone(from), first), len_bytes }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Reads the range into the start of `room`; the bytes read.
    ///
    /// # Errors
    /// [`Error::Io`], also for a file that ends before the range does; [`Error::Archive`] for a damaged archive.
    ///
    /// # Panics
    /// If `room` is smaller than the room that the range was claimed with.
    pub fn read(&self, room: &mut [Page]) -> Result<usize, Error> {
        self.read_part(0, &mut room.as_flattened_mut()[..self.len_bytes])
    }

    /// Calls `work` with the pages of the range without a copy of them, if they are whole, in memory and cannot change
    /// meanwhile. None: the range has to be read. Whatever `work` did is void then.
    pub(crate) fn borrow<R>(&self, work: impl FnOnce(&[Page]) -> R) -> Option<R> {
        let Place::File(file, at) = &self.from else { return None };
        let (page_bytes, len_bytes) = (PAGE_SIZE as u64, self.len_bytes as u64);
        if at % page_bytes != 0 || len_bytes % page_bytes != 0 {
            return None;
        }
        let first = at / page_bytes;
        file.mapped()?.borrow(first..first + len_bytes / page_bytes, work)
    }

    /// Like [`read`](Self::read), by the threads of the pool that it is called in.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    ///
    /// # Panics
    /// Like [`read`](Self::read).
    pub fn read_in_parallel(&self, room: &mut [Page]) -> Result<usize, Error> {
        let parts = room.as_flattened_mut()[..self.len_bytes].par_chunks_mut(READ_PAGES * PAGE_SIZE);
        let read = parts.enumerate().map(|(n, part)| self.read_part(n * READ_PAGES * PAGE_SIZE, part));
        read.try_reduce(|| 0, |one, other| Ok(one + other))
    }

    /// Fills `room` with what lies from `skipped` on in the range: whole pages from its start.
    pub(crate) fn read_part(&self, skipped: usize, room: &mut [u8]) -> Result<usize, Error> {
        let (from, range_start) = match &self.from {
            Place::File(file, at) => (&**file, *at + skipped as u64),
            Place::Memory(pages, first) => {
                room.copy_from_slice(&pages[*first..].as_flattened()[skipped..][..room.len()]);
                return Ok(room.len());
            }
            Place::Archive(from, first) => {
                let failed = |error| Error::archive(&from.name, error);
                let (first, len_bytes) = (first + (skipped / PAGE_SIZE) as u64, room.len());
                let (pages, tail) = room.as_chunks_mut::<PAGE_SIZE>();
                from.archive.read_pages(first, pages).map_err(failed)?;
                if !tail.is_empty() {
                    let mut last = [0; PAGE_SIZE];
                    from.archive.read_page_at(first + pages.len() as u64, &mut last).map_err(failed)?;
                    tail.copy_from_slice(&last[..tail.len()]);
                }
                return Ok(len_bytes);
            }
        };
        let NamedFile { file, name, start, len_bytes, .. } = from;
        let mut filled = 0;
        while filled < room.len() {
            let at = start + range_start + filled as u64;
            let read = match file.read_at(&mut room[filled..], at) {
                Ok(0) => Err(io::Error::other(Changed::Shorter { at, len_bytes: *len_bytes })),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read,
            };
            filled += read.map_err(|error| Error::io(name, Operation::Read, error))?;
        }
        Ok(filled)
    }
}

/// A file, a device or a pipe as a source of pages. Holes of files are found, and not read.
#[derive(Debug)]
pub struct FileSource {
    reading: Reading,
    /// Bytes claimed so far.
    at: u64,
}

#[derive(Debug)]
enum Reading {
    /// At any position, by many threads.
    Anywhere {
        file: Arc<NamedFile>,
        /// The run of data that was found last.
        data: Range<u64>,
    },
    /// From front to back.
    Stream {
        file: File,
        name: String,
        /// Whether a read found the end: a terminal that is asked again would wait for more.
        has_ended: bool,
    },
}

impl FileSource {
    pub(crate) fn new(file: File, name: String, start: u64, len_bytes: Option<u64>, may_have_holes: bool) -> Self {
        let reading = match len_bytes {
            Some(len_bytes) => {
                let data = if may_have_holes { 0..0 } else { 0..u64::MAX };
                Reading::Anywhere { file: Arc::new(NamedFile::new(file, name, start, len_bytes)), data }
            }
            None => Reading::Stream { file, name, has_ended: false },
        };
        Self { reading, at: 0 }
    }

    /// The name that messages use.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.reading {
            Reading::Anywhere { file, .. } => &file.name,
            Reading::Stream { name, .. } => name,
        }
    }

    /// Bytes of content, if that is known.
    #[must_use]
    pub fn len_bytes(&self) -> Option<u64> {
        match &self.reading {
            Reading::Anywhere { file, .. } => Some(file.len_bytes),
            Reading::Stream { .. } => None,
        }
    }

    /// Reads on, into `pages` if it is data, by the threads of the pool that it is called in. All but the last span are
    /// whole pages.
    ///
    /// # Errors
    /// The system's own, without the file's name.
    pub fn next(&mut self, pages: &mut [Page]) -> io::Result<InputSpan> {
        let read = |error| match error {
            Error::Io { source, .. } => source,
            error => io::Error::other(error),
        };
        Ok(match self.claim(pages).map_err(read)? {
            Claim::Range(range) => InputSpan::Data(range.read_in_parallel(pages).map_err(read)?),
            Claim::Filled(len_bytes) => InputSpan::Data(len_bytes),
            Claim::Zeros(len_bytes) => InputSpan::Zeros(len_bytes),
            Claim::End => InputSpan::End,
        })
    }
}

impl PageSource for FileSource {
    type Error = Error;

    fn len_bytes(&self) -> Option<u64> {
        FileSource::len_bytes(self)
    }

    fn claim(&mut self, room: &mut [Page]) -> Result<Claim, Error> {
        let room = room.as_flattened_mut();
        match &mut self.reading {
            Reading::Stream { has_ended: true, .. } => Ok(Claim::End),
            Reading::Stream { file, name, has_ended } => {
                let filled = fill(file, room).map_err(|error| Error::io(name, Operation::Read, error))?;
                self.at += filled as u64;
                *has_ended = filled < room.len();
                Ok(if filled == 0 { Claim::End } else { Claim::Filled(filled) })
            }
            Reading::Anywhere { file, .. } if self.at >= file.len_bytes => {
                check_length(file).map_err(|error| Error::io(&file.name, Operation::Read, error))?;
                Ok(Claim::End)
            }
            Reading::Anywhere { file, data } => {
                if self.at >= data.end {
                    *data = find_data(file, self.at);
                    let hole_bytes = data.start - self.at;
                    if hole_bytes >= MIN_HOLE_BYTES {
                        self.at += hole_bytes;
                        return Ok(Claim::Zeros(hole_bytes));
                    }
                }
                let wanted = data.end.min(file.len_bytes) - self.at;
                let len_bytes = usize::try_from(wanted).map_or(room.len(), |wanted| wanted.min(room.len()));
                let range = ClaimedRange { from: Place::File(Arc::clone(file), self.at), len_bytes };
                self.at += len_bytes as u64;
                Ok(Claim::Range(range))
            }
        }
    }
}

/// The next run of data from `at` on that ends at a hole worth skipping, rounded out to whole pages.
fn find_data(file: &NamedFile, at: u64) -> Range<u64> {
    let &NamedFile { ref file, start: base, len_bytes, .. } = file;
    let whole_pages = len_bytes - len_bytes % PAGE_SIZE as u64;
    let seek = |to| rustix::fs::seek(file, to);
    let begin = match seek(rustix::fs::SeekFrom::Data(base + at)) {
        Ok(begin) => begin.saturating_sub(base).clamp(at, len_bytes),
        Err(Errno::NXIO) => len_bytes,
        // This file system cannot tell.
        Err(_) => at,
    };
    let mut end = begin;
    while end < len_bytes {
        let hole = match seek(rustix::fs::SeekFrom::Hole(base + end)) {
            Ok(hole) => hole.saturating_sub(base).clamp(end, len_bytes),
            Err(_) => len_bytes,
        };
        end = match seek(rustix::fs::SeekFrom::Data(base + hole)) {
            Ok(next) if next.saturating_sub(base + hole) < MIN_HOLE_BYTES && next > base + end => next - base,
            _ => {
                end = hole;
                break;
            }
        };
    }
    // A last page that is not a whole one is data.
    let begin = (begin - begin % PAGE_SIZE as u64).min(whole_pages).max(at);
    begin..end.next_multiple_of(PAGE_SIZE as u64).max(begin + 1).min(len_bytes)
}

/// A file that is still being written is not complete. Leaves its position at its end, as reading it would.
fn check_length(file: &NamedFile) -> io::Result<()> {
    let end = (&file.file).seek(SeekFrom::End(0))?.saturating_sub(file.start);
    if end == file.len_bytes {
        return Ok(());
    }
    Err(io::Error::other(Changed::Resized { from: file.len_bytes, to: end }))
}

/// Reads until the room is full or the input ends; the bytes read.
fn fill(from: &mut impl Read, room: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < room.len() {
        match from.read(&mut room[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::input::Input;

    #[test]
    fn a_stream_that_ended_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let writer = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::write(fifo, b"some").unwrap()
        });
        let mut reader = Input::open(&fifo).unwrap().into_pages();
        let mut pages = [[0; PAGE_SIZE]; 2];
        assert_eq!(reader.next(&mut pages).unwrap(), InputSpan::Data(4));
        writer.join().unwrap();
        fs::write(&fifo, b"more").unwrap();
        assert_eq!(reader.next(&mut pages).unwrap(), InputSpan::End);
    }

    #[test]
    fn a_file_that_changes_its_length_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut pages = [[0; PAGE_SIZE]; 2];
        for (len, words) in [(100, "ended at byte 100 of 8192"), (9000, "went from 8192 to 9000 bytes")] {
            fs::write(&path, [1; 2 * PAGE_SIZE]).unwrap();
            let mut reader = Input::open(&path).unwrap().into_pages();
            File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
            let first = reader.next(&mut pages);
            let error = first.and_then(|_| reader.next(&mut pages)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_file_with_room_reserved_behind_its_end_is_read_right() {
        use std::os::unix::fs::FileExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let (file, len, data_at) = (File::create(&path).unwrap(), 4 << 20, 3 << 20);
        file.set_len(len).unwrap();
        file.write_all_at(&[1; PAGE_SIZE], data_at).unwrap();
        // More blocks than the file is long, none of them in its hole.
        let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, len, 8 << 20);
        if reserved.is_err() {
            println!("skipped: no room can be reserved in {}", folder.path().display());
            return;
        }
        let mut reader = Input::open(&path).unwrap().into_pages();
        let (mut pages, mut content) = (vec![[9; PAGE_SIZE]; 64], Vec::new());
        loop {
            match reader.next(&mut pages).unwrap() {
                InputSpan::Data(len_bytes) => content.extend(&pages.as_flattened()[..len_bytes]),
                InputSpan::Zeros(len_bytes) => content.resize(content.len() + usize::try_from(len_bytes).unwrap(), 0),
                InputSpan::End => break,
            }
        }
        assert!(content == fs::read(&path).unwrap());
    }

    #[test]
    fn files_of_sys_are_read_to_their_end() {
        // Claims 4096 bytes, and gives a few.
        let path = std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        let Ok(content) = fs::read(path) else { return };
        let input = Input::open(path).unwrap();
        assert_eq!(input.len_bytes, None);
        let mut pages = [[0; PAGE_SIZE]; 2];
        assert_eq!(input.into_pages().next(&mut pages).unwrap(), InputSpan::Data(content.len()));
        assert_eq!(&pages.as_flattened()[..content.len()], content);
    }
}
