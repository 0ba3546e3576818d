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
    fn describe(&self) -> String;

    /// Returns the algorithm that pages are compressed with.
    fn algorithm(&self) -> Algorithm;

    /// Returns the worker threads, for other work on the same pages.
    fn pool(&self) -> &Arc<ThreadPool>;

    /// Returns the number of pages per call that gives full speed.
    fn preferred_batch_pages(&self) -> usize;

    /// Compresses pages into a batch, which is emptied first, and reports progress.
    ///
    /// # Errors
    /// [`Error::ZstdFailed`](crate::Error::ZstdFailed), as [`Error::InPage`](crate::Error::InPage), if Zstandard runs out of
    /// memory. LZ4 does not fail. The batch is empty after an error.
    fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch, progress: &dyn Progress) -> Result<()>;

    /// Restores all pages of a batch in place and reports progress.
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if the destination has another number of pages;
    /// [`Error::InPage`](crate::Error::InPage) for the first corrupt page, with all other pages restored.
    fn decompress_into(&mut self, batch: &CompressedBatch, pages: &mut [Page], progress: &dyn Progress) -> Result<()>;

    /// Restores compressed pages that lie anywhere in memory: `compressed[i]` to `pages[i]`.
    ///
    /// # Errors
    /// As [`decompress_into`](Self::decompress_into).
    fn decompress_pages(&mut self, compressed: &[PageData<'_>], pages: &mut [Page]) -> Result<()>;

    /// Returns the totals of all calls so far.
    fn stats(&self) -> CodecStats;

    /// Returns what the CPU did because the GPU could not, or `None` for compressors without a GPU.
    #[cfg(feature = "gpu")]
    fn fallback(&self) -> Option<&crate::gpu::FallbackStats>;
}
