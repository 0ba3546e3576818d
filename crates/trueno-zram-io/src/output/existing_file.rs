//! A file that exists already and is filled in place: a memfd of another process, or a file that others have open.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl};
use rustix::io::Errno;
use trueno_zram_archive::ContentSpan;
use trueno_zram_core::is_zero;

use crate::error::{Error, Operation, Refusal, Result};
use crate::output::positional_file::{LastByte, PositionalFile};
use crate::output::write_errors::{check_written, sync};
use crate::restore::{Sink, WriteMode};

/// Bytes that are looked at, or overwritten, at a time.
const STEP_BYTES: usize = 1 << 16;

/// Fills a regular file with content, from its start.
///
/// The old content is dropped first, so zeros become holes. The file keeps its length if it is longer than the content.
/// The file is written in place: processes that have it open see the content appear. If restoring fails, or the file is truncated
/// meanwhile, the content is removed again.
///
/// ```
/// use std::os::unix::fs::FileExt;
/// use trueno_zram_archive::ContentSpan;
/// use trueno_zram_io::{ExistingFile, Sink};
/// let memory = tempfile::tempfile()?;
/// memory.set_len(8192)?;
/// let mut output = ExistingFile::new(memory.try_clone()?, "memory", 4096)?;
/// // As `restore` does.
/// output.take(ContentSpan::Data(&[7; 4096]))?;
/// output.finish()?;
/// let mut content = [0; 8192];
/// memory.read_exact_at(&mut content, 0)?;
/// assert_eq!((content[4095], content[4096]), (7, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ExistingFile {
    file: Arc<File>,
    name: String,
    /// Content that came in order.
    at: u64,
    /// Its length, also if others make it shorter.
    len: u64,
    last_byte: Option<Arc<LastByte>>,
}

impl ExistingFile {
    /// Takes a file for `content_len` bytes, and drops what it has. A file that is shorter grows.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not a regular file, and [`Error::Io`] if it cannot be written, dropped or made longer.
    pub fn new(file: File, name: &str, content_len: u64) -> Result<Self> {
        let metadata = file.metadata().map_err(Operation::Open.failed(name))?;
        if !metadata.is_file() {
            return Err(Error::refused(name, Refusal::NotRegular));
        }
        // Every write would go to the end.
        if fcntl_getfl(&file).map_err(Operation::Open.failed(name))?.contains(OFlags::APPEND) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it is open for appending");
            return Err(Error::io(name, Operation::Open, error));
        }
        if metadata.len() < content_len {
            file.set_len(content_len).map_err(Operation::SetLength.failed(name))?;
        }
        let len = metadata.len().max(content_len);
        let this = Self { file: Arc::new(file), name: name.into(), at: 0, len, last_byte: LastByte::of(len) };
        this.clear()?;
        Ok(this)
    }

    /// Makes all of the file a hole, or zeros where the file system has no holes. It never becomes shorter: processes that have
    /// mapped it would get SIGBUS.
    fn clear(&self) -> Result<()> {
        let len = self.file.metadata().map_err(Operation::Open.failed(&self.name))?.len();
        if len == 0 {
            return Ok(());
        }
        let cleared = match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => zero(&self.file, len),
            punched => punched.map_err(io::Error::from),
        };
        cleared.map_err(Operation::Write.failed(&self.name))
    }

    /// Writes the last byte, and syncs the content to disk.
    ///
    /// # Errors
    /// [`Error::Shrunk`] and [`Error::Io`]. What was written is then dropped.
    pub fn finish(self) -> Result<()> {
        let finished = self
            .check_len()
            .and_then(|()| self.write_last_byte())
            .and_then(|()| check_written(&self.file).map_err(Operation::Write.failed(&self.name)))
            .and_then(|()| sync(&self.file).map_err(Operation::Sync.failed(&self.name)));
        if finished.is_err() {
            self.abandon();
        }
        finished
    }

    fn check_len(&self) -> Result<()> {
        let metadata = self.file.metadata().map_err(Operation::Open.failed(&self.name))?;
        if metadata.len() < self.len { Err(Error::Shrunk { name: self.name.clone() }) } else { Ok(()) }
    }

    fn write_last_byte(&self) -> Result<()> {
        let written = self.last_byte.as_ref().map_or(Ok(()), |last| last.write(&self.file));
        written.map_err(Operation::Write.failed(&self.name))
    }

    /// Makes the file longer for content whose length was not announced.
    fn grow(&mut self, len: u64) -> Result<()> {
        if len > self.len {
            self.check_len()?;
            self.write_last_byte()?;
            self.file.set_len(len).map_err(Operation::SetLength.failed(&self.name))?;
            (self.len, self.last_byte) = (len, LastByte::of(len));
        }
        Ok(())
    }

    /// Removes everything that was written, after a failure.
    pub fn abandon(self) {
        // The failure is reported by the caller; that it cannot be cleared is not reported again.
        let _ = self.clear();
    }
}

/// Writes zeros over the first `len` bytes of a file, except where it has zeros: they may be holes that cannot be made again.
fn zero(file: &File, len: u64) -> io::Result<()> {
    let mut bytes = vec![0; STEP_BYTES];
    let zeros = vec![0; STEP_BYTES];
    let mut at = 0;
    while at < len {
        let step = usize::try_from(len - at).map_or(STEP_BYTES, |left| left.min(STEP_BYTES));
        // A file that is open for writing alone is written as a whole.
        let known = file.read_exact_at(&mut bytes[..step], at).is_ok();
        if !known || !is_zero(&bytes[..step]) {
            file.write_all_at(&zeros[..step], at)?;
        }
        at += step as u64;
    }
    Ok(())
}

impl Sink for ExistingFile {
    fn take(&mut self, span: ContentSpan<'_>) -> Result<()> {
        let end = self.at.saturating_add(span.len_bytes());
        self.grow(end)?;
        if let ContentSpan::Data(bytes) = span {
            let bytes = self.last_byte.as_ref().map_or(bytes, |last| last.cut(self.at, bytes));
            self.file.write_all_at(bytes, self.at).map_err(Operation::Write.failed(&self.name))?;
        }
        self.at = end;
        Ok(())
    }

    fn write_mode(&self, _threads: usize) -> WriteMode {
        // Not through mappings: others could truncate the file, and a write would end the process.
        WriteMode::Positional { file: PositionalFile::by_pwrite(&self.file, self.last_byte.clone()), sparse: true }
    }

    fn set_written(&mut self, len_bytes: u64) {
        self.at = len_bytes;
    }

    fn restart(&mut self) -> Result<()> {
        self.at = 0;
        self.last_byte = LastByte::of(self.len);
        self.clear()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_that_is_open_for_appending_is_refused_and_keeps_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old");
        std::fs::write(&path, b"old").unwrap();
        let file = File::options().read(true).append(true).open(&path).unwrap();
        assert!(ExistingFile::new(file, "memory", 4096).is_err());
        assert_eq!(std::fs::read(path).unwrap(), b"old");
    }

    #[test]
    fn a_file_that_becomes_shorter_meanwhile_is_an_error_and_is_left_empty() {
        let content = [7; 10_000];
        for announced in [20_000, 0] {
            let file = tempfile::tempfile().unwrap();
            let mut filled = ExistingFile::new(file.try_clone().unwrap(), "memory", announced).unwrap();
            filled.take(ContentSpan::Data(&content)).unwrap();
            file.set_len(100).unwrap();
            // Without an announced length this notices it already.
            let taken = filled.take(ContentSpan::Data(&content));
            let failed = taken.and_then(|()| filled.finish()).unwrap_err();
            assert!(matches!(failed, Error::Shrunk { .. }), "{failed}");
        }
        let file = tempfile::tempfile().unwrap();
        let filled = ExistingFile::new(file.try_clone().unwrap(), "memory", 20_000).unwrap();
        let WriteMode::Positional { file: positional, .. } = filled.write_mode(4) else {
            panic!("many threads may write")
        };
        file.set_len(0).unwrap();
        positional.write_at(10_000, &content).unwrap();
        assert!(matches!(filled.finish(), Err(Error::Shrunk { .. })));
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_last_byte_is_there_in_the_end() {
        for (announced, old_len) in [(20_000, 0), (20_000, 20_000), (20_000, 30_000), (0, 0), (0, 15_000)] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(old_len).unwrap();
            let mut filled = ExistingFile::new(file.try_clone().unwrap(), "memory", announced).unwrap();
            filled.take(ContentSpan::Data(&[7; 10_000])).unwrap();
            filled.take(ContentSpan::Data(&[8; 10_000])).unwrap();
            filled.finish().unwrap();
            let mut content = vec![0; 20_000];
            file.read_exact_at(&mut content, 0).unwrap();
            assert!(content[..10_000] == [7; 10_000] && content[10_000..] == [8; 10_000]);
            assert_eq!(file.metadata().unwrap().len(), old_len.max(20_000));
        }
    }

    #[test]
    fn zeros_at_the_end_count_even_if_no_length_was_announced() {
        let file = tempfile::tempfile().unwrap();
        let mut filled = ExistingFile::new(file.try_clone().unwrap(), "memory", 0).unwrap();
        filled.take(ContentSpan::Data(b"content")).unwrap();
        filled.take(ContentSpan::Zeros(5000)).unwrap();
        filled.finish().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5007);
    }

    #[test]
    fn old_content_goes_zeros_are_holes_and_the_length_stays() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![0xee; 1 << 20], 0).unwrap();
        let mut sink = ExistingFile::new(file.try_clone().unwrap(), "file", 600_000).unwrap();
        sink.take(ContentSpan::Data(&[1; 4096])).unwrap();
        sink.take(ContentSpan::Zeros(500_000)).unwrap();
        sink.take(ContentSpan::Data(&[2; 4096])).unwrap();
        sink.finish().unwrap();
        let mut content = Vec::new();
        file.read_to_end(&mut content).unwrap();
        let mut expected = vec![0; 1 << 20];
        expected[..4096].fill(1);
        expected[504_096..508_192].fill(2);
        assert!(content == expected);
        assert!(file.metadata().unwrap().blocks() * 512 < 100_000, "holes take no room");
    }

    #[test]
    fn where_there_are_no_holes_old_content_becomes_zeros_and_zeros_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        for (at, bytes) in [(0, &[1; 10][..]), (300_000, &[2; 5000]), ((1 << 20) - 1, &[3])] {
            file.write_all_at(bytes, at).unwrap();
        }
        let blocks = file.metadata().unwrap().blocks();
        zero(&file, 1 << 20).unwrap();
        assert!(std::fs::read(&path).unwrap() == vec![0; 1 << 20]);
        assert!(file.metadata().unwrap().blocks() <= blocks + 4 * STEP_BYTES as u64 / 512, "holes stay");
        file.write_all_at(&[4; 100], 70_000).unwrap();
        zero(&File::options().write(true).open(&path).unwrap(), 1 << 20).unwrap();
        assert!(std::fs::read(&path).unwrap() == vec![0; 1 << 20], "also if it cannot be read");
    }

    #[test]
    fn a_shorter_file_grows_and_a_failure_leaves_nothing() {
        let file = tempfile::tempfile().unwrap();
        let mut sink = ExistingFile::new(file.try_clone().unwrap(), "file", 10_000).unwrap();
        sink.take(ContentSpan::Data(&[1; 5000])).unwrap();
        sink.abandon();
        let mut content = vec![0xff; 10_000];
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(content.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn other_than_regular_files_are_refused() {
        let device = File::options().write(true).open("/dev/null").unwrap();
        assert!(matches!(ExistingFile::new(device, "null", 1), Err(Error::Refused { .. })));
    }
}
