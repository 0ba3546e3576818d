//! Files that many threads read at positions of their own.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};

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
    /// ```
    /// use std::io::ErrorKind;
    /// use trueno_zram_archive::ReadAt;
    /// let (file, mut bytes) = (b"some bytes".to_vec(), [0; 5]);
    /// file.read_exact_at(&mut bytes, 5)?;
    /// assert_eq!(&bytes, b"bytes");
    /// assert_eq!(file.read_exact_at(&mut bytes, 6).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before, and the errors of the operating system.
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;

    /// Returns the length of the file in bytes.
    ///
    /// # Errors
    /// Those of the operating system.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Announces many small reads of a range that was just read, so that the source can prepare for them.
    ///
    /// ```
    /// use std::{fs::File, io};
    /// use trueno_zram_archive::ReadAt;
    /// struct Cached(File);
    /// impl ReadAt for Cached {
    ///     fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
    ///         self.0.read_exact_at(bytes, at)
    ///     }
    ///
    ///     fn len_bytes(&self) -> io::Result<u64> {
    ///         self.0.len_bytes()
    ///     }
    ///
    ///     fn expect_reads(&self, at: u64, len: usize) {
    ///         println!("keep bytes {at} to {} in a cache", at + len as u64);
    ///     }
    /// }
    /// # Cached(tempfile::tempfile()?).expect_reads(0, 4096);
    /// # Ok::<(), io::Error>(())
    /// ```
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
        let metadata = self.metadata()?;
        if metadata.is_file() {
            return Ok(metadata.len());
        }
        // The length of a block device is found only by seeking. Reads by position do not use the position of the file.
        let mut file = self;
        let before = file.stream_position()?;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(before))?;
        Ok(end)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        bytes.copy_from_slice(rest.get(..bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// A part of a file, as a file of its own.
#[derive(Clone)]
pub(crate) struct FileSpan {
    file: Arc<dyn ReadAt>,
    start: u64,
    len: u64,
}

impl FileSpan {
    pub(crate) fn new(file: Arc<dyn ReadAt>, start: u64, len: u64) -> Self {
        Self { file, start, len }
    }

    /// Returns the position in the file of bytes of the part; `None` if they are not all within it.
    fn file_offset(&self, at: u64, len: usize) -> Option<u64> {
        at.checked_add(len as u64).filter(|end| *end <= self.len)?;
        self.start.checked_add(at)
    }
}

impl ReadAt for FileSpan {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let offset = self.file_offset(at, bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.file.read_exact_at(bytes, offset)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn expect_reads(&self, at: u64, len: usize) {
        if let Some(offset) = self.file_offset(at, len) {
            self.file.expect_reads(offset, len);
        }
    }
}

/// A part of a file, read from its start to its end.
pub(crate) struct SequentialReader {
    file: Arc<dyn ReadAt>,
    at: u64,
    end: u64,
}

impl SequentialReader {
    /// Reads the bytes of a range, or as many of them as the file has.
    pub(crate) fn new(file: &Arc<dyn ReadAt>, range: Range<u64>) -> Result<Self> {
        let len = file_len(&**file)?;
        Ok(Self { file: Arc::clone(file), at: range.start, end: range.end.min(len) })
    }
}

impl Read for SequentialReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let count = bytes.len().min(left);
        match self.file.read_exact_at(&mut bytes[..count], self.at) {
            Ok(()) => self.at += count as u64,
            // The file has become shorter.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.file.len_bytes()? < self.end => {
                self.end = self.file.len_bytes()?;
                return self.read(bytes);
            }
            Err(error) => return Err(error),
        }
        Ok(count)
    }
}

/// Returns the length of a file.
pub(crate) fn file_len(file: &dyn ReadAt) -> Result<u64> {
    file.len_bytes().map_err(|source| Error::Read { at: 0, source })
}

/// Fills `bytes` from a position that an index names.
pub(crate) fn read_at(file: &dyn ReadAt, at: u64, bytes: &mut [u8]) -> Result<()> {
    read_part(file, at, bytes, None, "a part that the index describes")
}

/// Fills `bytes` from the position `at`. If the file is too short, the error names `page` and `within`, the part of the file.
pub(crate) fn read_part(
    file: &dyn ReadAt,
    at: u64,
    bytes: &mut [u8],
    page: Option<u64>,
    within: &'static str,
) -> Result<()> {
    file.read_exact_at(bytes, at).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => Error::Truncated { at, page, within },
        _ => Error::Read { at, source },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

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

        fn expect_reads(&self, at: u64, len: usize) {
            self.1.lock().unwrap().push((at, len));
        }
    }

    /// A file that becomes shorter after its length was asked for once.
    struct Shrinking(Vec<u8>, AtomicBool);

    impl ReadAt for Shrinking {
        fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
            self.0.read_exact_at(bytes, at)
        }

        fn len_bytes(&self) -> io::Result<u64> {
            let is_first = !self.1.swap(true, Ordering::Relaxed);
            Ok(if is_first { 2 * self.0.len() as u64 } else { self.0.len() as u64 })
        }
    }

    #[test]
    fn a_range_is_read_as_far_as_the_file_goes() {
        let bytes: Vec<u8> = (0..100).collect();
        let read = |file: Arc<dyn ReadAt>, range| {
            let mut found = Vec::new();
            SequentialReader::new(&file, range).unwrap().read_to_end(&mut found).unwrap();
            found
        };
        let shrinking = || Arc::new(Shrinking(bytes.clone(), AtomicBool::new(false)));
        for (range, expected) in [(0..100, 0..100), (10..20, 10..20), (90..1000, 90..100), (100..200, 0..0)] {
            assert_eq!(read(Arc::new(bytes.clone()), range.clone()), bytes[expected.clone()]);
            assert_eq!(read(shrinking(), range), bytes[expected]);
        }
    }

    #[test]
    fn a_span_is_a_file_of_its_own() {
        let file = Arc::new(Expecting((0..100).collect(), Mutex::default()));
        let span = FileSpan::new(Arc::clone(&file) as _, 10, 50);
        let mut bytes = [0; 3];
        span.read_exact_at(&mut bytes, 47).unwrap();
        assert_eq!((bytes, span.len_bytes().unwrap()), ([57, 58, 59], 50));
        for at in [48, 50, 99, u64::MAX] {
            assert_eq!(span.read_exact_at(&mut bytes, at).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            span.expect_reads(at, 3);
        }
        assert!(file.1.lock().unwrap().is_empty(), "nothing beyond the end");
        span.expect_reads(47, 3);
        span.expect_reads(0, 50);
        assert_eq!(*file.1.lock().unwrap(), [(57, 3), (10, 50)]);
    }
}
