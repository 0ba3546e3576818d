//! A file that many threads read through a memory mapping: a small read is a copy, not a system call.
//!
//! A page fault waits for such a read. For a block of 1.5 KB, a copy saves about 0.6 µs (docs/RESTORE.md).
//!
//! Others may change the file meanwhile, or make it shorter. So its bytes are copied and never lent. A page that is not
//! there any more, or cannot be read, raises SIGBUS, which a [`MappingGuard`](crate::mapping::bus_error::MappingGuard) notes. From then on all
//! reads are system calls, whose errors say what is wrong.

use std::fs::File;
use std::io;

use rustix::mm::ProtFlags;
use rustix::process::{Resource, getrlimit};
use trueno_zram_archive::ReadAt;

use crate::files::file_system;
use crate::mapping::guarded_mapping::GuardedMapping;

/// The longest read that is a copy: a block. Longer reads are of whole groups, which are rarely in memory yet: `pread` reads
/// them from the disk in one piece, and a mapping page by page.
const MAX_COPY_BYTES: usize = 8 << 10;

/// A file whose small reads are copies from a mapping of it.
///
/// A read has the same result as one of the [`File`] itself, also after the file was cut, grown or rewritten. One
/// exception: past the end of a truncated file, the rest of its last page may hold what another process stored there
/// through a mapping. If the file cannot be mapped, reads are system calls.
///
/// ```
/// use std::fs::File;
/// use trueno_zram_archive::ReadAt;
/// use trueno_zram_io::MappedFile;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("file");
/// std::fs::write(&path, b"some bytes")?;
/// let (file, mut bytes) = (MappedFile::new(File::open(&path)?), [0; 5]);
/// file.read_exact_at(&mut bytes, 5)?;
/// assert_eq!(&bytes, b"bytes");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    /// The whole file, which is only read; `None` if it cannot be mapped.
    mapping: Option<GuardedMapping>,
}

impl MappedFile {
    /// Maps a file with its present length. This only reserves addresses: pages become part of the mapping when they are
    /// read.
    #[must_use]
    pub fn new(file: File) -> Self {
        let mapping = map(&file);
        Self { file, mapping }
    }

    /// Returns `true` if small reads are copies, and not system calls.
    ///
    /// ```
    /// use std::fs::File;
    /// let device = trueno_zram_io::MappedFile::new(File::open("/dev/null")?);
    /// assert!(!device.is_mapped());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.mapping.as_ref().is_some_and(|mapping| !mapping.guard.has_failed())
    }
}

impl ReadAt for MappedFile {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let small = self.mapping.as_ref().filter(|_| bytes.len() <= MAX_COPY_BYTES);
        let is_copied = small.is_some_and(|mapping| mapping.read(at, bytes));
        // A file that was cut within a page reads as zeros from there to the end of the page, without SIGBUS. Few
        // blocks end with a zero, since a checksum is last.
        if is_copied && bytes.last() != Some(&0) {
            return Ok(());
        }
        self.file.read_exact_at(bytes, at)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    /// Makes pages of the file part of the mapping. A read of one that is not takes 0.5 µs more.
    fn expect_reads(&self, at: u64, len: usize) {
        if let Some(mapping) = &self.mapping {
            mapping.populate_read(at, len);
        }
    }
}

/// Maps a file; `None` if it is empty, not regular or too long, if its file system cannot map it, or if the process has a limit
/// of addresses.
fn map(file: &File) -> Option<GuardedMapping> {
    let metadata = file.metadata().ok()?;
    let len_bytes = usize::try_from(metadata.len()).ok()?;
    // With 32 bits, or a limit, addresses are needed for other things. The guard replaces pages, and cannot replace huge
    // ones.
    let has_addresses = cfg!(target_pointer_width = "64") && getrlimit(Resource::As).current.is_none();
    if !has_addresses || !metadata.is_file() || has_huge_pages(file) {
        return None;
    }
    let mapping = GuardedMapping::new(file, 0, len_bytes, ProtFlags::READ).ok()?;
    mapping.read_single_pages();
    Some(mapping)
}

/// Returns `true` if a file is known to be made of huge pages.
fn has_huge_pages(file: &File) -> bool {
    file_system::kind_of(file) == Some(file_system::HUGETLBFS)
}

#[cfg(test)]
mod tests;
