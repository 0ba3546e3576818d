//! A part of a file in memory, where a page that cannot be provided is an error and not the end of the process.
#![allow(unsafe_code, reason = "mappings are raw memory")]

use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::mapping::bus_error::MappingGuard;

/// A shared mapping of a file, and its guard.
///
/// Its bytes are copied, and no reference to them is made here: other threads and processes may access them, too.
#[derive(Debug)]
pub(crate) struct GuardedMapping {
    /// Dropped first: once the mapping is gone, others may have its addresses.
    pub(crate) guard: MappingGuard,
    mapped: MappedRange,
}

/// Mapped memory, which is unmapped when this is dropped.
#[derive(Debug)]
struct MappedRange {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is unmapped with it, which any thread may do.
unsafe impl Send for MappedRange {}
// SAFETY: with `&self`, addresses are computed, and no byte is accessed.
unsafe impl Sync for MappedRange {}

impl GuardedMapping {
    /// Maps a file from `at` on, which is a multiple of the page size.
    ///
    /// # Errors
    /// Those of `mmap`; [`io::ErrorKind::Unsupported`] if the memory cannot be guarded.
    pub(crate) fn new(file: &File, at: u64, len_bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the system chooses touches no memory in use.
        let start = unsafe { mmap(ptr::null_mut(), len_bytes, protection, MapFlags::SHARED, file, at) }?;
        let mapped = MappedRange { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::Unsupported)?, len_bytes };
        let guard = MappingGuard::new(mapped.start.addr().get(), len_bytes).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { guard, mapped })
    }

    /// Returns the address of `len_bytes` bytes at offset `at` of the mapping; `None` if they are not all mapped.
    pub(crate) fn address_of(&self, at: usize, len_bytes: usize) -> Option<NonNull<u8>> {
        at.checked_add(len_bytes).filter(|end| *end <= self.mapped.len_bytes)?;
        // SAFETY: not past the end of the mapping.
        Some(unsafe { self.mapped.start.add(at) })
    }

    /// Copies bytes of the file. Returns `false` if they are not all mapped, or if a page is missing.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) -> bool {
        let Some(address) = self.readable(at, bytes.len()) else { return false };
        // SAFETY: the mapping has this many bytes from there on, and lives as long as `self`. Pages that are not there
        // are guarded. The mapping is memory of its own, and so does not overlap `bytes`.
        unsafe { copy_shared(address.as_ptr(), bytes) };
        !self.guard.has_failed()
    }

    /// Makes the pages of a range part of the mapping. If that fails, reads do so, or fail in their turn.
    pub(crate) fn populate_read(&self, at: u64, len_bytes: usize) {
        let Some(address) = self.readable(at, len_bytes) else { return };
        let within = address.as_ptr() as usize % rustix::param::page_size();
        // SAFETY: the mapping starts at a page, so the start of the page is within it.
        let page = unsafe { address.sub(within) };
        // SAFETY: the range is within the mapping; populating it changes no contents. It never raises SIGBUS, but
        // fails.
        let _hint = unsafe { madvise(page.as_ptr().cast(), within + len_bytes, Advice::LinuxPopulateRead) };
    }

    /// Makes the kernel read a page that is not in memory alone, as by `pread`. It would read as much as for a
    /// sequential reader: 2 ms instead of 50 µs with a readahead of 8 MiB.
    pub(crate) fn read_single_pages(&self) {
        let MappedRange { start, len_bytes } = self.mapped;
        // SAFETY: the range is the mapping; the advice changes no contents.
        let _hint = unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::Random) };
    }

    /// Returns the address of bytes of the file; `None` if they are not all mapped, or a page was missing before.
    fn readable(&self, at: u64, len_bytes: usize) -> Option<NonNull<u8>> {
        let address = self.address_of(usize::try_from(at).ok()?, len_bytes)?;
        (!self.guard.has_failed()).then_some(address)
    }

    /// Makes the kernel allocate the pages of a range that no other thread accesses, of a mapping for writing: writes a
    /// zero to the first byte of the range and of each of its pages. The kernel has a call for that
    /// (MADV_POPULATE_WRITE), which takes longer than as many page faults on several threads.
    ///
    /// # Errors
    /// Those of [`MappingGuard::check`].
    ///
    /// # Panics
    /// If the range is not mapped.
    pub(crate) fn populate_write(&self, at: usize, len_bytes: usize) -> io::Result<()> {
        let start = self.address_of(at, len_bytes).expect("the range is mapped");
        let page_bytes = rustix::param::page_size();
        let next_page = page_bytes - at % page_bytes;
        for at in (0..len_bytes.min(1)).chain((next_page..len_bytes).step_by(page_bytes)) {
            // SAFETY: the byte is in the range, all of which is mapped.
            let byte = unsafe { start.add(at) };
            // SAFETY: it is mapped, guarded, and written by no other thread, since it is in the range.
            unsafe { byte.write_volatile(0) };
        }
        self.guard.check()
    }

    /// Copies `bytes` to a range of a mapping for writing that no other thread accesses.
    ///
    /// # Errors
    /// Those of [`MappingGuard::check`].
    ///
    /// # Panics
    /// If the range is not mapped.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let address = self.address_of(at, bytes.len()).expect("the range is mapped");
        // SAFETY: `address` is valid for `bytes.len()` bytes, and mapped memory of its own. Pages that are not there are
        // guarded. No other thread writes these bytes, and none reads them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address.as_ptr(), bytes.len()) };
        self.guard.check()
    }

    /// Replaces a page by one that cannot be read, as of a disk that fails.
    #[cfg(test)]
    pub(crate) fn break_page(&self, at: usize) {
        let (nothing, page_bytes) = (tempfile::tempfile().unwrap(), rustix::param::page_size());
        let page = self.address_of(at, page_bytes).unwrap().as_ptr().cast();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces a page of the mapping, which is guarded, and which nobody borrows.
        let replaced = unsafe { mmap(page, page_bytes, ProtFlags::READ, flags, &nothing, 0) };
        assert_eq!(replaced.unwrap(), page);
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more. A failure leaves it mapped.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
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
        let address = unsafe { from.add(at) };
        match to[at..].first_chunk_mut::<WORD_BYTES>() {
            Some(word) if at >= head => {
                // SAFETY: a word is readable there, and aligned: words follow each other from `head` on.
                *word = unsafe { address.cast::<usize>().read_volatile() }.to_ne_bytes();
                at += WORD_BYTES;
            }
            _ => {
                // SAFETY: as above, for a byte.
                to[at] = unsafe { address.read_volatile() };
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn addresses_are_those_of_the_file_and_end_with_the_mapping() {
        let (file, page_bytes) = (tempfile::tempfile().unwrap(), rustix::param::page_size());
        file.write_all_at(b"some bytes", page_bytes as u64).unwrap();
        let mapping = GuardedMapping::new(&file, page_bytes as u64, 10, ProtFlags::READ).unwrap();
        let bytes = mapping.address_of(5, 5).unwrap().cast::<[u8; 5]>();
        // SAFETY: mapped, and nobody changes the file.
        assert_eq!(&unsafe { bytes.read() }, b"bytes");
        assert!(mapping.address_of(0, 10).is_some() && mapping.address_of(10, 0).is_some());
        for (at, len_bytes) in [(0, 11), (10, 1), (11, 0), (1, usize::MAX), (usize::MAX, 1)] {
            assert_eq!(mapping.address_of(at, len_bytes), None, "{len_bytes} bytes at {at}");
        }
        assert!(!mapping.guard.has_failed());
    }

    #[test]
    fn folders_empty_ranges_and_offsets_within_a_page_are_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        assert!(GuardedMapping::new(&File::open(folder.path()).unwrap(), 0, 10, ProtFlags::READ).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(GuardedMapping::new(&file, 0, 0, ProtFlags::READ).is_err(), "no bytes");
        assert!(GuardedMapping::new(&file, 1, 10, ProtFlags::READ).is_err(), "not the start of a page");
    }

    #[test]
    fn words_are_copied_like_bytes() {
        let content: Vec<u8> = (1..=200).collect();
        for start in 0..20 {
            for len in 0..100 {
                let [mut one, mut other] = [[0xee; 120]; 2];
                // SAFETY: within `content`, which nobody changes.
                unsafe { copy_words(content[start..].as_ptr(), &mut one[10..10 + len]) };
                // SAFETY: as above.
                unsafe { copy_shared(content[start..].as_ptr(), &mut other[10..10 + len]) };
                assert_eq!(one, other);
                assert_eq!(one[10..10 + len], content[start..start + len]);
                assert!(one[..10].iter().chain(&one[10 + len..]).all(|byte| *byte == 0xee), "nothing else is written");
            }
        }
    }
}
