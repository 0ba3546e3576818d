//! The table: one entry per page, behind a header that describes the store.

pub(crate) mod entry;
pub(crate) mod lock;

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use rustix::fs::FlockOperation;
use trueno_zram_core::{Algorithm, PAGE_SIZE};

use crate::error::{Error, Result};
use crate::mapping::{MemfdMapping, SYSTEM_PAGE_BYTES, WORD_BYTES};
use crate::request_gate;
use crate::slots::allocator::Residency;
use crate::table::entry::{EntryMark, PageForm, StoredPage, TableEntry};
use crate::table::lock::EntryGuard;

/// "TZRSTORE", read as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"TZRSTORE");

/// The layout of tables and slabs. A change of [`TableEntry`] or of the slabs' geometry changes it.
const VERSION: u64 = 1;

/// The words of the header that change.
const PAGES_WORD: usize = 2;
const SLABS_WORD: usize = 3;

/// Words before the first entry.
const HEADER_WORDS: usize = PAGE_SIZE / WORD_BYTES;

/// Attempts to lock a table that is in use, and the pause between them: one second in all.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The header of a table. A process that attaches needs nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableHeader {
    pub(crate) pages: u64,
    pub(crate) slabs: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) algorithm: Algorithm,
    pub(crate) residency: Residency,
}

/// The entries of all pages, in memory that outlives the process.
#[derive(Debug)]
pub(crate) struct PageTable {
    mapping: MemfdMapping,
    /// As it was at the start. The numbers of pages and slabs may change.
    header: TableHeader,
    /// The pages that requests see.
    pages: AtomicU64,
    /// Held for as long as the table is used.
    #[allow(dead_code, reason = "it is the lock that counts")]
    lock: File,
}

impl PageTable {
    /// Creates a table of empty entries with room for `max_pages`, which is at least the number of pages.
    pub(crate) fn create(header: TableHeader, max_pages: u64) -> Result<Self> {
        let len_bytes = table_bytes(max_pages).ok_or_else(|| Error::Options("the store is too large".to_owned()))?;
        let mapping = MemfdMapping::create("trueno-zram-table", len_bytes);
        let mapping = mapping.map_err(Error::system("the table could not be created"))?;
        let table = Self { lock: lock_file(&mapping)?, mapping, header, pages: AtomicU64::new(header.pages) };
        for (word, value) in table.mapping.words().iter().zip(header.encode()) {
            word.store(value, Relaxed);
        }
        table.lock_pages(0..header.pages)?;
        Ok(table)
    }

    /// Opens a table that another process created, and unlocks the entries that it had locked when it died.
    pub(crate) fn open(fd: OwnedFd) -> Result<Self> {
        let mapping = MemfdMapping::open(fd).map_err(|error| Error::Attach(format!("the table: {error}")))?;
        let words: Vec<u64> = mapping.words().iter().take(HEADER_WORDS).map(|word| word.load(Relaxed)).collect();
        let header = TableHeader::decode(&words)?;
        if header.pages == 0 || table_bytes(header.pages).is_none_or(|len| len > mapping.len_bytes()) {
            return Err(Error::Attach(format!("a table of {} pages has another length", header.pages)));
        }
        let table = Self { lock: lock_file(&mapping)?, mapping, header, pages: AtomicU64::new(header.pages) };
        table.lock_pages(0..header.pages)?;
        for word in table.entries() {
            let entry = TableEntry::from_bits(word.load(Relaxed));
            let clean = entry.without(EntryMark::Locked).without(EntryMark::Pending);
            // An entry that needs no change is not written: an empty table stays without memory.
            if clean != entry {
                word.store(clean.bits(), Release);
            }
        }
        Ok(table)
    }

    /// Takes the memory of the entries of these pages, and of the header, if the store is locked.
    pub(crate) fn lock_pages(&self, pages: Range<u64>) -> Result<()> {
        let start = if pages.start == 0 { 0 } else { entry_at(pages.start) };
        match self.header.residency {
            Residency::OnDemand => Ok(()),
            Residency::Locked => {
                let locked = self.mapping.populate_and_lock(start..entry_at(pages.end));
                locked.map_err(Error::system("memory could not be locked"))
            }
        }
    }

    /// Returns the memory of the entries of these pages, which must be empty. It is no error if that fails.
    pub(crate) fn return_memory(&self, pages: Range<u64>) {
        let first = entry_at(pages.start).next_multiple_of(SYSTEM_PAGE_BYTES);
        let end = entry_at(pages.end) / SYSTEM_PAGE_BYTES * SYSTEM_PAGE_BYTES;
        if self.header.residency == Residency::OnDemand && first < end {
            let _ = self.mapping.punch(first, end - first);
        }
    }

    /// Returns the header as it was at the start: the numbers of pages and slabs may be others by now.
    pub(crate) fn header(&self) -> &TableHeader {
        &self.header
    }

    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Acquire)
    }

    /// Returns the word with the number of pages, for requests.
    pub(crate) fn pages_word(&self) -> &AtomicU64 {
        &self.pages
    }

    /// Returns the number of pages that there is room for.
    pub(crate) fn max_pages(&self) -> u64 {
        self.entries_with_room().len() as u64
    }

    /// Changes the number of pages for requests, and not yet for a process that attaches.
    pub(crate) fn publish_pages(&self, pages: u64) {
        request_gate::publish(&self.pages, pages);
    }

    /// Changes the number of pages, for this process and those that attach.
    pub(crate) fn set_pages(&self, pages: u64) {
        self.mapping.words()[PAGES_WORD].store(pages, Release);
        self.publish_pages(pages);
    }

    /// Changes the number of slabs for processes that attach.
    pub(crate) fn set_slabs(&self, slabs: u64) {
        self.mapping.words()[SLABS_WORD].store(slabs, Release);
    }

    pub(crate) fn mapping(&self) -> &MemfdMapping {
        &self.mapping
    }

    fn entries_with_room(&self) -> &[AtomicU64] {
        &self.mapping.words()[HEADER_WORDS..]
    }

    /// Returns the entries of the pages that there are.
    fn entries(&self) -> &[AtomicU64] {
        let entries = self.entries_with_room();
        usize::try_from(self.pages()).ok().and_then(|pages| entries.get(..pages)).unwrap_or(entries)
    }

    /// Returns the word of an entry. There must be room for `page`.
    fn word(&self, page: u64) -> &AtomicU64 {
        &self.entries_with_room()[usize::try_from(page).expect("a page of the table fits the address space")]
    }

    /// Loads an entry, which may be locked.
    pub(crate) fn load(&self, page: u64) -> TableEntry {
        TableEntry::from_bits(self.word(page).load(Acquire))
    }

    /// Waits for the page's lock.
    pub(crate) fn lock(&self, page: u64) -> EntryGuard<'_> {
        EntryGuard::lock(self.word(page))
    }

    /// Takes the page's lock if it is free and there is room for the page.
    pub(crate) fn try_lock(&self, page: u64) -> Option<EntryGuard<'_>> {
        EntryGuard::try_lock(self.entries_with_room().get(usize::try_from(page).ok()?)?)
    }

    /// Iterates over the pages that are not empty, with their forms.
    pub(crate) fn forms(&self) -> impl Iterator<Item = Result<(u64, PageForm)>> {
        (0..).zip(self.entries()).filter_map(|(page, word)| match TableEntry::from_bits(word.load(Relaxed)).form() {
            Ok(PageForm::Empty) => None,
            Ok(form) => Some(Ok((page, form))),
            Err(defect) => Some(Err(Error::CorruptEntry { page, defect })),
        })
    }

    /// Iterates over the pages that have slots.
    pub(crate) fn stored(&self) -> impl Iterator<Item = Result<(u64, StoredPage)>> {
        self.forms().filter_map(|page| match page {
            Ok((page, form)) => form.stored().map(|stored| Ok((page, stored))),
            Err(error) => Some(Err(error)),
        })
    }
}

/// Keeps other processes, and this one, from using the table a second time.
///
/// The lock is taken on a file description of its own. It ends with this process, even if another holds the memfd. A process
/// that was just killed may hold it for a moment longer, and so may a child between fork and exec.
fn lock_file(mapping: &MemfdMapping) -> Result<File> {
    let path = format!("/proc/self/fd/{}", mapping.fd().as_raw_fd());
    let file = File::open(path).map_err(Error::system("the table could not be opened again"))?;
    for _ in 0..LOCK_ATTEMPTS {
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Err(Error::InUse { process: lock_holder(&file) })
}

/// Returns the process that has locked a file, if it is known: `5: FLOCK ADVISORY WRITE 25276 00:01:1046 0 EOF` in
/// `/proc/locks`, with the number of the process before those of device and file (proc_locks(5)).
fn lock_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (device, inode) = (metadata.dev(), metadata.ino());
    let id = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device), rustix::fs::minor(device));
    std::fs::read_to_string("/proc/locks").ok()?.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_this = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&&id[..]);
        is_this.then(|| fields[4].parse().ok())?
    })
}

/// Returns the position of an entry in bytes.
fn entry_at(page: u64) -> usize {
    table_bytes(page).expect("a table that fits the address space")
}

/// Length of the memfd of a table.
pub(crate) fn table_bytes(pages: u64) -> Option<usize> {
    usize::try_from(pages).ok()?.checked_add(HEADER_WORDS)?.checked_mul(WORD_BYTES)
}

impl TableHeader {
    fn encode(self) -> [u64; 8] {
        let (algorithm, level) = match self.algorithm {
            Algorithm::None => (0, 0),
            Algorithm::Lz4 => (1, 0),
            Algorithm::Zstd { level } => (2, i64::from(level).cast_unsigned()),
        };
        let locked = u64::from(self.residency == Residency::Locked);
        [MAGIC, VERSION, self.pages, self.slabs, self.limit_bytes, algorithm, level, locked]
    }

    fn decode(words: &[u64]) -> Result<Self> {
        let &[magic, version, pages, slabs, limit_bytes, algorithm, level, locked, ..] = words else {
            return Err(Error::Attach("the table is too short".to_owned()));
        };
        if magic != MAGIC {
            return Err(Error::Attach("the file is not the table of a store".to_owned()));
        }
        if version != VERSION {
            return Err(Error::Attach(format!("the store has version {version}, this program knows {VERSION}")));
        }
        let level = i32::try_from(level.cast_signed()).ok();
        let algorithm = match (algorithm, level) {
            (0, _) => Algorithm::None,
            (1, _) => Algorithm::Lz4,
            (2, Some(level)) => Algorithm::Zstd { level },
            _ => return Err(Error::Attach("the algorithm is unknown".to_owned())),
        };
        let residency = match locked {
            0 => Residency::OnDemand,
            _ => Residency::Locked,
        };
        Ok(Self { pages, slabs, limit_bytes, algorithm, residency })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_unknown_ones_are_refused() {
        for algorithm in [Algorithm::None, Algorithm::Lz4, Algorithm::Zstd { level: -5 }, Algorithm::Zstd { level: 19 }]
        {
            for residency in [Residency::OnDemand, Residency::Locked] {
                let header = TableHeader { pages: 3, slabs: 2, limit_bytes: 1 << 20, algorithm, residency };
                assert_eq!(TableHeader::decode(&header.encode()).unwrap(), header);
                for (word, value) in [(0, 1), (1, VERSION + 1), (5, 3)] {
                    let mut words = header.encode();
                    words[word] = value;
                    assert!(matches!(TableHeader::decode(&words), Err(Error::Attach(_))), "word {word}");
                }
                assert!(matches!(TableHeader::decode(&header.encode()[..7]), Err(Error::Attach(_))));
            }
        }
    }

    #[test]
    fn a_locked_table_has_all_its_memory_from_the_start() {
        let header = TableHeader {
            pages: 4096,
            slabs: 2,
            limit_bytes: 1 << 20,
            algorithm: Algorithm::Lz4,
            residency: Residency::OnDemand,
        };
        let held_bytes = |table: &PageTable| rustix::fs::fstat(table.mapping().fd()).unwrap().st_blocks * 512;
        let on_demand = PageTable::create(header, header.pages).unwrap();
        assert_eq!(held_bytes(&on_demand), 4096, "only the header was written");
        let locked = PageTable::create(TableHeader { residency: Residency::Locked, ..header }, 1 << 40).unwrap();
        assert!(held_bytes(&locked) >= 4096 * 8);
    }
}
