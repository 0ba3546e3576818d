//! Batches in page-locked memory, which the GPU reads and writes directly.

use std::time::Instant;

use super::gpu_batch_compressor::GpuBatchCompressor;
use super::result::BatchTimes;
use crate::arena::{CompressedBatch, check_destination, check_room, fill_or_clear};
use crate::error::Result;
use crate::gpu::GpuError;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::pinned::HostCaching;
use crate::gpu::ring::CallOutcome;
use crate::gpu::ring::calls::{PackedFrom, PagesFrom};
use crate::gpu::ring::device::{DeviceAllocator, PinnedMemory, RingDevice};
use crate::gpu::{PinnedBatch, PinnedPages};
use crate::page::PAGE_SIZE;
use crate::progress::Progress;

impl<D: RingDevice> GpuBatchCompressor<D> {
    /// Allocates page-locked memory for pages, all zero.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let pages = compressor.pinned_pages(1000)?; // to fill, and to compress without a copy
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu) if the device was given up, or there is not as much memory.
    pub fn pinned_pages(&self, pages: usize) -> Result<PinnedPages<D::Pinned>> {
        Ok(PinnedPages::new(self.pinned_memory(pages)?, pages))
    }

    /// Allocates page-locked memory for as many compressed pages, however well they compress.
    ///
    /// ```no_run
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # let compressor = GpuBatchCompressor::new(GpuBatchConfig::default())?;
    /// let batch = compressor.pinned_batch(1000)?;
    /// assert_eq!(batch.capacity(), 1000);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`pinned_pages`](Self::pinned_pages).
    pub fn pinned_batch(&self, pages: usize) -> Result<PinnedBatch<D::Pinned>> {
        Ok(PinnedBatch::new(self.pinned_memory(pages)?, pages))
    }

    fn pinned_memory(&self, pages: usize) -> Result<BoundedDrop<D::Pinned>> {
        let too_many = GpuError::OutOfRange { what: "number of pages", value: pages as i128 };
        let len_bytes = pages.checked_mul(PAGE_SIZE).ok_or(too_many)?;
        Ok(BoundedDrop::new(self.device()?.allocator().pinned(len_bytes, HostCaching::Cached)?, self.shape.time_limit))
    }

    /// Compresses pages that lie in page-locked memory: the GPU fetches them from there.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # use trueno_zram_core::CompressedBatch;
    /// let mut pages = compressor.pinned_pages(2)?;
    /// pages.pages_mut()?[1].fill(9);
    /// let mut batch = CompressedBatch::new();
    /// compressor.compress_pinned_into(&mut pages, &mut batch, &())?;
    /// # assert_eq!(batch.get(1).map(|page| page.bytes().to_vec()), Some(vec![9; 8]));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`compress_batch`](Self::compress_batch); and [`Error::Gpu`](crate::Error::Gpu) if a device
    /// was given up that may still write the pages.
    pub fn compress_pinned_into(
        &mut self,
        pages: &mut PinnedPages<D::Pinned>,
        batch: &mut CompressedBatch,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        self.compress_from(PagesFrom::Pinned(pages), batch, progress)
    }

    /// Compresses pages that lie in page-locked memory to page-locked memory: the GPU reads the pages and writes the
    /// result, and the CPU's cores have nothing to do.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let (mut pages, mut batch) = (compressor.pinned_pages(2)?, compressor.pinned_batch(2)?);
    /// for round in 0..3 {
    ///     pages.pages_mut()?[1].fill(round);
    ///     compressor.compress_all_pinned(&mut pages, &mut batch, &())?;
    ///     assert_eq!(batch.get(1)?.map(|page| page.bytes().to_vec()), Some(vec![round; 8]));
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if there is not room for as many pages;
    /// [`Error::Gpu`](crate::Error::Gpu) if the device, or the one that used the batch before, was
    /// given up while a copy to or from the batch was in flight that nothing can wait for.
    pub fn compress_all_pinned(
        &mut self,
        pages: &mut PinnedPages<D::Pinned>,
        batch: &mut PinnedBatch<D::Pinned>,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        let len = pages.len();
        self.check_process()?;
        check_room(len, batch.capacity())?;
        let start = Instant::now();
        let may_use = self.adopt([pages.memory_mut(), batch.memory_mut()]);
        if !may_use || self.ring.is_none() {
            // The CPU will write there. If it cannot, the pages that are there can still be read.
            batch.memory_mut().bytes_mut()?;
        }
        batch.clear();
        fill_or_clear(batch, PinnedBatch::clear, |batch| {
            let mut outcome = CallOutcome::default();
            if let Some(ring) = self.ring.as_mut().filter(|_| may_use) {
                outcome = ring.compress_all_pinned(self.cpu.pool(), pages, batch, progress);
            }
            self.ensure_accessible(batch.memory_mut(), &mut outcome)?;
            if self.note_outcome(&outcome, len - outcome.pages_done) {
                // Bytes that the GPU only reads are accessible even while it hangs.
                let mut left = CompressedBatch::new();
                self.cpu.compress_into(&pages.pages()?[outcome.pages_done..], &mut left, progress)?;
                left.iter().try_for_each(|page| batch.push(page))?;
            }
            Ok(self.count_compressed(batch.index(), &outcome, start))
        })
    }

    /// Restores all pages of a batch to page-locked memory: the GPU puts them there.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # use trueno_zram_core::CpuBatchCompressor;
    /// let batch = CpuBatchCompressor::default().compress(&[[3; 4096]; 2])?;
    /// let mut pages = compressor.pinned_pages(2)?;
    /// compressor.decompress_pinned_into(&batch, &mut pages, &())?;
    /// assert_eq!(pages.pages()?, [[3; 4096]; 2]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`decompress_into`](Self::decompress_into); a corrupt page's place holds nothing of other pages.
    /// [`Error::Gpu`](crate::Error::Gpu) if the device, or the one that used the pages before, was
    /// given up while a copy to the pages was in flight that nothing can wait for.
    pub fn decompress_pinned_into(
        &mut self,
        batch: &CompressedBatch,
        pages: &mut PinnedPages<D::Pinned>,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        self.restore_pinned(PackedFrom::Memory(batch.into()), pages, progress)
    }

    /// Restores all pages of a batch in page-locked memory to page-locked memory: the GPU reads the pages and writes the
    /// result, and the CPU's cores have nothing to do.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # use trueno_zram_core::{PageData, PageKind};
    /// let mut batch = compressor.pinned_batch(1)?;
    /// batch.push(PageData::new(PageKind::SameFilled, &[3; 8])?)?;
    /// let mut pages = compressor.pinned_pages(1)?;
    /// compressor.decompress_all_pinned(&mut batch, &mut pages, &())?;
    /// assert_eq!(pages.pages()?, [[3; 4096]]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`decompress_pinned_into`](Self::decompress_pinned_into).
    pub fn decompress_all_pinned(
        &mut self,
        batch: &mut PinnedBatch<D::Pinned>,
        pages: &mut PinnedPages<D::Pinned>,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        self.restore_pinned(PackedFrom::Pinned(batch), pages, progress)
    }

    fn restore_pinned(
        &mut self,
        mut from: PackedFrom<'_, D>,
        pages: &mut PinnedPages<D::Pinned>,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        self.check_process()?;
        check_destination(from.len(), pages.len())?;
        let start = Instant::now();
        let may_use = match &mut from {
            PackedFrom::Memory(_) => self.adopt([pages.memory_mut()]),
            PackedFrom::Pinned(batch) => self.adopt([batch.memory_mut(), pages.memory_mut()]),
        };
        if !may_use {
            pages.memory_mut().bytes_mut()?;
        }
        let mut outcome = CallOutcome::default();
        if let Some(ring) = self.ring.as_mut().filter(|_| may_use) {
            outcome = ring.decompress_pinned(self.cpu.pool(), &mut from, pages, progress);
        }
        let from = from.pages()?;
        self.ensure_accessible(pages.memory_mut(), &mut outcome)?;
        let to = pages.pages_mut()?;
        // The device may have put there what an earlier batch left in its memory.
        outcome.unrestored.iter().for_each(|left| to[left.page].fill(0));
        if outcome.failure.is_some() {
            to[outcome.pages_done..].fill([0; PAGE_SIZE]);
        }
        self.finish_restoring(from, to, outcome, start, progress)
    }

    /// Lets this device use page-locked memory of another device. Returns `false` if it cannot: then the CPU does the batch.
    /// That is counted, but not as a failure of this device: another one may still be using the memory.
    pub(super) fn adopt<const N: usize>(&mut self, memory: [&mut D::Pinned; N]) -> bool {
        // The call itself reports a device that is lost.
        let device = self.ring.as_ref().map(|ring| &ring.device).filter(|device| device.loss().is_none());
        let adopted = device.map(|device| memory.into_iter().try_for_each(|memory| device.adopt(memory)));
        let Some(Err(error)) = adopted else { return true };
        self.stats.fallback.add(0, format!("page-locked memory of another device: {error}"));
        false
    }

    /// Makes page-locked memory that a call wrote accessible to the CPU. Returns an error if that is not possible.
    fn ensure_accessible(&mut self, memory: &mut D::Pinned, outcome: &mut CallOutcome) -> Result<()> {
        let Err(error) = memory.bytes_mut().map(drop) else { return Ok(()) };
        // Delivered pages have arrived: if no copy is in flight, they are there, whatever failed since.
        let _ = memory.settle(self.shape.time_limit);
        let lost = outcome.failure.get_or_insert(error).clone();
        if memory.bytes_mut().is_ok() {
            return Ok(());
        }
        self.note_outcome(outcome, 0);
        Err(lost.into())
    }
}
