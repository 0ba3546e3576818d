//! Changes the length of a store while requests go on.

use std::ops::Range;
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

use trueno_zram_core::PAGE_SIZE;

use crate::error::{Error, ResizeRefusal, Result};
use crate::slots::spare_slots::Stripe;
use crate::store::{PageState, Store, ThreadContext};
use crate::table::entry::{PageForm, TableEntry};

/// The time for which requests that began before a resize are waited for, and the pause between two looks at them.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
const REQUEST_PAUSE: Duration = Duration::from_micros(200);

impl Store {
    /// Changes the length of the store. Requests go on: one that began before sees the old length, all others the new one.
    ///
    /// A store grows up to [`max_size_bytes`](Self::max_size_bytes). The new part reads as zeros. A store shrinks if all that is
    /// cut off reads as zeros, and never below the end of the archive beneath it. While that is found out, requests to this
    /// part may already be refused.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// let store = Arc::new(Store::create(&StoreOptions::new(8192).with_max_size_bytes(1 << 30))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// store.resize(1 << 20)?;
    /// handle.write_at((1 << 20) - 4, b"last")?;
    /// assert!(store.resize(8192).is_err(), "the last page has data");
    /// handle.discard(0, 1 << 20)?;
    /// store.resize(8192)?;
    /// assert!(handle.read_at(8192, &mut [0]).is_err());
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Resize`], with the length unchanged; [`Error::System`] if the store is locked in memory and there is none for more
    /// pages; [`Error::CorruptEntry`].
    pub fn resize(&self, size_bytes: u64) -> Result<()> {
        let refused = |reason| Error::Resize { size_bytes, reason };
        if size_bytes == 0 || !size_bytes.is_multiple_of(PAGE_SIZE as u64) {
            return Err(refused(ResizeRefusal::PartialPage));
        }
        let max_bytes = self.max_size_bytes();
        if size_bytes > max_bytes {
            return Err(refused(ResizeRefusal::TooLarge { max_bytes }));
        }
        let _alone = self.resize_lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Old versions of pages are kept for the reader of a snapshot, up to the length that the store had.
        let _no_snapshot = match self.snapshot_lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(refused(ResizeRefusal::Snapshot)),
        };
        let (old, new) = (self.page_count(), size_bytes / PAGE_SIZE as u64);
        if new >= old { self.grow(old..new) } else { self.shrink(new..old).map_err(|error| error.or(refused)) }
    }

    /// Returns the length up to which [`resize`](Self::resize) can grow the store:
    /// [`max_size_bytes`](crate::StoreOptions::max_size_bytes) of its options.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// let store = Store::create(&StoreOptions::new(4096).with_max_size_bytes(8192))?;
    /// assert_eq!(store.max_size_bytes(), 8192);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn max_size_bytes(&self) -> u64 {
        self.table.max_pages() * PAGE_SIZE as u64
    }

    fn grow(&self, added: Range<u64>) -> Result<()> {
        let header = self.table.header();
        let slabs = crate::options::slab_count(added.end, header.limit_bytes, header.residency);
        let slabs = slabs.min(self.slots.max_slabs()).max(self.slots.slab_count().into());
        self.table.lock_pages(added.clone())?;
        self.slots.grow_to(slabs).map_err(Error::system("memory could not be locked"))?;
        // A process that attaches finds the slabs first.
        self.table.set_slabs(slabs);
        self.table.set_pages(added.end);
        Ok(())
    }

    fn shrink(&self, cut_off: Range<u64>) -> Result<(), ShrinkError> {
        if let Some(base) = self.base.as_deref().filter(|base| base.page_count() > cut_off.start) {
            return Err(ResizeRefusal::Base { base_bytes: base.len_bytes() }.into());
        }
        self.check_empty(cut_off.clone())?;
        self.table.publish_pages(cut_off.start);
        let context = self.register_thread(Stripe::BACKGROUND);
        let cleared = self.wait_for_requests().and_then(|()| {
            self.check_empty(cut_off.clone())?;
            cut_off.clone().try_for_each(|page| self.clear_entry(page, &context)).map_err(ShrinkError::Failed)
        });
        match cleared {
            Ok(()) => self.table.set_pages(cut_off.start),
            Err(_) => self.table.publish_pages(cut_off.end),
        }
        if cleared.is_ok() {
            self.table.return_memory(cut_off);
        }
        cleared
    }

    /// Checks that all pages of a range read as zeros.
    fn check_empty(&self, pages: Range<u64>) -> Result<(), ShrinkError> {
        // From the end: there, data is found soonest.
        let found = pages.rev().find(|page| self.state_of(*page) == PageState::Data);
        found.map_or(Ok(()), |page| Err(ResizeRefusal::NotEmpty { page }.into()))
    }

    /// Waits until no request is at work that may have seen the former length.
    fn wait_for_requests(&self) -> Result<(), ShrinkError> {
        let deadline = Instant::now() + REQUEST_WAIT;
        let mut at_work = self.counters.current_requests();
        loop {
            at_work.retain(|(thread, request)| thread.current_request() == Some(*request));
            if at_work.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(ResizeRefusal::Busy.into());
            }
            std::thread::sleep(REQUEST_PAUSE);
        }
    }

    /// Makes the entry of an empty page one that was never written.
    fn clear_entry(&self, page: u64, context: &ThreadContext) -> Result<()> {
        let entry = self.table.load(page);
        if entry == TableEntry::EMPTY {
            return Ok(());
        }
        let guard = self.table.lock(page);
        match guard.entry().form() {
            Ok(PageForm::Empty) => {
                guard.publish(TableEntry::EMPTY);
                Ok(())
            }
            _ => self.replace(page, guard, TableEntry::EMPTY, context),
        }
    }
}

/// The reason why a store did not shrink.
enum ShrinkError {
    Refused(ResizeRefusal),
    Failed(Error),
}

impl From<ResizeRefusal> for ShrinkError {
    fn from(reason: ResizeRefusal) -> Self {
        Self::Refused(reason)
    }
}

impl ShrinkError {
    fn or(self, refused: impl FnOnce(ResizeRefusal) -> Error) -> Error {
        match self {
            Self::Refused(reason) => refused(reason),
            Self::Failed(error) => error,
        }
    }
}
