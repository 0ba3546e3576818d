//! Statistics: counters per thread, and their sums in zram's fields.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use trueno_zram_core::{PAGE_SIZE, PageKind};

use crate::request_gate;
use crate::table::entry::PageForm;

/// The statistics of a store: zram's `mm_stat` and `io_stat`, and more.
///
/// Serialised with serde, the fields are named as here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoreStats {
    /// Length of the store in bytes.
    pub size_bytes: u64,
    /// The length to which the store can grow.
    #[serde(default)]
    pub max_size_bytes: u64,
    /// The table, in bytes.
    pub table_bytes: u64,
    /// Memory, in the order of `/sys/block/zramN/mm_stat`.
    pub mm: MmStat,
    /// Requests, in the order of `/sys/block/zramN/io_stat`.
    pub io: IoStat,
    /// Pages read.
    pub pages_read: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Pages held as Zstandard frames because they were idle.
    pub pages_recompressed: u64,
    /// Compressed bytes that recompression has saved.
    pub recompressed_bytes_saved: u64,
    /// The progress of recompression.
    #[serde(default)]
    pub recompress: RecompressProgress,
}

/// The progress of recompression: it goes through all pages again and again, with pauses.
///
/// ```
/// assert!(!trueno_zram_store::RecompressProgress::default().running);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecompressProgress {
    /// A pass is under way.
    pub running: bool,
    /// Pages that the present pass, or else the last one, has passed.
    pub pages_passed: u64,
    /// Passes that have ended.
    pub passes: u64,
    /// Idle pages that were compressed again, whether they became shorter or not.
    pub pages_tried: u64,
}

/// The progress of recompression, which one thread at a time changes.
#[derive(Debug, Default)]
pub(crate) struct ProgressCounters {
    running: AtomicBool,
    pages_passed: AtomicU64,
    passes: AtomicU64,
    pages_tried: AtomicU64,
}

impl ProgressCounters {
    pub(crate) fn start(&self) {
        self.pages_passed.store(0, Relaxed);
        self.running.store(true, Relaxed);
    }

    pub(crate) fn pass(&self, pages_passed: u64, pages_tried: u64) {
        self.pages_passed.store(pages_passed, Relaxed);
        self.pages_tried.fetch_add(pages_tried, Relaxed);
    }

    pub(crate) fn end(&self) {
        self.running.store(false, Relaxed);
        self.passes.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self) -> RecompressProgress {
        RecompressProgress {
            running: self.running.load(Relaxed),
            pages_passed: self.pages_passed.load(Relaxed),
            passes: self.passes.load(Relaxed),
            pages_tried: self.pages_tried.load(Relaxed),
        }
    }
}

/// The fields of zram's `mm_stat`, in its order. Displays as that file's line.
///
/// ```
/// let line = trueno_zram_store::MmStat::default().to_string();
/// assert_eq!(line.split_whitespace().count(), 9);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MmStat {
    /// Uncompressed length of the pages that are held.
    pub orig_data_size: u64,
    /// Their compressed length. Same-filled pages that lie in the table take none.
    pub compr_data_size: u64,
    /// Memory taken for compressed pages, in bytes.
    pub mem_used_total: u64,
    /// The limit of that memory; 0 if there is none.
    pub mem_limit: u64,
    /// The most memory taken so far.
    pub mem_used_max: u64,
    /// Pages that repeat one word and lie in the table.
    pub same_pages: u64,
    /// Pages that compaction has moved.
    pub pages_compacted: u64,
    /// Pages that did not shrink.
    pub huge_pages: u64,
    /// Pages that did not shrink, since the start.
    pub huge_pages_since: u64,
}

/// The fields of zram's `io_stat`, in its order. Displays as that file's line.
///
/// ```
/// let line = trueno_zram_store::IoStat::default().to_string();
/// assert_eq!(line.split_whitespace().count(), 4);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IoStat {
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes that failed.
    pub failed_writes: u64,
    /// Requests beyond the end.
    pub invalid_io: u64,
    /// Pages that were discarded.
    pub notify_free: u64,
}

impl fmt::Display for MmStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            self.orig_data_size,
            self.compr_data_size,
            self.mem_used_total,
            self.mem_limit,
            self.mem_used_max,
            self.same_pages,
            self.pages_compacted,
            self.huge_pages,
            self.huge_pages_since,
        ];
        write_line(f, &fields)
    }
}

impl fmt::Display for IoStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, &[self.failed_reads, self.failed_writes, self.invalid_io, self.notify_free])
    }
}

/// Writes fields of at least 8 characters, as the kernel does.
fn write_line(f: &mut fmt::Formatter<'_>, fields: &[u64]) -> fmt::Result {
    let mut fields = fields.iter();
    if let Some(first) = fields.next() {
        write!(f, "{first:>8}")?;
    }
    fields.try_for_each(|field| write!(f, " {field:>8}"))
}

/// The counters of one thread. Only that thread changes them, so threads share no cache line.
///
/// Amounts that fall are counted modulo 2^64: the sum over all threads is right, the parts need not be.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ThreadCounters {
    pub(crate) pages_held: Counter,
    pub(crate) compressed_bytes: Counter,
    pub(crate) same_pages: Counter,
    pub(crate) huge_pages: Counter,
    pub(crate) huge_pages_since: Counter,
    pub(crate) pages_compacted: Counter,
    pub(crate) pages_read: Counter,
    pub(crate) pages_written: Counter,
    pub(crate) pages_recompressed: Counter,
    pub(crate) recompressed_bytes_saved: Counter,
    pub(crate) failed_reads: Counter,
    pub(crate) failed_writes: Counter,
    pub(crate) invalid_io: Counter,
    pub(crate) notify_free: Counter,
    /// The request that the thread is in, for [`request_gate`].
    request: AtomicU64,
}

/// A request that a thread is in, until it is dropped.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<ThreadCounters>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        request_gate::leave(&self.0.request);
    }
}

/// A number that one thread changes and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        // One writer: no locked instruction is needed.
        self.0.store(self.get().wrapping_add(amount), Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl ThreadCounters {
    /// Enters a request. The number of pages does not become less than `pages` now has until the guard is dropped.
    pub(crate) fn enter_request(self: &Arc<Self>, pages: &AtomicU64) -> RequestGuard {
        request_gate::enter(&self.request, pages);
        RequestGuard(Arc::clone(self))
    }

    /// Returns the number of the request that the thread is in, if it is in one.
    pub(crate) fn current_request(&self) -> Option<u64> {
        request_gate::current(&self.request)
    }

    /// Counts a page that the table now has in this form.
    pub(crate) fn count_added(&self, form: PageForm) {
        self.add_pages_of_form(form, 1);
    }

    /// Counts a page that the table no longer has in this form.
    pub(crate) fn count_removed(&self, form: PageForm) {
        self.add_pages_of_form(form, 1u64.wrapping_neg());
    }

    /// Adds pages of a form to the store's counters; a negative number as its complement.
    fn add_pages_of_form(&self, form: PageForm, pages: u64) {
        match form {
            PageForm::Empty => return,
            PageForm::Fill(_) => self.same_pages.add(pages),
            PageForm::Stored(stored) => {
                self.compressed_bytes.add(u64::from(stored.len_bytes).wrapping_mul(pages));
                self.huge_pages.add(u64::from(stored.kind == PageKind::Raw).wrapping_mul(pages));
            }
        }
        self.pages_held.add(pages);
    }
}

/// The counters of all threads.
#[derive(Debug, Default)]
pub(crate) struct AllCounters {
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
}

impl AllCounters {
    /// Returns counters for a new thread: those of a thread that has ended, which go on from where they are, or new ones.
    pub(crate) fn register(&self) -> Arc<ThreadCounters> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Not the number of references: `get_mut` also makes the last counts of the ended thread visible.
        let unused = threads.iter_mut().position(|counters| Arc::get_mut(counters).is_some());
        let index = unused.unwrap_or_else(|| {
            threads.push(Arc::default());
            threads.len() - 1
        });
        Arc::clone(&threads[index])
    }

    /// Returns the requests that threads are in, with the counters of these threads.
    pub(crate) fn current_requests(&self) -> Vec<(Arc<ThreadCounters>, u64)> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().filter_map(|thread| Some((Arc::clone(thread), thread.current_request()?))).collect()
    }

    /// Returns statistics with the fields that come from counters. The store adds the rest.
    pub(crate) fn sum(&self) -> StoreStats {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |counter: fn(&ThreadCounters) -> &Counter| {
            threads.iter().fold(0u64, |sum, counters| sum.wrapping_add(counter(counters).get()))
        };
        StoreStats {
            mm: MmStat {
                orig_data_size: sum(|counters| &counters.pages_held).wrapping_mul(PAGE_SIZE as u64),
                compr_data_size: sum(|counters| &counters.compressed_bytes),
                same_pages: sum(|counters| &counters.same_pages),
                pages_compacted: sum(|counters| &counters.pages_compacted),
                huge_pages: sum(|counters| &counters.huge_pages),
                huge_pages_since: sum(|counters| &counters.huge_pages_since),
                ..MmStat::default()
            },
            io: IoStat {
                failed_reads: sum(|counters| &counters.failed_reads),
                failed_writes: sum(|counters| &counters.failed_writes),
                invalid_io: sum(|counters| &counters.invalid_io),
                notify_free: sum(|counters| &counters.notify_free),
            },
            pages_read: sum(|counters| &counters.pages_read),
            pages_written: sum(|counters| &counters.pages_written),
            pages_recompressed: sum(|counters| &counters.pages_recompressed),
            recompressed_bytes_saved: sum(|counters| &counters.recompressed_bytes_saved),
            ..StoreStats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_fields_of_zram_in_its_order() {
        let mm = MmStat { orig_data_size: 4096, compr_data_size: 74, mem_used_max: 123_456_789, ..MmStat::default() };
        assert_eq!(mm.to_string(), "    4096       74        0        0 123456789        0        0        0        0");
        let io = IoStat { notify_free: 7, ..IoStat::default() };
        assert_eq!(io.to_string(), "       0        0        0        7");
    }

    #[test]
    fn counts_survive_their_threads() {
        let all = AllCounters::default();
        for round in 0..10 {
            let (first, second) = (all.register(), all.register());
            first.pages_held.add(3);
            second.pages_held.add(2u64.wrapping_neg());
            drop((first, second));
            assert_eq!(all.sum().mm.orig_data_size, (round + 1) * 4096);
        }
        assert_eq!(all.threads.lock().unwrap().len(), 2, "counters of ended threads are used again");
    }
}
