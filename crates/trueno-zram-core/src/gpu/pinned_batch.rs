//! Compressed pages in page-locked memory.

use trueno_gpu::kernels::packed::PACK_ALIGN_BYTES;

use super::bounded_drop::BoundedDrop;
use super::pinned::PinnedBuffer;
use super::ring::compress::PackedTo;
use super::ring::decompress::{CompressedPages, PackedFrom};
use super::ring::device::{Device, PinnedMemory};
use super::ring::entries::next_place;
use crate::arena::IndexEntry;
use crate::error::{Error, Result};
use crate::page::{PAGE_SIZE, PageData, PageKind};

/// Compressed pages in page-locked memory, which the GPU reads and writes by itself.
///
/// Made by [`GpuBatchCompressor::pinned_batch`](super::GpuBatchCompressor::pinned_batch). With [`PinnedPages`](super::PinnedPages) on the other side, the CPU
/// touches no page: [`compress_all_pinned`](super::GpuBatchCompressor::compress_all_pinned) and
/// [`decompress_all_pinned`](super::GpuBatchCompressor::decompress_all_pinned) leave its cores, and the host's memory, to others.
/// It serves every compressor of the process, and is dropped, as those.
///
/// ```
/// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
/// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
/// let mut pages = compressor.pinned_pages(3)?;
/// pages.pages_mut()?[1].fill(7);
/// let mut batch = compressor.pinned_batch(3)?; // room for 3 pages, whatever is in them
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
    /// Entries lie one after the other, each at a multiple of [`PACK_ALIGN_BYTES`]; none is a Zstandard frame.
    index: Vec<IndexEntry>,
}

impl<P: PinnedMemory> PinnedBatch<P> {
    pub(crate) fn new(memory: BoundedDrop<P>, capacity: usize) -> Self {
        Self { memory, capacity, index: Vec::with_capacity(capacity) }
    }

    /// Pages in the batch.
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

    /// Whether there are none.
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

    /// Pages that there is room for, whatever is in them.
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

    /// Where each page lies in [`arena`](Self::arena).
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

    /// The bytes of all pages, with a few of no meaning between them: to write to a file, say, beside the index.
    /// [`CompressedBatch::from_parts`](crate::CompressedBatch::from_parts) takes both up again.
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
    /// [`Error::Gpu`] if the device was given up while it wrote them.
    pub fn arena(&self) -> Result<&[u8]> {
        Ok(&self.memory.bytes()?[..self.end()])
    }

    /// A page by its number.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let batch = compressor.pinned_batch(2)?;
    /// assert!(batch.get(0)?.is_none(), "there is room, but no page yet");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`arena`](Self::arena).
    pub fn get(&self, page: usize) -> Result<Option<PageData<'_>>> {
        let arena = self.arena()?;
        self.index.get(page).map(|entry| entry.find(arena)).transpose()
    }

    /// Adds a page at the end, as stored by any compressor, to be restored.
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
    /// [`Error::PageCount`] if the batch is full, [`Error::Unsupported`] for a Zstandard frame, and those of
    /// [`arena`](Self::arena).
    pub fn push(&mut self, page: PageData<'_>) -> Result<()> {
        self.check_room(self.len() + 1)?;
        if page.kind() == PageKind::Zstd {
            return Err(Error::Unsupported { what: "a Zstandard frame".to_owned(), by: "the GPU" });
        }
        let start = self.end();
        let len_bytes = page.bytes().len();
        let place = &mut self.memory.bytes_mut()?[start..][..len_bytes.next_multiple_of(PACK_ALIGN_BYTES as usize)];
        let (held, between) = place.split_at_mut(len_bytes);
        held.copy_from_slice(page.bytes());
        // What was there before is no one's business.
        between.fill(0);
        self.index.push(IndexEntry::new(start as u64, page));
        Ok(())
    }

    /// Forgets the pages and keeps the memory.
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

    /// Refuses a batch of more pages than there is room for.
    pub(crate) fn check_room(&self, pages: usize) -> Result<()> {
        if pages <= self.capacity {
            return Ok(());
        }
        Err(Error::PageCount { batch_pages: pages, destination_pages: self.capacity })
    }

    /// Where the next page goes.
    fn end(&self) -> usize {
        let end = self.index.last().map_or(0, |last| next_place(*last));
        usize::try_from(end).expect("the batch lies in memory")
    }

    pub(crate) fn memory_mut(&mut self) -> &mut P {
        &mut self.memory
    }

    /// To fill it from its start.
    pub(crate) fn packed_to<D: Device<Pinned = P>>(&mut self) -> PackedTo<'_, D> {
        self.index.clear();
        PackedTo { memory: &mut self.memory, index: &mut self.index }
    }

    pub(crate) fn packed_from<D: Device<Pinned = P>>(&mut self) -> PackedFrom<'_, D> {
        PackedFrom { memory: &mut self.memory, index: &self.index }
    }

    pub(crate) fn compressed_pages(&self) -> Result<CompressedPages<'_>> {
        Ok(CompressedPages::Parts { arena: self.arena()?, index: &self.index })
    }
}

const _: () = assert!(PAGE_SIZE.is_multiple_of(PACK_ALIGN_BYTES as usize), "pages that do not shrink leave no gaps");
