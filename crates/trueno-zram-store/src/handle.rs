//! A thread's handle to a store: its codec, its buffers, and reading and discarding of pages. Writing is in `write`.

use std::sync::Arc;

use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec, PageData, PageKind, fill_page};

use crate::error::{Error, Result};
use crate::stats::RequestGuard;
use crate::store::{Store, ThreadContext};
use crate::table::entry::{PageForm, StoredPage, TableEntry, fill_word};
use crate::write::{MAX_STAGED_PAGES, StagedPage};

/// Reads and writes a store. Each thread has its own.
///
/// A handle owns its codec and buffers. After [`new`](Self::new) it allocates nothing, and it takes no lock that all
/// threads share: only the lock of a page for as long as its compressed bytes are copied, and, once in a few writes, the
/// lock of a size class to take or return some slots. A write that finds no memory returns all threads' spare slots.
///
/// Requests may start and end anywhere. Parts of pages are changed by reading the page, which is slower.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_store::{Store, StoreHandle, StoreOptions};
///
/// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
/// std::thread::scope(|scope| {
///     for thread in 0..4u8 {
///         let mut handle = StoreHandle::new(&store)?;
///         scope.spawn(move || handle.write_at(u64::from(thread) * 4096, &[thread; 4096]).expect("there is room"));
///     }
///     Ok::<(), trueno_zram_store::Error>(())
/// })?;
/// assert_eq!(store.stats().mm.same_pages, 4);
/// # Ok::<(), trueno_zram_store::Error>(())
/// ```
#[derive(Debug)]
pub struct StoreHandle {
    pub(crate) store: Arc<Store>,
    pub(crate) context: ThreadContext,
    pub(crate) codec: PageCodec,
    /// The output of the compressor.
    pub(crate) out: Box<Page>,
    /// A copy of a page's stored bytes for the decoder: another process could change them in the store.
    pub(crate) stored_bytes: Box<Page>,
    /// A page of which only a part is written.
    pub(crate) page: Box<Page>,
    /// Pages of the present write, with room for the longest one.
    pub(crate) staged: Vec<StagedPage>,
}

/// The state of pages that are set to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPages {
    /// Pages become holes.
    Discard,
    /// Pages count as written.
    Keep,
}

impl StoreHandle {
    /// Creates a handle with its codec and buffers.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// let store = Arc::new(Store::create(&StoreOptions::new(4096))?);
    /// let (first, second) = (StoreHandle::new(&store)?, StoreHandle::new(&store)?);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Codec`].
    pub fn new(store: &Arc<Store>) -> Result<Self> {
        let mut handle = Self {
            context: store.register_thread(store.slots.next_stripe()),
            store: Arc::clone(store),
            codec: PageCodec::new(store.algorithm())?,
            out: Box::new([0; PAGE_SIZE]),
            stored_bytes: Box::new([0; PAGE_SIZE]),
            page: Box::new([0; PAGE_SIZE]),
            staged: Vec::with_capacity(MAX_STAGED_PAGES),
        };
        handle.warm_up()?;
        Ok(handle)
    }

    /// Makes the codec allocate its memory now instead of with the first page. Idle pages may become Zstandard frames in every store.
    fn warm_up(&mut self) -> Result<()> {
        let ramp: Page = std::array::from_fn(|at| u8::try_from(at / 64).unwrap_or(0));
        self.codec.compress(&ramp, &mut self.out)?;
        // A build without Zstandard never has frames to decode.
        if let Ok(mut encoder) = PageCodec::new(Algorithm::Zstd { level: 1 }) {
            let frame = encoder.compress(&ramp, &mut self.out)?;
            self.codec.decompress(frame, &mut self.page)?;
        }
        Ok(())
    }

    /// Returns the store.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// let handle = StoreHandle::new(&Arc::new(Store::create(&StoreOptions::new(4096))?))?;
    /// assert_eq!(handle.store().page_count(), 1);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Reads bytes from `offset` on.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// # let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// let mut bytes = [1; 3];
    /// handle.read_at(5, &mut bytes)?;
    /// assert_eq!(bytes, [0; 3]);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::CorruptPage`] or [`Error::CorruptEntry`] if another program wrote to the memory;
    /// [`Error::Base`] if the archive beneath the store is damaged. The contents of `bytes` are then unspecified.
    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let _request = self.enter_request();
        self.check_range(offset, bytes.len() as u64)?;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, within) = split_offset(at);
            let take = rest.len().min(PAGE_SIZE - within);
            let (part, after) = rest.split_at_mut(take);
            let done = match <&mut Page>::try_from(&mut *part) {
                Ok(whole) => self.read_existing(page, whole),
                Err(_) => self.read_part(page, within, part),
            };
            done.inspect_err(|_| self.context.counters.failed_reads.add(1))?;
            at += take as u64;
            rest = after;
        }
        Ok(())
    }

    /// Turns pages into holes, which read as zeros. Parts of pages at the ends of the range are not changed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// # let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// handle.write_at(0, &[1; 8192])?;
    /// handle.discard(0, 5000)?;
    /// let mut bytes = [9; 8192];
    /// handle.read_at(0, &mut bytes)?;
    /// assert_eq!((bytes[4095], bytes[4096]), (0, 1));
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::CorruptEntry`].
    pub fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        let _request = self.enter_request();
        self.check_range(offset, len_bytes)?;
        let page_size = PAGE_SIZE as u64;
        for page in offset.div_ceil(page_size)..(offset + len_bytes) / page_size {
            self.set_form(page, self.store.discarded(page))?;
            self.context.counters.notify_free.add(1);
        }
        Ok(())
    }

    /// Reads a page.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{Store, StoreHandle, StoreOptions};
    /// # let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let mut handle = StoreHandle::new(&store)?;
    /// let mut page = [1; 4096];
    /// handle.read_page(255, &mut page)?;
    /// assert_eq!(page, [0; 4096]);
    /// assert!(handle.read_page(256, &mut page).is_err());
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    pub fn read_page(&mut self, number: u64, page: &mut Page) -> Result<()> {
        let _request = self.enter_request();
        self.check_page(number)?;
        self.read_existing(number, page)
    }

    /// Reads a page that exists. The caller has entered a request.
    fn read_existing(&mut self, number: u64, page: &mut Page) -> Result<()> {
        self.context.counters.pages_read.add(1);
        let corrupt = |defect| Error::CorruptEntry { page: number, defect };
        // A page without a slot is all in its entry, which is one load. Locked or not, the entry is valid.
        let mut form = self.store.table.load(number).form().map_err(corrupt)?;
        if form.stored().is_some() {
            let guard = self.store.table.lock(number);
            let entry = guard.entry();
            form = entry.form().map_err(corrupt)?;
            if let PageForm::Stored(stored) = form {
                let is_raw = stored.kind == PageKind::Raw;
                self.store.copy_stored(stored, if is_raw { &mut *page } else { &mut self.stored_bytes });
                guard.publish(entry.with_age(0));
            }
        }
        match form {
            PageForm::Empty => self.store.read_hole(number, page),
            PageForm::Fill(fill) => {
                fill_page(page, fill_word(fill));
                Ok(())
            }
            PageForm::Stored(stored) if stored.kind == PageKind::Raw => Ok(()),
            PageForm::Stored(stored) => {
                let bytes = &self.stored_bytes[..stored.len_bytes.into()];
                decode(&mut self.codec, stored, bytes, number, page)
            }
        }
    }

    fn read_part(&mut self, number: u64, within: usize, part: &mut [u8]) -> Result<()> {
        let mut page = [0; PAGE_SIZE];
        self.read_existing(number, &mut page)?;
        part.copy_from_slice(&page[within..within + part.len()]);
        Ok(())
    }

    /// Replaces a page by one without a slot.
    pub(crate) fn set_form(&mut self, number: u64, form: PageForm) -> Result<()> {
        let entry = TableEntry::new(form);
        // A table that was never written takes no memory, and discarding must not change that.
        if self.store.table.load(number) == entry {
            return Ok(());
        }
        let guard = self.store.table.lock(number);
        self.store.replace(number, guard, entry, &self.context)
    }

    /// Enters a request: the store does not become shorter than the checks below find it until the guard is dropped.
    pub(crate) fn enter_request(&self) -> RequestGuard {
        self.context.counters.enter_request(self.store.table.pages_word())
    }

    pub(crate) fn check_range(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let size_bytes = self.store.size_bytes();
        if offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes) {
            return Ok(());
        }
        self.context.counters.invalid_io.add(1);
        Err(Error::OutOfRange { offset, len_bytes, size_bytes })
    }

    pub(crate) fn check_page(&self, page: u64) -> Result<()> {
        if page < self.store.page_count() {
            return Ok(());
        }
        self.check_range(page.saturating_mul(PAGE_SIZE as u64), PAGE_SIZE as u64)
    }
}

/// Restores a page from a private copy of its stored bytes.
pub(crate) fn decode(
    codec: &mut PageCodec,
    stored: StoredPage,
    bytes: &[u8],
    number: u64,
    page: &mut Page,
) -> Result<()> {
    let data = PageData::new(stored.kind, bytes);
    data.and_then(|data| codec.decompress(data, page)).map_err(|source| Error::CorruptPage { page: number, source })
}

/// Splits a byte offset into a page number and an offset within the page.
pub(crate) fn split_offset(offset: u64) -> (u64, usize) {
    let page_size = PAGE_SIZE as u64;
    (offset / page_size, usize::try_from(offset % page_size).expect("less than a page"))
}
