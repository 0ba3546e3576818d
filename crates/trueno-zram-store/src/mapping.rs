//! Memory that outlives the process: a memfd, mapped as atomic words. The only unsafe code of the crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes per word of a mapping.
pub(crate) const WORD_BYTES: usize = size_of::<AtomicU64>();

/// The seals of a mapping's file: nobody can change its length, so no access raises SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A memfd and its mapping.
///
/// The memory may be shared with other processes. It is only ever accessed as atomic words, so no access is a data race,
/// whatever they do. Pages of the mapping take memory when they are first written.
#[derive(Debug)]
pub(crate) struct Mapping {
    file: File,
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: a mapping is an owned range of shared atomics, which threads may use and drop anywhere.
unsafe impl Send for Mapping {}
// SAFETY: as above; all access is through `&[AtomicU64]`.
unsafe impl Sync for Mapping {}

impl Mapping {
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
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory of Rust's.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { file, start, words: len_bytes / WORD_BYTES })
    }

    /// The memory.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, this long, readable and writable for as long as `self` lives. Any bit
        // pattern is an `AtomicU64`. The seals keep the file this long.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.words * WORD_BYTES
    }

    /// The memfd, to hand to a process that keeps it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Gives the memory of a range back to the system. It reads as zeros afterwards.
    pub(crate) fn punch(&self, at_bytes: usize, len_bytes: usize) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, at_bytes as u64, len_bytes as u64)?)
    }

    /// Takes memory for the whole mapping and keeps it from being swapped out.
    pub(crate) fn populate_and_lock(&self) -> io::Result<()> {
        let (start, len_bytes) = (self.start.as_ptr().cast(), self.len_bytes());
        // SAFETY: the range is the mapping; populating it changes no contents.
        unsafe { rustix::mm::madvise(start, len_bytes, Advice::LinuxPopulateWrite) }?;
        // SAFETY: the range is the mapping; locking it changes no contents.
        Ok(unsafe { rustix::mm::mlock(start, len_bytes) }?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's mapping, and no reference to it outlives the value.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len_bytes()) };
        debug_assert!(unmapped.is_ok(), "a mapping could not be unmapped: {unmapped:?}");
    }
}

/// Copies bytes from words. `bytes` may end within the last word.
///
/// Another thread that writes the words meanwhile can garble the bytes, not cause undefined behaviour.
pub(crate) fn copy_out(words: &[AtomicU64], bytes: &mut [u8]) {
    let mut chunks = bytes.chunks_exact_mut(WORD_BYTES);
    let mut words = words.iter();
    for (chunk, word) in chunks.by_ref().zip(words.by_ref()) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let rest = chunks.into_remainder();
    if let Some(word) = words.next().filter(|_| !rest.is_empty()) {
        rest.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
    }
}

/// Copies bytes to words. The rest of the last word becomes zero.
pub(crate) fn copy_in(bytes: &[u8], words: &[AtomicU64]) {
    let (chunks, rest) = bytes.as_chunks::<WORD_BYTES>();
    let mut words = words.iter();
    for (chunk, word) in chunks.iter().zip(words.by_ref()) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    if let Some(word) = words.next().filter(|_| !rest.is_empty()) {
        let mut last = [0; WORD_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back() {
        let mapping = Mapping::create("trueno-test", 4096).unwrap();
        for len in 0..200u8 {
            let bytes: Vec<u8> = (0..len).map(|at| at + 1).collect();
            copy_in(&bytes, &mapping.words()[3..]);
            let mut back = vec![0; usize::from(len)];
            copy_out(&mapping.words()[3..], &mut back);
            assert_eq!(back, bytes);
        }
    }

    #[test]
    fn a_second_mapping_sees_the_same_memory() {
        let first = Mapping::create("trueno-test", 8192).unwrap();
        first.words()[700].store(9, Ordering::Relaxed);
        let second = Mapping::open(first.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(second.words()[700].load(Ordering::Relaxed), 9);
        second.punch(4096, 4096).unwrap();
        assert_eq!(first.words()[700].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("trueno-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(Mapping::open(fd).is_err());
        let (reader, _) = io::pipe().unwrap();
        assert!(Mapping::open(reader.into()).is_err());
    }
}
