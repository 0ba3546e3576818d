//! Files that many threads read at positions of their own.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

/// A file that is read at given positions, by many threads at once.
///
/// ```
/// use trueno_zram_archive::ReadAt;
/// let (file, mut bytes) = (b"some bytes".to_vec(), [0; 5]);
/// file.read_exact_at(&mut bytes, 5)?;
/// assert_eq!((&bytes, file.len_bytes()?), (b"bytes", 10));
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait ReadAt: Send + Sync {
    /// Fills `bytes` from the position `at`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before, and the errors of the operating system.
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;

    /// Returns the length of the file in bytes.
    ///
    /// # Errors
    /// Those of the operating system.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Returns `len` bytes at the position `at` where they are, if the whole file is in memory: they need not be copied.
    fn bytes_at(&self, at: u64, len: usize) -> Option<&[u8]> {
        let _ = (at, len);
        None
    }
}

#[cfg(unix)]
impl ReadAt for std::fs::File {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }
}

impl ReadAt for [u8] {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(rest.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn bytes_at(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.get(usize::try_from(at).ok()?..)?.get(..len)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self[..].read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self[..].len_bytes()
    }

    fn bytes_at(&self, at: u64, len: usize) -> Option<&[u8]> {
        self[..].bytes_at(at, len)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        (**self).read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        (**self).len_bytes()
    }

    fn bytes_at(&self, at: u64, len: usize) -> Option<&[u8]> {
        (**self).bytes_at(at, len)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        (**self).read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        (**self).len_bytes()
    }

    fn bytes_at(&self, at: u64, len: usize) -> Option<&[u8]> {
        (**self).bytes_at(at, len)
    }
}

/// A part of a file, as a file of its own.
#[derive(Clone)]
pub struct Span {
    file: Arc<dyn ReadAt>,
    start: u64,
    len: u64,
}

impl Span {
    pub(crate) fn new(file: Arc<dyn ReadAt>, start: u64, len: u64) -> Self {
        Self { file, start, len }
    }
}

impl ReadAt for Span {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= self.len);
        let start = self.start.checked_add(at).filter(|_| end.is_some()).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.file.read_exact_at(bytes, start)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len)
    }
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Span({} bytes at {})", self.len, self.start)
    }
}

/// A file with a position, for code that reads and seeks.
#[derive(Debug)]
pub(crate) struct Positioned<'a, F: ?Sized> {
    file: &'a F,
    at: u64,
    len: u64,
}

impl<'a, F: ReadAt + ?Sized> Positioned<'a, F> {
    /// Starts at the beginning of a file of `len` bytes.
    pub(crate) fn new(file: &'a F, len: u64) -> Self {
        Self { file, at: 0, len }
    }
}

impl<F: ReadAt + ?Sized> Read for Positioned<'_, F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let count = bytes.len().min(left);
        self.file.read_exact_at(&mut bytes[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<F: ReadAt + ?Sized> Seek for Positioned<'_, F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = position(to, self.at, self.len)?;
        Ok(self.at)
    }
}

/// Returns the position that a seek leads to.
pub(crate) fn position(to: SeekFrom, at: u64, len: u64) -> io::Result<u64> {
    let target = match to {
        SeekFrom::Start(target) => Some(target),
        SeekFrom::End(by) => len.checked_add_signed(by),
        SeekFrom::Current(by) => at.checked_add_signed(by),
    };
    target.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
