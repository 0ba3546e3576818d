//! Batches on a GPU, with the CPU as its fallback: the one place that decides it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use rayon::ThreadPool;

use super::options::GpuOptions;
use super::result::{BatchResult, BatchTimes, RestoredBatch};
use super::stats::{FallbackStats, GpuBatchStats};
use crate::algorithm::Algorithm;
use crate::arena::{CompressedBatch, IndexEntry, check_destination, fill_or_clear, held_bytes};
use crate::codec::{BatchCodec, CodecStats, sealed};
use crate::cpu::{CpuBatchCompressor, InstructionSet};
use crate::error::Result;
use crate::filled_vec::filled_vec;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::context::GpuContext;
use crate::gpu::ring::arenas::Arenas;
use crate::gpu::ring::calls::PagesFrom;
use crate::gpu::ring::compressed_pages::{CompressedPages, UnrestoredReason};
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::deliver::{into_batch, into_pages};
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::interpreter::Interpreter;
use crate::gpu::ring::{CallOutcome, Ring, RingShape};
use crate::gpu::{GpuBatchConfig, GpuError};
use crate::page::{CompressedPage, PAGE_SIZE, Page, PageData};
use crate::progress::Progress;
use crate::threads::default_gpu_pool;

/// Batches that fail one after the other before the device is not tried again.
const FAILURES_IN_A_ROW: u32 = 3;

/// Compresses and decompresses batches of pages on a GPU.
///
/// A batch may have any number of pages. It is cut into pieces of [`batch_size`](GpuBatchConfig::batch_size) pages, of which
/// at most [`ring_buffer_slots`](GpuBatchConfig::ring_buffer_slots) are in flight at a time: while one is copied to the
/// GPU, another is compressed, a third copied back, and the CPU's cores stage a fourth. Pieces of 256 pages or more are
/// joined up to 4,096 pages, since shorter ones leave the bus idle. All memory for that is allocated when the
/// compressor is made, or when a kind of call is first used.
///
/// If a GPU call fails, the CPU processes the remaining pages: the result is correct, and
/// [`stats`](Self::stats) have their number and the reason. A device that is no longer usable (an illegal address, a failed
/// launch, a kernel that hangs) is not used again.
///
/// A compressor belongs to the process that created it. In a forked child, every call returns
/// [`GpuError::OtherProcess`]: create another compressor there.
///
/// The device's primary context is shared with all of the process. Kernels launched by other users of the context can delay it.
/// Batches wait no longer than the [time limit](GpuOptions::time_limit) in any stage. Dropping waits as long at most: what could
/// not be freed by then is freed when nothing runs in the context any more. Allocating and compiling, in
/// [`new`](Self::new) and when a kind of call is first used, take as long as the driver lets them.
///
/// ```
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, gpu_available};
/// use trueno_zram_core::{Algorithm, PAGE_SIZE};
///
/// # fn main() -> Result<(), trueno_zram_core::Error> {
/// if gpu_available() {
///     let config = GpuBatchConfig {
///         device_index: 0,
///         algorithm: Algorithm::Lz4,
///         batch_size: 1000,
///         async_dma: true,
///         ring_buffer_slots: 4,
///     };
///
///     let mut compressor = GpuBatchCompressor::new(config)?;
///
///     let pages: Vec<[u8; PAGE_SIZE]> = vec![[0u8; PAGE_SIZE]; 1000];
///     let result = compressor.compress_batch(&pages)?;
///
///     println!("Compression ratio: {:.2}x", result.compression_ratio());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GpuBatchCompressor<D: RingDevice = Cuda> {
    config: GpuBatchConfig,
    /// `None` once the device was given up. Between two batches nothing of ours is queued there: what dropping it may wait for
    /// is the work of other users of the context.
    pub(super) ring: Option<BoundedDrop<Ring<D>>>,
    pub(super) cpu: CpuBatchCompressor,
    arenas: Arenas,
    pub(super) stats: GpuBatchStats,
    failures_in_a_row: u32,
    pub(super) shape: RingShape,
    /// The process that made it.
    pub(super) process: u32,
}

impl GpuBatchCompressor {
    /// Opens the device, compiles the kernel and allocates the ring.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig};
    /// # use trueno_zram_core::{Algorithm, Error};
    /// # fn main() -> Result<(), Error> {
    /// # if !trueno_zram_core::gpu::gpu_available() {
    /// #     assert!(matches!(GpuBatchCompressor::new(GpuBatchConfig::default()), Err(Error::GpuNotAvailable(_))));
    /// #     return Ok(());
    /// # }
    ///
    /// let config = GpuBatchConfig::default();
    /// let mut compressor = GpuBatchCompressor::new(config)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for [`Algorithm::None`] and for Zstandard levels above
    /// [`MAX_ZSTD_LEVEL`](GpuBatchConfig::MAX_ZSTD_LEVEL); [`Error::Config`](crate::Error::Config) for sizes out of range;
    /// [`Error::GpuNotAvailable`](crate::Error::GpuNotAvailable), with the driver call and the CUDA error's name, if the device cannot be used.
    pub fn new(config: GpuBatchConfig) -> Result<Self> {
        Self::with_options(config, &GpuOptions::default())
    }

    /// Like [`new`](Self::new), with tuning options.
    ///
    /// ```no_run
    /// use std::num::NonZeroU32;
    /// use trueno_gpu::kernels::packed::Mode;
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// let options = GpuOptions::new().with_mode(Mode::Ratio).with_multiprocessors(NonZeroU32::new(33));
    /// let compressor = GpuBatchCompressor::with_options(GpuBatchConfig::default(), &options)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of `new`.
    pub fn with_options(config: GpuBatchConfig, options: &GpuOptions) -> Result<Self> {
        let format = config.check()?;
        let context = GpuContext::new(config.device_index)?;
        let (mode, slot_pages) = (config.mode(options.mode), config.batch_size);
        let device = Cuda::new(&context, format, mode, options.multiprocessors, slot_pages);
        Self::on(device.map_err(GpuError::not_available)?, config, options)
    }
}

impl GpuBatchCompressor<Interpreter> {
    /// Creates a compressor whose kernels run in the interpreter, without a GPU. It checks every memory access, and is four
    /// orders of magnitude slower than a GPU.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// use trueno_zram_core::{PAGE_SIZE, PageCodec, PageKind};
    ///
    /// let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i / 64) as u8);
    /// let result = compressor.compress_batch(&[page])?;
    /// assert_eq!(result.pages[0].kind(), PageKind::Lz4);
    /// let mut restored = [0; PAGE_SIZE];
    /// PageCodec::default().decompress(result.pages[0].data(), &mut restored)?;
    /// assert_eq!(restored, page);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), one of the errors of `new`.
    pub fn interpreted(config: GpuBatchConfig, options: &GpuOptions) -> Result<Self> {
        let format = config.check()?;
        Self::on(Interpreter::new(format, config.mode(options.mode)), config, options)
    }
}

impl<D: RingDevice> GpuBatchCompressor<D> {
    pub(crate) fn on(device: D, config: GpuBatchConfig, options: &GpuOptions) -> Result<Self> {
        let pool = options.pool.clone().map_or_else(default_gpu_pool, Ok)?;
        let cpu = CpuBatchCompressor::with_pool(config.algorithm, InstructionSet::detect(), pool)?;
        let shape = RingShape::new(&config, options.time_limit);
        let ring = Ring::new(device, shape).map_err(GpuError::not_available)?;
        Ok(Self {
            config,
            ring: Some(BoundedDrop::new(ring, options.time_limit)),
            cpu,
            arenas: Arenas::default(),
            stats: GpuBatchStats::default(),
            failures_in_a_row: 0,
            shape,
            process: std::process::id(),
        })
    }

    /// Returns the configuration of the compressor.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let config = compressor.config();
    /// println!("Batch size: {}", config.batch_size);
    /// println!("Async DMA: {}", config.async_dma);
    /// # assert_eq!(*config, GpuBatchConfig::default());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn config(&self) -> &GpuBatchConfig {
        &self.config
    }

    /// Returns the totals of all calls so far.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// compressor.compress_batch(&[[1; 4096]; 3])?;
    /// let stats = compressor.stats();
    /// println!("Pages compressed: {}", stats.pages_compressed);
    /// println!("Ratio: {:.2}x", stats.compression_ratio());
    /// # assert_eq!((stats.pages_compressed, stats.total_bytes_in, stats.total_bytes_out), (3, 12_288, 24));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> &GpuBatchStats {
        &self.stats
    }

    /// Returns `true` if the device is still used; [`stats`](Self::stats) have the reason if it is not.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// if !compressor.uses_device() {
    ///     println!("on the CPU alone: {:?}", compressor.stats().fallback.device_given_up);
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn uses_device(&self) -> bool {
        self.ring.is_some()
    }

    /// Compresses pages. Those of each slot share an arena, which lives as long as any of them, and until the next batch: if they
    /// are all gone by then, it is used again. [`CompressedPage::detached`] makes a copy that keeps no others.
    ///
    /// ```
    /// # use trueno_zram_core::{PAGE_SIZE, gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions}};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let pages: Vec<[u8; PAGE_SIZE]> = vec![[0u8; PAGE_SIZE]; 1000];
    /// let result = compressor.compress_batch(&pages)?;
    /// # assert_eq!(result.compression_ratio(), 512.0);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`] in a forked child. Device failures are not returned; the CPU compresses the batch.
    pub fn compress_batch(&mut self, pages: &[Page]) -> Result<BatchResult> {
        self.check_process()?;
        let start = Instant::now();
        let mut compressed = filled_vec(&CompressedPage::EMPTY, pages.len(), self.cpu.pool());
        self.arenas.start();
        let held = AtomicU64::new(0);
        let mut outcome = CallOutcome::default();
        if let Some(ring) = &mut self.ring {
            let mut sink = into_pages(&mut compressed, &self.arenas, &held);
            outcome = ring.compress(self.cpu.pool(), &mut PagesFrom::Memory(pages), &mut sink, &());
        }
        let mut held = held.into_inner();
        let left = &pages[outcome.pages_done..];
        if self.note_outcome(&outcome, left.len()) {
            compressed.truncate(outcome.pages_done);
            compressed.extend(self.cpu.compress(left)?.into_pages());
            held = compressed.iter().map(|page| page.bytes().len() as u64).sum();
        }
        let times = outcome.times.with_total(start.elapsed());
        self.stats.add_compressed(pages.len(), held, times.total_time_ns);
        Ok(BatchResult::new(compressed, times))
    }

    /// Compresses pages into a batch that is used again: once warm, nothing is allocated that grows with the batch.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # use trueno_zram_core::CompressedBatch;
    /// let mut batch = CompressedBatch::new();
    /// for round in 0..3 {
    ///     let times = compressor.compress_into(&vec![[round; 4096]; 1000], &mut batch, &())?;
    ///     println!("{} bytes in {} ns", batch.arena().len(), times.total_time_ns);
    /// }
    /// # assert_eq!(batch.arena(), [2; 8000]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`compress_batch`](Self::compress_batch).
    pub fn compress_into(
        &mut self,
        pages: &[Page],
        batch: &mut CompressedBatch,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        self.compress_from(PagesFrom::Memory(pages), batch, progress)
    }

    pub(super) fn compress_from(
        &mut self,
        mut pages: PagesFrom<'_, D>,
        batch: &mut CompressedBatch,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        batch.clear();
        self.check_process()?;
        let start = Instant::now();
        let may_use = match &mut pages {
            PagesFrom::Memory(_) => true,
            PagesFrom::Pinned(pages) => self.adopt([pages.memory_mut()]),
        };
        fill_or_clear(batch, CompressedBatch::clear, |batch| {
            let mut outcome = CallOutcome::default();
            if let Some(ring) = self.ring.as_mut().filter(|_| may_use) {
                let mut sink = into_batch(batch, pages.len());
                outcome = ring.compress(self.cpu.pool(), &mut pages, &mut sink, progress);
            }
            if self.note_outcome(&outcome, pages.len() - outcome.pages_done) {
                // Bytes that the GPU only reads are accessible even while it hangs.
                self.cpu.compress_onto(&pages.pages()?[outcome.pages_done..], batch, progress)?;
            }
            Ok(self.count_compressed(batch.index(), &outcome, start))
        })
    }

    /// Restores pages.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let compressed = compressor.compress_batch(&[[1; 4096], [2; 4096]])?;
    /// let restored = compressor.decompress_batch(&compressed.pages)?;
    /// assert_eq!(restored.pages, [[1; 4096], [2; 4096]]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InPage`](crate::Error::InPage) for the first page that is corrupt.
    pub fn decompress_batch(&mut self, pages: &[CompressedPage]) -> Result<RestoredBatch> {
        // The pool's threads do not exist in a forked child.
        self.check_process()?;
        let mut restored = filled_vec(&[0; PAGE_SIZE], pages.len(), self.cpu.pool());
        let times = self.restore(CompressedPages::Values(pages), &mut restored, &())?;
        Ok(RestoredBatch { pages: restored, times })
    }

    /// Restores all pages of a batch in place.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// # use trueno_zram_core::CpuBatchCompressor;
    /// let batch = CpuBatchCompressor::default().compress(&[[3; 4096]; 2])?; // wherever it comes from
    /// let mut pages = [[0; 4096]; 2];
    /// compressor.decompress_into(&batch, &mut pages, &())?;
    /// assert_eq!(pages, [[3; 4096]; 2]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if the destination has another number of pages; [`Error::InPage`](crate::Error::InPage) for the first page that
    /// is corrupt, with all other pages restored.
    pub fn decompress_into(
        &mut self,
        batch: &CompressedBatch,
        pages: &mut [Page],
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        check_destination(batch.len(), pages.len())?;
        self.restore(batch.into(), pages, progress)
    }

    pub(crate) fn restore(
        &mut self,
        from: CompressedPages<'_>,
        to: &mut [Page],
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        self.check_process()?;
        let start = Instant::now();
        let mut outcome = CallOutcome::default();
        if let Some(ring) = &mut self.ring {
            outcome = ring.decompress(self.cpu.pool(), from, to, progress);
        }
        self.finish_restoring(from, to, outcome, start, progress)
    }

    /// Restores on the CPU the pages that the device did not get to, and single pages that it could not restore.
    pub(super) fn finish_restoring(
        &mut self,
        from: CompressedPages<'_>,
        to: &mut [Page],
        mut outcome: CallOutcome,
        start: Instant,
        progress: &dyn Progress,
    ) -> Result<BatchTimes> {
        outcome.unrestored.sort_unstable();
        // The CPU returns the exact error of a corrupt page. If it finds none, it has restored the page.
        let mut result = Ok(());
        for run in outcome.unrestored.chunk_by(|left, next| left.page + 1 == next.page) {
            let first = run[0].page;
            let restored = self.cpu.restore(|page| from.get(page), first, &mut to[first..][..run.len()], &());
            let unsupported = run.iter().filter(|left| left.reason == UnrestoredReason::Unsupported).count();
            self.note_unsupported(unsupported);
            if restored.is_ok() {
                self.note_refused(run.len() - unsupported);
            }
            result = result.and(restored);
        }
        let not_done = &mut to[outcome.pages_done..];
        if self.note_outcome(&outcome, not_done.len()) {
            result = result.and(self.cpu.restore(|page| from.get(page), outcome.pages_done, not_done, progress));
        }
        let times = outcome.times.with_total(start.elapsed());
        self.stats.add_decompressed(from.len(), times.total_time_ns);
        result.map(|()| times)
    }

    /// Counts a compressed batch. Returns its times.
    pub(super) fn count_compressed(
        &mut self,
        index: &[IndexEntry],
        outcome: &CallOutcome,
        start: Instant,
    ) -> BatchTimes {
        let times = outcome.times.with_total(start.elapsed());
        self.stats.add_compressed(index.len(), held_bytes(index), times.total_time_ns);
        times
    }

    /// Returns an error in a child of the process that created the compressor: neither the pool's threads nor the CUDA context
    /// exist there, and waiting for them would never end.
    pub(super) fn check_process(&self) -> Result<()> {
        check_process(self.process)
    }

    /// Returns the device, unless it was given up.
    pub(super) fn device(&self) -> Result<&D> {
        self.check_process()?;
        let given_up =
            || GpuError::ContextLost { reason: self.stats.fallback.device_given_up.clone().unwrap_or_default() };
        Ok(self.ring.as_ref().map(|ring| &ring.device).ok_or_else(given_up)?)
    }

    /// Returns the device, unless it was given up, and the time limit of its work.
    pub(super) fn device_mut(&mut self) -> Result<(&mut D, Duration)> {
        self.device()?;
        let ring = self.ring.as_mut().expect("it has a device");
        Ok((&mut ring.device, self.shape.time_limit))
    }

    /// Stops using a device that was lost in a failure outside the ring.
    pub(super) fn drop_ring_if_lost(&mut self) {
        if let Some(loss) = self.device().ok().and_then(RingDevice::loss) {
            self.stats.fallback.device_given_up = Some(loss);
            self.ring = None;
        }
    }

    /// Counts pages that are left to the CPU after a panic, which is not the device's fault.
    pub(super) fn note_panic(&mut self, pages: usize) {
        self.stats.fallback.add(pages, "a panic in the middle of a stream".to_owned());
        self.drop_ring_if_lost();
    }

    /// Counts pages that the CPU restores because the kernel does not decode their kind or form.
    pub(super) fn note_unsupported(&mut self, pages: usize) {
        self.stats.fallback.unsupported_pages += pages as u64;
    }

    /// Counts intact pages that the device did not restore.
    pub(super) fn note_refused(&mut self, pages: usize) {
        if pages > 0 {
            self.stats.fallback.add(pages, "the device refused intact pages".to_owned());
        }
    }

    /// Counts a fallback, and decides whether the device is used again. Returns `true` if pages remain for the CPU.
    pub(super) fn note_outcome(&mut self, outcome: &CallOutcome, pages_left: usize) -> bool {
        let Some(failure) = &outcome.failure else {
            if pages_left > 0 {
                // Without a device; or with memory that is not for it, and a batch that `adopt` has counted.
                self.stats.fallback.batches += u64::from(self.ring.is_none());
                self.stats.fallback.pages += pages_left as u64;
            } else if self.ring.is_some() {
                self.failures_in_a_row = 0;
            }
            return pages_left > 0;
        };
        let fallback = &mut self.stats.fallback;
        fallback.add(pages_left, failure.to_string());
        self.failures_in_a_row += 1;
        let Some(ring) = &self.ring else { return pages_left > 0 };
        if ring.device.loss().is_some() {
            fallback.device_given_up = Some(failure.to_string());
        } else if self.failures_in_a_row >= FAILURES_IN_A_ROW {
            fallback.device_given_up =
                Some(format!("{FAILURES_IN_A_ROW} batches failed in a row; the last: {failure}"));
        }
        if fallback.device_given_up.is_some() {
            self.ring = None;
        }
        pages_left > 0
    }
}

/// Refuses to work in a child of the process `owner`.
pub(super) fn check_process(owner: u32) -> Result<()> {
    if std::process::id() == owner { Ok(()) } else { Err(GpuError::OtherProcess { owner }.into()) }
}

impl<D: RingDevice> sealed::Sealed for GpuBatchCompressor<D> {}

impl<D: RingDevice> BatchCodec for GpuBatchCompressor<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn describe(&self) -> String {
        let (device, threads) = (self.config.device_index, self.cpu.threads());
        match &self.stats.fallback.device_given_up {
            None => format!("{} {device}, {threads} threads", D::DESCRIPTION),
            Some(reason) => format!("CPU, {threads} threads; {} {device} was abandoned: {reason}", D::DESCRIPTION),
        }
    }

    fn algorithm(&self) -> Algorithm {
        self.config.algorithm
    }

    fn pool(&self) -> &Arc<ThreadPool> {
        self.cpu.pool()
    }

    fn preferred_batch_pages(&self) -> usize {
        // Enough slots that filling and draining the ring is a small part of the call.
        self.config.batch_size * self.config.ring_buffer_slots * 4
    }

    fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch, progress: &dyn Progress) -> Result<()> {
        self.compress_into(pages, batch, progress).map(drop)
    }

    fn decompress_into(&mut self, batch: &CompressedBatch, pages: &mut [Page], progress: &dyn Progress) -> Result<()> {
        self.decompress_into(batch, pages, progress).map(drop)
    }

    fn decompress_pages(&mut self, compressed: &[PageData<'_>], pages: &mut [Page]) -> Result<()> {
        check_destination(compressed.len(), pages.len())?;
        self.restore(CompressedPages::Borrowed(compressed), pages, &()).map(drop)
    }

    fn stats(&self) -> CodecStats {
        CodecStats {
            pages_compressed: self.stats.pages_compressed,
            bytes_out: self.stats.total_bytes_out,
            compress_time_ns: self.stats.total_time_ns,
            pages_decompressed: self.stats.pages_decompressed,
            decompress_time_ns: self.stats.decompress_time_ns,
        }
    }

    fn fallback(&self) -> Option<&FallbackStats> {
        Some(&self.stats.fallback)
    }
}
