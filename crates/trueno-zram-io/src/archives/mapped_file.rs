//! A file that many threads read through a memory mapping: a small read is a copy, not a system call.
//!
//! A page fault waits for such a read. For a block of 1.5 KB, a copy saves about 0.6 µs (docs/RESTORE.md).
//!
//! Others may change the file meanwhile, or make it shorter. So its bytes are copied and never lent. A page that is not
//! there any more, or cannot be read, raises SIGBUS, which a [`MappingGuard`](crate::mapping::bus_error::MappingGuard) notes. From then on all
//! reads are system calls, whose errors say what is wrong.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::ProtFlags;
use rustix::process::{Resource, getrlimit};
use trueno_zram_archive::ReadAt;

use crate::files::file_system;
use crate::mapping::guarded_mapping::GuardedMapping;

/// The longest read that is a copy: a block. Longer reads are of whole groups, which are rarely in memory yet: `pread` reads
/// them from the disk in one piece, and a mapping page by page.
const MAX_COPY_BYTES: usize = 8 << 10;

/// A file whose small reads are copies from a mapping of it, once its bytes were read before.
///
/// The first read of bytes is a system call: if they are not in memory, it waits for the disk once, however many pages they are in. A
/// mapping waits once for each page.
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
    /// Pages of the file that were read, and are probably in memory.
    seen: SeenPages,
}

/// A bit per page of a file.
#[derive(Debug, Default)]
struct SeenPages {
    words: Vec<AtomicU64>,
    page_bytes: u64,
}

impl SeenPages {
    fn of(len_bytes: u64) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        let words = len_bytes.div_ceil(page_bytes).div_ceil(64);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), page_bytes }
    }

    /// Returns the words and bits of the pages of a range, as far as the file had them when it was opened.
    fn bits(&self, at: u64, len: usize) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let end = at.saturating_add(len as u64).div_ceil(self.page_bytes.max(1));
        let pages = at / self.page_bytes.max(1)..end.min(self.words.len() as u64 * 64);
        pages.filter_map(|page| Some((self.words.get(usize::try_from(page / 64).ok()?)?, 1 << (page % 64))))
    }

    fn has_all(&self, at: u64, len: usize) -> bool {
        self.bits(at, len).all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn add(&self, at: u64, len: usize) {
        for (word, bit) in self.bits(at, len).filter(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl MappedFile {
    /// Maps a file with its present length. This only reserves addresses: pages become part of the mapping when they are
    /// read.
    #[must_use]
    pub fn new(file: File) -> Self {
        let mapping = map(&file);
        let len_bytes = mapping.as_ref().and_then(|_| Some(file.metadata().ok()?.len()));
        Self { file, mapping, seen: SeenPages::of(len_bytes.unwrap_or(0)) }
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
        let small = small.filter(|_| self.seen.has_all(at, bytes.len()));
        let is_copied = small.is_some_and(|mapping| mapping.read(at, bytes));
        // A file that was cut within a page reads as zeros from there to the end of the page, without SIGBUS. Few
        // blocks end with a zero, since a checksum is last.
        if is_copied && bytes.last() != Some(&0) {
            return Ok(());
        }
        self.file.read_exact_at(bytes, at)?;
        self.seen.add(at, bytes.len());
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    /// Makes pages of the file part of the mapping. A read of one that is not takes 0.5 µs more.
    fn expect_reads(&self, at: u64, len: usize) {
        if let Some(mapping) = &self.mapping {
            mapping.populate_read(at, len);
            self.seen.add(at, len);
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
