//! A stream that compresses.

use super::{SlotStream, StreamSlot};
use crate::arena::{CompressedBatch, IndexEntry, held_bytes};
use crate::batch::gpu_batch_compressor::GpuBatchCompressor;
use crate::batch::result::BatchTimes;
use crate::batch::stats::GpuBatchStats;
use crate::error::Result;
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::stream_slots::SlotLease;
use crate::gpu::ring::transfer::Direction;
use crate::page::{Page, PageData};

impl<D: RingDevice> GpuBatchCompressor<D> {
    /// Starts a stream of pages to compress.
    ///
    /// Pages are written straight into page-locked memory, slot by slot, and compressed pages are read from page-locked
    /// memory, in the order in which the slots were submitted. Slots follow each other on the GPU without a pause. The
    /// stream has three times [`ring_buffer_slots`](crate::gpu::GpuBatchConfig::ring_buffer_slots) slots of
    /// [`batch_size`](crate::gpu::GpuBatchConfig::batch_size) pages, allocated when they are first needed and kept for the next
    /// stream.
    ///
    /// Each slot has a tag, which comes back with its result; its methods are those of [`PageStream`](super::PageStream).
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    ///
    /// # let config = GpuBatchConfig { batch_size: 10, ..GpuBatchConfig::default() };
    /// let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         for round in 0..20 {
    ///             let mut slot = stream.slot()?;
    ///             slot.pages_mut().fill([round; 4096]); // for example, read a file into them
    ///             stream.submit(slot, round)?;
    ///         }
    ///         stream.close();
    ///         Ok::<(), trueno_zram_core::Error>(())
    ///     });
    ///     let mut rounds = 0;
    ///     while let Some((compressed, round)) = stream.next()? {
    ///         assert_eq!((compressed.get(9).map(|page| page.bytes().to_vec()), round), (Some(vec![rounds; 8]), rounds));
    ///         rounds += 1;
    ///     }
    ///     assert_eq!(rounds, 20);
    ///     Ok::<(), trueno_zram_core::Error>(())
    /// })?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. If the device fails, the CPU compresses the pages of the slots.
    pub fn compress_stream<T>(&mut self) -> Result<CompressStream<'_, D, T>> {
        SlotStream::new(self)
    }
}

/// Slots of pages to compress, made by
/// [`GpuBatchCompressor::compress_stream`](crate::gpu::GpuBatchCompressor::compress_stream).
///
/// ```
/// # use trueno_zram_core::gpu::{CompressStream, GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
/// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
/// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
/// let stream: CompressStream<_, &str> = compressor.compress_stream()?;
/// stream.submit(stream.slot()?, "the tag of this slot")?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub type CompressStream<'a, D = Cuda, T = ()> = SlotStream<'a, PageSlot<D>, T>;

/// Page-locked memory to fill with pages, for a [`CompressStream`]. Dropping it returns it unused.
///
/// Its pages have arbitrary content at first. Once the GPU is no longer used, slots are in ordinary memory.
///
/// ```
/// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
/// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
/// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
/// let stream = compressor.compress_stream::<()>()?;
/// let mut slot = stream.slot()?;
/// slot.pages_mut()[0] = [7; 4096];
/// assert_eq!(slot.len(), 2);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PageSlot<D: RingDevice = Cuda> {
    lease: SlotLease<D>,
}

impl<D: RingDevice> PageSlot<D> {
    /// Returns the number of pages in use: all of them, unless [`set_len`](Self::set_len) was called.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lease.pages
    }

    /// Returns `true` if no page is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Uses the first `pages` pages only.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// let mut last = stream.slot()?;
    /// last.set_len(1); // the file ends after one page
    /// stream.submit(last, ())?;
    /// assert_eq!(stream.next()?.map(|(compressed, ())| compressed.len()), Some(1));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the slot has fewer.
    pub fn set_len(&mut self, pages: usize) {
        assert!(pages <= self.lease.capacity(), "{pages} pages in a slot of {}", self.lease.capacity());
        self.lease.pages = pages;
    }

    /// Returns the pages.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        &self.lease.input().as_chunks().0[..self.lease.pages]
    }

    /// Returns the pages, to be filled.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream::<()>()?;
    /// let mut slot = stream.slot()?;
    /// for (page, byte) in slot.pages_mut().iter_mut().zip(1..) {
    ///     page.fill(byte);
    /// }
    /// assert_eq!(slot.pages()[1], [2; 4096]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn pages_mut(&mut self) -> &mut [Page] {
        let len = self.len();
        &mut self.lease.input_mut().as_chunks_mut().0[..len]
    }
}

/// The compressed pages of one slot, in page-locked memory. Dropping it frees the slot to be filled again.
///
/// ```
/// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
/// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
/// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
/// let stream = compressor.compress_stream()?;
/// let mut slot = stream.slot()?;
/// slot.pages_mut().fill([7; 4096]);
/// stream.submit(slot, ())?;
/// let (compressed, ()) = stream.next()?.expect("a slot was submitted");
/// assert_eq!(compressed.get(1).map(|page| page.bytes().to_vec()), Some(vec![7; 8]));
/// assert_eq!(compressed.pages(), [[7; 4096]; 2]); // to write pages that do not shrink, for example
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct CompressedSlot<D: RingDevice = Cuda> {
    lease: SlotLease<D>,
    /// The result, if the device did not make it.
    by_cpu: Option<CompressedBatch>,
    times: BatchTimes,
}

impl<D: RingDevice> CompressedSlot<D> {
    /// Returns the number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lease.pages
    }

    /// Returns `true` if there are no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pages as they were submitted.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        &self.lease.input().as_chunks().0[..self.lease.pages]
    }

    /// Returns the bytes of all compressed pages, with up to 15 bytes of padding between two of them.
    #[must_use]
    pub fn arena(&self) -> &[u8] {
        self.by_cpu.as_ref().map_or_else(|| self.lease.packed(), CompressedBatch::arena)
    }

    /// Returns the position of each page in [`arena`](Self::arena).
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// stream.submit(stream.slot()?, ())?;
    /// let (compressed, ()) = stream.next()?.expect("a slot was submitted");
    /// let entry = compressed.index()[1];
    /// let start = entry.offset as usize;
    /// let bytes = &compressed.arena()[start..start + usize::from(entry.len_bytes)];
    /// assert_eq!(compressed.get(1).map(|page| page.bytes()), Some(bytes));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn index(&self) -> &[IndexEntry] {
        self.by_cpu.as_ref().map_or(&self.lease.entries, CompressedBatch::index)
    }

    /// Returns a compressed page by its number.
    #[must_use]
    pub fn get(&self, page: usize) -> Option<PageData<'_>> {
        let entry = self.index().get(page)?;
        Some(entry.find(self.arena()).expect("the index was checked when it was made"))
    }

    /// Returns an iterator over all compressed pages, in order.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// let mut slot = stream.slot()?;
    /// slot.pages_mut().fill([3; 4096]);
    /// stream.submit(slot, ())?;
    /// let (compressed, ()) = stream.next()?.expect("a slot was submitted");
    /// assert!(compressed.iter().all(|page| page.bytes() == [3; 8]));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PageData<'_>> {
        let arena = self.arena();
        self.index().iter().map(|entry| entry.find(arena).expect("the index was checked when it was made"))
    }

    /// Returns the time of each stage. The total starts when the slot was submitted, or when the result before it was taken.
    #[must_use]
    pub fn times(&self) -> BatchTimes {
        self.times
    }

    /// Turns the memory into a slot to fill again. Unlike [`try_slot`](super::PageStream::try_slot), this does not wait for threads that
    /// use the stream.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ring_buffer_slots: 1, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// let mut slot = stream.slot()?;
    /// for round in 0..5 {
    ///     slot.pages_mut().fill([round; 4096]);
    ///     stream.submit(slot, ())?;
    ///     let (compressed, ()) = stream.next()?.expect("a slot was submitted");
    ///     assert_eq!(compressed.get(1).map(|page| page.bytes().to_vec()), Some(vec![round; 8]));
    ///     slot = compressed.into_slot();
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn into_slot(self) -> PageSlot<D> {
        PageSlot::new(self.lease.into_fillable())
    }
}

impl<D: RingDevice> StreamSlot for PageSlot<D> {
    type Device = D;
    type Done = CompressedSlot<D>;
    const DIRECTION: Direction = Direction::Compress;

    fn new(mut lease: SlotLease<D>) -> Self {
        lease.pages = lease.capacity();
        Self { lease }
    }

    fn into_lease(self) -> SlotLease<D> {
        self.lease
    }

    fn finish(compressor: &mut GpuBatchCompressor<D>, lease: SlotLease<D>) -> Result<CompressedSlot<D>> {
        let by_cpu = match lease.device_times {
            Some(_) => None,
            None => Some(compressor.cpu.compress(&lease.input().as_chunks().0[..lease.pages])?),
        };
        Ok(CompressedSlot { lease, by_cpu, times: BatchTimes::default() })
    }

    fn count(done: &mut CompressedSlot<D>, times: BatchTimes, stats: &mut GpuBatchStats) {
        done.times = times;
        stats.add_compressed(done.len(), held_bytes(done.index()), times.total_time_ns);
    }
}
