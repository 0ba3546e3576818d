//! A store: its table and slots, its creation, and attaching to one that another process left.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use trueno_zram_archive::Pages;
use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec};

use crate::error::{Error, Result};
use crate::mapping::{MemfdMapping, copy_out};
use crate::options::{NO_LIMIT, StoreOptions};
use crate::slots::allocator::{Residency, SlotAllocator};
use crate::slots::geometry::SLAB_BYTES;
use crate::slots::spare_slots::Stripe;
use crate::snapshot::retained::RetainedPages;
use crate::stats::{AllCounters, ProgressCounters, StoreStats, ThreadCounters};
use crate::table::entry::{PageForm, StoredPage, TableEntry};
use crate::table::lock::EntryGuard;
use crate::table::{PageTable, table_bytes};

/// The state of a page, from its table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Never written, or discarded: reads as zeros and takes no memory.
    Hole,
    /// Written with zeros.
    Zero,
    /// Written with something else, or data of the archive beneath the store.
    Data,
}

/// Pages in RAM by number, compressed.
///
/// Threads read and write through a [`StoreHandle`](crate::StoreHandle) each. Everything else needs only the store.
///
/// Table and pages lie in two memfds. While another process holds their descriptors ([`fds`](Self::fds)), they outlive
/// this one, and a new process can [`attach`](Self::attach).
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_store::{Store, StoreHandle, StoreOptions};
///
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 30))?);
/// let mut handle = StoreHandle::new(&store)?;
/// handle.write_at(5000, b"some bytes")?;
/// let mut bytes = [0xff; 12];
/// handle.read_at(4999, &mut bytes)?;
/// assert_eq!(&bytes, b"\0some bytes\0");
/// # Ok::<(), trueno_zram_store::Error>(())
/// ```
pub struct Store {
    pub(crate) table: PageTable,
    pub(crate) slots: SlotAllocator,
    /// The pages that are read where the store has holes.
    pub(crate) base: Option<Box<dyn Pages>>,
    pub(crate) counters: AllCounters,
    pub(crate) retained: RetainedPages,
    /// Locked while a snapshot is read.
    pub(crate) snapshot_lock: Mutex<()>,
    pub(crate) recompress_progress: ProgressCounters,
    /// Locked while the length changes.
    pub(crate) resize_lock: Mutex<()>,
    /// Locked during compaction and recompression.
    pub(crate) maintenance_lock: Mutex<()>,
}

/// The counters and spare slots of a thread that changes pages.
#[derive(Debug)]
pub(crate) struct ThreadContext {
    pub(crate) counters: Arc<ThreadCounters>,
    /// The spare slots that it takes slots from and frees slots to.
    pub(crate) stripe: Stripe,
}

impl Store {
    /// Creates an empty store.
    ///
    /// ```
    /// use trueno_zram_store::{Store, StoreOptions};
    /// let store = Store::create(&StoreOptions::new(1 << 40))?;
    /// assert_eq!(store.stats().mm.mem_used_total, 0);
    /// assert!(Store::create(&StoreOptions::new(1000)).is_err());
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Options`] for impossible options; [`Error::Codec`] if the algorithm is not available; [`Error::System`].
    pub fn create(options: &StoreOptions) -> Result<Self> {
        PageCodec::new(options.algorithm)?;
        let header = options.header()?;
        let room = options.room(&header)?;
        let slab_bytes = usize::try_from(room.slabs).ok().and_then(|slabs| slabs.checked_mul(SLAB_BYTES));
        let slab_bytes = slab_bytes.ok_or_else(|| Error::Options("the store is too large".to_owned()))?;
        let table = PageTable::create(header, room.pages)?;
        let mapping = MemfdMapping::create("trueno-zram-slabs", slab_bytes);
        let mapping = mapping.map_err(Error::system("the slabs could not be created"))?;
        let slots = SlotAllocator::new(mapping, header.slabs, header.limit_bytes, header.residency);
        Ok(Self::new(table, slots.map_err(Error::system("memory could not be locked"))?))
    }

    /// Attaches to a store that another process created and left, even by `kill -9`: `fds` are those of [`fds`](Self::fds).
    ///
    /// Every acknowledged write is there. A write that was not acknowledged may be there in part, page by page. Statistics
    /// of requests start at zero.
    ///
    /// ```
    /// use trueno_zram_store::{Store, StoreOptions};
    /// let store = Store::create(&StoreOptions::new(1 << 20))?;
    /// let fds = store.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor is free"));
    /// drop(store);
    /// assert_eq!(Store::attach(fds)?.size_bytes(), 1 << 20);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Attach`] if the descriptors are not those of a store; [`Error::InUse`] if another store uses them, in any
    /// process; [`Error::CorruptEntry`]; [`Error::System`].
    pub fn attach(fds: [OwnedFd; 2]) -> Result<Self> {
        let [table, slabs] = fds;
        let table = PageTable::open(table)?;
        let header = table.header();
        let slabs = MemfdMapping::open(slabs).map_err(|error| Error::Attach(format!("the slabs: {error}")))?;
        let slab_bytes = header.slabs.checked_mul(SLAB_BYTES as u64);
        if header.slabs == 0 || slab_bytes.is_none_or(|bytes| bytes > slabs.len_bytes() as u64) {
            return Err(Error::Attach("the slabs are not those of this table".to_owned()));
        }
        PageCodec::new(header.algorithm)?;
        let pages = table.stored();
        let slots = SlotAllocator::rebuild(slabs, header.slabs, header.limit_bytes, header.residency, pages)?;
        let store = Self::new(table, slots);
        let counters = store.counters.register();
        for page in store.table.forms() {
            counters.count_added(page?.1);
        }
        Ok(store)
    }

    fn new(table: PageTable, slots: SlotAllocator) -> Self {
        let max_pages = table.max_pages();
        Self {
            table,
            slots,
            base: None,
            counters: AllCounters::default(),
            retained: RetainedPages::new(max_pages),
            snapshot_lock: Mutex::new(()),
            recompress_progress: ProgressCounters::default(),
            resize_lock: Mutex::new(()),
            maintenance_lock: Mutex::new(()),
        }
    }

    /// Returns the descriptors that hold the store's memory: the table, then the slabs.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// use std::os::fd::AsRawFd;
    /// let store = Store::create(&StoreOptions::new(4096))?;
    /// let [table, slabs] = store.fds();
    /// assert_ne!(table.as_raw_fd(), slabs.as_raw_fd());
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.table.mapping().fd(), self.slots.mapping().fd()]
    }

    /// Returns the length of the store in bytes.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// assert_eq!(Store::create(&StoreOptions::new(8192))?.size_bytes(), 8192);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.page_count() * PAGE_SIZE as u64
    }

    /// Returns the number of pages.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// assert_eq!(Store::create(&StoreOptions::new(8192))?.page_count(), 2);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.table.pages()
    }

    /// Returns the algorithm that compresses pages when they are written.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// use trueno_zram_core::Algorithm;
    /// assert_eq!(Store::create(&StoreOptions::new(4096))?.algorithm(), Algorithm::Lz4);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.table.header().algorithm
    }

    /// Returns `true` if all memory of the store was taken at the start and is locked.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// assert!(!Store::create(&StoreOptions::new(4096))?.is_locked());
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.table.header().residency == Residency::Locked
    }

    /// Returns the statistics of the store. Counters of threads at work may be a few requests old.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// let stats = Store::create(&StoreOptions::new(4096))?.stats();
    /// println!("{}", stats.mm); // the line of /sys/block/zram0/mm_stat
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let mut stats = self.counters.sum();
        let budget = self.slots.budget();
        stats.size_bytes = self.size_bytes();
        stats.table_bytes = table_bytes(self.page_count()).map_or(0, |bytes| bytes as u64);
        stats.max_size_bytes = self.max_size_bytes();
        stats.recompress = self.recompress_progress.get();
        stats.mm.mem_used_total = budget.held();
        stats.mm.mem_used_max = budget.peak();
        stats.mm.mem_limit = Some(budget.limit()).filter(|limit| *limit != NO_LIMIT).unwrap_or(0);
        stats
    }

    /// Limits how much memory compressed pages may take beyond what they take now, until the next call. Writes that need
    /// more get [`Error::NoSpace`], as at the limit of the options.
    ///
    /// A server that watches the memory of the machine calls it. A locked store takes no more memory anyway.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Error, Store, StoreHandle, StoreOptions};
    /// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// store.limit_growth(0);
    /// assert!(matches!(handle.write_at(0, b"a page that takes memory"), Err(Error::NoSpace { .. })));
    /// store.limit_growth(u64::MAX);
    /// handle.write_at(0, b"a page that takes memory")?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn limit_growth(&self, room_bytes: u64) {
        self.slots.budget().limit_growth(room_bytes);
    }

    /// Returns the state of a page, or `None` beyond the end.
    ///
    /// ```
    /// # use trueno_zram_store::{PageState, Store, StoreOptions};
    /// let store = Store::create(&StoreOptions::new(4096))?;
    /// assert_eq!((store.page_state(0), store.page_state(1)), (Some(PageState::Hole), None));
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn page_state(&self, page: u64) -> Option<PageState> {
        (page < self.page_count()).then(|| self.state_of(page))
    }

    /// Returns the state of a page that there is room for.
    pub(crate) fn state_of(&self, page: u64) -> PageState {
        match self.table.load(page).form() {
            Ok(PageForm::Empty) if self.hole_is_zero(page) => PageState::Hole,
            Ok(PageForm::Fill([0, 0, 0, 0])) => PageState::Zero,
            Ok(PageForm::Empty | PageForm::Fill(_) | PageForm::Stored(_)) | Err(_) => PageState::Data,
        }
    }

    /// Makes every page one tick older. Reading or writing a page resets its age.
    ///
    /// ```
    /// # use trueno_zram_store::{Store, StoreOptions};
    /// Store::create(&StoreOptions::new(4096))?.tick();
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    pub fn tick(&self) {
        for page in 0..self.page_count() {
            if matches!(self.table.load(page).form(), Ok(PageForm::Stored(_))) {
                // A page that is locked is in use, and so not idle.
                if let Some(guard) = self.table.try_lock(page) {
                    let entry = guard.entry();
                    // It may have been discarded since: a hole has no age.
                    if matches!(entry.form(), Ok(PageForm::Stored(_))) {
                        guard.publish(entry.with_age(entry.age().saturating_add(1)));
                    }
                }
            }
        }
    }

    /// Copies the stored bytes of a page to `bytes`. The caller holds the page's lock, or owns the slot.
    pub(crate) fn copy_stored<'a>(&self, stored: StoredPage, bytes: &'a mut Page) -> &'a [u8] {
        let len_bytes = usize::from(stored.len_bytes);
        let words = self.slots.slot_words(stored.place, len_bytes);
        let bytes = &mut bytes[..len_bytes];
        copy_out(words, bytes);
        bytes
    }

    /// Publishes an entry in place of the guard's, and frees the slot of the old one.
    pub(crate) fn replace(
        &self,
        page: u64,
        guard: EntryGuard<'_>,
        new: TableEntry,
        context: &ThreadContext,
    ) -> Result<()> {
        let old = guard.entry();
        let old_form = old.form().map_err(|defect| Error::CorruptEntry { page, defect })?;
        let kept = self.retained.retain(page, old);
        guard.publish(new);
        context.counters.count_removed(old_form);
        context.counters.count_added(new.form().expect("this process made the entry"));
        if let Some(stored) = old_form.stored().filter(|_| !kept) {
            self.slots.free(context.stripe, stored);
        }
        Ok(())
    }

    pub(crate) fn no_space(&self, page: u64) -> Error {
        let budget = self.slots.budget();
        Error::NoSpace { page, held_bytes: budget.held(), limit_bytes: budget.limit_now() }
    }

    /// Registers a thread that changes pages, with the spare slots of `stripe`.
    pub(crate) fn register_thread(&self, stripe: Stripe) -> ThreadContext {
        ThreadContext { counters: self.counters.register(), stripe }
    }

    /// Waits until no other thread compacts or recompresses.
    pub(crate) fn lock_maintenance(&self) -> std::sync::MutexGuard<'_, ()> {
        self.maintenance_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({} bytes)", self.size_bytes())
    }
}
