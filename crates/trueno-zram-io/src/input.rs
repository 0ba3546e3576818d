//! Inputs: files, devices and pipes, and what is known about them before they are read.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::{Error, Operation, Refusal, Result, STANDARD_INPUT};
use crate::file_system;
use crate::output::is_inherited;
use crate::source::FileSource;
use crate::standard;

/// An open input.
#[derive(Debug)]
pub struct Input {
    file: File,
    /// The name that messages use.
    pub name: String,
    /// What the system says about it.
    pub metadata: Metadata,
    /// Bytes from the current position to the end. None for pipes, and for files whose length is only known once they
    /// are read, as in `/proc` and `/sys`.
    pub len_bytes: Option<u64>,
    start: u64,
}

impl Input {
    /// Opens a file, or standard input for `-`. Waits for the other end of a named pipe.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Refused`] for a directory; [`Error::Closed`].
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, |path| File::open(path))
    }

    /// Opens a file like [`open`](Self::open), but refuses a named pipe instead of waiting for its other end. Pipes that the
    /// process was started with are taken.
    ///
    /// # Errors
    /// Like [`open`](Self::open), and [`Error::Refused`] for a named pipe.
    pub fn open_at_once(path: &Path) -> Result<Self> {
        let flag = OFlags::NONBLOCK.bits().cast_signed();
        let input = Self::open_with(path, |path| File::options().read(true).custom_flags(flag).open(path))?;
        if path.as_os_str() == "-" {
            return Ok(input);
        }
        let is_inherited = is_inherited(path) || path == Path::new("/dev/stdin");
        if input.metadata.file_type().is_fifo() && !is_inherited {
            return Err(Error::refused(input.name, Refusal::NamedPipe));
        }
        // From here on, reads may wait.
        let waiting = fcntl_getfl(&input.file).and_then(|flags| fcntl_setfl(&input.file, flags - OFlags::NONBLOCK));
        waiting.map_err(|error| Error::io(&input.name, Operation::Open, error.into()))?;
        Ok(input)
    }

    fn open_with(path: &Path, open_file: impl Fn(&Path) -> io::Result<File>) -> Result<Self> {
        let is_stdin = path.as_os_str() == "-";
        let name = if is_stdin { STANDARD_INPUT.to_owned() } else { path.display().to_string() };
        if is_stdin && standard::is_closed(io::stdin()) {
            return Err(Error::Closed { name: STANDARD_INPUT });
        }
        let open = || {
            let file = if is_stdin { io::stdin().as_fd().try_clone_to_owned()?.into() } else { open_file(path)? };
            let metadata = file.metadata()?;
            Ok((file, metadata))
        };
        let (file, metadata) = open().map_err(|error| Error::io(&name, Operation::Open, error))?;
        if metadata.is_dir() {
            return Err(Error::refused(name, Refusal::Directory));
        }
        let (mut start, mut len_bytes) = (0, None);
        if has_length(&file, &metadata) {
            let (at, end) = measure(&file).map_err(|error| Error::io(&name, Operation::Seek, error))?;
            start = at;
            len_bytes = Some(end.saturating_sub(at));
        }
        Ok(Self { file, name, metadata, len_bytes, start })
    }

    /// The file itself.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file, if it can be read at any position and was opened at its first byte.
    #[must_use]
    pub fn seekable(&self) -> Option<&File> {
        (self.len_bytes.is_some() && self.start == 0).then_some(&self.file)
    }

    /// Returns to the position at which it was opened.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn rewind(&self) -> Result<()> {
        if self.len_bytes.is_some() {
            let back = (&self.file).seek(SeekFrom::Start(self.start));
            back.map_err(|error| Error::io(&self.name, Operation::Seek, error))?;
        }
        Ok(())
    }

    /// Reads it as pages, from its current position to its end.
    #[must_use]
    pub fn into_pages(self) -> FileSource {
        let may_have_holes = self.metadata.is_file() && allocated_bytes(&self.metadata) < self.metadata.len();
        FileSource::new(self.file, self.name, self.start, self.len_bytes, may_have_holes)
    }
}

/// Returns the bytes that are allocated to a file. Fewer than its length mean that it may have holes. Otherwise it is
/// read as data: it may still have holes if room is reserved behind its end, and they are then read as zeros. Looking
/// for holes in a file without any takes 50 ns per page on a tmpfs.
fn allocated_bytes(metadata: &Metadata) -> u64 {
    /// The unit of `st_blocks`, whatever the file system's own blocks are.
    const BLOCK_BYTES: u64 = 512;
    metadata.blocks().saturating_mul(BLOCK_BYTES)
}

/// Whether the length that the system reports is the number of bytes that a reader gets.
fn has_length(file: &File, metadata: &Metadata) -> bool {
    if metadata.file_type().is_block_device() {
        return true;
    }
    // A regular file of length 0 may be one of /proc.
    metadata.is_file() && metadata.len() > 0 && !is_generated(file)
}

/// Whether the file is on a file system that makes up content when it is read, and reports a length that is not true:
/// every file of `/sys` claims 4096 bytes.
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
