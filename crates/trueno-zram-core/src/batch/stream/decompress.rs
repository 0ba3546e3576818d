//! A stream that decompresses.

use trueno_gpu::kernels::packed::PACK_ALIGN_BYTES;

use super::{Next, State, Stream};
use crate::arena::IndexEntry;
use crate::batch::gpu::GpuBatchCompressor;
use crate::batch::result::BatchTimes;
use crate::cpu::PageCodec;
use crate::error::{Error, Result};
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::decompress::{CompressedPages, Refusal};
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::entries::next_place;
use crate::gpu::ring::session::{Direction, Filled, Finished};
use crate::gpu::ring::{Lease, StageTimes};
use crate::page::{PAGE_SIZE, Page, PageData};

impl<D: RingDevice> GpuBatchCompressor<D> {
    /// Starts a stream of compressed pages to restore. It is the counterpart of
    /// [`compress_stream`](Self::compress_stream), with the same rules.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// use trueno_zram_core::{PageData, PageKind};
    ///
    /// let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let stream = compressor.decompress_stream()?;
    /// let mut slot = stream.slot()?;
    /// slot.push(PageData::new(PageKind::SameFilled, &[7; 8])?)?;
    /// slot.push(PageData::new(PageKind::Lz4, &[0xff; 40])?)?; // not a page
    /// stream.submit(slot)?;
    /// stream.close();
    /// while let Some(restored) = stream.next()? {
    ///     assert_eq!(restored.pages()[0], [7; 4096]);
    ///     println!("{}", restored.check().unwrap_err()); // page 1: corrupt LZ4 block: ...
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. If the device fails, the CPU restores the pages of the slots.
    pub fn decompress_stream(&mut self) -> Result<DecompressStream<'_, D>> {
        self.check_process()?;
        Ok(DecompressStream { stream: Stream::new(self, Direction::Decompress) })
    }
}

/// Slots of compressed pages on their way through a GPU, made by
/// [`GpuBatchCompressor::decompress_stream`](crate::gpu::GpuBatchCompressor::decompress_stream).
///
/// The rules are those of [`CompressStream`](super::CompressStream).
#[derive(Debug)]
pub struct DecompressStream<'a, D: RingDevice = Cuda> {
    stream: Stream<'a, D>,
}

impl<D: RingDevice> DecompressStream<'_, D> {
    /// Returns an empty slot to fill, and waits until one is free: until a [`RestoredSlot`] is dropped, that is.
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn slot(&self) -> Result<PackedSlot<D>> {
        self.stream.slot().map(PackedSlot::new)
    }

    /// Returns an empty slot to fill, or `None` if all are in use.
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn try_slot(&self) -> Result<Option<PackedSlot<D>>> {
        Ok(self.stream.try_slot()?.map(PackedSlot::new))
    }

    /// Submits the compressed pages of a slot.
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over.
    pub fn submit(&self, slot: PackedSlot<D>) -> Result<()> {
        self.stream.submit(slot.lease, slot.index.len(), slot.index)
    }

    /// Returns the result of the oldest slot that was submitted and not taken, and waits for it. Returns `None` when the
    /// stream is [closed](Self::close) and nothing is left.
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`](crate::gpu::GpuError::OtherProcess) in a forked child. A device failure is not an error: the CPU takes over. Corrupt pages are errors of the [slot](RestoredSlot::check).
    pub fn next(&self) -> Result<Option<RestoredSlot<D>>> {
        self.stream.next(State::restored)
    }

    /// Returns the result of the oldest slot that was submitted and not taken, or `None` if it is not ready.
    ///
    /// # Errors
    /// The errors of [`next`](Self::next).
    pub fn try_next(&self) -> Result<Option<RestoredSlot<D>>> {
        self.stream.try_next(State::restored)
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

/// Page-locked memory to fill with compressed pages, for [`DecompressStream::submit`]. Dropped, it goes back unused.
#[derive(Debug)]
pub struct PackedSlot<D: RingDevice = Cuda> {
    lease: Lease<D>,
    /// Entries lie one after the other, each at a multiple of [`PACK_ALIGN_BYTES`].
    index: Vec<IndexEntry>,
}

impl<D: RingDevice> PackedSlot<D> {
    fn new(lease: Lease<D>) -> Self {
        Self { lease, index: Vec::new() }
    }

    /// The number of pages in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The number of pages that fit, whatever they hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.lease.capacity()
    }

    /// Adds a compressed page of any kind at the end.
    ///
    /// # Errors
    /// [`Error::PageCount`] if the slot is full.
    pub fn push(&mut self, page: PageData<'_>) -> Result<()> {
        if self.len() == self.capacity() {
            return Err(Error::PageCount { batch_pages: self.len() + 1, destination_pages: self.capacity() });
        }
        let start = self.index.last().map_or(0, |last| next_place(*last));
        let place = usize::try_from(start).expect("the slot lies in memory");
        let len_bytes = page.bytes().len();
        let place = &mut self.lease.input_mut()[place..][..len_bytes.next_multiple_of(PACK_ALIGN_BYTES as usize)];
        let (held, between) = place.split_at_mut(len_bytes);
        held.copy_from_slice(page.bytes());
        // Bytes of earlier pages do not leave the host.
        between.fill(0);
        self.index.push(IndexEntry::new(start, page));
        Ok(())
    }

    /// Removes all pages.
    pub fn clear(&mut self) {
        self.index.clear();
    }
}

/// Restored pages of one slot, in page-locked memory. Dropped, the slot can be filled again.
#[derive(Debug)]
pub struct RestoredSlot<D: RingDevice = Cuda> {
    held: Held<D>,
    errors: Vec<Error>,
    times: BatchTimes,
}

/// Where the restored pages are.
#[derive(Debug)]
enum Held<D: RingDevice> {
    ByDevice(Finished<D>),
    ByCpu { lease: Lease<D>, pages: Vec<Page> },
}

impl<D: RingDevice> RestoredSlot<D> {
    /// The pages. Those that are corrupt are zero.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        match &self.held {
            Held::ByDevice(finished) => finished.restored(),
            Held::ByCpu { pages, .. } => pages,
        }
    }

    /// The number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages().is_empty()
    }

    /// An [`Error::InPage`] for each corrupt page, in order, with its number in the slot.
    #[must_use]
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Checks that no page is corrupt.
    ///
    /// # Errors
    /// The first of [`errors`](Self::errors).
    pub fn check(&self) -> Result<()> {
        self.errors.first().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Where the time went. The total starts when the slot was submitted, or when the result before it was taken.
    #[must_use]
    pub fn times(&self) -> BatchTimes {
        self.times
    }

    /// Its memory as an empty slot to fill again. Unlike [`try_slot`](DecompressStream::try_slot), this does not wait for
    /// threads that use the stream.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # use trueno_zram_core::{PageData, PageKind};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let stream = compressor.decompress_stream()?;
    /// let mut slot = stream.slot()?;
    /// for round in 0..5 {
    ///     slot.push(PageData::new(PageKind::SameFilled, &[round; 8])?)?;
    ///     stream.submit(slot)?;
    ///     let restored = stream.next()?.expect("a slot was submitted");
    ///     assert_eq!(restored.pages(), [[round; 4096]]);
    ///     slot = restored.into_slot();
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn into_slot(self) -> PackedSlot<D> {
        PackedSlot::new(match self.held {
            Held::ByDevice(finished) => finished.into_lease(),
            Held::ByCpu { lease, .. } => lease.into_fillable(),
        })
    }
}

impl<D: RingDevice> State<'_, D> {
    fn restored(&mut self, next: Next<D>) -> Result<RestoredSlot<D>> {
        let (held, errors, stages, submitted) = match next {
            Next::ByDevice(mut finished) => {
                let errors = self.restore_left(&mut finished);
                let (stages, submitted) = (finished.times(), finished.submitted());
                (Held::ByDevice(finished), errors, stages, submitted)
            }
            Next::ForCpu(filled) => {
                let (pages, errors) = self.restore_by_cpu(&filled);
                (Held::ByCpu { lease: filled.lease, pages }, errors, StageTimes::default(), filled.submitted)
            }
        };
        let times = self.times(stages, submitted);
        let slot = RestoredSlot { held, errors, times };
        self.compressor.stats_mut().add_decompressed(slot.len(), times.total_time_ns);
        Ok(slot)
    }

    /// Has the CPU look at every page that the device did not restore: it restores it, or says what is wrong with it.
    fn restore_left(&mut self, finished: &mut Finished<D>) -> Vec<Error> {
        let (arena, index, left, pages) = finished.left_parts();
        let errors = restore_each(CompressedPages::Parts { arena, index }, left.iter().map(|left| left.page), pages);
        let is_sound = |page| !errors.iter().any(|error| is_of(error, page));
        let unsupported = left.iter().filter(|left| left.refusal == Refusal::Unsupported).count();
        let sound = left.iter().filter(|left| left.refusal == Refusal::Corrupt && is_sound(left.page)).count();
        self.compressor.note_unsupported(unsupported);
        self.compressor.note_refused(sound);
        errors
    }

    fn restore_by_cpu(&mut self, filled: &Filled<D>) -> (Vec<Page>, Vec<Error>) {
        let from = CompressedPages::Parts { arena: filled.lease.input(), index: &filled.entries };
        let mut pages = vec![[0; PAGE_SIZE]; filled.pages];
        let errors = match self.compressor.cpu.restore(|page| from.get(page), 0, &mut pages, &()) {
            Ok(()) => Vec::new(),
            // All of them, not only the first.
            Err(_) => restore_each(from, 0..filled.pages, &mut pages),
        };
        (pages, errors)
    }
}

fn is_of(error: &Error, page: usize) -> bool {
    matches!(error, Error::InPage { index, .. } if *index == page)
}

/// Restores single pages. Returns what is wrong with those that are corrupt, and zeroes them.
fn restore_each(from: CompressedPages<'_>, numbers: impl Iterator<Item = usize>, pages: &mut [Page]) -> Vec<Error> {
    let mut codec = PageCodec::default();
    let restore = |page: usize| {
        let restored = codec.decompress(from.get(page), &mut pages[page]);
        restored.inspect_err(|_| pages[page].fill(0)).err().map(|error| error.in_page(page))
    };
    numbers.filter_map(restore).collect()
}
