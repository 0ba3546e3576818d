//! Batches on the GPU or the CPU, whichever is measured to be faster.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::ThreadPool;

use super::chooser::{Chooser, Placement};
use super::gpu_batch_compressor::GpuBatchCompressor;
use super::lazy_gpu::LazyGpu;
use super::opening_rule::CpuProgress;
use super::options::GpuOptions;
use super::stats::{FallbackStats, GpuBatchStats};
use crate::algorithm::Algorithm;
use crate::arena::{CompressedBatch, check_destination};
use crate::codec::{BatchCodec, CodecStats, sealed};
use crate::cpu::{CpuBatchCompressor, InstructionSet};
use crate::error::{Error, Result};
use crate::filled_vec::filled_vec;
use crate::gpu::GpuBatchConfig;
use crate::gpu::ring::compressed_pages::CompressedPages;
use crate::gpu::ring::cuda::Cuda;
use crate::gpu::ring::device::RingDevice;
use crate::page::{PAGE_SIZE, Page, PageData};
use crate::progress::Progress;
use crate::threads::default_pool;

/// Compresses and decompresses batches of pages with the GPU or all CPU cores.
///
/// It begins on the CPU. Once that has worked for 300 ms on large batches, a GPU is opened in the background, which takes a third of
/// a second: [`wait_for_gpu`](Self::wait_for_gpu) does it at once. From then on a [`Chooser`] for each direction measures the speed of
/// both, and a batch goes to the faster one. Batches of fewer than [`Placement::MIN_GPU_PAGES`] pages always go to the CPU. A GPU
/// that was given up is not used again.
///
/// The bytes that hold a page depend on which side compressed it, and so on the measured times. They are a
/// standard LZ4 block or Zstandard frame either way, and each side restores what the other compressed. Use one of the two compressors directly if the
/// same pages must always give the same bytes.
///
/// ```
/// use trueno_zram_core::{BatchCompressor, PAGE_SIZE, gpu::{GpuBatchConfig, GpuOptions}};
///
/// let pages: Vec<[u8; PAGE_SIZE]> = (0..500).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
/// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
/// println!("{compressor}");
/// let batch = compressor.compress(&pages)?;
/// assert_eq!(compressor.decompress(&batch)?, pages);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct BatchCompressor<D: RingDevice = Cuda> {
    /// `None` if GPUs do not run the algorithm.
    gpu: Option<LazyGpu<D>>,
    cpu: CpuBatchCompressor,
    compress: Chooser,
    decompress: Chooser,
    /// The pages of large batches that the CPU has compressed or restored.
    cpu_bytes: u64,
    /// The time of these batches.
    cpu_time: Duration,
    /// The reason why GPUs do not run the algorithm.
    why_unsupported: Option<String>,
    last_placement: Option<Placement>,
    /// Without `bytes_out`, which both sides count.
    stats: CodecStats,
}

impl BatchCompressor {
    /// Creates the CPU compressor. The driver of the GPU is not touched yet.
    ///
    /// Without a usable GPU, and for algorithms that GPUs do not run ([`Algorithm::None`] and Zstandard above level
    /// [`MAX_ZSTD_LEVEL`](GpuBatchConfig::MAX_ZSTD_LEVEL)), it uses the CPU alone. [`why_no_gpu`](Self::why_no_gpu) returns
    /// the reason.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, BatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let config = GpuBatchConfig { algorithm: Algorithm::Zstd { level: 19 }, ..GpuBatchConfig::default() };
    /// let compressor = BatchCompressor::new(config, &GpuOptions::default())?;
    /// let why = compressor.why_no_gpu().expect("no GPU compresses at level 19");
    /// assert_eq!(why, "the GPU does not support the algorithm zstd:19: levels above 9 run on the CPU");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if a size is out of range, with or without a GPU; [`Error::ZstdLevel`] if the level is outside
    /// Zstandard's range; [`Error::ThreadPool`] if the threads cannot be started.
    pub fn new(config: GpuBatchConfig, options: &GpuOptions) -> Result<Self> {
        let algorithm = config.algorithm;
        let pool = options.pool.clone().map_or_else(default_pool, Ok)?;
        let cpu = CpuBatchCompressor::with_pool(algorithm, InstructionSet::detect(), pool)?;
        match LazyGpu::new(config, options) {
            Ok(gpu) => Ok(Self::with_parts(Some(gpu), cpu)),
            Err(refusal @ Error::Unsupported { .. }) if algorithm != Algorithm::Lz4 => {
                Ok(Self { why_unsupported: Some(refusal.to_string()), ..Self::with_parts(None, cpu) })
            }
            Err(error) => Err(error),
        }
    }
}

impl<D: RingDevice> BatchCompressor<D> {
    /// Creates a compressor from parts, which must use the same algorithm.
    pub(crate) fn with_parts(gpu: Option<LazyGpu<D>>, cpu: CpuBatchCompressor) -> Self {
        Self {
            gpu,
            cpu,
            compress: Chooser::default(),
            decompress: Chooser::default(),
            cpu_bytes: 0,
            cpu_time: Duration::ZERO,
            why_unsupported: None,
            last_placement: None,
            stats: CodecStats::default(),
        }
    }

    /// Opens the GPU at once, instead of when it pays, and waits until it can be used. Returns `false` if there is no usable GPU.
    ///
    /// For programs that run for long, and for measurements. A driver that hangs keeps it waiting.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let has_gpu = compressor.wait_for_gpu();
    /// assert_eq!(has_gpu, compressor.why_no_gpu().is_none());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn wait_for_gpu(&mut self) -> bool {
        self.gpu.as_mut().and_then(LazyGpu::wait).is_some()
    }

    /// Returns the GPU, to be opened by a pipeline that knows how much there is to do; `None` if GPUs do not run the algorithm.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// assert!(!compressor.lazy_gpu().expect("GPUs run LZ4").was_opened());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub fn lazy_gpu(&mut self) -> Option<&mut LazyGpu<D>> {
        self.gpu.as_mut()
    }

    /// Returns the reason why no GPU is used: there is none, it does not support the algorithm, or it was given up.
    /// Returns `None` if one is used, or was not needed so far.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// compressor.wait_for_gpu();
    /// if let Some(why) = compressor.why_no_gpu() {
    ///     println!("using only the CPU: {why}");
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn why_no_gpu(&self) -> Option<&str> {
        match &self.gpu {
            Some(gpu) => gpu.failure(),
            None => self.why_unsupported.as_deref(),
        }
    }

    /// Returns where the last non-empty batch went.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// assert_eq!(compressor.last_placement(), None);
    /// compressor.compress(&vec![[7; 4096]; 2000])?;
    /// if let Some(choice) = compressor.last_placement() {
    ///     println!("compressed on {choice}");
    /// }
    /// # assert!(compressor.last_placement().is_some());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn last_placement(&self) -> Option<Placement> {
        self.last_placement
    }

    /// Returns the GPU's statistics, if there is or was a GPU.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// if let Some(stats) = compressor.gpu_stats() {
    ///     println!("{} pages fell back to the CPU: {:?}", stats.fallback.pages, stats.fallback.last_reason);
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn gpu_stats(&self) -> Option<&GpuBatchStats> {
        self.opened_gpu().map(GpuBatchCompressor::stats)
    }

    /// Returns the GPU's compressor if it was opened.
    fn opened_gpu(&self) -> Option<&GpuBatchCompressor<D>> {
        self.gpu.as_ref().and_then(LazyGpu::compressor)
    }

    /// Returns the algorithm that pages are compressed with.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, BatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// assert_eq!(compressor.algorithm(), Algorithm::Lz4);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.cpu.algorithm()
    }

    /// Returns the number of CPU threads.
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    /// use trueno_zram_core::{BatchCompressor, build_pool, gpu::{GpuBatchConfig, GpuOptions}};
    /// let options = GpuOptions::new().with_pool(build_pool(NonZeroUsize::new(2).expect("not zero"))?);
    /// let compressor = BatchCompressor::new(GpuBatchConfig::default(), &options)?;
    /// assert_eq!(compressor.threads(), 2);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn threads(&self) -> usize {
        self.cpu.threads()
    }

    /// Compresses pages into a new batch.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, PAGE_SIZE, gpu::{GpuBatchConfig, GpuOptions}};
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let batch = compressor.compress(&[[3; PAGE_SIZE]; 100])?;
    /// assert_eq!((batch.len(), batch.arena().len()), (100, 800));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InPage`] with [`Error::ZstdFailed`] if Zstandard runs out of memory. LZ4 does not fail.
    pub fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch> {
        let mut batch = CompressedBatch::new();
        self.compress_into(pages, &mut batch, &())?;
        Ok(batch)
    }

    /// Compresses pages into an existing batch, replacing its contents, and reports progress.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use trueno_zram_core::{BatchCompressor, CompressedBatch, gpu::{GpuBatchConfig, GpuOptions}};
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let (mut batch, pages_done) = (CompressedBatch::new(), AtomicUsize::new(0));
    /// compressor.compress_into(&vec![[1; 4096]; 1000], &mut batch, &pages_done)?;
    /// assert_eq!(pages_done.load(Ordering::Relaxed), 1000);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`compress`](Self::compress). The batch is then empty.
    pub fn compress_into(
        &mut self,
        pages: &[Page],
        batch: &mut CompressedBatch,
        progress: &dyn Progress,
    ) -> Result<()> {
        let placement = self.place(|this| &this.compress, pages.len());
        let start = Instant::now();
        self.compress_on(placement, pages, batch, progress)?;
        let time = start.elapsed();
        self.stats.add_compressed(pages.len(), time);
        self.compress.record(placement, pages.len(), time);
        self.open_gpu_if_worthwhile(placement, pages.len(), time);
        Ok(())
    }

    /// Restores all pages of a batch.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, CpuBatchCompressor, gpu::{GpuBatchConfig, GpuOptions}};
    /// let batch = CpuBatchCompressor::default().compress(&[[3; 4096]; 2])?; // from any compressor
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// assert_eq!(compressor.decompress(&batch)?, [[3; 4096]; 2]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`decompress_into`](Self::decompress_into).
    pub fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Page>> {
        if let Some(gpu) = self.opened_gpu() {
            // The pool's threads do not exist in a forked child.
            gpu.check_process()?;
        }
        let mut pages = filled_vec(&[0; PAGE_SIZE], batch.len(), self.cpu.pool());
        self.decompress_into(batch, &mut pages, &())?;
        Ok(pages)
    }

    /// Restores all pages of a batch into `pages` and reports progress.
    ///
    /// ```
    /// use trueno_zram_core::{BatchCompressor, PAGE_SIZE, gpu::{GpuBatchConfig, GpuOptions}};
    /// let mut compressor = BatchCompressor::new(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let batch = compressor.compress(&vec![[5; PAGE_SIZE]; 300])?;
    /// let mut restored = vec![[0xff; PAGE_SIZE]; batch.len()];
    /// compressor.decompress_into(&batch, &mut restored, &|pages| println!("{pages} more"))?;
    /// assert!(restored.iter().all(|page| *page == [5; PAGE_SIZE]));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`] if the destination has a different number of pages; [`Error::InPage`] for the first corrupt
    /// page. All other pages are restored.
    pub fn decompress_into(
        &mut self,
        batch: &CompressedBatch,
        pages: &mut [Page],
        progress: &dyn Progress,
    ) -> Result<()> {
        check_destination(batch.len(), pages.len())?;
        self.restore(CompressedPages::from(batch), pages, progress)
    }

    fn restore(&mut self, from: CompressedPages<'_>, pages: &mut [Page], progress: &dyn Progress) -> Result<()> {
        let placement = self.place(|this| &this.decompress, pages.len());
        let start = Instant::now();
        let done = self.restore_on(placement, from, pages, progress);
        let time = start.elapsed();
        self.stats.add_decompressed(from.len(), time);
        done?;
        self.decompress.record(placement, from.len(), time);
        self.open_gpu_if_worthwhile(placement, from.len(), time);
        Ok(())
    }

    /// Counts a batch, and begins to open the GPU once the CPU has worked enough on large ones.
    fn open_gpu_if_worthwhile(&mut self, placement: Placement, pages: usize, time: Duration) {
        let Some(gpu) = self.gpu.as_mut().filter(|gpu| !gpu.was_opened()) else { return };
        if placement == Placement::Cpu && pages >= Placement::MIN_GPU_PAGES {
            self.cpu_bytes += (pages * PAGE_SIZE) as u64;
            self.cpu_time += time;
            let (done_bytes, elapsed) = (self.cpu_bytes, self.cpu_time);
            if (CpuProgress { done_bytes, left_bytes: None, elapsed, busy: elapsed }).is_worth_a_gpu() {
                gpu.open();
            }
        }
    }

    /// Returns where a batch goes, and notes it.
    fn place(&mut self, chooser: impl Fn(&Self) -> &Chooser, pages: usize) -> Placement {
        let has_device = self.gpu.as_mut().and_then(LazyGpu::get).is_some();
        let placement = if has_device { chooser(self).placement(pages) } else { Placement::Cpu };
        if pages > 0 {
            self.last_placement = Some(placement);
        }
        placement
    }

    fn compress_on(
        &mut self,
        placement: Placement,
        pages: &[Page],
        batch: &mut CompressedBatch,
        progress: &dyn Progress,
    ) -> Result<()> {
        match (placement, self.gpu.as_mut().and_then(LazyGpu::get)) {
            (Placement::Gpu, Some(gpu)) => gpu.compress_into(pages, batch, progress).map(drop),
            _ => self.cpu.compress_into(pages, batch, progress),
        }
    }

    fn restore_on(
        &mut self,
        placement: Placement,
        from: CompressedPages<'_>,
        pages: &mut [Page],
        progress: &dyn Progress,
    ) -> Result<()> {
        match (placement, self.gpu.as_mut().and_then(LazyGpu::get)) {
            (Placement::Gpu, Some(gpu)) => gpu.restore(from, pages, progress).map(drop),
            _ => self.cpu.restore(|page| from.get(page), 0, pages, progress),
        }
    }
}

impl<D: RingDevice> sealed::Sealed for BatchCompressor<D> {}

impl<D: RingDevice> BatchCodec for BatchCompressor<D> {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn describe(&self) -> String {
        self.to_string()
    }

    fn algorithm(&self) -> Algorithm {
        self.cpu.algorithm()
    }

    fn pool(&self) -> &Arc<ThreadPool> {
        self.cpu.pool()
    }

    fn preferred_batch_pages(&self) -> usize {
        match self.opened_gpu() {
            Some(gpu) if gpu.uses_device() => gpu.preferred_batch_pages(),
            _ => self.cpu.preferred_batch_pages(),
        }
    }

    fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch, progress: &dyn Progress) -> Result<()> {
        self.compress_into(pages, batch, progress)
    }

    fn decompress_into(&mut self, batch: &CompressedBatch, pages: &mut [Page], progress: &dyn Progress) -> Result<()> {
        self.decompress_into(batch, pages, progress)
    }

    fn decompress_pages(&mut self, compressed: &[PageData<'_>], pages: &mut [Page]) -> Result<()> {
        check_destination(compressed.len(), pages.len())?;
        self.restore(CompressedPages::Borrowed(compressed), pages, &())
    }

    fn stats(&self) -> CodecStats {
        let by_gpu = self.gpu_stats().map_or(0, |stats| stats.total_bytes_out);
        CodecStats { bytes_out: by_gpu + BatchCodec::stats(&self.cpu).bytes_out, ..self.stats }
    }

    fn fallback(&self) -> Option<&FallbackStats> {
        self.gpu_stats().map(|stats| &stats.fallback)
    }
}

impl<D: RingDevice> fmt::Display for BatchCompressor<D> {
    /// Writes what the compressor uses, such as `GPU 0 and 16 CPU threads`, or why it uses no GPU.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.threads();
        match (self.why_no_gpu(), self.opened_gpu()) {
            (None, Some(gpu)) => write!(f, "GPU {} and {threads} CPU threads", gpu.config().device_index),
            (Some(why), _) => write!(f, "{threads} CPU threads (no GPU: {why})"),
            (None, None) => write!(f, "{threads} CPU threads (no GPU opened so far)"),
        }
    }
}

#[cfg(test)]
mod tests;
