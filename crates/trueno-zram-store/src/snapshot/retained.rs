//! Copy-on-write for a snapshot: old versions of pages that writers keep for its reader.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mapping::{MemfdMapping, WORD_BYTES};
use crate::table::entry::TableEntry;

/// No snapshot is being read.
const IDLE: u64 = u64::MAX;

/// Old versions of pages that were changed while a snapshot is read.
///
/// The reader goes through the pages in order. A writer that changes a page which the reader has not passed keeps the
/// first old entry, with its slot, for the reader. Both do this under the lock of the page's entry, so they agree.
#[derive(Debug)]
pub(crate) struct RetainedPages {
    /// The most pages that the store can have.
    max_pages: u64,
    /// The first page that the reader has not passed.
    cursor: AtomicU64,
    /// The number of the present snapshot. Versions with another number are of earlier ones and hold no slot.
    generation: AtomicU64,
    /// Allocated by the first snapshot, not by writers. It takes memory only where pages are retained.
    versions: OnceLock<MemfdMapping>,
}

/// The retained version of a page.
struct RetainedVersion<'a> {
    entry: &'a AtomicU64,
    generation: &'a AtomicU64,
}

const VERSION_WORDS: usize = 2;

impl RetainedPages {
    pub(crate) fn new(max_pages: u64) -> Self {
        Self { max_pages, cursor: AtomicU64::new(IDLE), generation: AtomicU64::new(0), versions: OnceLock::new() }
    }

    /// Starts a snapshot. Only one may run at a time.
    pub(crate) fn start(&self) -> io::Result<()> {
        if self.versions.get().is_none() {
            let len_bytes =
                usize::try_from(self.max_pages).ok().and_then(|pages| pages.checked_mul(VERSION_WORDS * WORD_BYTES));
            let len_bytes = len_bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
            // Only the thread that starts a snapshot sets it.
            let _ = self.versions.set(MemfdMapping::create("trueno-zram-versions", len_bytes)?);
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.cursor.store(0, Ordering::Release);
        Ok(())
    }

    /// Moves the reader past a page. Called under the page's lock, or for an empty page.
    pub(crate) fn advance_past(&self, page: u64) {
        self.cursor.store(page + 1, Ordering::Release);
    }

    /// Ends the snapshot. The reader has passed all pages.
    pub(crate) fn end(&self) {
        self.cursor.store(IDLE, Ordering::Release);
    }

    /// Retains `old` if the reader still needs it. Returns `true` if so: then its slot must not be freed. Called under the
    /// page's lock, before its entry changes.
    pub(crate) fn retain(&self, page: u64, old: TableEntry) -> bool {
        if page < self.cursor.load(Ordering::Acquire) {
            return false;
        }
        let Some(version) = self.version(page) else { return false };
        let generation = self.generation.load(Ordering::Relaxed);
        if version.generation.load(Ordering::Relaxed) == generation {
            return false;
        }
        version.entry.store(old.bits(), Ordering::Relaxed);
        version.generation.store(generation, Ordering::Release);
        true
    }

    /// Returns the old version of a page, if there is one. A caller that has passed the page owns its slot.
    pub(crate) fn take(&self, page: u64) -> Option<TableEntry> {
        let version = self.version(page)?;
        let kept = version.generation.load(Ordering::Acquire) == self.generation.load(Ordering::Relaxed);
        kept.then(|| TableEntry::from_bits(version.entry.load(Ordering::Relaxed)))
    }

    fn version(&self, page: u64) -> Option<RetainedVersion<'_>> {
        let words = self.versions.get()?.words();
        let at = usize::try_from(page).ok()?.checked_mul(VERSION_WORDS)?;
        Some(RetainedVersion { entry: words.get(at)?, generation: words.get(at + 1)? })
    }
}
