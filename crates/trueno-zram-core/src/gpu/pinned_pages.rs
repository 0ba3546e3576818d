//! Page-locked pages that the caller fills.

use super::bounded_drop::BoundedDrop;
use super::pinned::PinnedBuffer;
use super::ring::device::PinnedMemory;
use crate::error::Result;
use crate::page::{PAGE_SIZE, Page};

/// Pages in page-locked memory, which the GPU reads and writes directly, without an extra copy.
///
/// Created by [`GpuBatchCompressor::pinned_pages`](super::GpuBatchCompressor::pinned_pages). Every compressor of the
/// process can use them, on any GPU. Page-locked memory cannot be swapped out and is slow to allocate, so create it
/// once and reuse it.
///
/// Dropping waits for kernels that run in the same CUDA context, but no longer than the compressor's
/// [time limit](super::GpuOptions::time_limit). Memory not freed by then is freed when the kernels end.
///
/// ```no_run
/// use trueno_zram_core::CompressedBatch;
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
///
/// let mut compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
/// let mut pages = compressor.pinned_pages(100_000)?;
/// pages.pages_mut()?[7].fill(7); // for example, read a file into them
/// let mut batch = CompressedBatch::new();
/// compressor.compress_pinned_into(&mut pages, &mut batch, &())?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PinnedPages<P: PinnedMemory = PinnedBuffer> {
    memory: BoundedDrop<P>,
    capacity: usize,
    len: usize,
}

impl<P: PinnedMemory> PinnedPages<P> {
    pub(crate) fn new(memory: BoundedDrop<P>, pages: usize) -> Self {
        Self { memory, capacity: pages, len: pages }
    }

    /// Returns the number of pages.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// assert_eq!(compressor.pinned_pages(100)?.len(), 100);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no pages.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// assert!(compressor.pinned_pages(0)?.is_empty());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Uses only the first `pages` of the allocated pages, for a batch that is smaller than the others.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let mut pages = compressor.pinned_pages(100)?;
    /// pages.set_len(60);
    /// pages.set_len(100); // all pages are still there
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If fewer pages were allocated.
    pub fn set_len(&mut self, pages: usize) {
        assert!(pages <= self.capacity, "{pages} pages requested, but only {} allocated", self.capacity);
        self.len = pages;
    }

    /// Returns the pages.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let pages = compressor.pinned_pages(100)?;
    /// assert!(pages.pages()?.iter().all(|page| *page == [0; 4096]), "as allocated");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if the device was given up while it wrote the pages.
    pub fn pages(&self) -> Result<&[Page]> {
        Ok(&self.memory.bytes()?.as_chunks::<PAGE_SIZE>().0[..self.len])
    }

    /// Returns the pages mutably.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let mut pages = compressor.pinned_pages(100)?;
    /// pages.pages_mut()?[99] = [1; 4096];
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if the device was given up while it used the pages.
    pub fn pages_mut(&mut self) -> Result<&mut [Page]> {
        Ok(&mut self.memory.bytes_mut()?.as_chunks_mut::<PAGE_SIZE>().0[..self.len])
    }

    pub(crate) fn memory_mut(&mut self) -> &mut P {
        &mut self.memory
    }
}
