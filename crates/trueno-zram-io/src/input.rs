//! Inputs: files, devices and pipes, with their length and kind.

pub(crate) mod lease;
pub(crate) mod mapped_input;
pub(crate) mod page_source;
pub(crate) mod process_memory;

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use trueno_zram_core::PAGE_SIZE;

use crate::error::{Error, Operation, Refusal, Result, STANDARD_INPUT};
use crate::files::{file_system, is_inherited, standard_streams};
use crate::input::mapped_input::MappedInput;
use crate::input::page_source::FileSource;

/// An open input: a file, a device, a pipe, or standard input.
///
/// ```
/// use trueno_zram_io::Input;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// std::fs::write(&path, b"some bytes")?;
/// let input = Input::open(&path)?;
/// assert_eq!(input.len_bytes, Some(10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Input {
    file: File,
    /// The name that messages use.
    pub name: String,
    /// Its metadata when it was opened.
    pub metadata: Metadata,
    /// Bytes from the current position to the end. None for pipes, and for files whose length is only known once they
    /// are read, as in `/proc` and `/sys`.
    pub len_bytes: Option<u64>,
    start: u64,
    /// The file as a mapping, once it was asked for; none if it cannot be mapped.
    mapped: OnceLock<Option<MappedInput>>,
}

/// An input changed its length while it was read. [`Error::Io`] has it inside of its source.
///
/// ```
/// use trueno_zram_io::{Error, Input, LengthChanged};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// std::fs::write(&path, [1; 4096])?;
/// let mut source = Input::open(&path)?.into_pages();
/// std::fs::write(&path, [1; 100])?;
/// let Err(Error::Io { source: error, .. }) = source.next_span(&mut [[0; 4096]]) else { panic!("the file is shorter") };
/// let changed = error.get_ref().and_then(|inner| inner.downcast_ref());
/// assert_eq!(changed, Some(&LengthChanged::Shorter { at: 100, len_bytes: 4096 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthChanged {
    /// It ended early.
    #[error("ended at byte {at} of {len_bytes}: it became shorter while it was read")]
    Shorter {
        /// The offset of its end.
        at: u64,
        /// Its length when it was opened.
        len_bytes: u64,
    },
    /// It had another length once all of it was read.
    #[error("went from {from} to {to} bytes while it was read")]
    Resized {
        /// Its length when it was opened.
        from: u64,
        /// Its length at the end.
        to: u64,
    },
}

impl Input {
    /// Opens a file, or standard input for `-`. Waits for the other end of a named pipe.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] for a directory; [`Error::Closed`].
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, OFlags::empty())
    }

    /// Opens a file like [`open`](Self::open), but refuses a named pipe instead of waiting for its other end. Pipes that the
    /// process was started with are taken.
    ///
    /// ```
    /// use trueno_zram_io::{Error, Input, Refusal};
    /// # let folder = tempfile::tempdir()?;
    /// # let pipe = folder.path().join("pipe");
    /// # rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
    /// let refused = Input::open_nonblocking(&pipe);
    /// assert!(matches!(refused, Err(Error::Refused { refusal: Refusal::NamedPipe, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Like [`open`](Self::open), and [`Error::Refused`] for a named pipe.
    pub fn open_nonblocking(path: &Path) -> Result<Self> {
        let input = Self::open_with(path, OFlags::NONBLOCK)?;
        if path.as_os_str() == "-" {
            return Ok(input);
        }
        if input.metadata.file_type().is_fifo() && !is_inherited(path) {
            return Err(Error::refused(input.name, Refusal::NamedPipe));
        }
        // The flag was only for opening: reads may wait.
        let waiting = fcntl_getfl(&input.file).and_then(|flags| fcntl_setfl(&input.file, flags - OFlags::NONBLOCK));
        waiting.map_err(Operation::Open.failed(&input.name))?;
        Ok(input)
    }

    fn open_with(path: &Path, flags: OFlags) -> Result<Self> {
        let is_stdin = path.as_os_str() == "-";
        let name = if is_stdin { STANDARD_INPUT.to_owned() } else { path.display().to_string() };
        if is_stdin && standard_streams::was_closed_at_start(io::stdin()) {
            return Err(Error::Closed { name: STANDARD_INPUT });
        }
        let file = match is_stdin {
            true => io::stdin().as_fd().try_clone_to_owned().map(File::from),
            false => File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path),
        };
        let file = file.map_err(Operation::Open.failed(&name))?;
        let metadata = file.metadata().map_err(Operation::Open.failed(&name))?;
        if metadata.is_dir() {
            return Err(Error::refused(name, Refusal::Directory));
        }
        let (mut start, mut len_bytes) = (0, None);
        if has_length(&file, &metadata) {
            let (at, end) = measure(&file).map_err(Operation::Seek.failed(&name))?;
            start = at;
            len_bytes = Some(end.saturating_sub(at));
        }
        Ok(Self { file, name, metadata, len_bytes, start, mapped: OnceLock::new() })
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file if it can be read at any position and was opened at its first byte.
    #[must_use]
    pub fn seekable(&self) -> Option<&File> {
        (self.len_bytes.is_some() && self.start == 0).then_some(&self.file)
    }

    /// Returns to the position at which it was opened. A pipe stays where it is.
    ///
    /// ```
    /// use std::io::Read;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("image");
    /// std::fs::write(&path, b"some bytes")?;
    /// let (input, mut start) = (trueno_zram_io::Input::open(&path)?, [0; 4]);
    /// input.file().read_exact(&mut start)?;
    /// input.rewind()?;
    /// assert_eq!(std::io::read_to_string(input.file())?, "some bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn rewind(&self) -> Result<()> {
        if self.len_bytes.is_some() {
            let back = (&self.file).seek(SeekFrom::Start(self.start));
            back.map_err(Operation::Seek.failed(&self.name))?;
        }
        Ok(())
    }

    /// Turns it into a source of pages, from its current position to its end.
    #[must_use]
    pub fn into_pages(self) -> FileSource {
        FileSource::new(self)
    }

    pub(crate) fn may_have_holes(&self) -> bool {
        self.metadata.is_file() && allocated_bytes(&self.metadata) < self.metadata.len()
    }

    /// Returns the bytes that are not in holes, if the length is known: at most as many as the file system has allocated.
    pub(crate) fn data_bytes(&self) -> Option<u64> {
        let allocated = if self.may_have_holes() { allocated_bytes(&self.metadata) } else { u64::MAX };
        self.len_bytes.map(|len_bytes| len_bytes.min(allocated))
    }

    /// The file as a mapping; `None` if it cannot be mapped, or was not opened at its first byte.
    pub(crate) fn mapped(&self) -> Option<&MappedInput> {
        let map = || MappedInput::new(self.seekable().filter(|_| self.metadata.is_file())?, self.len_bytes?);
        self.mapped.get_or_init(map).as_ref()
    }

    /// Reads until `buffer` is full or the input ends. Returns the bytes read.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        self.reading(fill(buffer, |rest, _| (&self.file).read(rest)))
    }

    /// Fills `buffer` with the bytes at offset `at` from the start.
    pub(crate) fn read_exact_at(&self, at: u64, buffer: &mut [u8]) -> Result<()> {
        let at = self.start + at;
        let filled = self.reading(fill(buffer, |rest, filled| self.file.read_at(rest, at + filled as u64)))?;
        if filled == buffer.len() {
            return Ok(());
        }
        let (at, len_bytes) = (at + filled as u64, self.len_bytes.unwrap_or_default());
        self.reading(Err(io::Error::other(LengthChanged::Shorter { at, len_bytes })))
    }

    /// Checks that the input is as long as when it was opened: a file that is still being written is not complete.
    /// Leaves its position at its end, as reading it would.
    pub(crate) fn check_length(&self) -> Result<()> {
        let (from, end) = (self.len_bytes.unwrap_or_default(), self.reading((&self.file).seek(SeekFrom::End(0)))?);
        let to = end.saturating_sub(self.start);
        if from == to { Ok(()) } else { self.reading(Err(io::Error::other(LengthChanged::Resized { from, to }))) }
    }

    fn reading<T>(&self, read: io::Result<T>) -> Result<T> {
        read.map_err(Operation::Read.failed(&self.name))
    }

    /// Returns the next run of data from `at` on that ends at a hole of at least `min_hole_bytes`, or at `len_bytes`, the end.
    /// It is rounded out to whole pages.
    pub(crate) fn find_data(&self, at: u64, len_bytes: u64, min_hole_bytes: u64) -> Range<u64> {
        let base = self.start;
        let whole_pages = len_bytes - len_bytes % PAGE_SIZE as u64;
        let seek = |to| rustix::fs::seek(&self.file, to);
        let begin = match seek(rustix::fs::SeekFrom::Data(base + at)) {
            Ok(begin) => begin.saturating_sub(base).clamp(at, len_bytes),
            Err(Errno::NXIO) => len_bytes,
            // This file system does not report holes.
            Err(_) => at,
        };
        let mut end = begin;
        while end < len_bytes {
            let hole = match seek(rustix::fs::SeekFrom::Hole(base + end)) {
                Ok(hole) => hole.saturating_sub(base).clamp(end, len_bytes),
                Err(_) => len_bytes,
            };
            end = match seek(rustix::fs::SeekFrom::Data(base + hole)) {
                Ok(next) if next.saturating_sub(base + hole) < min_hole_bytes && next > base + end => next - base,
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
}

/// Calls `read` with the rest of `buffer` and the number of bytes before it, until the buffer is full or the input ends.
/// Returns the bytes read.
fn fill(buffer: &mut [u8], mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(&mut buffer[filled..], filled) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Returns the bytes that are allocated to a file. Fewer than its length mean that it may have holes. Otherwise it is
/// read as data: it may still have holes if space is reserved after its end, and they are then read as zeros. Looking
/// for holes in a file without any takes 50 ns per page on a tmpfs.
fn allocated_bytes(metadata: &Metadata) -> u64 {
    /// The unit of `st_blocks`, independent of the file system's own blocks.
    const BLOCK_BYTES: u64 = 512;
    metadata.blocks().saturating_mul(BLOCK_BYTES)
}

/// Returns `true` if a reader gets as many bytes as the system reports.
fn has_length(file: &File, metadata: &Metadata) -> bool {
    if metadata.file_type().is_block_device() {
        return true;
    }
    // A regular file of length 0 may be one of /proc.
    metadata.is_file() && metadata.len() > 0 && !is_generated(file)
}

/// Returns `true` if the file system generates content when it is read, and reports wrong lengths: every file of `/sys`
/// claims 4096 bytes.
fn is_generated(file: &File) -> bool {
    use file_system::{CGROUP, CGROUP2, CONFIGFS, DEBUGFS, EFIVARFS, PROC, PSTORE, SECURITYFS, SYSFS, TRACEFS};
    const GENERATED: [u64; 10] =
        [SYSFS, PROC, DEBUGFS, TRACEFS, CONFIGFS, SECURITYFS, CGROUP, CGROUP2, EFIVARFS, PSTORE];
    file_system::kind_of(file).is_some_and(|kind| GENERATED.contains(&kind))
}

fn measure(mut file: &File) -> io::Result<(u64, u64)> {
    let start = file.stream_position()?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(start))?;
    Ok((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_on_after_signals_and_stop_at_errors() {
        let mut answers =
            [Err(io::ErrorKind::Interrupted), Ok(3), Err(io::ErrorKind::Interrupted), Ok(2), Ok(0)].into_iter();
        let mut read = |_: &mut [u8], _: usize| Ok(answers.next().expect("a read after the end")?);
        assert_eq!(fill(&mut [0; 8], &mut read).unwrap(), 5);
        assert_eq!(
            fill(&mut [0; 3], |rest, at| if at < 3 { Ok(rest.len()) } else { panic!("it is full") }).unwrap(),
            3
        );
        let failed = fill(&mut [0; 8], |_, _| Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
