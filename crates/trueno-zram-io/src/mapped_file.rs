//! A file that many threads read through a memory mapping: a small read is a copy, not a system call.
//!
//! A page fault waits for such a read. For a block of 1.5 KB, a copy saves about 0.6 µs (docs/RESTORE.md).
//!
//! Others may change the file meanwhile, or make it shorter. So its bytes are copied and never lent. A page that is not
//! there any more, or cannot be read, raises SIGBUS, which a [`Guard`](crate::bus_error::Guard) notes. From then on all
//! reads are system calls, whose errors say what is wrong.
#![allow(unsafe_code, reason = "mappings are raw memory")]

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, ProtFlags, madvise};
use rustix::process::{Resource, getrlimit};
use trueno_zram_archive::ReadAt;

use crate::file_system;
use crate::guarded_mapping::GuardedMapping;

/// The longest read that is a copy: a block. Longer ones are of whole groups, which nobody has read before: `pread` reads them from
/// the disk in one piece, and a mapping page by page.
const MAX_COPY_BYTES: usize = 8 << 10;

/// A file whose small reads are copies from a mapping of it.
///
/// A read has the same result as one of the [`File`] itself, also after the file was cut, grown or rewritten. One
/// exception: behind the end of a cut file, the rest of its last page may hold what another process stored there
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
    /// None: the file cannot be mapped.
    memory: Option<Memory>,
}

impl MappedFile {
    /// Maps a file, as long as it is now. This only takes addresses: pages become part of the mapping when they are
    /// read.
    #[must_use]
    pub fn new(file: File) -> Self {
        let memory = Memory::map(&file);
        Self { file, memory }
    }

    /// Returns whether small reads are copies, and not system calls.
    ///
    /// ```
    /// use std::fs::File;
    /// let device = trueno_zram_io::MappedFile::new(File::open("/dev/null")?);
    /// assert!(!device.is_mapped());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| !memory.0.guard.has_failed())
    }
}

impl ReadAt for MappedFile {
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let small = self.memory.as_ref().filter(|_| bytes.len() <= MAX_COPY_BYTES);
        let is_copied = small.is_some_and(|memory| memory.copy(at, bytes));
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
        if let Some(memory) = &self.memory {
            memory.populate(at, len);
        }
    }
}

/// The whole file in memory. Its bytes are only read, by `copy_shared`, and no reference to them is ever made.
#[derive(Debug)]
struct Memory(GuardedMapping);

impl Memory {
    /// Maps a file. None: it is empty, not regular or too long, its file system cannot map it, or the process has a
    /// limit of addresses.
    fn map(file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        let len_bytes = usize::try_from(metadata.len()).ok()?;
        // With 32 bits, or a limit, addresses are needed for other things. The guard replaces pages, and cannot replace huge
        // ones.
        let has_addresses = cfg!(target_pointer_width = "64") && getrlimit(Resource::As).current.is_none();
        if !has_addresses || !metadata.is_file() || len_bytes == 0 || has_huge_pages(file) {
            return None;
        }
        let mapping = GuardedMapping::new(file, 0, len_bytes, ProtFlags::READ).ok()?;
        // A page that is not in memory is read alone, as by `pread`. The kernel would read as much as for a sequential
        // reader: 2 ms instead of 50 µs with a readahead of 8 MiB.
        // SAFETY: the range is the mapping; the advice changes no contents.
        let _hint = unsafe { madvise(mapping.place_of(0, len_bytes)?.as_ptr().cast(), len_bytes, Advice::Random) };
        Some(Self(mapping))
    }

    /// Returns where bytes of the file are. None: they are not all mapped, or a page was not there before.
    fn place_of(&self, at: u64, len_bytes: usize) -> Option<NonNull<u8>> {
        let place = self.0.place_of(usize::try_from(at).ok()?, len_bytes)?;
        (!self.0.guard.has_failed()).then_some(place)
    }

    /// Copies bytes of the file. Returns `false` if they are not all mapped, or if a page was not there.
    fn copy(&self, at: u64, bytes: &mut [u8]) -> bool {
        let Some(place) = self.place_of(at, bytes.len()) else { return false };
        // SAFETY: the mapping has this many bytes from there on, and lives as long as `self`. Pages that are not there
        // are guarded. The mapping is memory of its own, and so does not overlap `bytes`.
        unsafe { copy_shared(place.as_ptr(), bytes) };
        !self.0.guard.has_failed()
    }

    /// Makes the pages of a range part of the mapping. If that fails, reads do so, or fail in their turn.
    fn populate(&self, at: u64, len: usize) {
        let Some(place) = self.place_of(at, len) else { return };
        let within = place.as_ptr() as usize % rustix::param::page_size();
        // SAFETY: the mapping starts at a page, so the start of the page is within it.
        let page = unsafe { place.sub(within) };
        // SAFETY: the range is within the mapping; populating it changes no contents. It never raises SIGBUS, but
        // fails.
        let _hint = unsafe { madvise(page.as_ptr().cast(), within + len, Advice::LinuxPopulateRead) };
    }
}

/// Returns whether a file is made of huge pages, as far as is known.
fn has_huge_pages(file: &File) -> bool {
    file_system::kind_of(file) == Some(file_system::HUGETLBFS)
}

/// Copies bytes that another process may change meanwhile: they are then garbled, and nothing else happens.
///
/// # Safety
/// `from` must be readable for as many bytes as `to` has. It must be memory that Rust code accesses in no other way.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_shared(from: *const u8, to: &mut [u8]) {
    // One instruction that the compiler cannot see into, and as fast as `memcpy`. `copy_words` takes 1.6 times as long.
    // SAFETY: as the caller promises. The processor takes up the copy after a page fault or signal where it was. The
    // direction flag is clear, as the ABI demands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") to.len() => _,
            inout("rsi") from => _,
            inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies bytes that another process may change meanwhile: they are then garbled, and nothing else happens.
///
/// # Safety
/// `from` must be readable for as many bytes as `to` has. It must be memory that Rust code accesses in no other way.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_shared(from: *const u8, to: &mut [u8]) {
    // SAFETY: as the caller promises.
    unsafe { copy_words(from, to) };
}

/// [`copy_shared`] by loads of words, which the compiler can neither repeat nor leave out.
///
/// # Safety
/// As for [`copy_shared`].
#[cfg(any(test, not(target_arch = "x86_64")))]
unsafe fn copy_words(from: *const u8, to: &mut [u8]) {
    const WORD_BYTES: usize = size_of::<usize>();
    let head = from.align_offset(WORD_BYTES).min(to.len());
    let mut at = 0;
    while at < to.len() {
        // SAFETY: within the bytes that are readable.
        let place = unsafe { from.add(at) };
        match to[at..].first_chunk_mut::<WORD_BYTES>() {
            Some(word) if at >= head => {
                // SAFETY: a word is readable there, and aligned: words follow each other from `head` on.
                *word = unsafe { place.cast::<usize>().read_volatile() }.to_ne_bytes();
                at += WORD_BYTES;
            }
            _ => {
                // SAFETY: as above, for a byte.
                to[at] = unsafe { place.read_volatile() };
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
