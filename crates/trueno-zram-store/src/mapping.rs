//! Memory that outlives the process: a memfd, mapped as atomic words. The only unsafe code of the crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
#[cfg(any(test, not(target_arch = "x86_64")))]
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes per word of a mapping.
pub(crate) const WORD_BYTES: usize = size_of::<AtomicU64>();

/// Bytes per half word.
pub(crate) const HALF_WORD_BYTES: usize = size_of::<AtomicU32>();

/// The pages of the system, in bytes.
pub(crate) const SYSTEM_PAGE_BYTES: usize = 4096;

/// Bytes that the processor fetches together.
pub(crate) const CACHE_LINE_BYTES: usize = 64;

/// The seals of a mapping's file: its length cannot change, so no access raises SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A memfd and its mapping.
///
/// The memory may be shared with other processes. It is accessed only as atomic words, or copied by an instruction that
/// is opaque to the compiler. So no access is a data race, regardless of those processes. Pages of the mapping take memory
/// when they are first written.
#[derive(Debug)]
pub(crate) struct MemfdMapping {
    file: File,
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: a mapping is an owned range of shared atomics, which threads may use and drop anywhere.
unsafe impl Send for MemfdMapping {}
// SAFETY: as above; references to the memory are to atomics only, of 64 or 32 bits, and bytes are copied as `copy_shared` says.
unsafe impl Sync for MemfdMapping {}

impl MemfdMapping {
    /// Creates a memfd of zeros.
    pub(crate) fn create(name: &str, len_bytes: usize) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(len_bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Self::map(file, len_bytes)
    }

    /// Maps a memfd that [`create`](Self::create) made, in this process or in another.
    pub(crate) fn open(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memfd is not sealed against resizing"));
        }
        let len_bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if len_bytes == 0 || !len_bytes.is_multiple_of(WORD_BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memfd does not hold whole words"));
        }
        Self::map(file, len_bytes)
    }

    fn map(file: File, len_bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no Rust object.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { file, start, words: len_bytes / WORD_BYTES })
    }

    /// Returns the memory.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, this long, readable and writable for as long as `self` lives. Any bit
        // pattern is an `AtomicU64`. The seals keep the file this long.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Returns one half of a word. Threads may use both halves at the same time, but not a half and its word.
    pub(crate) fn half_word(&self, index: usize) -> &AtomicU32 {
        let word = &self.words()[index / 2];
        // SAFETY: both halves lie within the word.
        let half = unsafe { word.as_ptr().cast::<u32>().add(index % 2) };
        // SAFETY: the half is aligned, and lives as long as `self`. Only the page numbers at the start of a slab
        // are used as halves, for as long as the slab has a class. Before and after that, the lock of the class and the
        // stack of free slabs order these accesses and all accesses to whole words.
        unsafe { AtomicU32::from_ptr(half) }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.words * WORD_BYTES
    }

    /// Returns the memfd, for a process that keeps it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the memory of a range to the system. It reads as zeros afterwards.
    pub(crate) fn punch(&self, at_bytes: usize, len_bytes: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, at_bytes as u64, len_bytes as u64)?)
    }

    /// Takes memory for a range of bytes and keeps it from being swapped out, with the rest of the system's pages at its ends.
    pub(crate) fn populate_and_lock(&self, bytes: Range<usize>) -> io::Result<()> {
        let first = bytes.start / SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES;
        let len_bytes = bytes.end.min(self.len_bytes()).saturating_sub(first);
        if len_bytes == 0 {
            return Ok(());
        }
        // SAFETY: the first byte lies within the mapping.
        let start = unsafe { self.start.as_ptr().cast::<u8>().add(first) }.cast();
        // SAFETY: the range lies within the mapping, whose last page it may end in; populating it changes no contents.
        unsafe { rustix::mm::madvise(start, len_bytes, Advice::LinuxPopulateWrite) }?;
        // SAFETY: the range lies within the mapping; locking it changes no contents.
        Ok(unsafe { rustix::mm::mlock(start, len_bytes) }?)
    }
}

impl Drop for MemfdMapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's mapping, and no reference to it outlives the value.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len_bytes()) };
        debug_assert!(unmapped.is_ok(), "a mapping could not be unmapped: {unmapped:?}");
    }
}

/// Copies bytes from words. `bytes` may end within the last word.
///
/// Threads of this process do not write the words meanwhile: the caller holds the lock of the page whose slot they are,
/// or owns the slot. Another process that writes them can garble the bytes, but not cause undefined behaviour.
pub(crate) fn copy_out(words: &[AtomicU64], bytes: &mut [u8]) {
    let len_bytes = bytes.len().min(size_of_val(words));
    #[cfg(target_arch = "x86_64")]
    // SAFETY: both ranges are this long. Words are atomics, and `bytes` is borrowed mutably.
    unsafe {
        copy_shared(words.as_ptr().cast(), bytes.as_mut_ptr(), len_bytes);
    }
    #[cfg(not(target_arch = "x86_64"))]
    copy_words_out(words, &mut bytes[..len_bytes]);
}

/// Copies bytes to words. The rest of the last word is unspecified.
pub(crate) fn copy_in(bytes: &[u8], words: &[AtomicU64]) {
    let len_bytes = bytes.len().min(size_of_val(words));
    #[cfg(target_arch = "x86_64")]
    // SAFETY: both ranges are this long. Words are atomics, which may be written through a shared reference.
    unsafe {
        copy_shared(bytes.as_ptr(), words.as_ptr().cast_mut().cast(), len_bytes);
    }
    #[cfg(not(target_arch = "x86_64"))]
    copy_words_in(&bytes[..len_bytes], words);
}

/// [`copy_out`] by atomic loads of words, which do not race on any processor.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn copy_words_out(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, part) in words.iter().zip(bytes.chunks_mut(WORD_BYTES)) {
        let word = word.load(Ordering::Relaxed).to_ne_bytes();
        part.copy_from_slice(&word[..part.len()]);
    }
}

/// [`copy_in`] by atomic stores of words, which do not race on any processor.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn copy_words_in(bytes: &[u8], words: &[AtomicU64]) {
    for (part, to) in bytes.chunks(WORD_BYTES).zip(words) {
        let mut word = [0; WORD_BYTES];
        word[..part.len()].copy_from_slice(part);
        to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
}

/// Copies bytes from or to memory that others may change meanwhile.
///
/// It is one instruction. Atomic words, which the compiler does not join, would be 8 bytes per instruction.
///
/// # Safety
/// `from` must be readable and `to` writable for `len_bytes`. They must not overlap. Any range that others may change
/// meanwhile must be made of atomics.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_shared(from: *const u8, to: *mut u8, len_bytes: usize) {
    // SAFETY: as the caller promises. For the compiler, the block may do whatever a relaxed atomic access of each byte may
    // do, and on this processor its loads and stores of bytes are that: none is divided, and each value was stored by
    // someone. So it does not race with atomic accesses elsewhere. The direction flag is clear, as the ABI demands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len_bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Prefetches values into the cache.
pub(crate) fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of_val(values)).step_by(CACHE_LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

#[cfg(test)]
mod tests {
    use super::*;

    type CopyIn = fn(&[u8], &[AtomicU64]);
    type CopyOut = fn(&[AtomicU64], &mut [u8]);

    /// The copies for this processor, and those for every processor.
    const COPIES: [(CopyIn, CopyOut); 2] = [(copy_in, copy_out), (copy_words_in, copy_words_out)];

    #[test]
    fn bytes_of_every_length_come_back() {
        let mapping = MemfdMapping::create("trueno-test", 4096).unwrap();
        let words = &mapping.words()[3..];
        for len in 0..200u8 {
            let bytes: Vec<u8> = (0..len).map(|at| at + 1).collect();
            for ((into, _), (_, out)) in COPIES.iter().flat_map(|into| COPIES.map(|out| (*into, out))) {
                words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
                into(&bytes, words);
                let mut back = vec![0; usize::from(len)];
                out(words, &mut back);
                assert_eq!(back, bytes);
                assert_eq!(words[usize::from(len).div_ceil(WORD_BYTES)].load(Ordering::Relaxed), u64::MAX);
            }
        }
    }

    #[test]
    fn dropping_a_mapping_unmaps_it() {
        let mapping = MemfdMapping::create("trueno-test-dropped", 4096).unwrap();
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("trueno-test-dropped");
        assert!(is_mapped());
        drop(mapping);
        assert!(!is_mapped());
    }

    #[test]
    fn a_copy_ends_with_the_shorter_side() {
        let mapping = MemfdMapping::create("trueno-test", 4096).unwrap();
        let words = &mapping.words()[..2];
        for (into, out) in COPIES {
            into(&[7; 30], words);
            assert_eq!(mapping.words()[2].load(Ordering::Relaxed), 0);
            let mut back = [1; 30];
            out(words, &mut back);
            assert_eq!((&back[..16], &back[16..]), (&[7; 16][..], &[1; 14][..]));
        }
    }

    #[test]
    fn a_second_mapping_sees_the_same_memory() {
        let first = MemfdMapping::create("trueno-test", 8192).unwrap();
        first.words()[700].store(9, Ordering::Relaxed);
        let second = MemfdMapping::open(first.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(second.words()[700].load(Ordering::Relaxed), 9);
        second.punch(4096, 4096).unwrap();
        assert_eq!(first.words()[700].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("trueno-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(MemfdMapping::open(fd).is_err());
        let (reader, _) = io::pipe().unwrap();
        assert!(MemfdMapping::open(reader.into()).is_err());
    }
}
