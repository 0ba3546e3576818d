//! Where bytes come from: files, devices and pipes, read as pages, with holes found and not read.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::io::Errno;
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::failure::Failure;
use crate::standard;

/// Holes shorter than this are read like data: the zeros cost less than a batch cut short.
const MIN_HOLE_BYTES: u64 = 1 << 20;

/// An input that was opened.
#[derive(Debug)]
pub(crate) struct Input {
    file: File,
    /// What messages call it.
    pub(crate) name: String,
    /// What the system says of it.
    pub(crate) metadata: Metadata,
    /// Bytes from where it stands to its end; unknown for pipes.
    pub(crate) len_bytes: Option<u64>,
    start: u64,
}

/// What comes next of an input that is read as pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// So many bytes are in the buffer, from its start. Less than the buffer is no sign of the end.
    Data(usize),
    /// So many bytes are zeros: whole pages.
    Zeros(u64),
    /// The end.
    End,
}

impl Input {
    /// Opens a file, or standard input for `-`.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let is_stdin = path.as_os_str() == "-";
        let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        if is_stdin && standard::is_closed(io::stdin()) {
            return Err(Failure::Failed("standard input is closed".to_owned()));
        }
        let open = || {
            let file = if is_stdin { io::stdin().as_fd().try_clone_to_owned()?.into() } else { File::open(path)? };
            let metadata = file.metadata()?;
            Ok((file, metadata))
        };
        let (mut file, metadata) = open().map_err(|error: io::Error| Failure::io(&name, &error))?;
        if metadata.is_dir() {
            return Err(Failure::at(name, "is a directory"));
        }
        let (mut start, mut len_bytes) = (0, None);
        // A regular file of no length may be one of /proc, which has a length only once it is read.
        if (metadata.is_file() && metadata.len() > 0) || metadata.file_type().is_block_device() {
            let measure = |file: &mut File| {
                let start = file.stream_position()?;
                let end = file.seek(SeekFrom::End(0))?;
                file.seek(SeekFrom::Start(start))?;
                Ok((start, end))
            };
            let (at, end) = measure(&mut file).map_err(|error: io::Error| Failure::io(&name, &error))?;
            start = at;
            len_bytes = Some(end.saturating_sub(at));
        }
        Ok(Self { file, name, metadata, len_bytes, start })
    }

    /// The file itself, for those who read it otherwise.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The file from its first byte on, if it can be read at any place.
    pub(crate) fn seekable(&self) -> Option<&File> {
        (self.len_bytes.is_some() && self.start == 0).then_some(&self.file)
    }

    /// Goes back to where it was opened, after reads at other places.
    pub(crate) fn rewind(&self) -> Result<(), Failure> {
        if self.len_bytes.is_some() {
            let back = (&self.file).seek(SeekFrom::Start(self.start));
            back.map_err(|error| Failure::io(&self.name, &error))?;
        }
        Ok(())
    }

    /// Reads it from front to back as pages.
    pub(crate) fn into_pages(self) -> PageReader {
        let sparse = self.len_bytes.is_some() && self.metadata.is_file();
        let data = if sparse { 0..0 } else { 0..u64::MAX };
        PageReader { at: 0, len_bytes: self.len_bytes, data, has_ended: false, input: self }
    }
}

/// Reads an input from front to back as pages.
#[derive(Debug)]
pub(crate) struct PageReader {
    input: Input,
    /// Bytes read so far.
    at: u64,
    len_bytes: Option<u64>,
    /// The run of data that was found last.
    data: std::ops::Range<u64>,
    /// Whether a read found the end: a terminal asked again would wait for more.
    has_ended: bool,
}

impl PageReader {
    /// What messages call the input.
    pub(crate) fn name(&self) -> &str {
        &self.input.name
    }

    /// Reads on, into `pages` if it is data. All but the last piece are whole pages.
    pub(crate) fn next(&mut self, pages: &mut [Page]) -> io::Result<Piece> {
        if self.has_ended {
            return Ok(Piece::End);
        }
        let mut room = pages.as_flattened_mut();
        if let Some(len_bytes) = self.len_bytes {
            if self.at >= len_bytes {
                return self.check_length(len_bytes).map(|()| Piece::End);
            }
            if self.at >= self.data.end {
                let hole_bytes = self.find_data(len_bytes)?;
                if hole_bytes >= MIN_HOLE_BYTES {
                    self.at += hole_bytes;
                    self.input.file.seek(SeekFrom::Start(self.input.start + self.at))?;
                    return Ok(Piece::Zeros(hole_bytes));
                }
            }
            let wanted = self.data.end.min(len_bytes) - self.at;
            room = cut(room, wanted);
        }
        let filled = fill(&mut self.input.file, room)?;
        self.at += filled as u64;
        self.has_ended = self.len_bytes.is_none() && filled < room.len();
        match self.len_bytes {
            Some(len_bytes) if filled < room.len() => Err(changed(format!(
                "ended at byte {} of {len_bytes}: it was made shorter while it was read",
                self.input.start + self.at
            ))),
            None if filled == 0 => Ok(Piece::End),
            _ => Ok(Piece::Data(filled)),
        }
    }

    /// Finds the next run of data that has a hole worth skipping after it, rounded out to whole pages; gives the
    /// bytes before it, and leaves the file where it stands.
    fn find_data(&mut self, len_bytes: u64) -> io::Result<u64> {
        let base = self.input.start;
        let whole_pages = len_bytes - len_bytes % PAGE_SIZE as u64;
        let seek = |to| rustix::fs::seek(&self.input.file, to);
        let here = base + self.at;
        let begin = match seek(rustix::fs::SeekFrom::Data(here)) {
            Ok(begin) => (begin - base).min(len_bytes),
            Err(Errno::NXIO) => len_bytes,
            // This file system cannot tell.
            Err(_) => self.at,
        };
        let mut end = begin;
        while end < len_bytes {
            let hole = match seek(rustix::fs::SeekFrom::Hole(base + end)) {
                Ok(hole) => (hole - base).min(len_bytes),
                Err(_) => len_bytes,
            };
            end = match seek(rustix::fs::SeekFrom::Data(base + hole)) {
                Ok(next) if next - base - hole < MIN_HOLE_BYTES => next - base,
                _ => {
                    end = hole;
                    break;
                }
            };
        }
        seek(rustix::fs::SeekFrom::Start(here))?;
        // The last page, if it is no whole one, is data.
        let begin = (begin - begin % PAGE_SIZE as u64).min(whole_pages);
        self.data = begin..end.next_multiple_of(PAGE_SIZE as u64).max(begin + 1).min(len_bytes);
        Ok(begin - self.at)
    }

    /// An input that is still being written is not whole.
    fn check_length(&mut self, len_bytes: u64) -> io::Result<()> {
        let end = self.input.file.seek(SeekFrom::End(0))?.saturating_sub(self.input.start);
        if end == len_bytes {
            return Ok(());
        }
        Err(changed(format!("went from {len_bytes} to {end} bytes while it was read")))
    }
}

fn changed(message: String) -> io::Error {
    io::Error::other(message)
}

/// The first `wanted` bytes of the room, if there are so many.
fn cut(room: &mut [u8], wanted: u64) -> &mut [u8] {
    let len = usize::try_from(wanted).map_or(room.len(), |wanted| wanted.min(room.len()));
    &mut room[..len]
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
        assert_eq!(reader.next(&mut pages).unwrap(), Piece::Data(4));
        writer.join().unwrap();
        fs::write(&fifo, b"more").unwrap();
        assert_eq!(reader.next(&mut pages).unwrap(), Piece::End);
    }
}
