//! The pages that a delta stores, found by their hashes: one thread adds pages, all others look for them.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::hashes::page_hash::{PAGE_HASH_LEN, PageHash};
use crate::hashes::slot_hasher::SlotHasher;

/// Hashes in one piece of the list, so that it grows without a copy.
const CHUNK_HASHES: usize = 4096;

/// The least number of slots, if there are any.
const MIN_SLOTS: usize = 1024;

/// Bytes of memory per slot, with the hashes of the pages that the table holds if three in four slots are taken.
const BYTES_PER_SLOT: u64 = 4 + 3 * PAGE_HASH_LEN as u64 / 4;

/// The pages that a delta stores so far, by their hashes.
///
/// [`DeltaWriter::stored_pages`](crate::DeltaWriter::stored_pages) returns it. Threads that compress pages look for copies before
/// they do. Copies that they miss are found by the writer.
///
/// ```
/// use trueno_zram_archive::{DeltaPart, DeltaWriter, PageCodec, PageHash, WriteOptions};
/// let mut delta = DeltaWriter::new(Vec::new(), None, WriteOptions::default())?;
/// let (stored, mut part, page) = (delta.stored_pages(), DeltaPart::new(), [7; 4096]);
/// part.start(delta.block_shape());
/// part.push_page(PageCodec::default().compress(&page, &mut [0; 4096])?, &page, PageHash::of(&page))?;
/// assert_eq!(stored.read().find(&PageHash::of(&page)), None);
/// delta.push(&mut part)?;
/// assert_eq!(stored.read().find(&PageHash::of(&page)), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StoredPages(Arc<RwLock<Table>>);

/// A view of [`StoredPages`]. Hold it only for some lookups: the writer may wait for it.
#[derive(Debug)]
pub struct StoredPagesReader<'a>(RwLockReadGuard<'a, Table>);

/// A list of hashes, and an open-addressing table of positions in the list.
///
/// Both change under the read lock, one entry at a time and by one thread; they are replaced or grow under the write lock.
#[derive(Debug)]
struct Table {
    /// Each is 0, or the number of a page and 1.
    slots: Vec<AtomicU32>,
    hasher: SlotHasher,
    hashes: Vec<Box<[[AtomicU64; 2]]>>,
    max_slots: usize,
}

impl Table {
    /// Returns the hash of a stored page whose number is in a slot, or known to the one thread that adds pages.
    fn hash(&self, page: usize) -> [u8; PAGE_HASH_LEN] {
        let halves = &self.hashes[page / CHUNK_HASHES][page % CHUNK_HASHES];
        let mut hash = [0; PAGE_HASH_LEN];
        for (bytes, half) in hash.as_chunks_mut().0.iter_mut().zip(halves) {
            *bytes = half.load(Ordering::Relaxed).to_le_bytes();
        }
        hash
    }

    /// Returns the page with this hash, or the free slot where its number belongs; neither if there is no table.
    fn find(&self, hash: &[u8; PAGE_HASH_LEN]) -> Result<u64, Option<usize>> {
        if self.slots.is_empty() {
            return Err(None);
        }
        let mut slot = self.hasher.of(hash);
        loop {
            // Acquire: the hash was written before the number.
            let Some(page) = self.slots[slot].load(Ordering::Acquire).checked_sub(1) else { return Err(Some(slot)) };
            if self.hash(page as usize) == *hash {
                return Ok(u64::from(page));
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Replaces the table by one that has room for this many pages, or as many as may be.
    fn make_room(&mut self, pages: u64, in_table: u64) {
        let slots = pages.saturating_mul(4).div_ceil(3).max(MIN_SLOTS as u64).checked_next_power_of_two();
        let slots = slots.and_then(|slots| usize::try_from(slots).ok()).unwrap_or(usize::MAX).min(self.max_slots);
        if slots <= self.slots.len() {
            return;
        }
        self.hasher = SlotHasher::new(slots);
        self.slots = std::iter::repeat_with(AtomicU32::default).take(slots).collect();
        for page in 0..u32::try_from(in_table).expect("slots have 32 bits") {
            // Copies are in the list only if the table was full, and then it does not grow.
            if let Err(Some(slot)) = self.find(&self.hash(page as usize)) {
                self.slots[slot].store(page + 1, Ordering::Relaxed);
            }
        }
    }

    /// The most pages in the table: a quarter of its slots stays free, so that lookups are short.
    fn max_pages(&self) -> u64 {
        self.slots.len() as u64 / 4 * 3
    }
}

impl StoredPages {
    fn new(max_bytes: u64) -> Self {
        let max_slots = max_bytes / BYTES_PER_SLOT;
        // Numbers of pages and 1 have 32 bits.
        let max_slots = max_slots.checked_ilog2().map_or(0, |log| 1 << log.min(32));
        let max_slots = if max_slots < MIN_SLOTS { 0 } else { max_slots };
        Self(Arc::new(RwLock::new(Table {
            slots: Vec::new(),
            hasher: SlotHasher::new(1),
            hashes: Vec::new(),
            max_slots,
        })))
    }

    /// Returns a view for some lookups.
    #[must_use]
    pub fn read(&self) -> StoredPagesReader<'_> {
        StoredPagesReader(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StoredPagesReader<'_> {
    /// Returns the number of a stored page with this hash; `None` if there is none, or if the writer's memory has no room for it.
    #[must_use]
    pub fn find(&self, hash: &PageHash) -> Option<u64> {
        self.0.find(hash.as_bytes()).ok()
    }
}

/// The only writer of [`StoredPages`].
#[derive(Debug)]
pub(crate) struct StoredPagesWriter {
    shared: StoredPages,
    /// Pages in the list.
    count: u64,
    /// The pages of the list that are in the table: its first ones. The table was full if there are others.
    in_table: u64,
}

impl StoredPagesWriter {
    /// Creates an empty list, and a table for `expected_pages` that has at most `max_bytes`, the hashes of its pages included.
    pub(crate) fn new(expected_pages: u64, max_bytes: u64) -> Self {
        let shared = StoredPages::new(max_bytes);
        shared.0.write().unwrap_or_else(PoisonError::into_inner).make_room(expected_pages, 0);
        Self { shared, count: 0, in_table: 0 }
    }

    pub(crate) fn shared(&self) -> &StoredPages {
        &self.shared
    }

    /// Returns the number of stored pages.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns `true` if copies of some pages are not found.
    pub(crate) fn is_full(&self) -> bool {
        self.in_table < self.count
    }

    /// Finds the pages with these hashes, and adds those that are not there. `each` is called with the number of every page, and
    /// `true` if it was added.
    pub(crate) fn find_or_add(&mut self, hashes: &[[u8; PAGE_HASH_LEN]], mut each: impl FnMut(u64, bool)) {
        self.reserve(hashes.len());
        let table = self.shared.read().0;
        for hash in hashes {
            let slot = match table.find(hash) {
                Ok(page) => {
                    each(page, false);
                    continue;
                }
                Err(slot) => slot,
            };
            let page = self.count;
            let index = usize::try_from(page).expect("it is in memory");
            for (half, bytes) in table.hashes[index / CHUNK_HASHES][index % CHUNK_HASHES].iter().zip(hash.as_chunks().0)
            {
                half.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
            self.count += 1;
            if let Some(slot) = slot.filter(|_| page == self.in_table && page < table.max_pages()) {
                let number = u32::try_from(page + 1).expect("less than the slots");
                // Release: whoever reads the number finds the hash.
                table.slots[slot].store(number, Ordering::Release);
                self.in_table += 1;
            }
            each(page, true);
        }
    }

    /// Makes room for more pages.
    fn reserve(&self, pages: usize) {
        let wanted = self.count + pages as u64;
        let table = self.shared.read().0;
        let has_room = |table: &Table| (table.hashes.len() * CHUNK_HASHES) as u64 >= wanted;
        let is_full = |table: &Table| self.in_table == self.count && table.max_pages() < wanted;
        let can_grow = table.slots.len() < table.max_slots;
        let (needs_list, needs_table) = (!has_room(&table), is_full(&table) && can_grow);
        drop(table);
        if !needs_list && !needs_table {
            return;
        }
        let mut table = self.shared.0.write().unwrap_or_else(PoisonError::into_inner);
        while !has_room(&table) {
            table.hashes.push(std::iter::repeat_with(Default::default).take(CHUNK_HASHES).collect());
        }
        if needs_table {
            table.make_room(wanted, self.in_table);
        }
    }

    /// Appends the hashes of some pages.
    pub(crate) fn put_hashes(&self, pages: Range<u64>, out: &mut Vec<u8>) {
        let table = self.shared.read().0;
        for page in pages {
            out.extend(table.hash(usize::try_from(page).expect("it is in memory")));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use trueno_test_pages::generate::Generator;

    fn hash(number: usize) -> [u8; PAGE_HASH_LEN] {
        let mut page = [0; 4096];
        page[..8].copy_from_slice(&(number as u64).to_le_bytes());
        *PageHash::of(&page).as_bytes()
    }

    /// The slow twin: a map that knows all pages.
    #[test]
    fn pages_are_found_whatever_was_expected() {
        for expected in [0, 100, 10_000, 1 << 20] {
            let (mut stored, mut twin, mut random) =
                (StoredPagesWriter::new(expected, u64::MAX), HashMap::new(), Generator::new(expected));
            let mut hashes = Vec::new();
            for part in 0..200 {
                let part: Vec<_> = (0..part).map(|_| hash(random.below(9000))).collect();
                let mut found = Vec::new();
                stored.find_or_add(&part, |page, is_new| found.push((page, is_new)));
                for (hash, (page, is_new)) in part.iter().zip(found) {
                    let next = twin.len() as u64;
                    assert_eq!(is_new, !twin.contains_key(hash));
                    assert_eq!(*twin.entry(*hash).or_insert(next), page);
                    hashes.extend(is_new.then_some(*hash));
                    assert_eq!(stored.shared().read().find(&PageHash::from_bytes(*hash)), Some(page));
                }
                assert_eq!(stored.count(), twin.len() as u64);
            }
            let mut all = Vec::new();
            stored.put_hashes(0..stored.count(), &mut all);
            assert_eq!(all, hashes.as_flattened());
            assert_eq!(stored.shared().read().find(&PageHash::from_bytes(hash(9000))), None);
        }
    }

    #[test]
    fn a_table_that_is_full_still_finds_its_pages_and_takes_no_more_memory() {
        for (max_bytes, in_table) in [(0, 0), (1023 * 16, 0), (1024 * 16, 768), (2048 * 16 + 5, 1536)] {
            for expected in [0, 1 << 30] {
                let mut stored = StoredPagesWriter::new(expected, max_bytes);
                let all: Vec<_> = (0..5000).map(hash).collect();
                for part in all.chunks(77) {
                    stored.find_or_add(part, |_, is_new| assert!(is_new));
                }
                let slots = stored.shared().read().0.slots.len() as u64;
                assert!(slots * BYTES_PER_SLOT <= max_bytes);
                let (mut found, mut again) = (0, 5000);
                stored.find_or_add(&all, |page, is_new| {
                    if is_new {
                        assert_eq!(page, again);
                        again += 1;
                    } else {
                        assert_eq!(page, found);
                        found += 1;
                    }
                });
                assert_eq!((found, again), (in_table, 10_000 - in_table));
            }
        }
    }

    #[test]
    fn threads_find_pages_while_others_are_added() {
        let mut stored = StoredPagesWriter::new(0, u64::MAX);
        let all: Vec<_> = (0..20_000).map(hash).collect();
        let shared = stored.shared().clone();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (shared, all) = (&shared, &all);
                scope.spawn(move || {
                    let mut number = thread;
                    while number < all.len() {
                        if let Some(page) = shared.read().find(&PageHash::from_bytes(all[number])) {
                            assert_eq!(page, number as u64);
                            number += 3;
                        }
                    }
                });
            }
            for part in all.chunks(100) {
                stored.find_or_add(part, |_, is_new| assert!(is_new));
            }
        });
    }

    /// As the documentation of `--dedup-memory` states, if the number of pages is known and all of them differ.
    #[test]
    fn a_table_of_known_size_takes_at_most_27_bytes_per_page() {
        for pages in [100_000_u64, 400_000, 777_777] {
            let stored = StoredPagesWriter::new(pages, u64::MAX);
            let slots = stored.shared().read().0.slots.len() as u64;
            assert!(4 * slots + 16 * pages <= 27 * pages, "{slots} slots for {pages} pages");
        }
    }
}
