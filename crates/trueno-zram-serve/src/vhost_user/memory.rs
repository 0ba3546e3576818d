//! The memory of a guest, which another process may take away at any moment.
#![allow(unsafe_code, reason = "guards mappings")]

use std::io::{self, Read};
use std::sync::Arc;

use trueno_zram_io::{MappingGuard, mapping_page_bytes};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

/// The reason why the memory of a guest cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    #[error("the guest's memory at {address:#x} ends at byte {end} of its file, which has {file_bytes} bytes")]
    Short { address: u64, end: u64, file_bytes: u64 },
    #[error("the guest's memory at {address:#x} has {len_bytes} bytes, not whole pages of {page_bytes} bytes")]
    PartOfPage { address: u64, len_bytes: u64, page_bytes: u64 },
    #[error("the guest's memory at {address:#x} is not in a file")]
    NoFile { address: u64 },
    #[error("the file of the guest's memory cannot be examined")]
    File(#[from] io::Error),
    #[error("SIGBUS cannot be handled for more memory")]
    NoGuard,
    #[error("the guest's memory is gone: its file was cut, or has no more pages")]
    Gone,
}

/// The memory of a guest. Pages that are gone read as zeros, and [`check`](Self::check) fails from then on.
///
/// Sealed memory (`F_SEAL_SHRINK`) is guarded, too: huge pages may be missing for other reasons, and a guard costs nothing.
#[derive(Debug, Default)]
pub(super) struct GuardedMemory {
    /// Dropped first: once a mapping is gone, others may have its addresses.
    guards: Vec<MappingGuard>,
    guest: Arc<GuestMemoryMmap>,
}

impl GuardedMemory {
    /// Checks the files of all regions, and guards the regions.
    pub(super) fn new(guest: Arc<GuestMemoryMmap>) -> Result<Self, MemoryError> {
        let guards = guest.iter().map(guard).collect::<Result<_, _>>()?;
        Ok(Self { guards, guest })
    }

    /// Returns the memory. It must not be accessed after `self` is dropped.
    pub(super) fn guest(&self) -> &GuestMemoryMmap {
        &self.guest
    }

    /// Fails if any page that was accessed so far, by any thread, was gone.
    pub(super) fn check(&self) -> io::Result<()> {
        match self.guards.iter().any(MappingGuard::has_failed) {
            false => Ok(()),
            true => Err(io::Error::other(MemoryError::Gone)),
        }
    }

    /// Wraps a reader so that reads fail once memory of the guest is gone.
    pub(super) fn checked<R>(&self, reader: R) -> CheckedReader<'_, R> {
        CheckedReader { memory: self, reader }
    }
}

/// Guards a region, if its file is long enough.
fn guard(region: &GuestRegionMmap) -> Result<MappingGuard, MemoryError> {
    let (address, len_bytes) = (region.start_addr().raw_value(), region.len());
    let place = region.file_offset().ok_or(MemoryError::NoFile { address })?;
    let file = place.file().metadata()?;
    let end = place.start().saturating_add(len_bytes);
    // The length of a device is not known.
    if file.is_file() && end > file.len() {
        return Err(MemoryError::Short { address, end, file_bytes: file.len() });
    }
    let page_bytes = mapping_page_bytes(place.file());
    if !len_bytes.is_multiple_of(page_bytes) {
        return Err(MemoryError::PartOfPage { address, len_bytes, page_bytes });
    }
    // SAFETY: a mapping of whole pages. `GuardedMemory` holds it for longer than the guard. vm-memory accesses it only with
    // volatile and atomic operations, as memory that the guest changes at any moment.
    unsafe { MappingGuard::of_mapping(region.as_ptr() as usize, region.size()) }.ok_or(MemoryError::NoGuard)
}

/// Reads from the memory of a guest, and fails if some of it is gone.
pub(super) struct CheckedReader<'a, R> {
    memory: &'a GuardedMemory,
    reader: R,
}

impl<R: Read> Read for CheckedReader<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(bytes)?;
        self.memory.check()?;
        Ok(read)
    }
}
