//! A part of a file in memory, where a page that cannot be provided is an error and not the end of the process.
#![allow(unsafe_code, reason = "mappings are raw memory")]

use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::bus_error::Guard;

/// A shared mapping of a file, and its guard.
///
/// It only says where bytes are. Whoever accesses them allows for other threads and processes that do so, too.
#[derive(Debug)]
pub(crate) struct GuardedMapping {
    /// Dropped first: once the mapping is gone, others may have its addresses.
    pub(crate) guard: Guard,
    mapped: Mapped,
}

/// Mapped memory.
#[derive(Debug)]
struct Mapped {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is unmapped with it, which any thread may do.
unsafe impl Send for Mapped {}
// SAFETY: with `&self`, addresses are computed, and no byte is accessed.
unsafe impl Sync for Mapped {}

impl GuardedMapping {
    /// Maps a file from `at` on, which is a multiple of the page size.
    ///
    /// # Errors
    /// Those of `mmap`; [`io::ErrorKind::Unsupported`] if the memory cannot be guarded.
    pub(crate) fn new(file: &File, at: u64, len_bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at a place that the system chooses touches no memory in use.
        let start = unsafe { mmap(ptr::null_mut(), len_bytes, protection, MapFlags::SHARED, file, at) }?;
        let mapped = Mapped { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::Unsupported)?, len_bytes };
        let guard = Guard::new(mapped.start.addr().get(), len_bytes).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { guard, mapped })
    }

    /// Returns where bytes are that lie `at` bytes behind the start of the mapping. None: they are not all mapped.
    pub(crate) fn place_of(&self, at: usize, len_bytes: usize) -> Option<NonNull<u8>> {
        at.checked_add(len_bytes).filter(|end| *end <= self.mapped.len_bytes)?;
        // SAFETY: not behind the end of the mapping.
        Some(unsafe { self.mapped.start.add(at) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more. A failure leaves it mapped.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn places_are_those_of_the_file_and_end_with_the_mapping() {
        let (file, page_bytes) = (tempfile::tempfile().unwrap(), rustix::param::page_size());
        file.write_all_at(b"some bytes", page_bytes as u64).unwrap();
        let mapping = GuardedMapping::new(&file, page_bytes as u64, 10, ProtFlags::READ).unwrap();
        let bytes = mapping.place_of(5, 5).unwrap().cast::<[u8; 5]>();
        // SAFETY: mapped, and nobody changes the file.
        assert_eq!(&unsafe { bytes.read() }, b"bytes");
        assert!(mapping.place_of(0, 10).is_some() && mapping.place_of(10, 0).is_some());
        for (at, len_bytes) in [(0, 11), (10, 1), (11, 0), (1, usize::MAX), (usize::MAX, 1)] {
            assert_eq!(mapping.place_of(at, len_bytes), None, "{len_bytes} bytes at {at}");
        }
        assert!(!mapping.guard.has_failed());
    }

    #[test]
    fn folders_empty_ranges_and_places_within_a_page_are_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        assert!(GuardedMapping::new(&File::open(folder.path()).unwrap(), 0, 10, ProtFlags::READ).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(GuardedMapping::new(&file, 0, 0, ProtFlags::READ).is_err(), "no bytes");
        assert!(GuardedMapping::new(&file, 1, 10, ProtFlags::READ).is_err(), "not the start of a page");
    }
}
