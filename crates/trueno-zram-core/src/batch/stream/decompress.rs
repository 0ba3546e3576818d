//! A stream that decompresses.

use super::{SlotStream, StreamSlot};
use crate::arena::check_room;
use crate::batch::gpu_batch_compressor::GpuBatchCompressor;
use crate::batch::result::BatchTimes;
use crate::batch::stats::GpuBatchStats;
use crate::cpu::PageCodec;
use crate::error::{Error, Result};
use crate::gpu::ring::compressed_pages::{CompressedPages, UnrestoredReason};
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::slot_index::push_packed;
use crate::gpu::ring::stream_slots::SlotLease;
use crate::gpu::ring::transfer::Direction;
use crate::page::{PAGE_SIZE, Page, PageData};

impl<D: RingDevice> GpuBatchCompressor<D> {
    /// Starts a stream of compressed pages to restore. It is the counterpart of
    /// [`compress_stream`](Self::compress_stream), with the same rules.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// use trueno_zram_core::{PageData, PageKind};
    ///
    /// let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let stream = compressor.decompress_stream()?;
    /// let mut slot = stream.slot()?;
    /// slot.push(PageData::new(PageKind::SameFilled, &[7; 8])?)?;
    /// slot.push(PageData::new(PageKind::Lz4, &[0xff; 40])?)?; // not a page
    /// stream.submit(slot, "two pages")?;
    /// stream.close();
    /// while let Some((restored, _tag)) = stream.next()? {
    ///     assert_eq!(restored.pages()[0], [7; 4096]);
    ///     println!("{}", restored.check().unwrap_err()); // page 1: corrupt LZ4 block: ...
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. If the device fails, the CPU restores the pages of the slots.
    pub fn decompress_stream<T>(&mut self) -> Result<DecompressStream<'_, D, T>> {
        SlotStream::new(self)
    }
}

/// Slots of compressed pages to restore, made by
/// [`GpuBatchCompressor::decompress_stream`](crate::gpu::GpuBatchCompressor::decompress_stream).
///
/// ```
/// # use trueno_zram_core::gpu::{DecompressStream, GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
/// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
/// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
/// let stream: DecompressStream<_, usize> = compressor.decompress_stream()?;
/// assert!(stream.slot()?.is_empty());
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub type DecompressStream<'a, D = Cuda, T = ()> = SlotStream<'a, PackedSlot<D>, T>;

/// Page-locked memory to fill with compressed pages, for a [`DecompressStream`]. Dropping it returns it unused.
///
/// ```
/// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
/// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
/// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
/// # use trueno_zram_core::{PageData, PageKind};
/// let stream = compressor.decompress_stream::<()>()?;
/// let mut slot = stream.slot()?;
/// slot.push(PageData::new(PageKind::SameFilled, &[7; 8])?)?;
/// slot.clear();
/// assert!(slot.is_empty() && slot.capacity() == 2);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PackedSlot<D: RingDevice = Cuda> {
    /// Pages lie one after the other, each aligned as the kernel needs it.
    lease: SlotLease<D>,
}

impl<D: RingDevice> PackedSlot<D> {
    /// Returns the number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lease.entries.len()
    }

    /// Returns `true` if there are no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lease.entries.is_empty()
    }

    /// Returns the number of pages that fit, however well they compress.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.lease.capacity()
    }

    /// Adds a compressed page of any kind at the end.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # use trueno_zram_core::{Error, PageData, PageKind};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.decompress_stream::<()>()?;
    /// let mut slot = stream.slot()?;
    /// let page = PageData::new(PageKind::SameFilled, &[7; 8])?;
    /// while slot.len() < slot.capacity() {
    ///     slot.push(page)?;
    /// }
    /// assert!(matches!(slot.push(page), Err(Error::PageCount { .. })));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`] if the slot is full.
    pub fn push(&mut self, page: PageData<'_>) -> Result<()> {
        check_room(self.len() + 1, self.capacity())?;
        let mut index = std::mem::take(&mut self.lease.entries);
        push_packed(self.lease.input_mut(), &mut index, page);
        self.lease.entries = index;
        Ok(())
    }

    /// Removes all pages.
    pub fn clear(&mut self) {
        self.lease.entries.clear();
    }
}

/// The restored pages of one slot, in page-locked memory. Dropping it frees the slot to be filled again.
///
/// ```
/// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
/// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
/// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
/// # use trueno_zram_core::{PageData, PageKind};
/// let stream = compressor.decompress_stream()?;
/// let mut slot = stream.slot()?;
/// slot.push(PageData::new(PageKind::SameFilled, &[7; 8])?)?;
/// stream.submit(slot, ())?;
/// let (restored, ()) = stream.next()?.expect("a slot was submitted");
/// restored.check()?; // no page is corrupt
/// assert_eq!(restored.pages(), [[7; 4096]]);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct RestoredSlot<D: RingDevice = Cuda> {
    lease: SlotLease<D>,
    /// The result, if the device did not make it.
    by_cpu: Option<Vec<Page>>,
    errors: Vec<Error>,
    times: BatchTimes,
}

impl<D: RingDevice> RestoredSlot<D> {
    /// Returns the pages. Corrupt pages are zero.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        self.by_cpu.as_deref().unwrap_or_else(|| self.lease.restored())
    }

    /// Returns the number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages().len()
    }

    /// Returns `true` if there are no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages().is_empty()
    }

    /// Returns an [`Error::InPage`] for each corrupt page, in order, with its number in the slot.
    #[must_use]
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Checks that no page is corrupt.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # use trueno_zram_core::{Error, PageData, PageKind};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let stream = compressor.decompress_stream()?;
    /// let mut slot = stream.slot()?;
    /// slot.push(PageData::new(PageKind::Lz4, &[0xff; 40])?)?; // not a page
    /// stream.submit(slot, ())?;
    /// let (restored, ()) = stream.next()?.expect("a slot was submitted");
    /// assert!(matches!(restored.check(), Err(Error::InPage { index: 0, .. })));
    /// assert_eq!((restored.errors().len(), restored.pages()), (1, &[[0; 4096]][..]));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first of [`errors`](Self::errors).
    pub fn check(&self) -> Result<()> {
        self.errors.first().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Returns the time of each stage. The total starts when the slot was submitted, or when the result before it was taken.
    #[must_use]
    pub fn times(&self) -> BatchTimes {
        self.times
    }

    /// Turns the memory into an empty slot to fill again. Unlike [`try_slot`](super::PageStream::try_slot), this does not wait for
    /// threads that use the stream.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # use trueno_zram_core::{PageData, PageKind};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let stream = compressor.decompress_stream()?;
    /// let mut slot = stream.slot()?;
    /// for round in 0..5 {
    ///     slot.push(PageData::new(PageKind::SameFilled, &[round; 8])?)?;
    ///     stream.submit(slot, ())?;
    ///     let (restored, ()) = stream.next()?.expect("a slot was submitted");
    ///     assert_eq!(restored.pages(), [[round; 4096]]);
    ///     slot = restored.into_slot();
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn into_slot(self) -> PackedSlot<D> {
        PackedSlot::new(self.lease.into_fillable())
    }
}

impl<D: RingDevice> StreamSlot for PackedSlot<D> {
    type Device = D;
    type Done = RestoredSlot<D>;
    const DIRECTION: Direction = Direction::Decompress;

    fn new(mut lease: SlotLease<D>) -> Self {
        lease.entries.clear();
        Self { lease }
    }

    fn into_lease(mut self) -> SlotLease<D> {
        self.lease.pages = self.len();
        self.lease
    }

    fn finish(compressor: &mut GpuBatchCompressor<D>, mut lease: SlotLease<D>) -> Result<RestoredSlot<D>> {
        let (by_cpu, errors) = match lease.device_times {
            Some(_) => (None, compressor.decode_unrestored(&mut lease)),
            None => {
                let (pages, errors) = compressor.restore_by_cpu(&lease);
                (Some(pages), errors)
            }
        };
        Ok(RestoredSlot { lease, by_cpu, errors, times: BatchTimes::default() })
    }

    fn count(done: &mut RestoredSlot<D>, times: BatchTimes, stats: &mut GpuBatchStats) {
        done.times = times;
        stats.add_decompressed(done.len(), times.total_time_ns);
    }
}

impl<D: RingDevice> GpuBatchCompressor<D> {
    /// Decodes every page that the device did not restore on the CPU. Returns the errors of those that are corrupt.
    fn decode_unrestored(&mut self, lease: &mut SlotLease<D>) -> Vec<Error> {
        let index = std::mem::take(&mut lease.entries);
        let (arena, unrestored, pages) = lease.restored_parts();
        let from = CompressedPages::Parts { arena, index: &index };
        let errors = restore_each(from, unrestored.iter().map(|page| page.page), pages);
        let is_sound = |page| !errors.iter().any(|error| is_of(error, page));
        let unsupported = unrestored.iter().filter(|page| page.reason == UnrestoredReason::Unsupported).count();
        let sound =
            unrestored.iter().filter(|page| page.reason == UnrestoredReason::Corrupt && is_sound(page.page)).count();
        self.note_unsupported(unsupported);
        self.note_refused(sound);
        lease.entries = index;
        errors
    }

    fn restore_by_cpu(&mut self, lease: &SlotLease<D>) -> (Vec<Page>, Vec<Error>) {
        let from = CompressedPages::Parts { arena: lease.input(), index: &lease.entries };
        let mut pages = vec![[0; PAGE_SIZE]; lease.pages];
        let errors = match self.cpu.restore(|page| from.get(page), 0, &mut pages, &()) {
            Ok(()) => Vec::new(),
            // All of them, not only the first.
            Err(_) => restore_each(from, 0..lease.pages, &mut pages),
        };
        (pages, errors)
    }
}

fn is_of(error: &Error, page: usize) -> bool {
    matches!(error, Error::InPage { index, .. } if *index == page)
}

/// Restores single pages. Zeroes those that are corrupt and returns their errors.
fn restore_each(from: CompressedPages<'_>, numbers: impl Iterator<Item = usize>, pages: &mut [Page]) -> Vec<Error> {
    let mut codec = PageCodec::default();
    let restore = |page: usize| {
        let restored = codec.decompress(from.get(page), &mut pages[page]);
        restored.inspect_err(|_| pages[page].fill(0)).err().map(|error| error.in_page(page))
    };
    numbers.filter_map(restore).collect()
}
