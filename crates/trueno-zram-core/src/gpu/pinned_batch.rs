//! Compressed pages in page-locked memory.

use trueno_gpu::kernels::packed::PACK_ALIGN_BYTES;

use super::bounded_drop::BoundedDrop;
use super::pinned::PinnedBuffer;
use super::ring::compressed_pages::CompressedPages;
use super::ring::device::PinnedMemory;
use super::ring::slot_index::{next_place, push_packed};
use crate::arena::{IndexEntry, check_room};
use crate::error::Result;
use crate::page::{PAGE_SIZE, PageData};

/// Compressed pages in page-locked memory, which the GPU reads and writes directly.
///
/// Created by [`GpuBatchCompressor::pinned_batch`](super::GpuBatchCompressor::pinned_batch). With
/// [`PinnedPages`](super::PinnedPages) on the other side, the CPU touches no page:
/// [`compress_all_pinned`](super::GpuBatchCompressor::compress_all_pinned) and
/// [`decompress_all_pinned`](super::GpuBatchCompressor::decompress_all_pinned) leave the cores and the host's memory
/// bandwidth to other work. Every compressor of the process can use it. Dropping it works as for `PinnedPages`.
///
/// ```
/// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
/// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
/// let mut pages = compressor.pinned_pages(3)?;
/// pages.pages_mut()?[1].fill(7);
/// let mut batch = compressor.pinned_batch(3)?; // room for 3 pages, whatever their contents
/// compressor.compress_all_pinned(&mut pages, &mut batch, &())?;
/// assert_eq!(batch.get(1)?.map(|page| page.bytes().to_vec()), Some(vec![7; 8]));
///
/// pages.pages_mut()?[1].fill(0);
/// compressor.decompress_all_pinned(&mut batch, &mut pages, &())?;
/// assert_eq!(pages.pages()?[1], [7; 4096]);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PinnedBatch<P: PinnedMemory = PinnedBuffer> {
    /// Room for `capacity` pages that do not shrink.
    memory: BoundedDrop<P>,
    capacity: usize,
    /// The entries are in order, each at a multiple of [`PACK_ALIGN_BYTES`].
    index: Vec<IndexEntry>,
}

impl<P: PinnedMemory> PinnedBatch<P> {
    pub(crate) fn new(memory: BoundedDrop<P>, capacity: usize) -> Self {
        Self { memory, capacity, index: Vec::with_capacity(capacity) }
    }

    /// Returns the number of pages in the batch.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// assert_eq!(compressor.pinned_batch(100)?.len(), 0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns `true` if the batch has no pages.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// assert!(compressor.pinned_batch(100)?.is_empty());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns the number of pages that fit, whatever their contents.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// assert_eq!(compressor.pinned_batch(100)?.capacity(), 100);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the index: where each page lies in [`arena`](Self::arena).
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// # let mut batch = compressor.pinned_batch(100)?;
    /// compressor.compress_all_pinned(&mut compressor.pinned_pages(100)?, &mut batch, &())?;
    /// let held: u64 = batch.index().iter().map(|entry| u64::from(entry.len_bytes)).sum();
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn index(&self) -> &[IndexEntry] {
        &self.index
    }

    /// Returns the bytes of all pages, with a few padding bytes between them. To store the batch, write these and the
    /// index. [`CompressedBatch::from_parts`](crate::CompressedBatch::from_parts) reads both back.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # let mut batch = compressor.pinned_batch(2)?;
    /// use trueno_zram_core::CompressedBatch;
    /// compressor.compress_all_pinned(&mut compressor.pinned_pages(2)?, &mut batch, &())?;
    /// let copy = CompressedBatch::from_parts(batch.arena()?.to_vec(), batch.index().to_vec())?;
    /// assert_eq!(copy.get(1), batch.get(1)?);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if the device was given up while it wrote the bytes.
    pub fn arena(&self) -> Result<&[u8]> {
        Ok(&self.memory.bytes()?[..self.end()])
    }

    /// Returns the page with the given number, or `None` if there is no such page.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let batch = compressor.pinned_batch(2)?;
    /// assert!(batch.get(0)?.is_none(), "the batch has room but no page yet");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`arena`](Self::arena).
    pub fn get(&self, page: usize) -> Result<Option<PageData<'_>>> {
        let arena = self.arena()?;
        self.index.get(page).map(|entry| entry.find(arena)).transpose()
    }

    /// Appends a page compressed by any compressor, to be restored later. Pages of an algorithm other than that of the
    /// compressor which restores them are restored by the CPU.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let stored = CpuBatchCompressor::default().compress(&[[1; PAGE_SIZE], [2; PAGE_SIZE]])?;
    /// let mut batch = compressor.pinned_batch(2)?;
    /// for page in stored.iter() {
    ///     batch.push(page)?;
    /// }
    /// let mut pages = compressor.pinned_pages(2)?;
    /// compressor.decompress_all_pinned(&mut batch, &mut pages, &())?;
    /// assert_eq!(pages.pages()?, [[1; PAGE_SIZE], [2; PAGE_SIZE]]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if the batch is full, or the errors of [`arena`](Self::arena).
    pub fn push(&mut self, page: PageData<'_>) -> Result<()> {
        check_room(self.len() + 1, self.capacity)?;
        push_packed(self.memory.bytes_mut()?, &mut self.index, page);
        Ok(())
    }

    /// Removes all pages and keeps the memory.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # let mut batch = compressor.pinned_batch(2)?;
    /// compressor.compress_all_pinned(&mut compressor.pinned_pages(2)?, &mut batch, &())?;
    /// batch.clear();
    /// assert!(batch.is_empty() && batch.arena()?.is_empty());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn clear(&mut self) {
        self.index.clear();
    }

    /// Returns the offset of the next page.
    fn end(&self) -> usize {
        let end = self.index.last().map_or(0, |last| next_place(*last));
        usize::try_from(end).expect("the end of a batch in memory fits in `usize`")
    }

    pub(crate) fn memory_mut(&mut self) -> &mut P {
        &mut self.memory
    }

    /// Returns the memory and the index into it.
    pub(crate) fn parts_mut(&mut self) -> (&mut P, &mut Vec<IndexEntry>) {
        (&mut self.memory, &mut self.index)
    }

    pub(crate) fn compressed_pages(&self) -> Result<CompressedPages<'_>> {
        Ok(CompressedPages::Parts { arena: self.arena()?, index: &self.index })
    }
}

const _: () = assert!(PAGE_SIZE.is_multiple_of(PACK_ALIGN_BYTES as usize), "raw pages leave no gaps");
