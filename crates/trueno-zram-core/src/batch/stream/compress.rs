//! A stream that compresses.

use super::{Next, State, Stream};
use crate::arena::{CompressedBatch, IndexEntry, held_bytes};
use crate::batch::gpu::GpuBatchCompressor;
use crate::batch::result::BatchTimes;
use crate::error::Result;
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::session::{Direction, Finished};
use crate::gpu::ring::{Lease, StageTimes};
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
    /// All methods take `&self`: several threads may fill and submit slots while another takes results.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    ///
    /// # let config = GpuBatchConfig { batch_size: 10, ..GpuBatchConfig::default() };
    /// let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         for round in 0..20 {
    ///             let mut slot = stream.slot()?;
    ///             slot.pages_mut().fill([round; 4096]); // read a file into them, say
    ///             stream.submit(slot)?;
    ///         }
    ///         stream.close();
    ///         Ok::<(), trueno_zram_core::Error>(())
    ///     });
    ///     let mut rounds = 0;
    ///     while let Some(compressed) = stream.next()? {
    ///         assert_eq!(compressed.get(9).map(|page| page.bytes().to_vec()), Some(vec![rounds; 8]));
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
    pub fn compress_stream(&mut self) -> Result<CompressStream<'_, D>> {
        self.check_process()?;
        Ok(CompressStream { stream: Stream::new(self, Direction::Compress) })
    }
}

/// Slots of pages on their way through a GPU, made by
/// [`GpuBatchCompressor::compress_stream`](crate::gpu::GpuBatchCompressor::compress_stream).
///
/// Should the GPU fail, hang or be lost, the CPU compresses the pages of all slots that were submitted and not returned, and
/// counts them as the calls do; no page is lost. Dropping the stream waits for slots in flight, no longer than the time
/// limit, and drops their results. [`PageSlot`]s and [`CompressedSlot`]s may outlive it.
#[derive(Debug)]
pub struct CompressStream<'a, D: RingDevice = Cuda> {
    stream: Stream<'a, D>,
}

impl<D: RingDevice> CompressStream<'_, D> {
    /// Returns a slot to fill, and waits until one is free.
    ///
    /// A slot is free when its [`CompressedSlot`] is dropped. A single thread that fills all slots and takes no result would
    /// wait for ever; it uses [`try_slot`](Self::try_slot), and [`next`](Self::next) if that returns `None`.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// assert_eq!(stream.slot()?.pages_mut().len(), 1000);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn slot(&self) -> Result<PageSlot<D>> {
        self.stream.slot().map(PageSlot::new)
    }

    /// Returns a slot to fill, or `None` if all are in use.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let config = GpuBatchConfig { batch_size: 2, ring_buffer_slots: 1, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// let (mut filled, mut taken) = (0, 0);
    /// while taken < 100 {
    ///     match stream.try_slot()? {
    ///         Some(slot) if filled < 100 => {
    ///             stream.submit(slot)?;
    ///             filled += 1;
    ///         }
    ///         _ => taken += stream.next()?.iter().count(), // `Some`: more was submitted than taken
    ///     }
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn try_slot(&self) -> Result<Option<PageSlot<D>>> {
        Ok(self.stream.try_slot()?.map(PageSlot::new))
    }

    /// Submits the pages of a slot.
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn submit(&self, slot: PageSlot<D>) -> Result<()> {
        self.stream.submit(slot.lease, slot.len, Vec::new())
    }

    /// Returns the result of the oldest slot that was submitted and not taken, and waits for it. Returns `None` when the
    /// stream is [closed](Self::close) and nothing is left.
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn next(&self) -> Result<Option<CompressedSlot<D>>> {
        self.stream.next(State::compressed)
    }

    /// Returns the result of the oldest slot that was submitted and not taken, or `None` if it is not ready.
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn try_next(&self) -> Result<Option<CompressedSlot<D>>> {
        self.stream.try_next(State::compressed)
    }

    /// The number of slots that were submitted and not taken.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.stream.pending()
    }

    /// Says that no more slots will be submitted: [`next`](Self::next) returns `None` after the last one.
    pub fn close(&self) {
        self.stream.close();
    }

    /// The number of pages per slot.
    #[must_use]
    pub fn slot_pages(&self) -> usize {
        self.stream.slot_pages
    }
}

/// Page-locked memory to fill with pages, for [`CompressStream::submit`]. Dropping it returns it unused.
///
/// Its pages hold whatever was there before. They are ordinary memory once the GPU is not used any more.
#[derive(Debug)]
pub struct PageSlot<D: RingDevice = Cuda> {
    lease: Lease<D>,
    len: usize,
}

impl<D: RingDevice> PageSlot<D> {
    fn new(lease: Lease<D>) -> Self {
        Self { len: lease.capacity(), lease }
    }

    /// The number of pages in use: all of them, unless [`set_len`](Self::set_len) says otherwise.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no page is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Uses the first `pages` pages only.
    ///
    /// # Panics
    /// If the slot has fewer.
    pub fn set_len(&mut self, pages: usize) {
        assert!(pages <= self.lease.capacity(), "{pages} pages in a slot of {}", self.lease.capacity());
        self.len = pages;
    }

    /// The pages.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        &self.lease.input().as_chunks().0[..self.len]
    }

    /// The pages, to fill.
    pub fn pages_mut(&mut self) -> &mut [Page] {
        &mut self.lease.input_mut().as_chunks_mut().0[..self.len]
    }
}

/// Compressed pages of one slot, in page-locked memory. Dropped, the slot can be filled again.
#[derive(Debug)]
pub struct CompressedSlot<D: RingDevice = Cuda> {
    pages: usize,
    held: Held<D>,
    times: BatchTimes,
}

/// Where the compressed pages are.
#[derive(Debug)]
enum Held<D: RingDevice> {
    ByDevice(Finished<D>),
    ByCpu { lease: Lease<D>, batch: CompressedBatch },
}

impl<D: RingDevice> CompressedSlot<D> {
    /// The number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages
    }

    /// Returns `true` if there are no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// The pages as they were submitted.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        let lease = match &self.held {
            Held::ByDevice(finished) => finished.lease(),
            Held::ByCpu { lease, .. } => lease,
        };
        &lease.input().as_chunks().0[..self.pages]
    }

    /// The bytes of all compressed pages, with up to 15 bytes of padding between two of them.
    #[must_use]
    pub fn arena(&self) -> &[u8] {
        match &self.held {
            Held::ByDevice(finished) => finished.packed(),
            Held::ByCpu { batch, .. } => batch.arena(),
        }
    }

    /// Where each page lies in [`arena`](Self::arena).
    #[must_use]
    pub fn index(&self) -> &[IndexEntry] {
        match &self.held {
            Held::ByDevice(finished) => finished.entries(),
            Held::ByCpu { batch, .. } => batch.index(),
        }
    }

    /// A compressed page by its number.
    #[must_use]
    pub fn get(&self, page: usize) -> Option<PageData<'_>> {
        let entry = self.index().get(page)?;
        Some(entry.find(self.arena()).expect("the index was checked when it was made"))
    }

    /// All compressed pages, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PageData<'_>> {
        let arena = self.arena();
        self.index().iter().map(|entry| entry.find(arena).expect("the index was checked when it was made"))
    }

    /// Where the time went. The total starts when the slot was submitted, or when the result before it was taken.
    #[must_use]
    pub fn times(&self) -> BatchTimes {
        self.times
    }

    /// Its memory as a slot to fill again. Unlike [`try_slot`](CompressStream::try_slot), this does not wait for threads that
    /// use the stream.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let config = GpuBatchConfig { batch_size: 2, ring_buffer_slots: 1, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// let mut slot = stream.slot()?;
    /// for round in 0..5 {
    ///     slot.pages_mut().fill([round; 4096]);
    ///     stream.submit(slot)?;
    ///     let compressed = stream.next()?.expect("a slot was submitted");
    ///     assert_eq!(compressed.get(1).map(|page| page.bytes().to_vec()), Some(vec![round; 8]));
    ///     slot = compressed.into_slot();
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn into_slot(self) -> PageSlot<D> {
        PageSlot::new(match self.held {
            Held::ByDevice(finished) => finished.into_lease(),
            Held::ByCpu { lease, .. } => lease.into_fillable(),
        })
    }
}

impl<D: RingDevice> State<'_, D> {
    fn compressed(&mut self, next: Next<D>) -> Result<CompressedSlot<D>> {
        let (pages, held, stages, submitted) = match next {
            Next::ByDevice(finished) => {
                let (pages, stages, submitted) = (finished.pages(), finished.times(), finished.submitted());
                (pages, Held::ByDevice(finished), stages, submitted)
            }
            Next::ForCpu(filled) => {
                let mut batch = CompressedBatch::new();
                let pages = &filled.lease.input().as_chunks().0[..filled.pages];
                self.compressor.cpu.compress_into(pages, &mut batch, &())?;
                let (pages, submitted) = (filled.pages, filled.submitted);
                (pages, Held::ByCpu { lease: filled.lease, batch }, StageTimes::default(), submitted)
            }
        };
        let times = self.times(stages, submitted);
        let slot = CompressedSlot { pages, held, times };
        let held_bytes = held_bytes(slot.index());
        self.compressor.stats_mut().add_compressed(pages, held_bytes, times.total_time_ns);
        Ok(slot)
    }
}
