//! Our own compressors from and to ordinary memory, and plain copies.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rayon::ThreadPool;
use rayon::prelude::*;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions};
use trueno_zram_core::{Algorithm, BatchCodec, BatchCompressor, CompressedBatch, CpuBatchCompressor, PAGE_SIZE, Page};

use crate::engine::Engine;
use crate::error::{Error, Result};

/// Pages that a thread takes at a time, as `CpuBatchCompressor` does.
pub(crate) const CHUNK_PAGES: usize = 16;

/// The threads that the engines of a row share.
pub(crate) type Pool = Arc<ThreadPool>;

pub(crate) fn pool(threads: NonZeroUsize) -> Result<Pool> {
    trueno_zram_core::build_pool(threads).map_err(Error::engine("worker threads"))
}

/// The name of our own batches on the CPU.
pub(crate) const TRUENO_CPU: &str = "trueno-cpu";

/// Any of our own compressors, from and to ordinary memory.
pub(crate) struct Trueno {
    name: &'static str,
    codec: Box<dyn BatchCodec>,
    /// Batches that it learns from before it is timed.
    warm_up_batches: usize,
    batch: CompressedBatch,
}

impl Trueno {
    /// `CpuBatchCompressor` with the best instruction set of this CPU.
    pub(crate) fn cpu(pool: &Pool) -> Result<Self> {
        let codec = CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), Pool::clone(pool));
        let codec = Box::new(codec.map_err(Error::engine(TRUENO_CPU))?);
        Ok(Self { name: TRUENO_CPU, codec, warm_up_batches: 0, batch: CompressedBatch::new() })
    }

    /// `BatchCompressor`, which picks GPU or CPU by the cost that it measures.
    #[cfg_attr(not(feature = "device"), allow(dead_code, reason = "only `pipeline` measures it"))]
    pub(crate) fn adaptive(config: GpuBatchConfig, pool: &Pool) -> Result<Self> {
        let name = "adaptive";
        let codec = BatchCompressor::new(config, &GpuOptions::new().with_pool(Pool::clone(pool)));
        let mut codec = Box::new(codec.map_err(Error::engine(name))?);
        codec.wait_for_gpu();
        Ok(Self { name, codec, warm_up_batches: 4, batch: CompressedBatch::new() })
    }
}

impl Engine for Trueno {
    fn name(&self) -> &str {
        self.name
    }

    fn threads(&self) -> usize {
        self.codec.pool().current_num_threads()
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        let mut restored = vec![[0; PAGE_SIZE]; if self.warm_up_batches > 0 { pages.len() } else { 0 }];
        for _ in 0..self.warm_up_batches {
            self.compress(pages)?;
            self.decompress(&mut restored)?;
        }
        Ok(())
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let start = Instant::now();
        self.codec.compress_into(pages, &mut self.batch, &()).map_err(Error::engine(self.name))?;
        Ok(start.elapsed())
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.batch.stats().bytes_out)
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        let start = Instant::now();
        self.codec.decompress_into(&self.batch, pages, &()).map_err(Error::engine(self.name))?;
        Ok(start.elapsed())
    }
}

/// Copies pages as they are, and back: the limit that memory sets.
pub(crate) struct Memcpy {
    pool: Pool,
    copy: Vec<Page>,
}

impl Memcpy {
    pub(crate) fn new(pool: &Pool) -> Self {
        Self { pool: Pool::clone(pool), copy: Vec::new() }
    }
}

/// Copies pages on all threads.
pub(crate) fn copy_pages(pool: &ThreadPool, from: &[Page], to: &mut [Page]) {
    pool.install(|| {
        let chunks = to.par_chunks_mut(CHUNK_PAGES).zip(from.par_chunks(CHUNK_PAGES));
        chunks.for_each(|(to, from)| to.copy_from_slice(from));
    });
}

impl Engine for Memcpy {
    fn name(&self) -> &str {
        "memcpy"
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        self.copy.resize(pages.len(), [0; PAGE_SIZE]);
        Ok(())
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let start = Instant::now();
        copy_pages(&self.pool, pages, &mut self.copy);
        Ok(start.elapsed())
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.copy.as_flattened().len() as u64)
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        let start = Instant::now();
        copy_pages(&self.pool, &self.copy, pages);
        Ok(start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::verify;

    #[test]
    fn copies_are_copies() {
        let mut memcpy = Memcpy::new(&pool(NonZeroUsize::new(2).unwrap()).unwrap());
        let pages: Vec<Page> = (0..40).map(|n| [n; PAGE_SIZE]).collect();
        verify(&mut memcpy, &pages).unwrap();
        verify(&mut memcpy, &pages[..3]).unwrap();
        assert_eq!((memcpy.held_bytes().unwrap(), memcpy.threads()), (3 * 4096, 2));
    }
}
