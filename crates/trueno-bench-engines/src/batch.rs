//! Batches of pages behind one face: compressed and kept, restored, each with the time it took.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::{Algorithm, CompressedBatch, CpuBatchCompressor, PAGE_SIZE, Page};

use crate::error::{Error, Result};
use crate::pooled::{CHUNK_PAGES, Pool};

/// Something that compresses a batch, keeps the result, and restores it.
pub trait BatchEngine {
    /// The name in all rows.
    fn name(&self) -> &str;
    /// Threads of the CPU at work.
    fn threads(&self) -> usize;
    /// Compresses the pages and keeps the result: the time it took, without what the measurement itself needs.
    ///
    /// # Errors
    /// The engine's own.
    fn compress(&mut self, pages: &[Page]) -> Result<Duration>;
    /// Bytes that the last batch is held in; a page that does not shrink counts whole.
    ///
    /// # Errors
    /// The engine's own.
    fn held_bytes(&self) -> Result<u64>;
    /// Restores the last batch: the time it took, likewise.
    ///
    /// # Errors
    /// The engine's own.
    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration>;
    /// What the last call's time went to, where the engine knows. Stages that overlap add up to more than the time.
    fn stages(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
    }
}

/// Compresses the pages, restores them over other bytes, and compares every one.
///
/// ```
/// use std::num::NonZeroUsize;
/// use trueno_bench_engines::{TruenoCpu, verify};
/// verify(&mut TruenoCpu::new(NonZeroUsize::MIN)?, &[[1; 4096], [2; 4096]])?;
/// # Ok::<(), trueno_bench_engines::Error>(())
/// ```
///
/// # Errors
/// [`Error::NotRestored`] with the first page that differs, or the engine's own.
pub fn verify(engine: &mut dyn BatchEngine, pages: &[Page]) -> Result<()> {
    engine.compress(pages)?;
    let mut restored = vec![[0xa5; PAGE_SIZE]; pages.len()];
    engine.decompress(&mut restored)?;
    match restored.iter().zip(pages).position(|(restored, page)| restored != page) {
        Some(page) => Err(Error::NotRestored { engine: engine.name().to_owned(), page }),
        None => Ok(()),
    }
}

/// Our own batches, on the CPU.
#[derive(Debug)]
pub struct TruenoCpu {
    compressor: CpuBatchCompressor,
    batch: CompressedBatch,
}

impl TruenoCpu {
    /// On so many threads, with the best back end of this CPU.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(threads: NonZeroUsize) -> Result<Self> {
        let compressor = trueno_zram_core::build_pool(threads)
            .and_then(|pool| CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), pool));
        Ok(Self { compressor: compressor.map_err(Error::engine("trueno-cpu"))?, batch: CompressedBatch::new() })
    }
}

impl BatchEngine for TruenoCpu {
    fn name(&self) -> &str {
        "trueno-cpu"
    }

    fn threads(&self) -> usize {
        self.compressor.threads()
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let start = Instant::now();
        self.compressor.compress_into(pages, &mut self.batch, &()).map_err(Error::engine("trueno-cpu"))?;
        Ok(start.elapsed())
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.batch.arena().len() as u64)
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        let start = Instant::now();
        self.compressor.decompress_into(&self.batch, pages, &()).map_err(Error::engine("trueno-cpu"))?;
        Ok(start.elapsed())
    }
}

/// What the memory allows: pages copied as they are, and back.
pub struct Memcpy {
    pool: Pool,
    copy: Vec<Page>,
}

impl Memcpy {
    /// On the threads of the pool.
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        Self { pool: Pool::clone(pool), copy: Vec::new() }
    }

    fn copy(pool: &Pool, from: &[Page], to: &mut [Page]) -> Duration {
        let start = Instant::now();
        pool.install(|| {
            let chunks = to.par_chunks_mut(CHUNK_PAGES).zip(from.par_chunks(CHUNK_PAGES));
            chunks.for_each(|(to, from)| to.copy_from_slice(from));
        });
        start.elapsed()
    }
}

impl BatchEngine for Memcpy {
    fn name(&self) -> &str {
        "memcpy"
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        self.copy.resize(pages.len(), [0; PAGE_SIZE]);
        Ok(Self::copy(&self.pool, pages, &mut self.copy))
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.copy.as_flattened().len() as u64)
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        Ok(Self::copy(&self.pool, &self.copy, pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forgets one byte of one page.
    struct Forgetful(Vec<Page>);

    impl BatchEngine for Forgetful {
        fn name(&self) -> &str {
            "forgetful"
        }

        fn threads(&self) -> usize {
            1
        }

        fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
            self.0 = pages.to_vec();
            Ok(Duration::ZERO)
        }

        fn held_bytes(&self) -> Result<u64> {
            Ok(1)
        }

        fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
            pages.copy_from_slice(&self.0);
            pages[2][4095] ^= 1;
            Ok(Duration::ZERO)
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let error = verify(&mut Forgetful(Vec::new()), &[[1; PAGE_SIZE]; 4]).unwrap_err();
        assert_eq!(error.to_string(), "forgetful does not restore page 2");
    }

    #[test]
    fn copies_are_copies() {
        let pool = crate::Pooled::pool(NonZeroUsize::new(2).unwrap()).unwrap();
        let pages: Vec<Page> = (0..40).map(|n| [n; PAGE_SIZE]).collect();
        let mut memcpy = Memcpy::new(&pool);
        verify(&mut memcpy, &pages).unwrap();
        verify(&mut memcpy, &pages[..3]).unwrap();
        assert_eq!((memcpy.held_bytes().unwrap(), memcpy.threads()), (3 * 4096, 2));
    }
}
