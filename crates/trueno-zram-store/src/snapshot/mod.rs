//! Snapshots: reads all pages as they were at one moment, while requests go on.

pub(crate) mod retained;

use std::sync::{MutexGuard, PoisonError};

use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page, PageData, PageKind};

use crate::error::{Error, Result};
use crate::slots::spare_slots::Stripe;
use crate::store::Store;
use crate::table::entry::{EntryMark, PageForm, TableEntry, fill_word};
use crate::table::lock::EntryGuard;

/// Consecutive pages of a snapshot.
#[derive(Debug)]
pub enum SnapshotPart {
    /// This many pages that were never written, or were discarded. An archive beneath the store shows through them.
    Holes(u64),
    /// Pages, compressed as the store holds them.
    Pages(CompressedBatch),
}

/// All pages as they were when [`Store::snapshot`] was called, in order.
///
/// A page that is written meanwhile keeps its old version until the snapshot has read it. These versions count against
/// the limit. Nothing is copied otherwise.
///
/// ```
/// use trueno_zram_store::{Store, StoreOptions};
/// let store = Store::create(&StoreOptions::new(1 << 20))?;
/// let mut snapshot = store.snapshot()?;
/// while let Some(part) = snapshot.read(1024)? {
///     println!("{part:?}");
/// }
/// assert_eq!(snapshot.position(), store.page_count());
/// # Ok::<(), trueno_zram_store::Error>(())
/// ```
#[derive(Debug)]
pub struct Snapshot<'a> {
    store: &'a Store,
    /// The next page to read.
    next: u64,
    stored_bytes: Box<Page>,
    _lock: MutexGuard<'a, ()>,
}

impl Store {
    /// Starts a snapshot. It waits while another one is read.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{SnapshotPart, Store, StoreHandle, StoreOptions};
    /// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// handle.write_at(0, &[1; 4096])?;
    /// let mut snapshot = store.snapshot()?;
    /// handle.write_at(0, &[2; 4096])?; // not in the snapshot
    /// let Some(SnapshotPart::Pages(pages)) = snapshot.read(100)? else { panic!("the first page is not a hole") };
    /// assert_eq!(pages.arena(), [1; 8]);
    /// assert!(matches!(snapshot.read(100)?, Some(SnapshotPart::Holes(255))));
    /// assert!(snapshot.read(100)?.is_none());
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::System`] if there is no memory for the list of old versions.
    pub fn snapshot(&self) -> Result<Snapshot<'_>> {
        let alone = self.snapshot_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.retained.start().map_err(Error::system("the snapshot could not be started"))?;
        Ok(Snapshot { store: self, next: 0, stored_bytes: Box::new([0; PAGE_SIZE]), _lock: alone })
    }
}

impl<'a> Snapshot<'a> {
    /// Reads the next pages: a run of holes, or up to `max_pages` pages. Returns `None` at the end.
    ///
    /// # Errors
    /// [`Error::CorruptEntry`] if something else wrote to the table.
    pub fn read(&mut self, max_pages: usize) -> Result<Option<SnapshotPart>> {
        let holes_from = self.next;
        let mut batch = CompressedBatch::new();
        while self.next < self.store.page_count() && batch.len() < max_pages.max(1) {
            let is_hole = self.is_hole();
            if is_hole && !batch.is_empty() {
                break;
            }
            if is_hole {
                self.pass_hole();
            } else if self.next > holes_from && batch.is_empty() {
                break;
            } else {
                self.read_page(&mut batch)?;
            }
        }
        if !batch.is_empty() {
            return Ok(Some(SnapshotPart::Pages(batch)));
        }
        let holes = self.next - holes_from;
        Ok((holes > 0).then_some(SnapshotPart::Holes(holes)))
    }

    /// Returns `true` if the next page was a hole when the snapshot began.
    ///
    /// A page that is empty now was so then, unless its old version is kept. One that is empty and unlocked is not locked for
    /// this, so that the table of an empty store takes no memory. The lock of one that is empty and locked is waited for.
    fn is_hole(&self) -> bool {
        loop {
            let now = self.store.table.load(self.next);
            // Of any age: earlier versions left holes with an age in tables that a keeper may still hold.
            let is_empty = now.form() == Ok(PageForm::Empty);
            match self.store.retained.take(self.next) {
                Some(old) => return old.form() == Ok(PageForm::Empty),
                None if is_empty && now.has(EntryMark::Locked) => drop(self.store.table.lock(self.next)),
                None => return is_empty,
            }
        }
    }

    /// Appends the next page, which was not a hole, to a batch.
    fn read_page(&mut self, batch: &mut CompressedBatch) -> Result<()> {
        let page = self.next;
        let corrupt = |defect| Error::CorruptEntry { page, defect };
        let (guard, old) = self.pass_page();
        let form = old.unwrap_or(guard.entry()).form().map_err(corrupt)?;
        let word;
        let (kind, bytes) = match form {
            PageForm::Empty => return Err(corrupt("the entry was emptied by another program")),
            PageForm::Fill(fill) => {
                word = fill_word(fill);
                (PageKind::SameFilled, &word[..])
            }
            PageForm::Stored(stored) => (stored.kind, self.store.copy_stored(stored, &mut self.stored_bytes)),
        };
        drop(guard);
        if let Some(stored) = old.and_then(|_| form.stored()) {
            self.store.slots.free(Stripe::BACKGROUND, stored);
        }
        batch.push(PageData::new(kind, bytes)?);
        Ok(())
    }

    /// Moves past the next page, which was a hole.
    fn pass_hole(&mut self) {
        self.store.retained.advance_past(self.next);
        self.next += 1;
    }

    /// Moves past the next page. Returns its guard, and the old version that was kept, whose slot the caller frees.
    fn pass_page(&mut self) -> (EntryGuard<'a>, Option<TableEntry>) {
        let guard = self.store.table.lock(self.next);
        self.store.retained.advance_past(self.next);
        let old = self.store.retained.take(self.next);
        self.next += 1;
        (guard, old)
    }

    /// Returns the number of pages read so far.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }
}

impl Drop for Snapshot<'_> {
    /// Passes the pages that were not read, and frees the versions that were kept for them.
    fn drop(&mut self) {
        while self.next < self.store.page_count() {
            if self.is_hole() {
                self.pass_hole();
                continue;
            }
            let (guard, old) = self.pass_page();
            drop(guard);
            if let Some(stored) = old.and_then(|old| old.form().ok()).and_then(PageForm::stored) {
                self.store.slots.free(Stripe::BACKGROUND, stored);
            }
        }
        self.store.retained.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;
    use crate::options::StoreOptions;

    #[test]
    fn a_hole_with_an_age_is_a_hole() {
        let store = Store::create(&StoreOptions::new(PAGE_SIZE as u64)).unwrap();
        store.table.lock(0).publish(TableEntry::EMPTY.with_age(1));
        assert!(matches!(store.snapshot().unwrap().read(1).unwrap(), Some(SnapshotPart::Holes(1))));
    }

    /// As a page of zeros, it would hide the page of an archive beneath the store.
    #[test]
    fn a_hole_that_is_written_while_the_snapshot_reads_it_is_a_hole() {
        let store = Store::create(&StoreOptions::new(PAGE_SIZE as u64)).unwrap();
        let context = store.register_thread(Stripe::BACKGROUND);
        let started = Barrier::new(2);
        std::thread::scope(|threads| {
            let guard = store.table.lock(0);
            let reader = threads.spawn(|| {
                let mut snapshot = store.snapshot().unwrap();
                started.wait();
                matches!(snapshot.read(1).unwrap(), Some(SnapshotPart::Holes(1)))
            });
            started.wait();
            // The reader is likely to find the page locked. The result does not depend on it.
            std::thread::sleep(Duration::from_millis(20));
            store.replace(0, guard, TableEntry::new(PageForm::Fill([1; 4])), &context).unwrap();
            assert!(reader.join().unwrap());
        });
    }
}
