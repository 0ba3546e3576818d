//! The codec that compresses and decompresses pages: chosen once, by `--backend` and `--threads`.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;

use rayon::ThreadPool;
use trueno_gpu::kernels::lz4::Mode;
use trueno_zram_archive::{Format, WriteOptions};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, Interpreter};
use trueno_zram_core::{
    Algorithm, BatchCodec, BatchCompressor, CompressedBatch, CpuBatchCompressor, Error, Page, PageCodec, build_pool,
    workers_beside_driver,
};
use trueno_zram_io::{
    ArchiveOutput, Compressed, CompressedDelta, Compressors, Decoders, DeltaOptions, Gpu, Observer, PageSource, Workers,
};

use crate::args::{
    Backend, Global,
    compression::{self, CompressionArgs},
};
use crate::failure::{Failure, FailureKind};
use crate::print::messages;

/// Pages per slot of the GPU's ring: 4 MiB, which the bus needs for full speed, and as many as a group of an archive.
const GPU_SLOT_PAGES: usize = 1024;
/// Slots of the GPU's ring. A stream has three times as many: some are filled, some are on the GPU, some are emptied.
const GPU_RING_SLOTS: usize = 6;
/// Pages per batch for the interpreter, which takes a millisecond or more for each.
const INTERPRETER_BATCH_PAGES: usize = 64;

/// Compresses and decompresses batches of pages.
#[derive(Debug)]
pub(crate) struct Engine {
    codec: EngineCodec,
    /// The back end that the user asked for.
    backend: Backend,
    /// A codec for single pages per worker: on the CPU alone, and for `auto`, whose workers help a GPU that is busy.
    lanes: Vec<PageCodec>,
    pool: Arc<ThreadPool>,
    /// Warn about GPU fallback (at most once).
    warns_of_fallback: bool,
}

/// A codec of batches.
#[derive(Debug)]
enum EngineCodec {
    Cpu(Box<CpuBatchCompressor>),
    /// The CPU, and a GPU that is opened if that pays.
    Auto(Box<BatchCompressor>),
    Gpu(Box<GpuBatchCompressor>),
    Interpreter(Box<GpuBatchCompressor<Interpreter>>),
}

impl Engine {
    /// The engine that the user asked for, to restore archives or to compress with LZ4.
    pub(crate) fn choose(global: &Global) -> Result<Self, Failure> {
        Self::foreground(global, Algorithm::Lz4, Mode::default())
    }

    /// The engine that the user asked for, to compress as the user asked for.
    pub(crate) fn compressing(global: &Global, compression: CompressionArgs) -> Result<Self, Failure> {
        let algorithm = compression.algorithm()?;
        if let Some(warning) = compression.environment_warning().filter(|_| !global.quiet) {
            messages::problem(warning);
        }
        Self::foreground(global, algorithm, compression.mode())
    }

    fn foreground(global: &Global, algorithm: Algorithm, mode: Mode) -> Result<Self, Failure> {
        let threads = match global.asked_threads() {
            Some(threads) => threads,
            None => default_threads(global.backend),
        };
        let pool = build_pool(threads)
            .map_err(|error| Failure::new(FailureKind::Other, format_args!("{error}; -T sets their number")))?;
        let engine = Self::build(global.backend, algorithm, mode, pool)?;
        Ok(Self { warns_of_fallback: !global.quiet, ..engine })
    }

    /// The engine for background work: one thread, beside a GPU where the user allows one.
    pub(crate) fn in_background(global: &Global, algorithm: Algorithm) -> Result<Self, Failure> {
        let pool = build_pool(NonZeroUsize::MIN).map_err(|error| Failure::at("worker threads", error))?;
        Self::build(global.backend, algorithm, Mode::Ratio, pool)
    }

    /// Pages per batch in the background, where nobody waits: enough for a GPU to be at work for a while.
    pub(crate) fn background_batch_pages(&self) -> usize {
        match &self.codec {
            EngineCodec::Gpu(_) => 16 * GPU_SLOT_PAGES,
            EngineCodec::Cpu(_) | EngineCodec::Auto(_) | EngineCodec::Interpreter(_) => {
                self.batch_pages().min(GPU_SLOT_PAGES)
            }
        }
    }

    /// The codec alone.
    pub(crate) fn into_codec(self) -> Box<dyn BatchCodec> {
        match self.codec {
            EngineCodec::Cpu(codec) => codec,
            EngineCodec::Auto(codec) => codec,
            EngineCodec::Gpu(codec) => codec,
            EngineCodec::Interpreter(codec) => codec,
        }
    }

    /// The engine for a back end and a number of threads.
    #[cfg(test)]
    pub(crate) fn with(backend: Backend, threads: NonZeroUsize) -> Result<Self, Failure> {
        let pool = build_pool(threads).map_err(|error| Failure::new(FailureKind::Other, error))?;
        Self::build(backend, Algorithm::Lz4, Mode::default(), pool)
    }

    /// Gets ready to restore archives of a format: a GPU has kernels for one format at a time.
    pub(crate) fn prepare_for(&mut self, format: Format) -> Result<(), Failure> {
        let has_zstd = matches!(self.codec.any().algorithm(), Algorithm::Zstd { .. });
        let is_ready = has_zstd == (format == Format::Zstd);
        if !is_ready && !matches!(self.codec, EngineCodec::Cpu(_)) {
            let (pool, warns_of_fallback) = (Arc::clone(&self.pool), self.warns_of_fallback);
            let engine = Self::build(self.backend, compression::decoding(format), Mode::default(), pool)?;
            *self = Self { warns_of_fallback, ..engine };
        }
        Ok(())
    }

    fn build(backend: Backend, algorithm: Algorithm, mode: Mode, pool: Arc<ThreadPool>) -> Result<Self, Failure> {
        let options = GpuOptions::new().with_pool(Arc::clone(&pool)).with_mode(mode);
        let config = GpuBatchConfig {
            algorithm,
            batch_size: GPU_SLOT_PAGES,
            ring_buffer_slots: GPU_RING_SLOTS,
            ..GpuBatchConfig::default()
        };
        let failed = |error| Failure::at(format_args!("--backend {backend}"), error);
        let codec = match backend {
            Backend::Cpu => {
                let codec = CpuBatchCompressor::with_pool(algorithm, InstructionSet::detect(), Arc::clone(&pool));
                EngineCodec::Cpu(Box::new(codec.map_err(failed)?))
            }
            Backend::Auto => EngineCodec::Auto(Box::new(BatchCompressor::new(config, &options).map_err(failed)?)),
            Backend::Gpu => {
                EngineCodec::Gpu(Box::new(GpuBatchCompressor::with_options(config, &options).map_err(failed)?))
            }
            Backend::Interpreter => {
                let config = GpuBatchConfig { algorithm, batch_size: GPU_SLOT_PAGES, ..GpuBatchConfig::default() };
                let gpu = GpuBatchCompressor::interpreted(config, &options).map_err(failed)?;
                EngineCodec::Interpreter(Box::new(gpu))
            }
        };
        let lanes = match &codec {
            EngineCodec::Cpu(_) | EngineCodec::Auto(_) => lanes(&pool, algorithm)?,
            EngineCodec::Gpu(_) | EngineCodec::Interpreter(_) => Vec::new(),
        };
        Ok(Self { codec, backend, lanes, pool, warns_of_fallback: false })
    }

    /// Compresses all of `source` into an archive, which is written to `out`.
    pub(crate) fn compress<S: PageSource, W: ArchiveOutput>(
        &mut self,
        source: S,
        out: W,
        options: WriteOptions,
        observer: &dyn Observer,
    ) -> Result<Compressed<S, W>, S::Error> {
        let helpers = &mut self.lanes[..];
        let compressors = match &mut self.codec {
            EngineCodec::Cpu(_) => Compressors::Cpu(helpers),
            EngineCodec::Auto(auto) => match auto.lazy_gpu() {
                Some(gpu) => Compressors::Gpu { gpu: Gpu::Lazy(gpu), helpers },
                None => Compressors::Cpu(helpers),
            },
            EngineCodec::Gpu(gpu) => Compressors::Gpu { gpu: Gpu::Cuda(gpu), helpers },
            EngineCodec::Interpreter(gpu) => Compressors::Gpu { gpu: Gpu::Interpreter(gpu), helpers },
        };
        let compressed = trueno_zram_io::compress(
            source,
            out,
            options,
            compressors,
            Workers::new(&self.pool).with_observer(observer),
        );
        self.warn_of_fallback();
        compressed
    }

    /// Compresses pages of `source` into a delta, on the CPU.
    pub(crate) fn compress_delta<S: PageSource, W: ArchiveOutput>(
        &mut self,
        source: S,
        out: W,
        options: DeltaOptions<'_>,
        observer: &dyn Observer,
    ) -> Result<CompressedDelta<S, W>, S::Error> {
        let workers = Workers::new(&self.pool).with_observer(observer);
        trueno_zram_io::compress_delta(source, out, options, &mut self.lanes, workers)
    }

    /// Compresses `pages` into `batch`, which is emptied first.
    pub(crate) fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch) -> Result<(), Error> {
        let compressed = self.codec.any_mut().compress_into(pages, batch, &());
        self.warn_of_fallback();
        compressed
    }

    /// Returns the decoders for the pipelines.
    pub(crate) fn decoders(&mut self) -> Decoders<'_> {
        let cpu_helps = !self.lanes.is_empty();
        match &mut self.codec {
            EngineCodec::Cpu(_) => Decoders::Cpu,
            EngineCodec::Auto(auto) => match auto.lazy_gpu() {
                Some(gpu) => Decoders::Gpu { gpu: Gpu::Lazy(gpu), cpu_helps },
                None => Decoders::Cpu,
            },
            EngineCodec::Gpu(gpu) => Decoders::Gpu { gpu: Gpu::Cuda(gpu), cpu_helps },
            EngineCodec::Interpreter(gpu) => Decoders::Gpu { gpu: Gpu::Interpreter(gpu), cpu_helps },
        }
    }

    /// Returns the codec for readers of archives; `None` where the CPU may decode, which it does beside the reading, and as fast.
    pub(crate) fn codec(&mut self) -> Option<&mut dyn BatchCodec> {
        if self.lanes.is_empty() { Some(self.codec.any_mut()) } else { None }
    }

    /// Warns, once, that the GPU failed. The result is right; the speed is not what was asked for.
    pub(crate) fn warn_of_fallback(&mut self) {
        let reason = self.codec.any().fallback().and_then(|fallback| fallback.last_reason.as_deref());
        if let Some(reason) = reason
            && std::mem::take(&mut self.warns_of_fallback)
        {
            messages::problem(format_args!("warning: GPU failed; falling back to CPU: {reason}"));
        }
    }

    /// The worker threads.
    pub(crate) fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool)
    }

    /// The back end's name, as in `--json`. That of `auto` is `cpu` as long as no GPU has done a page.
    pub(crate) fn name(&self) -> &'static str {
        match &self.codec {
            EngineCodec::Cpu(_) => "cpu",
            EngineCodec::Gpu(_) => "gpu",
            EngineCodec::Interpreter(_) => "interpreter",
            EngineCodec::Auto(auto) => {
                let by_gpu = auto.gpu_stats().map_or(0, |stats| stats.pages_compressed + stats.pages_decompressed);
                if by_gpu > 0 { "auto" } else { "cpu" }
            }
        }
    }

    /// Number of worker threads.
    pub(crate) fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Pages to pass in one batch for full speed.
    pub(crate) fn batch_pages(&self) -> usize {
        match &self.codec {
            // Several slots, so that copies and kernels overlap, in little memory.
            EngineCodec::Gpu(_) => 4 * GPU_SLOT_PAGES,
            EngineCodec::Cpu(codec) => codec.preferred_batch_pages(),
            EngineCodec::Auto(codec) => codec.preferred_batch_pages(),
            EngineCodec::Interpreter(_) => INTERPRETER_BATCH_PAGES,
        }
    }

    /// The back end, for `-v`.
    pub(crate) fn describe(&self) -> String {
        self.codec.any().describe()
    }
}

impl EngineCodec {
    fn any(&self) -> &dyn BatchCodec {
        match self {
            Self::Cpu(codec) => &**codec,
            Self::Auto(codec) => &**codec,
            Self::Gpu(codec) => &**codec,
            Self::Interpreter(codec) => &**codec,
        }
    }

    fn any_mut(&mut self) -> &mut dyn BatchCodec {
        match self {
            Self::Cpu(codec) => &mut **codec,
            Self::Auto(codec) => &mut **codec,
            Self::Gpu(codec) => &mut **codec,
            Self::Interpreter(codec) => &mut **codec,
        }
    }
}

/// A codec for each worker.
fn lanes(pool: &ThreadPool, algorithm: Algorithm) -> Result<Vec<PageCodec>, Failure> {
    let lane = |_| PageCodec::with_instruction_set(algorithm, InstructionSet::detect());
    let lanes = (0..pool.current_num_threads()).map(lane).collect::<Result<_, _>>();
    lanes.map_err(|error| Failure::at("worker threads", error))
}

/// One worker per core. The thread that drives a GPU has a core to itself.
fn default_threads(backend: Backend) -> NonZeroUsize {
    let cores = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    if backend == Backend::Gpu { workers_beside_driver(cores) } else { cores }
}
