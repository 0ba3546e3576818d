//! One interface to everything that compresses batches.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rayon::ThreadPool;

use crate::algorithm::Algorithm;
use crate::arena::CompressedBatch;
use crate::error::Result;
use crate::page::{Page, PageData};
use crate::progress::Progress;

pub(crate) mod sealed {
    /// Keeps other crates from implementing [`BatchCodec`](super::BatchCodec).
    pub trait Sealed {}
}

/// The totals of a [`BatchCodec`] since it was created.
///
/// ```
/// use trueno_zram_core::{Algorithm, BatchCodec, CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
/// let mut codec = CpuBatchCompressor::new(Algorithm::Lz4)?;
/// BatchCodec::compress_into(&mut codec, &[[7; PAGE_SIZE]; 10], &mut CompressedBatch::new(), &())?;
/// let stats = codec.stats();
/// assert_eq!((stats.pages_compressed, stats.bytes_out), (10, 80));
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodecStats {
    /// Pages compressed.
    pub pages_compressed: u64,
    /// The compressed length of these pages.
    pub bytes_out: u64,
    /// Time spent compressing, in nanoseconds.
    pub compress_time_ns: u64,
    /// Pages restored.
    pub pages_decompressed: u64,
    /// Time spent restoring, in nanoseconds.
    pub decompress_time_ns: u64,
}

impl CodecStats {
    pub(crate) fn add_compressed(&mut self, pages: usize, time: Duration) {
        self.pages_compressed += pages as u64;
        self.compress_time_ns += nanoseconds(time);
    }

    pub(crate) fn add_decompressed(&mut self, pages: usize, time: Duration) {
        self.pages_decompressed += pages as u64;
        self.decompress_time_ns += nanoseconds(time);
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Compresses and decompresses batches of pages: on the CPU, on a GPU, or on whichever is faster.
///
/// The trait is sealed. Programs that let their users choose a compressor hold a `Box<dyn BatchCodec>`.
///
/// ```
/// use trueno_zram_core::{Algorithm, BatchCodec, CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
///
/// fn size(codec: &mut dyn BatchCodec, pages: &[[u8; PAGE_SIZE]]) -> trueno_zram_core::Result<usize> {
///     let mut batch = CompressedBatch::new();
///     codec.compress_into(pages, &mut batch, &())?;
///     Ok(batch.arena().len())
/// }
///
/// let mut codec: Box<dyn BatchCodec> = Box::new(CpuBatchCompressor::new(Algorithm::Lz4)?);
/// assert_eq!(size(&mut *codec, &[[7; PAGE_SIZE]; 10])?, 80);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub trait BatchCodec: fmt::Debug + Send + sealed::Sealed {
    /// Returns a short name for messages and reports: `cpu`, `gpu`, `interpreter` or `auto`.
    fn name(&self) -> &'static str;

    /// Describes the hardware in use and, for `auto`, why no GPU is used.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, BatchCodec, CpuBatchCompressor};
    /// let codec: Box<dyn BatchCodec> = Box::new(CpuBatchCompressor::new(Algorithm::Lz4)?);
    /// println!("{}: {}", codec.name(), codec.describe()); // cpu: CPU, 16 threads, avx2
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    fn describe(&self) -> String;

    /// Returns the algorithm that pages are compressed with.
    fn algorithm(&self) -> Algorithm;

    /// Returns the worker threads, for other work on the same pages.
    fn pool(&self) -> &Arc<ThreadPool>;

    /// Returns the number of pages per call that gives full speed.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, BatchCodec, CpuBatchCompressor};
    /// let codec: Box<dyn BatchCodec> = Box::new(CpuBatchCompressor::new(Algorithm::Lz4)?);
    /// println!("read {} KiB at a time", codec.preferred_batch_pages() * 4);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    fn preferred_batch_pages(&self) -> usize;

    /// Compresses pages into a batch, which is emptied first, and reports progress.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, BatchCodec, CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
    /// let mut codec: Box<dyn BatchCodec> = Box::new(CpuBatchCompressor::new(Algorithm::Lz4)?);
    /// let mut batch = CompressedBatch::new();
    /// codec.compress_into(&[[7; PAGE_SIZE]; 100], &mut batch, &|pages| println!("{pages} more"))?;
    /// assert_eq!(batch.len(), 100);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ZstdFailed`](crate::Error::ZstdFailed), as [`Error::InPage`](crate::Error::InPage), if Zstandard runs out of
    /// memory. LZ4 does not fail. The batch is empty after an error.
    fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch, progress: &dyn Progress) -> Result<()>;

    /// Restores all pages of a batch into `pages` and reports progress.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, BatchCodec, CpuBatchCompressor, PAGE_SIZE};
    /// let batch = CpuBatchCompressor::default().compress(&[[7; PAGE_SIZE]; 100])?;
    /// let mut codec: Box<dyn BatchCodec> = Box::new(CpuBatchCompressor::new(Algorithm::Lz4)?);
    /// let mut pages = vec![[0; PAGE_SIZE]; batch.len()];
    /// codec.decompress_into(&batch, &mut pages, &())?;
    /// assert_eq!(pages[99], [7; PAGE_SIZE]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if the destination has another number of pages;
    /// [`Error::InPage`](crate::Error::InPage) for the first corrupt page, with all other pages restored.
    fn decompress_into(&mut self, batch: &CompressedBatch, pages: &mut [Page], progress: &dyn Progress) -> Result<()>;

    /// Restores compressed pages that lie anywhere in memory: `compressed[i]` to `pages[i]`.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, BatchCodec, CpuBatchCompressor, PAGE_SIZE, PageData, PageKind};
    /// let mut codec: Box<dyn BatchCodec> = Box::new(CpuBatchCompressor::new(Algorithm::Lz4)?);
    /// let mut pages = [[0; PAGE_SIZE]; 2];
    /// let stored = [PageData::new(PageKind::SameFilled, &[1; 8])?, PageData::new(PageKind::SameFilled, &[2; 8])?];
    /// codec.decompress_pages(&stored, &mut pages)?;
    /// assert_eq!(pages, [[1; PAGE_SIZE], [2; PAGE_SIZE]]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`decompress_into`](Self::decompress_into).
    fn decompress_pages(&mut self, compressed: &[PageData<'_>], pages: &mut [Page]) -> Result<()>;

    /// Returns the totals of all calls so far.
    fn stats(&self) -> CodecStats;

    /// Returns the counts of work that fell back from the GPU to the CPU, or `None` for compressors without a GPU.
    #[cfg(feature = "gpu")]
    fn fallback(&self) -> Option<&crate::gpu::FallbackStats>;
}
