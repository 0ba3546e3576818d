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

    /// Says that many small reads of a range that was just read will follow, so that they can be prepared for.
    fn expect_reads(&self, at: u64, len: usize) {
        let _ = (at, len);
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

    fn expect_reads(&self, at: u64, len: usize) {
        (**self).expect_reads(at, len);
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

    fn expect_reads(&self, at: u64, len: usize) {
        (**self).expect_reads(at, len);
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

    /// Returns where bytes of the part are in the file; `None` if they are not all within the part.
    fn place_of(&self, at: u64, len: usize) -> Option<u64> {
        at.checked_add(len as u64).filter(|end| *end <= self.len)?;
        self.start.checked_add(at)
    }
}

impl ReadAt for Span {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let place = self.place_of(at, bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.file.read_exact_at(bytes, place)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn bytes_at(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.file.bytes_at(self.place_of(at, len)?, len)
    }

    fn expect_reads(&self, at: u64, len: usize) {
        if let Some(place) = self.place_of(at, len) {
            self.file.expect_reads(place, len);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Notes the ranges of which small reads are expected.
    struct Expecting(Vec<u8>, Mutex<Vec<(u64, usize)>>);

    impl ReadAt for Expecting {
        fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
            self.0.read_exact_at(bytes, at)
        }

        fn len_bytes(&self) -> io::Result<u64> {
            self.0.len_bytes()
        }

        fn bytes_at(&self, at: u64, len: usize) -> Option<&[u8]> {
            self.0.bytes_at(at, len)
        }

        fn expect_reads(&self, at: u64, len: usize) {
            self.1.lock().unwrap().push((at, len));
        }
    }

    #[test]
    fn a_span_is_a_file_of_its_own() {
        let file = Arc::new(Expecting((0..100).collect(), Mutex::default()));
        let span = Span::new(Arc::clone(&file) as _, 10, 50);
        let mut bytes = [0; 3];
        span.read_exact_at(&mut bytes, 47).unwrap();
        assert_eq!((bytes, span.bytes_at(47, 3), span.len_bytes().unwrap()), ([57, 58, 59], Some(&bytes[..]), 50));
        for at in [48, 50, 99, u64::MAX] {
            assert_eq!(span.read_exact_at(&mut bytes, at).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(span.bytes_at(at, 3), None);
            span.expect_reads(at, 3);
        }
        assert!(file.1.lock().unwrap().is_empty(), "nothing beyond the end");
        span.expect_reads(47, 3);
        (&&span).expect_reads(0, 50);
        assert_eq!(*file.1.lock().unwrap(), [(57, 3), (10, 50)]);
    }
}
