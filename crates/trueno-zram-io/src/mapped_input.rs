//! An input whose pages are borrowed from the page cache instead of copied, while a lease keeps everybody from changing them.
//!
//! For a delta, most pages are only hashed. Hashing a mapped file takes 1.2 µs per page and core on a tmpfs, and copying its pages to hash
//! them 1.4. But a mapped file can change at any moment, and if it becomes shorter, its pages are gone. So pages are borrowed under
//! a [`Lease`](crate::lease::Lease), a few hundred at a time. Where there is none to be had, the caller reads them.
#![allow(unsafe_code, reason = "mappings are raw memory")]

use std::ffi::c_long;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::bus_error::Guard;
use crate::lease::LeasedFile;

/// The number of `cachestat`, on all architectures.
const SYS_CACHESTAT: c_long = 451;

/// Pages that the kernel maps at a page fault, if they are in memory: `fault_around_bytes`, 64 KiB unless changed.
const FAULT_PAGES: usize = 16;

/// A file of which whole pages can be borrowed.
#[derive(Debug)]
pub(crate) struct MappedInput {
    /// Dropped first: once the mapping is gone, others may have its addresses.
    guard: Guard,
    mapped: Mapped,
    file: LeasedFile,
}

/// A mapping for reading.
#[derive(Debug)]
struct Mapped {
    start: NonNull<Page>,
    pages: usize,
}

// SAFETY: the mapping belongs to this value alone and is unmapped with it. It is only read.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl MappedInput {
    /// Maps the whole pages of a regular file. None: it cannot be mapped, or is not worth it.
    pub(crate) fn new(file: &File, len_bytes: u64) -> Option<Self> {
        let pages = usize::try_from(len_bytes).ok()? / PAGE_SIZE;
        if pages == 0 || rustix::param::page_size() != PAGE_SIZE {
            return None;
        }
        let file = LeasedFile::new(file)?;
        let mapped = Mapped::new(file.file(), pages)?;
        let guard = Guard::new(mapped.start.addr().get(), pages * PAGE_SIZE)?;
        Some(Self { guard, mapped, file })
    }

    /// Calls `work` with pages of the file, which do not change meanwhile. None: they cannot be borrowed, or could not be until `work` was
    /// done. Then what it did is void, and the pages have to be read.
    pub(crate) fn borrow<R>(&self, pages: Range<u64>, work: impl FnOnce(&[Page]) -> R) -> Option<R> {
        let within = usize::try_from(pages.start).ok()?..usize::try_from(pages.end).ok()?;
        if within.start >= within.end || within.end > self.mapped.pages || self.guard.has_failed() {
            return None;
        }
        let lease = self.file.hold()?;
        // Pages that are not in memory are read in larger pieces than a mapping would. Of a hole, a tmpfs would make pages.
        if cached_pages(self.file.file(), &pages) != Some(pages.end - pages.start) {
            return None;
        }
        // SAFETY: the pages are mapped, and `&self` keeps them so. Nobody can change them: the lease says that no one has
        // the file open for writing or truncates it. Two exceptions remain. The lease is lost if this process is stopped
        // for as long as the kernel waits. The guard puts an empty page in place of one that was evicted and cannot be read
        // again. Both are found below, and the result is dropped. Until then `work` only hashes these bytes, or copies
        // them: it works with any values.
        let borrowed = unsafe { self.mapped.pages(within.clone()) };
        fault_in(borrowed);
        let done = work(borrowed);
        self.mapped.release(within);
        (lease.is_undisputed() && !self.guard.has_failed()).then_some(done)
    }
}

impl Mapped {
    fn new(file: &File, pages: usize) -> Option<Self> {
        // SAFETY: a new mapping at a place that the system chooses touches no memory in use.
        let mapped = unsafe { mmap(ptr::null_mut(), pages * PAGE_SIZE, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Some(Self { start: NonNull::new(mapped.ok()?.cast())?, pages })
    }

    /// # Safety
    /// The range is within the mapping, and its pages neither change nor vanish as long as they are borrowed.
    unsafe fn pages(&self, within: Range<usize>) -> &[Page] {
        // SAFETY: the range is within the mapping, by the caller's promise.
        let start = unsafe { self.start.add(within.start) };
        // SAFETY: as above, and the pages do not change. Any bytes are a page, at any address.
        unsafe { slice::from_raw_parts(start.as_ptr(), within.len()) }
    }

    /// Gives the page table's entries of a range back, which nobody borrows any more. Unmapping all of them at the end would be one
    /// thread's work.
    fn release(&self, within: Range<usize>) {
        assert!(within.end <= self.pages, "a range ends within its mapping");
        // SAFETY: the range is within the mapping, by the assertion.
        let start = unsafe { self.start.add(within.start) };
        // SAFETY: pages of a file that are mapped for reading come back, with the same content, when they are accessed again. If that
        // fails, they stay.
        let _released = unsafe { madvise(start.as_ptr().cast(), within.len() * PAGE_SIZE, Advice::LinuxDontNeed) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more. A failure leaves it mapped.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.pages * PAGE_SIZE) };
    }
}

/// Makes the kernel map pages, before anything else is done with them. It maps 16 at a time. One by one, as they are
/// hashed, they take 0.15 µs more per page (tmpfs, two cores), and with MADV_POPULATE_READ 0.08.
fn fault_in(pages: &[Page]) {
    for page in pages.iter().step_by(FAULT_PAGES) {
        std::hint::black_box(page[0]);
    }
}

/// How many of these pages are in memory. None: the kernel is older than 6.5, or does not tell.
fn cached_pages(file: &File, pages: &Range<u64>) -> Option<u64> {
    /// `struct cachestat_range`: the first byte, and the length.
    #[repr(C)]
    struct BytesAsked(u64, u64);
    /// `struct cachestat`.
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        others: [u64; 4],
    }
    let asked = BytesAsked(pages.start * PAGE_SIZE as u64, (pages.end - pages.start) * PAGE_SIZE as u64);
    let mut counts = Counts::default();
    let no_flags: libc::c_uint = 0;
    // SAFETY: both structures are those that the call takes, and live as long as it takes.
    let told = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const asked, &raw mut counts, no_flags) };
    let Counts { cached, others: _ } = counts;
    (told == 0).then_some(cached)
}

#[cfg(test)]
mod tests;
