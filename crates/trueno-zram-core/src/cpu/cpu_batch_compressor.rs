//! Batches of pages on all cores, into one arena and back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rayon::ThreadPool;
use rayon::prelude::*;

use crate::algorithm::Algorithm;
use crate::arena::{CompressedBatch, IndexEntry, check_destination, fill_or_clear};
use crate::codec::{BatchCodec, CodecStats, sealed};
use crate::cpu::{InstructionSet, PageCodec};
use crate::error::Result;
use crate::filled_vec::filled_vec;
use crate::page::{PAGE_SIZE, Page, PageData, PageKind};
use crate::progress::Progress;
use crate::threads::default_pool;

/// Pages that one thread takes at a time: enough to hide the scheduling cost, few enough to balance the load.
const CHUNK_PAGES: usize = 16;

/// Chunks of output kept per thread between two copies to the arena. This bounds the extra memory (4 MiB per thread)
/// and keeps the wait for the slowest chunk at a hundredth of the work.
const CHUNKS_PER_THREAD: usize = 64;

/// Compresses and decompresses batches of pages on several cores.
///
/// The result does not depend on the number of threads: pages lie in the arena in order, without gaps. Once warm,
/// [`compress_into`](Self::compress_into) and [`decompress_into`](Self::decompress_into) do not allocate per page, only
/// a few small buffers per 1,024 pages and thread.
///
/// The worker threads do not exist in a child made by `fork`: the child must create its own pool and compressor before use.
///
/// ```
/// use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};
///
/// let pages: Vec<[u8; PAGE_SIZE]> = (0..500u32)
///     .map(|n| std::array::from_fn(|i| (n as u8).wrapping_mul((i / 97) as u8)))
///     .collect();
///
/// let mut compressor = CpuBatchCompressor::new(Algorithm::Lz4)?;
/// let batch = compressor.compress(&pages)?;
/// assert!(batch.stats().ratio() > 5.0);
/// assert_eq!(compressor.decompress(&batch)?, pages);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct CpuBatchCompressor {
    pool: Arc<ThreadPool>,
    /// One codec per pool thread, by thread index.
    codecs: Vec<Mutex<PageCodec>>,
    /// Output buffers of the chunks, whose place in the arena is not known yet.
    chunks: Vec<CompressedChunk>,
    algorithm: Algorithm,
    instruction_set: InstructionSet,
    stats: CodecStats,
}

/// The compressed pages of one chunk. Offsets count from the chunk's start.
struct CompressedChunk {
    bytes: Box<[u8; CHUNK_PAGES * PAGE_SIZE]>,
    len_bytes: usize,
    index: Vec<IndexEntry>,
}

impl CpuBatchCompressor {
    /// Creates a compressor on the process-wide [`default_pool`], with the best instruction set of this CPU.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, CpuBatchCompressor};
    /// let compressor = CpuBatchCompressor::new(Algorithm::Zstd { level: 3 })?;
    /// println!("on {} threads", compressor.threads());
    /// assert!(CpuBatchCompressor::new(Algorithm::Zstd { level: 99 }).is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`with_pool`](Self::with_pool), and [`Error::ThreadPool`](crate::Error::ThreadPool) if the threads
    /// cannot be started.
    pub fn new(algorithm: Algorithm) -> Result<Self> {
        Self::with_pool(algorithm, InstructionSet::detect(), default_pool()?)
    }

    /// Creates a compressor on the given threads, which other compressors may share, with the given instruction set.
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    /// use trueno_zram_core::{Algorithm, CpuBatchCompressor, build_pool, cpu::InstructionSet};
    /// let pool = build_pool(NonZeroUsize::new(2).expect("not zero"))?;
    /// let compressor = CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::Scalar, pool)?;
    /// assert_eq!(compressor.threads(), 2);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InstructionSetUnavailable`](crate::Error::InstructionSetUnavailable) if this CPU lacks the instruction
    /// set; [`Error::ZstdLevel`](crate::Error::ZstdLevel) if the level is outside Zstandard's range.
    pub fn with_pool(algorithm: Algorithm, instruction_set: InstructionSet, pool: Arc<ThreadPool>) -> Result<Self> {
        let codecs = (0..pool.current_num_threads())
            .map(|_| PageCodec::with_instruction_set(algorithm, instruction_set).map(Mutex::new))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { pool, codecs, chunks: Vec::new(), algorithm, instruction_set, stats: CodecStats::default() })
    }

    /// Returns the algorithm that pages are compressed with.
    ///
    /// ```
    /// use trueno_zram_core::{Algorithm, CpuBatchCompressor};
    /// let first = CpuBatchCompressor::new(Algorithm::Zstd { level: 1 })?;
    /// let second = CpuBatchCompressor::new(first.algorithm())?; // for another thread
    /// assert_eq!(second.algorithm(), Algorithm::Zstd { level: 1 });
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the instruction set that LZ4 uses.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, cpu::InstructionSet};
    /// assert_eq!(CpuBatchCompressor::default().instruction_set(), InstructionSet::detect());
    /// ```
    #[must_use]
    pub fn instruction_set(&self) -> InstructionSet {
        self.instruction_set
    }

    /// Returns the number of worker threads.
    ///
    /// ```
    /// use trueno_zram_core::CpuBatchCompressor;
    /// let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    /// assert_eq!(CpuBatchCompressor::default().threads(), cores);
    /// ```
    #[must_use]
    pub fn threads(&self) -> usize {
        self.codecs.len()
    }

    /// Returns the worker threads, for other work on the same pages.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_core::{CpuBatchCompressor, default_pool};
    /// assert!(Arc::ptr_eq(CpuBatchCompressor::default().pool(), &default_pool()?));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }

    /// Compresses pages into a new batch.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let batch = CpuBatchCompressor::default().compress(&[[3; PAGE_SIZE]; 100])?;
    /// assert_eq!((batch.len(), batch.arena().len()), (100, 800));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InPage`](crate::Error::InPage) with [`Error::ZstdFailed`](crate::Error::ZstdFailed) if Zstandard runs
    /// out of memory. LZ4 does not fail.
    pub fn compress(&mut self, pages: &[Page]) -> Result<CompressedBatch> {
        let mut batch = CompressedBatch::new();
        self.compress_into(pages, &mut batch, &())?;
        Ok(batch)
    }

    /// Compresses pages into an existing batch, replacing its contents, and reports progress.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use trueno_zram_core::{CompressedBatch, CpuBatchCompressor, PAGE_SIZE};
    /// let pages = vec![[1u8; PAGE_SIZE]; 1000];
    /// let (mut batch, pages_done) = (CompressedBatch::new(), AtomicUsize::new(0));
    /// CpuBatchCompressor::default().compress_into(&pages, &mut batch, &pages_done)?;
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
        let start = Instant::now();
        batch.clear();
        fill_or_clear(batch, CompressedBatch::clear, |batch| self.compress_onto(pages, batch, progress))?;
        self.stats.add_compressed(pages.len(), start.elapsed());
        // There are no gaps between the pages.
        self.stats.bytes_out += batch.arena().len() as u64;
        Ok(())
    }

    /// Appends compressed pages to a batch. After an error the batch holds some of them.
    pub(crate) fn compress_onto(
        &mut self,
        pages: &[Page],
        batch: &mut CompressedBatch,
        progress: &dyn Progress,
    ) -> Result<()> {
        let pages_in_all = batch.len() + pages.len();
        let wave_pages = self.threads() * CHUNKS_PER_THREAD * CHUNK_PAGES;
        for (wave_number, wave) in pages.chunks(wave_pages).enumerate() {
            let chunks = wave.len().div_ceil(CHUNK_PAGES);
            while self.chunks.len() < chunks {
                self.chunks.push(CompressedChunk::new());
            }
            let (codecs, chunks) = (&self.codecs, &mut self.chunks[..chunks]);
            self.pool.install(|| {
                first_error(chunks.par_iter_mut().zip(wave.par_chunks(CHUNK_PAGES)).enumerate().map(
                    |(chunk_number, (chunk, pages))| {
                        let first_page = wave_number * wave_pages + chunk_number * CHUNK_PAGES;
                        with_own_codec(codecs, |codec| chunk.compress(codec, pages, first_page))?;
                        progress.pages_done(pages.len());
                        Ok(())
                    },
                ))
            })?;
            let pieces = chunks.iter().map(|chunk| (&chunk.bytes[..chunk.len_bytes], &chunk.index[..]));
            self.pool.install(|| batch.append(pieces, pages_in_all));
        }
        Ok(())
    }

    /// Restores all pages of a batch.
    ///
    /// ```
    /// use trueno_zram_core::{CompressedBatch, CpuBatchCompressor, IndexEntry, PAGE_SIZE, PageKind};
    /// let entry = IndexEntry { offset: 0, len_bytes: 8, kind: PageKind::SameFilled };
    /// let stored = CompressedBatch::from_parts(b"deadbeef".to_vec(), vec![entry; 2])?; // both pages are that word
    /// let pages = CpuBatchCompressor::default().decompress(&stored)?;
    /// assert!(pages.len() == 2 && pages[1].ends_with(b"deadbeef"));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`decompress_into`](Self::decompress_into).
    pub fn decompress(&mut self, batch: &CompressedBatch) -> Result<Vec<Page>> {
        let mut pages = filled_vec(&[0; PAGE_SIZE], batch.len(), &self.pool);
        self.decompress_into(batch, &mut pages, &())?;
        Ok(pages)
    }

    /// Restores all pages of a batch into `pages` and reports progress.
    ///
    /// ```
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let pages: Vec<[u8; PAGE_SIZE]> = (0..50).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
    /// let mut compressor = CpuBatchCompressor::default();
    /// let batch = compressor.compress(&pages)?;
    /// let mut restored = vec![[0xff; PAGE_SIZE]; batch.len()];
    /// compressor.decompress_into(&batch, &mut restored, &|pages| println!("{pages} more"))?;
    /// assert_eq!(restored, pages);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageCount`](crate::Error::PageCount) if the destination has a different number of pages;
    /// [`Error::InPage`](crate::Error::InPage) for the first corrupt page. All other pages are restored.
    pub fn decompress_into(
        &mut self,
        batch: &CompressedBatch,
        pages: &mut [Page],
        progress: &dyn Progress,
    ) -> Result<()> {
        check_destination(batch.len(), pages.len())?;
        self.restore_timed(
            |page| batch.get(page).expect("the batch has as many pages as the destination"),
            pages,
            progress,
        )
    }

    fn restore_timed<'a>(
        &mut self,
        held: impl Fn(usize) -> PageData<'a> + Sync,
        pages: &mut [Page],
        progress: &dyn Progress,
    ) -> Result<()> {
        let start = Instant::now();
        let done = self.restore(held, 0, pages, progress);
        self.stats.add_decompressed(pages.len(), start.elapsed());
        done
    }

    /// Restores pages from any source. `first_page` is the number of the first page.
    pub(crate) fn restore<'a>(
        &mut self,
        held: impl Fn(usize) -> PageData<'a> + Sync,
        first_page: usize,
        pages: &mut [Page],
        progress: &dyn Progress,
    ) -> Result<()> {
        let codecs = &self.codecs;
        self.pool.install(|| {
            first_error(pages.par_chunks_mut(CHUNK_PAGES).enumerate().map(|(chunk_number, pages)| {
                let numbers = first_page + chunk_number * CHUNK_PAGES..;
                let done = with_own_codec(codecs, |codec| {
                    let mut first_error = Ok(());
                    for (index, page) in numbers.zip(&mut *pages) {
                        let restored = codec.decompress(held(index), page).map_err(|e| e.in_page(index));
                        first_error = first_error.and(restored);
                    }
                    first_error
                });
                progress.pages_done(pages.len());
                done
            }))
        })
    }
}

impl sealed::Sealed for CpuBatchCompressor {}

impl BatchCodec for CpuBatchCompressor {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        format!("CPU, {} threads, {}", self.threads(), self.instruction_set)
    }

    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }

    /// 4 MiB, so that a few batches fit the last-level cache together.
    fn preferred_batch_pages(&self) -> usize {
        1024
    }

    fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch, progress: &dyn Progress) -> Result<()> {
        self.compress_into(pages, batch, progress)
    }

    fn decompress_into(&mut self, batch: &CompressedBatch, pages: &mut [Page], progress: &dyn Progress) -> Result<()> {
        self.decompress_into(batch, pages, progress)
    }

    fn decompress_pages(&mut self, compressed: &[PageData<'_>], pages: &mut [Page]) -> Result<()> {
        check_destination(compressed.len(), pages.len())?;
        self.restore_timed(|page| compressed[page], pages, &())
    }

    fn stats(&self) -> CodecStats {
        self.stats
    }

    #[cfg(feature = "gpu")]
    fn fallback(&self) -> Option<&crate::gpu::FallbackStats> {
        None
    }
}

impl Default for CpuBatchCompressor {
    /// Creates an LZ4 compressor on all cores.
    ///
    /// # Panics
    /// Panics if the system cannot start threads. [`CpuBatchCompressor::new`] returns an error instead.
    fn default() -> Self {
        Self::new(Algorithm::Lz4).expect("the system can start worker threads")
    }
}

impl std::fmt::Debug for CpuBatchCompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuBatchCompressor")
            .field("algorithm", &self.algorithm)
            .field("instruction_set", &self.instruction_set)
            .field("threads", &self.threads())
            .finish()
    }
}

impl CompressedChunk {
    fn new() -> Self {
        let bytes = vec![0; CHUNK_PAGES * PAGE_SIZE].into_boxed_slice();
        let bytes = bytes.try_into().expect("the vector has the length of a chunk");
        Self { bytes, len_bytes: 0, index: Vec::with_capacity(CHUNK_PAGES) }
    }

    fn compress(&mut self, codec: &mut PageCodec, pages: &[Page], first_page: usize) -> Result<()> {
        self.index.clear();
        self.len_bytes = 0;
        for (index, page) in (first_page..).zip(pages) {
            // Every earlier page took at most its own size, so there is room for a whole page here.
            let out =
                self.bytes[self.len_bytes..].first_chunk_mut().expect("a chunk has room for all of its pages held raw");
            let data = codec.compress(page, out).map_err(|e| e.in_page(index))?;
            self.index.push(IndexEntry::new(self.len_bytes as u64, data));
            let (kind, len_bytes) = (data.kind(), data.bytes().len());
            if kind == PageKind::Raw {
                out.copy_from_slice(page);
            }
            self.len_bytes += len_bytes;
        }
        Ok(())
    }
}

/// Runs `work` with the codec of the current pool thread.
fn with_own_codec<T>(codecs: &[Mutex<PageCodec>], work: impl FnOnce(&mut PageCodec) -> T) -> T {
    let thread = rayon::current_thread_index().expect("the work runs on a pool thread");
    // Earlier work never affects later results, so a codec left behind by a panic can be used again.
    work(&mut codecs[thread].lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs all the work and returns the error of the earliest part that failed.
fn first_error(work: impl IndexedParallelIterator<Item = Result<()>>) -> Result<()> {
    work.enumerate()
        .filter_map(|(part, done)| done.err().map(|error| (part, error)))
        .min_by_key(|(part, _)| *part)
        .map_or(Ok(()), |(_, error)| Err(error))
}
