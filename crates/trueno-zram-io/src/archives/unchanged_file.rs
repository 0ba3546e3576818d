//! A file whose reads fail once its content was changed.
//!
//! Each block of an archive has its own checksum, and nothing ties a block to its archive. If another archive is written
//! over an open one, its blocks are intact where the index expects blocks of the same length.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trueno_zram_archive::ReadAt;

/// A file has changed since it was opened: its length or the time of its last change is another one. [`Error::Read`] has it
/// inside of its source.
///
/// [`Error::Read`]: trueno_zram_archive::Error::Read
///
/// ```
/// use trueno_zram_archive::{Error, Pages};
/// use trueno_zram_io::{ArchiveOpener, FileChanged};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image.lz4");
/// # let options = trueno_zram_archive::WriteOptions::default();
/// # trueno_zram_archive::compress(&[7; 4096][..], std::fs::File::create(&path)?, &options)?;
/// let archive = ArchiveOpener::new().open(&path)?.expect("it has an index");
/// std::fs::write(&path, b"other content")?;
/// let Err(Error::Read { source, .. }) = archive.read(0, &mut [[0; 4096]]) else { panic!("the file was changed") };
/// let changed: Option<&FileChanged> = source.get_ref().and_then(|inner| inner.downcast_ref());
/// assert_eq!(changed.map(|changed| changed.now_bytes), Some(13));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has changed since it was opened ({opened_bytes} bytes then, {now_bytes} now); write a new archive beside it and rename that"
)]
pub struct FileChanged {
    /// Its length when it was opened.
    pub opened_bytes: u64,
    /// Its length now.
    pub now_bytes: u64,
}

/// The properties of a file that every change of its content changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    len_bytes: u64,
    /// Seconds and nanoseconds. Not the time of the last status change (`ctime`), which also changes if the file is renamed
    /// or removed.
    modified: (i64, i64),
}

impl FileStamp {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        file.metadata()
            .map(|metadata| Self { len_bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) })
    }

    /// Checks that the file still has this stamp.
    ///
    /// # Errors
    /// [`FileChanged`], and those of the operating system.
    pub(crate) fn check(self, file: &File) -> io::Result<()> {
        let now = Self::of(file)?;
        if now == self { Ok(()) } else { Err(self.changed(now.len_bytes)) }
    }

    fn changed(self, now_bytes: u64) -> io::Error {
        io::Error::other(FileChanged { opened_bytes: self.len_bytes, now_bytes })
    }
}

/// A file whose reads all fail once its content was changed.
///
/// The kernel sets the time before it stores the first new byte. So the time is checked after each read, which takes about half
/// a microsecond: little beside the read of a group.
pub(crate) struct UnchangedFile {
    /// The same file as `reads`.
    file: File,
    stamp: FileStamp,
    reads: Arc<dyn ReadAt>,
    /// A change was found. It is kept, since times can be set back.
    has_changed: AtomicBool,
}

impl UnchangedFile {
    /// Reads a file through the reader that `read_with` returns.
    pub(crate) fn new(file: File, read_with: impl FnOnce(File) -> Arc<dyn ReadAt>) -> io::Result<Self> {
        let stamp = FileStamp::of(&file)?;
        let reads = read_with(file.try_clone()?);
        Ok(Self { file, stamp, reads, has_changed: AtomicBool::new(false) })
    }

    fn check(&self) -> io::Result<()> {
        let now = FileStamp::of(&self.file)?;
        if now == self.stamp && !self.has_changed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.has_changed.store(true, Ordering::Relaxed);
        Err(self.stamp.changed(now.len_bytes))
    }
}

impl ReadAt for UnchangedFile {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let read = self.reads.read_exact_at(bytes, at);
        // Also if it failed: a file that was made shorter has changed.
        self.check()?;
        read
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.reads.len_bytes()
    }

    fn expect_reads(&self, at: u64, len: usize) {
        self.reads.expect_reads(at, len);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A file of an hour ago, so that its time differs from now however coarse the file system's clock is.
    fn old_file(path: &Path) -> (UnchangedFile, SystemTime) {
        fs::write(path, b"first").unwrap();
        let then = SystemTime::now() - Duration::from_secs(3600);
        File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
        (UnchangedFile::new(File::open(path).unwrap(), |file| Arc::new(file)).unwrap(), then)
    }

    fn read(file: &UnchangedFile) -> Result<[u8; 5], Option<FileChanged>> {
        let mut bytes = [0; 5];
        let read = file.read_exact_at(&mut bytes, 0);
        read.map(|()| bytes).map_err(|error| error.get_ref().and_then(|error| error.downcast_ref().copied()))
    }

    #[test]
    fn a_file_that_is_changed_in_place_is_not_read_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for new in [&b"other"[..], b"longer than before", b"cut", b""] {
            let (file, then) = old_file(&path);
            assert_eq!(read(&file), Ok(*b"first"));
            fs::write(&path, new).unwrap();
            let changed = Err(Some(FileChanged { opened_bytes: 5, now_bytes: new.len() as u64 }));
            assert_eq!(read(&file), changed);
            // As it was before, but who knows.
            fs::write(&path, b"first").unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
            assert_eq!(read(&file), Err(Some(FileChanged { opened_bytes: 5, now_bytes: 5 })));
        }
    }

    #[test]
    fn a_file_may_be_linked_renamed_replaced_and_removed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (file, _) = old_file(&at("file"));
        fs::hard_link(at("file"), at("link")).unwrap();
        fs::rename(at("link"), at("elsewhere")).unwrap();
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o400)).unwrap();
        fs::write(at("new"), b"other").unwrap();
        fs::rename(at("new"), at("file")).unwrap();
        fs::remove_file(at("elsewhere")).unwrap();
        assert_eq!(read(&file), Ok(*b"first"));
    }
}
