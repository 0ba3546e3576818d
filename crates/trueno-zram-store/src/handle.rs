//! Requests of one thread: its codec, its buffers, and the reading and writing of pages.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use trueno_zram_core::{Algorithm, PAGE_SIZE, Page, PageCodec, PageData, PageKind, fill_page};

use crate::entry::{Entry, Form, Stored, fill_word};
use crate::error::{Error, Result};
use crate::geometry::Class;
use crate::mapping::copy_in;
use crate::spare_slots::Stripe;
use crate::stats::Counters;
use crate::store::Store;

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
    store: Arc<Store>,
    counters: Arc<Counters>,
    /// Where this thread keeps free slots for its next writes.
    stripe: Stripe,
    codec: PageCodec,
    /// Where pages are compressed to.
    out: Box<Page>,
    /// The bytes that hold a page. Another process could change them in the store, so the decoder gets a copy.
    held: Box<Page>,
    /// A page of which only a part is read or written.
    page: Box<Page>,
}

/// What becomes of pages that are set to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPages {
    /// Pages become holes.
    Discard,
    /// Pages count as written.
    Keep,
}

impl StoreHandle {
    /// Creates a handle, and everything that it will need.
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
            counters: store.register_counters(),
            stripe: store.slots.next_stripe(),
            store: Arc::clone(store),
            codec: PageCodec::new(store.algorithm())?,
            out: Box::new([0; PAGE_SIZE]),
            held: Box::new([0; PAGE_SIZE]),
            page: Box::new([0; PAGE_SIZE]),
        };
        handle.warm_up()?;
        Ok(handle)
    }

    /// Makes the codec allocate what it allocates for its first page. Idle pages become Zstandard frames in every store.
    fn warm_up(&mut self) -> Result<()> {
        let ramp: Page = std::array::from_fn(|at| u8::try_from(at / 64).unwrap_or(0));
        self.codec.compress(&ramp, &mut self.out)?;
        let mut encoder = PageCodec::new(Algorithm::Zstd { level: 1 })?;
        let frame = encoder.compress(&ramp, &mut self.out)?;
        self.codec.decompress(frame, &mut self.page)?;
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
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::CorruptPage`] or [`Error::CorruptEntry`] if something else wrote to the memory;
    /// [`Error::Base`] if the archive beneath the store is damaged. The contents of `bytes` are then unspecified.
    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check_range(offset, bytes.len() as u64)?;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, within) = split(at);
            let take = rest.len().min(PAGE_SIZE - within);
            let (part, after) = rest.split_at_mut(take);
            let done = match <&mut Page>::try_from(&mut *part) {
                Ok(whole) => self.read_page(page, whole),
                Err(_) => self.read_part(page, within, part),
            };
            done.inspect_err(|_| self.counters.failed_reads.add(1))?;
            at += take as u64;
            rest = after;
        }
        Ok(())
    }

    /// Writes bytes from `offset` on. Pages are written one by one, each completely or not at all.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing written; [`Error::NoSpace`] for the first page that does not fit, with the
    /// pages before it written; [`Error::Compress`]; [`Error::CorruptPage`], [`Error::CorruptEntry`] or [`Error::Base`] as
    /// for reading.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_range(offset, bytes.len() as u64)?;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, within) = split(at);
            let take = rest.len().min(PAGE_SIZE - within);
            let (part, after) = rest.split_at(take);
            let done = match <&Page>::try_from(part) {
                Ok(whole) => self.write_page(page, whole),
                Err(_) => self.change_page(page, |page| page[within..within + take].copy_from_slice(part)),
            };
            done.inspect_err(|_| self.counters.failed_writes.add(1))?;
            at += take as u64;
            rest = after;
        }
        Ok(())
    }

    /// Makes pages holes, which read as zeros. Parts of pages at the ends of the range are not changed.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::CorruptEntry`].
    pub fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_range(offset, len_bytes)?;
        let page_size = PAGE_SIZE as u64;
        for page in offset.div_ceil(page_size)..(offset + len_bytes) / page_size {
            self.set_form(page, self.store.discarded(page))?;
            self.counters.notify_free.add(1);
        }
        Ok(())
    }

    /// Sets bytes to zero.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at). Only parts of pages, at the ends of the range, can lack room.
    pub fn write_zeroes(&mut self, offset: u64, len_bytes: u64, pages: ZeroPages) -> Result<()> {
        self.check_range(offset, len_bytes)?;
        let (mut at, end) = (offset, offset + len_bytes);
        while at < end {
            let (page, within) = split(at);
            let take = usize::try_from(end - at).map_or(PAGE_SIZE, |rest| rest.min(PAGE_SIZE)).min(PAGE_SIZE - within);
            let done = match pages {
                _ if take < PAGE_SIZE => self.change_page(page, |page| page[within..within + take].fill(0)),
                ZeroPages::Discard => self.set_form(page, self.store.discarded(page)),
                ZeroPages::Keep => self.set_form(page, Form::Fill([0; 4])),
            };
            done.inspect_err(|_| self.counters.failed_writes.add(1))?;
            at += take as u64;
        }
        Ok(())
    }

    /// Orders all earlier writes before all later ones. The store is memory: there is nothing else to flush.
    pub fn flush(&self) {
        fence(Ordering::SeqCst);
    }

    /// Reads a page.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    pub fn read_page(&mut self, number: u64, page: &mut Page) -> Result<()> {
        self.check_page(number)?;
        self.counters.pages_read.add(1);
        let corrupt = |defect| Error::CorruptEntry { page: number, defect };
        // A page without a slot is all in its entry, which is one load. Locked or not, the entry is valid.
        match self.store.table.load(number).form().map_err(corrupt)? {
            Form::Empty => self.store.read_hole(number, page)?,
            Form::Fill(fill) => fill_page(page, fill_word(fill)),
            Form::Stored(_) => {
                let guard = self.store.table.lock(number);
                let entry = guard.entry();
                match entry.form().map_err(corrupt)? {
                    Form::Empty => self.store.read_hole(number, page)?,
                    Form::Fill(fill) => fill_page(page, fill_word(fill)),
                    Form::Stored(stored) if stored.kind == PageKind::Raw => {
                        self.store.copy_held(stored, page);
                        guard.publish(entry.with_age(0));
                    }
                    Form::Stored(stored) => {
                        let held = self.store.copy_held(stored, &mut self.held);
                        guard.publish(entry.with_age(0));
                        decode(&mut self.codec, stored, held, number, page)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn read_part(&mut self, number: u64, within: usize, part: &mut [u8]) -> Result<()> {
        let mut page = [0; PAGE_SIZE];
        self.read_page(number, &mut page)?;
        part.copy_from_slice(&page[within..within + part.len()]);
        Ok(())
    }

    /// Writes a page.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    pub fn write_page(&mut self, number: u64, page: &Page) -> Result<()> {
        self.check_page(number)?;
        let data = self.codec.compress(page, &mut self.out);
        let data = data.map_err(|source| Error::Compress { page: number, source })?;
        let entry = place(&self.store, &self.counters, self.stripe, number, data)?;
        let guard = self.store.table.lock(number);
        self.store.replace(number, guard, entry, &self.counters, self.stripe)?;
        self.counters.pages_written.add(1);
        Ok(())
    }

    /// Changes a part of a page. The page is locked meanwhile, so no other change is lost.
    fn change_page(&mut self, number: u64, change: impl FnOnce(&mut Page)) -> Result<()> {
        let guard = self.store.table.lock(number);
        let form = guard.entry().form().map_err(|defect| Error::CorruptEntry { page: number, defect })?;
        match form {
            Form::Empty => self.store.read_hole(number, &mut self.page)?,
            Form::Fill(fill) => fill_page(&mut self.page, fill_word(fill)),
            Form::Stored(stored) => {
                let held = self.store.copy_held(stored, &mut self.held);
                decode(&mut self.codec, stored, held, number, &mut self.page)?;
            }
        }
        change(&mut self.page);
        let data = self.codec.compress(&self.page, &mut self.out);
        let data = data.map_err(|source| Error::Compress { page: number, source })?;
        let entry = place(&self.store, &self.counters, self.stripe, number, data)?;
        self.store.replace(number, guard, entry, &self.counters, self.stripe)?;
        self.counters.pages_written.add(1);
        Ok(())
    }

    /// Replaces a page by one without a slot.
    fn set_form(&mut self, number: u64, form: Form) -> Result<()> {
        let entry = Entry::new(form);
        // A table that was never written takes no memory, and discarding must not change that.
        if self.store.table.load(number) == entry {
            return Ok(());
        }
        let guard = self.store.table.lock(number);
        self.store.replace(number, guard, entry, &self.counters, self.stripe)
    }

    fn check_range(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let size_bytes = self.store.size_bytes();
        if offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes) {
            return Ok(());
        }
        self.counters.invalid_io.add(1);
        Err(Error::OutOfRange { offset, len_bytes, size_bytes })
    }

    fn check_page(&self, page: u64) -> Result<()> {
        if page < self.store.page_count() {
            return Ok(());
        }
        self.check_range(page.saturating_mul(PAGE_SIZE as u64), PAGE_SIZE as u64)
    }
}

/// Puts a compressed page into a slot, or into its entry. Nothing names the slot until the entry is published.
pub(crate) fn place(
    store: &Store,
    counters: &Counters,
    stripe: Stripe,
    page: u64,
    data: PageData<'_>,
) -> Result<Entry> {
    if data.kind() == PageKind::SameFilled
        && let Some(inline) = data.bytes().try_into().ok().and_then(Form::inline)
    {
        return Ok(Entry::new(inline));
    }
    let len_bytes = u16::try_from(data.bytes().len()).expect("PageData holds at most 4096 bytes");
    let class = Class::of_len(data.bytes().len());
    let place = store.slots.allocate(stripe, class, page).ok_or_else(|| store.no_space(page))?;
    copy_in(data.bytes(), store.slots.slot_words(place, data.bytes().len()));
    counters.huge_pages_since.add(u64::from(data.kind() == PageKind::Raw));
    Ok(Entry::new(Form::Stored(Stored { kind: data.kind(), len_bytes, place })))
}

/// Restores a page from a private copy of the bytes that hold it.
pub(crate) fn decode(codec: &mut PageCodec, stored: Stored, held: &[u8], number: u64, page: &mut Page) -> Result<()> {
    let data = PageData::new(stored.kind, held);
    data.and_then(|data| codec.decompress(data, page)).map_err(|source| Error::CorruptPage { page: number, source })
}

/// The page of a byte, and the byte's place in it.
fn split(offset: u64) -> (u64, usize) {
    let page_size = PAGE_SIZE as u64;
    (offset / page_size, usize::try_from(offset % page_size).expect("less than a page"))
}
