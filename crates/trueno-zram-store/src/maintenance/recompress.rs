//! Recompression: compresses idle pages again, with a slower and stronger algorithm.

use std::time::{Duration, Instant};

use trueno_zram_core::{BatchCodec, CompressedBatch, PAGE_SIZE, Page, PageCodec, PageData, PageKind};

use crate::error::{Error, Result};
use crate::handle::decode;
use crate::slots::geometry::SizeClass;
use crate::slots::spare_slots::Stripe;
use crate::store::{Store, ThreadContext};
use crate::table::entry::{EntryMark, PageForm, StoredPage, TableEntry};

/// The choice of pages to recompress, and the part of the time to spend.
///
/// ```
/// use trueno_zram_store::RecompressOptions;
/// let gentle = RecompressOptions::default().with_cpu_percent(10);
/// assert!(gentle.min_age > 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecompressOptions {
    /// The age from which pages are recompressed, in ticks since they were last used.
    pub min_age: u8,
    /// Pages per batch.
    pub batch_pages: usize,
    /// The part of the time to work, in percent, 1 to 100. After each batch, the thread sleeps for the rest of the time.
    pub cpu_percent: u8,
}

impl Default for RecompressOptions {
    fn default() -> Self {
        Self { min_age: 2, batch_pages: 1024, cpu_percent: 100 }
    }
}

impl RecompressOptions {
    /// Sets the number of ticks after which an unused page is recompressed.
    #[must_use]
    pub fn with_min_age(self, min_age: u8) -> Self {
        Self { min_age, ..self }
    }

    /// Sets the number of pages per batch.
    #[must_use]
    pub fn with_batch_pages(self, batch_pages: usize) -> Self {
        Self { batch_pages, ..self }
    }

    /// Sets the part of the time to work, 1 to 100.
    #[must_use]
    pub fn with_cpu_percent(self, cpu_percent: u8) -> Self {
        Self { cpu_percent, ..self }
    }
}

/// The result of a recompression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recompression {
    /// Pages that were compressed again.
    pub pages_tried: u64,
    /// Pages of those that take less memory now.
    pub pages_replaced: u64,
    /// Compressed bytes saved.
    pub bytes_saved: u64,
}

/// The state of a recompression, kept from batch to batch.
struct RecompressPass<'a> {
    store: &'a Store,
    context: ThreadContext,
    decoder: PageCodec,
    numbers: Vec<u64>,
    pages: Vec<Page>,
    stored_bytes: Box<Page>,
    batch: CompressedBatch,
    done: Recompression,
}

impl Store {
    /// Recompresses idle pages with `codec`, in one pass over all pages, while requests go on.
    ///
    /// A page is replaced if its new form takes a shorter slot, and only if it was not written meanwhile. A page that was
    /// tried is not tried again until it is written.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_store::{RecompressOptions, Store, StoreHandle, StoreOptions};
    /// use trueno_zram_core::{Algorithm, CpuBatchCompressor};
    /// let store = Arc::new(Store::create(&StoreOptions::new(1 << 20))?);
    /// let text: Vec<u8> = (0..1024u32).flat_map(|n| (n * n / 3).to_le_bytes()).collect();
    /// StoreHandle::new(&store)?.write_at(0, &text)?;
    ///
    /// (0..2).for_each(|_| store.tick());
    /// let mut codec = CpuBatchCompressor::new(Algorithm::Zstd { level: 3 })?;
    /// assert_eq!(store.recompress(&mut codec, &RecompressOptions::default())?.pages_tried, 1);
    /// assert_eq!(store.recompress(&mut codec, &RecompressOptions::default())?.pages_tried, 0);
    /// # Ok::<(), trueno_zram_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Codec`] if the codec fails. A page that does not fit ends the pass without an error.
    pub fn recompress(&self, codec: &mut dyn BatchCodec, options: &RecompressOptions) -> Result<Recompression> {
        self.recompress_until(codec, options, &mut |time| {
            std::thread::sleep(time);
            false
        })
    }

    /// Like [`recompress`](Self::recompress). `pause` waits after each batch, and returns `true` to stop.
    pub(crate) fn recompress_until(
        &self,
        codec: &mut dyn BatchCodec,
        options: &RecompressOptions,
        pause: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Recompression> {
        let _lock = self.lock_maintenance();
        let batch_pages = options.batch_pages.clamp(1, 1 << 16);
        let mut pass = RecompressPass {
            store: self,
            context: self.register_thread(Stripe::BACKGROUND),
            decoder: PageCodec::new(codec.algorithm())?,
            numbers: Vec::with_capacity(batch_pages),
            pages: Vec::with_capacity(batch_pages),
            stored_bytes: Box::new([0; PAGE_SIZE]),
            batch: CompressedBatch::new(),
            done: Recompression::default(),
        };
        self.recompress_progress.start();
        let done = pass.run_all(codec, options, pause);
        self.recompress_progress.end();
        done?;
        Ok(pass.done)
    }
}

/// Returns the time to sleep after `worked`.
fn pause_after(worked: Duration, cpu_percent: u8) -> Duration {
    let percent = u32::from(cpu_percent.clamp(1, 100));
    worked * (100 - percent) / percent
}

fn is_candidate(entry: TableEntry, min_age: u8) -> bool {
    let Ok(PageForm::Stored(stored)) = entry.form() else { return false };
    let compressible = matches!(stored.kind, PageKind::Lz4 | PageKind::Raw);
    compressible && !entry.has(EntryMark::Tried) && entry.age() >= min_age && !entry.has(EntryMark::Locked)
}

impl RecompressPass<'_> {
    /// Recompresses all candidates, until memory runs out or `pause` stops it.
    fn run_all(
        &mut self,
        codec: &mut dyn BatchCodec,
        options: &RecompressOptions,
        pause: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<()> {
        let progress = &self.store.recompress_progress;
        let batch_pages = self.numbers.capacity();
        let mut started = Instant::now();
        let pages = self.store.page_count();
        for number in 0..pages {
            if is_candidate(self.store.table.load(number), options.min_age) {
                self.collect(number, options.min_age);
            }
            if self.numbers.len() >= batch_pages {
                let tried_before = self.done.pages_tried;
                let goes_on = self.run(codec)?;
                progress.pass(number + 1, self.done.pages_tried - tried_before);
                if !goes_on || pause(pause_after(started.elapsed(), options.cpu_percent)) {
                    return Ok(());
                }
                started = Instant::now();
            }
        }
        let tried_before = self.done.pages_tried;
        self.run(codec)?;
        progress.pass(pages, self.done.pages_tried - tried_before);
        Ok(())
    }

    /// Copies a page into the batch and marks it.
    fn collect(&mut self, number: u64, min_age: u8) {
        let Some(guard) = self.store.table.try_lock(number) else { return };
        let entry = guard.entry();
        let Ok(PageForm::Stored(stored)) = entry.form() else { return };
        if !is_candidate(entry, min_age) {
            return;
        }
        let bytes = self.store.copy_stored(stored, &mut self.stored_bytes);
        guard.publish(entry.with(EntryMark::Pending));
        let mut page = [0; PAGE_SIZE];
        if decode(&mut self.decoder, stored, bytes, number, &mut page).is_ok() {
            self.numbers.push(number);
            self.pages.push(page);
        } else {
            // A reader of the page gets the error. The page stays as it is.
            self.release(number, |entry| entry.with(EntryMark::Tried));
        }
    }

    /// Compresses the batch and replaces the pages that became shorter. Returns `false` if memory ran out.
    fn run(&mut self, codec: &mut dyn BatchCodec) -> Result<bool> {
        let numbers = std::mem::take(&mut self.numbers);
        let mut batch = std::mem::take(&mut self.batch);
        let compressed = codec.compress_into(&self.pages, &mut batch, &());
        let mut room = compressed.is_ok();
        for (number, data) in numbers.iter().zip(batch.iter()) {
            if !room {
                break;
            }
            self.done.pages_tried += 1;
            match self.replace(*number, data) {
                Ok(()) => {}
                Err(Error::NoSpace { .. }) => room = false,
                Err(error) => return Err(error),
            }
        }
        if !room {
            numbers.iter().for_each(|number| self.release(*number, |entry| entry));
        }
        self.pages.clear();
        self.numbers = numbers;
        self.numbers.clear();
        self.batch = batch;
        compressed?;
        Ok(room)
    }

    /// Replaces a collected page by its compressed form, unless it was written meanwhile.
    fn replace(&mut self, number: u64, data: PageData<'_>) -> Result<()> {
        let guard = self.store.table.lock(number);
        let entry = guard.entry();
        let Some(stored) = collected(entry) else { return Ok(()) };
        if SizeClass::of_len(data.bytes().len()).index() >= stored.class().index() {
            guard.publish(entry.without(EntryMark::Pending).with(EntryMark::Tried));
            return Ok(());
        }
        let new = self.store.stage(self.context.stripe, number, data)?.with_age(entry.age()).with(EntryMark::Tried);
        let saved = u64::from(stored.len_bytes) - data.bytes().len() as u64;
        self.store.replace(number, guard, new, &self.context)?;
        self.context.counters.pages_recompressed.add(1);
        self.context.counters.recompressed_bytes_saved.add(saved);
        self.done.pages_replaced += 1;
        self.done.bytes_saved += saved;
        Ok(())
    }

    /// Removes the mark of a collected page that is not replaced, and makes another change to its entry.
    fn release(&self, number: u64, change: impl FnOnce(TableEntry) -> TableEntry) {
        let guard = self.store.table.lock(number);
        let entry = guard.entry();
        if collected(entry).is_some() {
            guard.publish(change(entry.without(EntryMark::Pending)));
        }
    }
}

/// Returns the slot of a page that was collected and not written since.
fn collected(entry: TableEntry) -> Option<StoredPage> {
    entry.form().ok().and_then(PageForm::stored).filter(|_| entry.has(EntryMark::Pending))
}
