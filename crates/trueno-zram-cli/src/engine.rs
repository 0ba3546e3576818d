//! The codec that compresses and decompresses pages: chosen once, by `--backend` and `--threads`.

use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use rayon::ThreadPool;
use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_archive::WriteOptions;
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, gpu_available};
use trueno_zram_core::{
    Algorithm, BatchCodec, BatchCompressor, CompressedBatch, CpuBatchCompressor, Error, Page, PageCodec, build_pool,
    workers_beside_driver,
};
use trueno_zram_io::{Compressed, Compressors, Observer, PageSource};

use crate::args::{Backend, Global};
use crate::failure::Failure;
use crate::messages;

/// Pages per slot of the GPU's ring.
const GPU_SLOT_PAGES: usize = 1024;
/// Pages per batch for a GPU: several slots, so that copies and kernels overlap, in little memory.
const GPU_BATCH_PAGES: usize = 4096;
/// Pages per batch for the interpreter, which takes a millisecond or more for each.
const INTERPRETER_BATCH_PAGES: usize = 64;

/// Compresses and decompresses batches of pages.
#[derive(Debug)]
pub(crate) struct Engine {
    codec: Box<dyn BatchCodec>,
    /// A codec for single pages per worker, on the CPU alone. Pages are read and compressed by the same core, without
    /// waiting for others at the end of a batch.
    lanes: Vec<PageCodec>,
    batch_pages: usize,
    /// Why `auto` does not use a GPU.
    why_no_gpu: Option<String>,
    /// Whether to warn about GPU fallback (at most once).
    warns_of_fallback: bool,
}

impl Engine {
    /// The engine that the user asked for.
    pub(crate) fn choose(global: &Global) -> Result<Self, Failure> {
        Self::at_level(global, None)
    }

    /// The engine that the user asked for, for compression at a level of `lz4`.
    pub(crate) fn at_level(global: &Global, level: Option<i32>) -> Result<Self, Failure> {
        let threads = match global.asked_threads() {
            Some(threads) => threads,
            None => default_threads(global.backend),
        };
        Ok(Self { warns_of_fallback: !global.quiet, ..Self::build(global.backend, threads, mode_of(level))? })
    }

    /// The engine for a back end and a number of threads.
    #[cfg(test)]
    pub(crate) fn with(backend: Backend, threads: NonZeroUsize) -> Result<Self, Failure> {
        Self::build(backend, threads, Mode::default())
    }

    fn build(backend: Backend, threads: NonZeroUsize, mode: Mode) -> Result<Self, Failure> {
        let pool = build_pool(threads).map_err(|error| Failure::Failed(format!("{error}; -T sets their number")))?;
        let options = GpuOptions::new().pool(Arc::clone(&pool)).mode(mode);
        let config = |batch_size| GpuBatchConfig { batch_size, ..GpuBatchConfig::default() };
        match backend {
            Backend::Cpu => Self::on_cpu(pool, None),
            Backend::Auto => {
                let codec = BatchCompressor::new(config(GPU_SLOT_PAGES), &options)
                    .map_err(|error| Failure::at("--backend auto", error))?;
                match codec.why_no_gpu().map(str::to_owned) {
                    Some(reason) => Self::on_cpu(pool, Some(reason)),
                    None => Ok(Self::in_batches(Box::new(codec), GPU_BATCH_PAGES)),
                }
            }
            Backend::Gpu => {
                let codec = GpuBatchCompressor::with_options(config(GPU_SLOT_PAGES), &options)
                    .map_err(|error| Failure::at("--backend gpu", error))?;
                Ok(Self::in_batches(Box::new(codec), GPU_BATCH_PAGES))
            }
            Backend::Interpreter => {
                let codec = GpuBatchCompressor::interpreted(config(INTERPRETER_BATCH_PAGES), &options)
                    .map_err(|error| Failure::at("--backend interpreter", error))?;
                Ok(Self::in_batches(Box::new(codec), INTERPRETER_BATCH_PAGES))
            }
        }
    }

    fn on_cpu(pool: Arc<ThreadPool>, why_no_gpu: Option<String>) -> Result<Self, Failure> {
        let failed = |error| Failure::at("--backend cpu", error);
        let (algorithm, instructions) = (Algorithm::Lz4, InstructionSet::detect());
        let lanes = (0..pool.current_num_threads()).map(|_| PageCodec::with_instruction_set(algorithm, instructions));
        let lanes = lanes.collect::<Result<_, _>>().map_err(failed)?;
        let codec = CpuBatchCompressor::with_pool(algorithm, instructions, pool).map_err(failed)?;
        let batch_pages = codec.preferred_batch_pages();
        Ok(Self { codec: Box::new(codec), lanes, batch_pages, why_no_gpu, warns_of_fallback: false })
    }

    fn in_batches(codec: Box<dyn BatchCodec>, batch_pages: usize) -> Self {
        Self { codec, lanes: Vec::new(), batch_pages, why_no_gpu: None, warns_of_fallback: false }
    }

    /// Compresses all of `source` into an archive, which is written to `out` under the name beside it.
    pub(crate) fn compress<S: PageSource, W: Write + Send>(
        &mut self,
        source: S,
        out: (W, &str),
        options: WriteOptions,
        observer: &dyn Observer,
    ) -> Result<Compressed<S, W>, S::Error> {
        let pool = self.pool();
        let compressors = match &mut self.lanes[..] {
            [] => Compressors::Shared { codec: &mut *self.codec, batch_pages: self.batch_pages },
            lanes => Compressors::Lanes(lanes),
        };
        let compressed = trueno_zram_io::compress(source, out, options, compressors, &pool, observer);
        self.warn_of_fallback();
        compressed
    }

    /// Compresses `pages` into `batch`, which is emptied first.
    pub(crate) fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch) -> Result<(), Error> {
        let compressed = self.codec.compress_into(pages, batch, &());
        self.warn_of_fallback();
        compressed
    }

    /// The codec for readers of archives. None on the CPU alone: readers decode there themselves, lot by lot.
    pub(crate) fn codec(&mut self) -> Option<&mut dyn BatchCodec> {
        if self.lanes.is_empty() { Some(&mut *self.codec) } else { None }
    }

    /// Warns, once, that the GPU failed. The result is right; the speed is not what was asked for.
    pub(crate) fn warn_of_fallback(&mut self) {
        let reason = self.codec.fallback().and_then(|fallback| fallback.last_reason.as_deref());
        if let Some(reason) = reason
            && std::mem::take(&mut self.warns_of_fallback)
        {
            messages::problem(format_args!("warning: GPU failed; falling back to CPU: {reason}"));
        }
    }

    /// The worker threads.
    pub(crate) fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(self.codec.pool())
    }

    /// The back end's name, as in `--json`.
    pub(crate) fn name(&self) -> &'static str {
        self.codec.name()
    }

    /// Number of worker threads.
    pub(crate) fn threads(&self) -> usize {
        self.codec.pool().current_num_threads()
    }

    /// Pages to pass in one batch for full speed.
    pub(crate) fn batch_pages(&self) -> usize {
        self.batch_pages
    }

    /// The back end, for `-v`.
    pub(crate) fn describe(&self) -> String {
        let codec = self.codec.describe();
        match &self.why_no_gpu {
            Some(reason) => format!("{codec} (no GPU: {reason})"),
            None => codec,
        }
    }
}

/// The kernel for a level. `lz4` too has fast compression at 1 and 2, and searches longer from 3 on.
fn mode_of(level: Option<i32>) -> Mode {
    if level.is_some_and(|level| level > 2) { Mode::Ratio } else { Mode::Fast }
}

/// One worker per core. Beside a GPU the thread that drives it has a core to itself.
fn default_threads(backend: Backend) -> NonZeroUsize {
    let cores = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    match backend {
        Backend::Auto | Backend::Gpu if gpu_available() => workers_beside_driver(cores),
        _ => cores,
    }
}
