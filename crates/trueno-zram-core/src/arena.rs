//! A batch of compressed pages: one arena of bytes and an index in page order.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::page::{CompressedPage, PageData, PageKind};
#[cfg(feature = "gpu")]
use crate::parallel_copy::parallel_copy;
use crate::stats::PageStats;
use crate::storage::Storage;

/// The location and kind of a compressed page in its arena.
///
/// ```
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, PageKind};
/// let batch = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE], [1; PAGE_SIZE]])?;
/// let second = batch.index()[1];
/// assert_eq!((second.offset, second.len_bytes, second.kind), (8, 8, PageKind::SameFilled));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Offset from the start of the arena, in bytes.
    pub offset: u64,
    /// Number of bytes held, at most 4096.
    pub len_bytes: u16,
    /// The form in which the page is held.
    pub kind: PageKind,
}

impl IndexEntry {
    pub(crate) fn new(offset: u64, data: PageData<'_>) -> Self {
        let len_bytes = u16::try_from(data.bytes().len()).expect("PageData holds at most 4096 bytes");
        Self { offset, len_bytes, kind: data.kind() }
    }

    /// Returns the page's bytes in `arena`.
    pub(crate) fn find(self, arena: &[u8]) -> Result<PageData<'_>> {
        let len_bytes = usize::from(self.len_bytes);
        let start = usize::try_from(self.offset).ok();
        let end = start.and_then(|start| start.checked_add(len_bytes));
        let bytes = start.zip(end).and_then(|(start, end)| arena.get(start..end));
        let outside = Error::OutsideArena { offset: self.offset, len_bytes, arena_len_bytes: arena.len() };
        PageData::new(self.kind, bytes.ok_or(outside)?)
    }
}

/// Compressed pages in one arena.
///
/// Looking up a page by number takes constant time. Pages have no allocations of their own, and a reused batch keeps
/// its memory.
///
/// ```
/// use trueno_zram_core::{CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
/// let pages = vec![[3u8; PAGE_SIZE]; 10];
/// let batch = CpuBatchCompressor::default().compress(&pages)?;
///
/// // Store the arena and the index anywhere. `from_parts` checks every entry.
/// let stored = (batch.arena().to_vec(), batch.index().to_vec());
/// let batch = CompressedBatch::from_parts(stored.0, stored.1)?;
/// assert_eq!(batch.get(9).map(|page| page.bytes().to_vec()), Some(vec![3; 8]));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Default)]
pub struct CompressedBatch {
    /// Initialised storage. The batch occupies the first `used` bytes; the rest is kept for reuse.
    storage: Storage,
    used: usize,
    /// Bytes of the storage that have ever been used.
    touched: usize,
    /// Every entry lies within the first `used` bytes and has a length valid for its kind.
    index: Vec<IndexEntry>,
}

impl CompressedBatch {
    /// Creates an empty batch.
    ///
    /// ```
    /// use trueno_zram_core::{CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
    /// let mut batch = CompressedBatch::new(); // created once, refilled in each round
    /// for byte in 0..3 {
    ///     CpuBatchCompressor::default().compress_into(&[[byte; PAGE_SIZE]], &mut batch, &())?;
    ///     assert_eq!(batch.arena(), [byte; 8]);
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Rebuilds a batch from a stored arena and index.
    ///
    /// ```
    /// use trueno_zram_core::{CompressedBatch, IndexEntry, PageKind};
    /// let entry = IndexEntry { offset: 8, len_bytes: 8, kind: PageKind::SameFilled };
    /// assert!(CompressedBatch::from_parts(vec![0; 16], vec![entry]).is_ok());
    /// assert!(CompressedBatch::from_parts(vec![0; 15], vec![entry]).is_err());
    /// ```
    ///
    /// # Errors
    /// [`Error::InPage`] with [`Error::OutsideArena`] or [`Error::HeldLength`] for the first invalid entry.
    pub fn from_parts(arena: Vec<u8>, index: Vec<IndexEntry>) -> Result<Self> {
        for (page, entry) in index.iter().enumerate() {
            entry.find(&arena).map_err(|e| e.in_page(page))?;
        }
        Ok(Self { used: arena.len(), touched: arena.len(), storage: arena.into(), index })
    }

    /// Returns the number of pages in the batch.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let mut compressor = CpuBatchCompressor::default();
    /// let batch = compressor.compress(&[[7; PAGE_SIZE]; 3])?;
    /// let mut pages = vec![[0; PAGE_SIZE]; batch.len()];
    /// compressor.decompress_into(&batch, &mut pages, &())?;
    /// assert_eq!(pages, [[7; PAGE_SIZE]; 3]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns `true` if the batch has no pages.
    ///
    /// ```
    /// use trueno_zram_core::CpuBatchCompressor;
    /// let batch = CpuBatchCompressor::default().compress(&[])?;
    /// assert!(batch.is_empty(), "no pages in, no pages out");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns the bytes of all pages.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let batch = CpuBatchCompressor::default().compress(&[[1; PAGE_SIZE], [2; PAGE_SIZE]])?;
    /// assert_eq!(batch.arena(), [[1; 8], [2; 8]].concat()); // one word per page
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn arena(&self) -> &[u8] {
        &self.storage[..self.used]
    }

    /// Returns the index: one entry per page.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let batch = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE]; 3])?;
    /// assert_eq!(batch.index().iter().map(|entry| entry.offset).collect::<Vec<_>>(), [0, 8, 16]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn index(&self) -> &[IndexEntry] {
        &self.index
    }

    /// Returns the page with the given number, or `None` if there is no such page.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, PageCodec};
    /// let batch = CpuBatchCompressor::default().compress(&[[1; PAGE_SIZE], [2; PAGE_SIZE]])?;
    /// let mut page = [0; PAGE_SIZE];
    /// PageCodec::default().decompress(batch.get(1).expect("the batch has two pages"), &mut page)?; // only this page
    /// assert_eq!(page, [2; PAGE_SIZE]);
    /// assert!(batch.get(2).is_none());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn get(&self, page: usize) -> Option<PageData<'_>> {
        self.index.get(page).map(|entry| self.page_of(*entry))
    }

    /// Returns an iterator over all pages, in order.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let batch = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE]; 3])?;
    /// assert_eq!(batch.iter().map(|page| page.bytes().len()).sum::<usize>(), 24);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PageData<'_>> {
        self.index.iter().map(|entry| self.page_of(*entry))
    }

    /// Counts the pages by kind and the bytes that they take.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};
    /// let ramp: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i / 16) as u8);
    /// let stats = CpuBatchCompressor::new(Algorithm::Lz4)?.compress(&[[0; PAGE_SIZE], ramp])?.stats();
    /// assert_eq!((stats.zero, stats.lz4, stats.raw), (1, 1, 0));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> PageStats {
        let mut stats = PageStats::default();
        self.iter().for_each(|page| stats.add(page));
        stats
    }

    /// Converts the batch into individual pages that share its arena.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let pages = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE]; 3])?.into_pages();
    /// assert_eq!(pages[2].ratio(), 512.0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn into_pages(self) -> Vec<CompressedPage> {
        // The pages may be kept for a long time, so release the excess reservation.
        let touched = self.touched.max(self.used);
        let arena = Arc::new(self.storage.cut_to(self.used, touched));
        let in_arena = |entry: &IndexEntry| {
            let data = entry.find(&arena).expect("the index was checked when it was created");
            let offset = usize::try_from(entry.offset).expect("a page in memory has a `usize` offset");
            CompressedPage::in_arena(&arena, offset, data)
        };
        self.index.iter().map(in_arena).collect()
    }

    /// Removes all pages and keeps the memory.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let mut batch = CpuBatchCompressor::default().compress(&[[0; PAGE_SIZE]; 3])?;
    /// batch.clear();
    /// assert!(batch.is_empty() && batch.arena().is_empty());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn clear(&mut self) {
        self.touched = self.touched.max(self.used);
        self.used = 0;
        self.index.clear();
    }

    /// Appends a page.
    ///
    /// ```
    /// use trueno_zram_core::{CompressedBatch, PAGE_SIZE, PageCodec};
    /// let (mut codec, mut batch, mut out) = (PageCodec::default(), CompressedBatch::new(), [0; PAGE_SIZE]);
    /// for byte in 0..3 {
    ///     batch.push(codec.compress(&[byte; PAGE_SIZE], &mut out)?);
    /// }
    /// assert_eq!(batch.arena(), [[0; 8], [1; 8], [2; 8]].concat());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn push(&mut self, page: PageData<'_>) {
        let bytes = page.bytes();
        let end = self.used + bytes.len();
        if end > self.storage.len() {
            self.grow(end.max(2 * self.storage.len()));
        }
        self.storage[self.used..end].copy_from_slice(bytes);
        self.index.push(IndexEntry::new(self.used as u64, page));
        self.used = end;
    }

    /// Appends the pages of several pieces. Each piece has an index that counts from its own start. All threads copy
    /// the bytes. `pages_in_all` is the final number of pages in the batch, used to reserve memory.
    pub(crate) fn append<'a>(
        &mut self,
        pieces: impl Iterator<Item = (&'a [u8], &'a [IndexEntry])> + Clone,
        pages_in_all: usize,
    ) {
        let mut rest = self.add_entries(pieces.clone(), pages_in_all);
        let moves: Vec<_> = pieces
            .map(|(bytes, _)| {
                let (place, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
                rest = after;
                (place, bytes)
            })
            .collect();
        moves.into_par_iter().for_each(|(place, bytes)| place.copy_from_slice(bytes));
    }

    /// Adds the pages of several pieces to the index and returns the space for their bytes.
    fn add_entries<'a>(
        &mut self,
        pieces: impl Iterator<Item = (&'a [u8], &'a [IndexEntry])>,
        pages_in_all: usize,
    ) -> &mut [u8] {
        let start = self.used;
        let mut base = start;
        self.index.reserve(pages_in_all - self.index.len());
        for (bytes, index) in pieces {
            self.index.extend(index.iter().map(|entry| IndexEntry { offset: base as u64 + entry.offset, ..*entry }));
            base += bytes.len();
        }
        let end = base;
        if end > self.storage.len() {
            let pages_left = pages_in_all - self.index.len();
            // Grow by at least half, so that pages that compress worse and worse do not move the others repeatedly.
            let half_more = self.storage.len() + self.storage.len() / 2;
            self.grow(half_more.max(end + end.div_ceil(self.index.len().max(1)) * pages_left));
        }
        self.used = end;
        &mut self.storage[start..end]
    }

    /// Grows the storage to `len_bytes`. Fresh memory comes zeroed from the system and is first touched by the threads
    /// that fill it. Growing in place would touch it here, on one thread.
    fn grow(&mut self, len_bytes: usize) {
        let mut larger = Storage::zeroed(len_bytes);
        larger[..self.used].copy_from_slice(&self.storage[..self.used]);
        (self.storage, self.touched) = (larger, self.used);
    }

    /// Appends pages that lie in one piece, with an index that counts from its start. All threads copy the bytes.
    #[cfg(feature = "gpu")]
    pub(crate) fn append_piece(&mut self, bytes: &[u8], index: &[IndexEntry], pages_in_all: usize) {
        parallel_copy(self.add_entries(std::iter::once((bytes, index)), pages_in_all), bytes);
    }

    fn page_of(&self, entry: IndexEntry) -> PageData<'_> {
        entry.find(&self.storage).expect("the index was checked when it was created")
    }
}

/// Checks that the destination has exactly as many pages as the batch.
pub(crate) fn check_destination(batch_pages: usize, destination_pages: usize) -> Result<()> {
    if batch_pages == destination_pages {
        return Ok(());
    }
    Err(Error::PageCount { batch_pages, destination_pages })
}

/// Checks that a destination has room for the pages of a batch.
#[cfg(feature = "gpu")]
pub(crate) fn check_room(batch_pages: usize, destination_pages: usize) -> Result<()> {
    if batch_pages <= destination_pages {
        return Ok(());
    }
    Err(Error::PageCount { batch_pages, destination_pages })
}

impl Clone for CompressedBatch {
    /// Copies the batch's bytes, but not the memory reserved for reuse.
    fn clone(&self) -> Self {
        Self { storage: self.arena().to_vec().into(), used: self.used, touched: self.used, index: self.index.clone() }
    }
}

impl PartialEq for CompressedBatch {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.arena() == other.arena()
    }
}

impl Eq for CompressedBatch {}

impl std::fmt::Debug for CompressedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompressedBatch({} pages, {} bytes)", self.len(), self.used)
    }
}

/// Returns the compressed length of all pages, without gaps between them.
#[cfg(feature = "gpu")]
pub(crate) fn held_bytes(index: &[IndexEntry]) -> u64 {
    index.iter().map(|entry| u64::from(entry.len_bytes)).sum()
}

/// Fills a batch. If `fill` fails or panics, in the caller's `progress` for example, the batch is emptied: a part of it would look
/// like a complete one.
pub(crate) fn fill_or_clear<B, T>(
    batch: &mut B,
    clear: impl FnOnce(&mut B),
    fill: impl FnOnce(&mut B) -> Result<T>,
) -> Result<T> {
    let filled = catch_unwind(AssertUnwindSafe(|| fill(batch)));
    if !matches!(filled, Ok(Ok(_))) {
        clear(batch);
    }
    filled.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_kept_after_success_and_cleared_after_an_error_or_a_panic() {
        let word = [7; 8];
        let page = PageData::new(PageKind::SameFilled, &word).expect("a word holds a page");
        let fill = |batch: &mut CompressedBatch, result: fn() -> Result<usize>| {
            fill_or_clear(batch, CompressedBatch::clear, |batch| {
                batch.push(page);
                result()
            })
        };
        let mut batch = CompressedBatch::new();
        assert_eq!(fill(&mut batch, || Ok(3)), Ok(3));
        assert_eq!(batch.len(), 1);
        assert_eq!(
            fill(&mut batch, || Err(Error::UnknownPageKind { value: 9 })),
            Err(Error::UnknownPageKind { value: 9 })
        );
        assert!(batch.is_empty());
        let panic = catch_unwind(AssertUnwindSafe(|| fill(&mut batch, || panic!("in the caller's progress"))));
        assert!(panic.is_err() && batch.is_empty());
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn room_is_enough_for_as_many_pages_and_no_more() {
        assert_eq!((check_room(2, 3), check_room(3, 3)), (Ok(()), Ok(())));
        assert_eq!(check_room(4, 3), Err(Error::PageCount { batch_pages: 4, destination_pages: 3 }));
    }
}
