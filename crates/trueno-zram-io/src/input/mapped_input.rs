//! An input whose pages are borrowed from the page cache, while a lease prevents changes.
//!
//! For a delta, most pages are only hashed. Hashing a mapped file takes 1.2 µs per page and core on a tmpfs, and
//! copying its pages to hash them 1.4. But a mapped file can change at any moment, and if it becomes shorter, its pages
//! are gone. So pages are borrowed under a [`Lease`](crate::input::lease::Lease), up to 1,024 at a time. If the lease is
//! refused, the caller reads them.
#![allow(unsafe_code, reason = "mappings are raw memory")]

use std::ffi::c_long;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::slice;

use rustix::mm::{Advice, ProtFlags, madvise};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::input::lease::LeasedFile;
use crate::mapping::guarded_mapping::GuardedMapping;

/// The number of `cachestat`, on all architectures.
const SYS_CACHESTAT: c_long = 451;

/// Pages that the kernel maps at a page fault, if they are in memory: `fault_around_bytes`, 64 KiB unless changed.
const FAULT_PAGES: usize = 16;

/// A file of which whole pages can be borrowed.
#[derive(Debug)]
pub(crate) struct MappedInput {
    /// Whole pages, which are only read.
    mapping: GuardedMapping,
    file: LeasedFile,
}

impl MappedInput {
    /// Maps the whole pages of a regular file; `None` if it has no whole page, if this machine has other page sizes, or if the
    /// file cannot be leased or mapped.
    pub(crate) fn new(file: &File, len_bytes: u64) -> Option<Self> {
        let pages = usize::try_from(len_bytes).ok()? / PAGE_SIZE;
        if pages == 0 || rustix::param::page_size() != PAGE_SIZE {
            return None;
        }
        let file = LeasedFile::new(file)?;
        let mapping = GuardedMapping::new(file.file(), 0, pages * PAGE_SIZE, ProtFlags::READ).ok()?;
        Some(Self { mapping, file })
    }

    /// Calls `work` with pages of the file, which do not change meanwhile; `None` if they cannot be borrowed, or could
    /// not be until `work` was done. Then discard its result, and read the pages.
    pub(crate) fn borrow<R>(&self, pages: Range<u64>, work: impl FnOnce(&[Page]) -> R) -> Option<R> {
        let count = usize::try_from(pages.end.checked_sub(pages.start)?).ok()?;
        let at = usize::try_from(pages.start).ok()?.checked_mul(PAGE_SIZE)?;
        let len_bytes = count.checked_mul(PAGE_SIZE)?;
        let start = self.mapping.address_of(at, len_bytes)?;
        if count == 0 || self.mapping.guard.has_failed() {
            return None;
        }
        let lease = self.file.hold()?;
        // Pages that are not in memory are read faster by `pread`, in larger pieces. In a hole of a tmpfs, a mapping would
        // allocate pages.
        if cached_pages(self.file.file(), &pages) != Some(pages.end - pages.start) {
            return None;
        }
        // SAFETY: the pages are mapped, and `&self` keeps them so. Any bytes are a page, at any address. Nobody can
        // change them: the lease says that no one has the file open for writing or truncates it. Two exceptions remain.
        // The lease is lost if this process is stopped for as long as the kernel waits. The guard puts an empty page in
        // place of one that was evicted and cannot be read again. Both are found below, and the result is dropped.
        // Until then `work` only hashes these bytes, or copies them: it works with any values.
        let borrowed = unsafe { slice::from_raw_parts(start.cast::<Page>().as_ptr(), count) };
        fault_in(borrowed);
        let done = work(borrowed);
        // Gives the page table's entries back. Unmapping all of them at the end would be one thread's work.
        // SAFETY: the range is mapped. Pages of a file that are mapped for reading come back, with the same content,
        // when they are accessed again. If that fails, they stay.
        let _released = unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxDontNeed) };
        (lease.is_unbroken() && !self.mapping.guard.has_failed()).then_some(done)
    }
}

/// Makes the kernel map pages, 16 at a time, before they are hashed. Alternatives are slower on a tmpfs
/// (docs/BENCHMARKS.md).
fn fault_in(pages: &[Page]) {
    for page in pages.iter().step_by(FAULT_PAGES) {
        std::hint::black_box(page[0]);
    }
}

/// Returns the number of these pages that are in memory; `None` if the kernel is older than 6.5, or cannot tell.
fn cached_pages(file: &File, pages: &Range<u64>) -> Option<u64> {
    /// `struct cachestat_range`: the first byte, and the length.
    #[repr(C)]
    struct CachestatRange(u64, u64);
    /// `struct cachestat`.
    #[repr(C)]
    #[derive(Default)]
    struct Cachestat {
        cached: u64,
        others: [u64; 4],
    }
    let range = CachestatRange(pages.start * PAGE_SIZE as u64, (pages.end - pages.start) * PAGE_SIZE as u64);
    let mut counts = Cachestat::default();
    let no_flags: libc::c_uint = 0;
    // SAFETY: both structures are those that the call takes, and live as long as it takes.
    let returned =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, no_flags) };
    let Cachestat { cached, others: _ } = counts;
    (returned == 0).then_some(cached)
}

#[cfg(test)]
mod tests;
