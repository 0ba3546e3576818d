//! What compresses and decompresses the batches: chosen once, by `--backend` and `--threads`.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use trueno_zram_core::cpu::InstructionSet;
use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, Interpreter};
use trueno_zram_core::{
    Algorithm, BatchCodec, BatchCompressor, CompressedBatch, CpuBatchCompressor, Error, PAGE_SIZE, Page, PageCodec,
    build_pool,
};

use crate::args::{BackendChoice, Global};
use crate::failure::Failure;

/// Pages in a batch on the CPU: 4 MiB, so that a few batches on their way fit the last-level cache together.
const CPU_BATCH_PAGES: usize = 1024;
/// Pages that a lane on the CPU takes at a time: with what they become they stay in the core's own cache.
const CPU_LANE_PAGES: usize = 64;
/// Pages in a batch for a GPU: several slots of its ring, so that copies and kernels overlap.
const GPU_BATCH_PAGES: usize = 4096;
const GPU_SLOT_PAGES: usize = 1024;
/// Lanes before an engine that one lane has at a time: one in it, one that reads, one that hashes and writes.
const SHARED_LANES: usize = 3;
/// Pages in a batch for the interpreter, which takes a thousandth of a second and more for each.
const INTERPRETER_BATCH_PAGES: usize = 64;

/// Compresses and decompresses batches of pages.
#[derive(Debug)]
pub(crate) struct Engine {
    kind: Kind,
    why: String,
    pool: Arc<ThreadPool>,
    /// Whether to tell that a GPU failed; told once.
    tells_fallback: bool,
}

#[derive(Debug)]
enum Kind {
    Cpu(CpuBatchCompressor),
    /// GPU, CPU or both, by what they are measured to do.
    Either(Box<BatchCompressor>),
    Gpu(Box<GpuBatchCompressor>),
    Interpreter(Box<GpuBatchCompressor<Interpreter>>),
}

impl Engine {
    /// The engine that the user asked for, on as many threads.
    pub(crate) fn choose(global: &Global) -> Result<Self, Failure> {
        Ok(Self { tells_fallback: !global.quiet, ..Self::with(global.backend, global.threads())? })
    }

    /// The engine for a back end and a number of threads.
    pub(crate) fn with(choice: BackendChoice, threads: NonZeroUsize) -> Result<Self, Failure> {
        let (kind, why) = match choice {
            BackendChoice::Auto => either(threads)?,
            BackendChoice::Cpu => (cpu(threads)?, "as asked".to_owned()),
            BackendChoice::Gpu => {
                let gpu = GpuBatchCompressor::with_options(config(GPU_SLOT_PAGES), &options(threads));
                (Kind::Gpu(Box::new(gpu.map_err(|error| Failure::at("--backend gpu", error))?)), "as asked".to_owned())
            }
            BackendChoice::Interpreter => {
                let compressor = GpuBatchCompressor::interpreted(config(INTERPRETER_BATCH_PAGES), &options(threads));
                let compressor = compressor.map_err(|error| Failure::at("--backend interpreter", error))?;
                (Kind::Interpreter(Box::new(compressor)), "as asked".to_owned())
            }
        };
        let pool = ThreadPoolBuilder::new().num_threads(threads.get()).thread_name(|n| format!("blocks-{n}")).build();
        let pool = Arc::new(pool.map_err(|error| Failure::at("worker threads", error))?);
        Ok(Self { kind, why, pool, tells_fallback: false })
    }

    /// Compresses `pages` into `batch`, which is emptied first.
    pub(crate) fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch) -> Result<(), Error> {
        let compressed = match &mut self.kind {
            Kind::Cpu(compressor) => compressor.compress_into(pages, batch, &()),
            Kind::Either(compressor) => compressor.compress_into(pages, batch, &()),
            Kind::Gpu(compressor) => compressor.compress_into(pages, batch, &()).map(drop),
            Kind::Interpreter(compressor) => compressor.compress_into(pages, batch, &()).map(drop),
        };
        self.tell_fallback();
        compressed
    }

    /// Returns the codec that decodes pages, or `None` if the readers decode them on the CPU themselves.
    pub(crate) fn codec(&mut self) -> Option<&mut dyn BatchCodec> {
        match &mut self.kind {
            Kind::Cpu(_) => None,
            Kind::Either(compressor) => Some(&mut **compressor),
            Kind::Gpu(compressor) => Some(&mut **compressor),
            Kind::Interpreter(compressor) => Some(&mut **compressor),
        }
    }

    /// Says, once, that the CPU had to stand in for a GPU, and why: the result is right, the speed is not what was asked for.
    pub(crate) fn tell_fallback(&mut self) {
        let stats = match &self.kind {
            Kind::Cpu(_) => None,
            Kind::Either(compressor) => compressor.gpu_stats(),
            Kind::Gpu(compressor) => Some(compressor.stats()),
            Kind::Interpreter(compressor) => Some(compressor.stats()),
        };
        if let Some(reason) = stats.and_then(|stats| stats.fallback.last_reason.as_deref())
            && std::mem::take(&mut self.tells_fallback)
        {
            eprintln!("trueno-zram: the GPU failed, the CPU goes on: {reason}");
        }
    }

    /// What compresses on threads of the caller, side by side; and the pages that each is best given at a time.
    ///
    /// On the CPU each thread has a codec of its own: pages are read and compressed by the same core, without waiting
    /// for others at the end of a batch. An engine that is one for all is passed around.
    pub(crate) fn lanes(&mut self) -> Result<(Vec<Lane<'_>>, usize), Failure> {
        let threads = self.threads();
        if let Kind::Cpu(compressor) = &self.kind {
            let codec = || {
                PageCodec::with_instruction_set(compressor.algorithm(), compressor.instruction_set()).map(Lane::Codec)
            };
            let lanes = (0..threads).map(|_| codec()).collect::<Result<_, _>>();
            return Ok((lanes.map_err(|error| Failure::at("CPU back end", error))?, CPU_LANE_PAGES));
        }
        let batch_pages = self.batch_pages();
        let shared = Arc::new(Mutex::new(self));
        Ok(((0..SHARED_LANES).map(|_| Lane::Shared(Arc::clone(&shared))).collect(), batch_pages))
    }

    /// The threads for all work on blocks that is not the engine's own.
    pub(crate) fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool)
    }

    /// The back end's name, as in `--json`.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Cpu(_) => "cpu",
            Kind::Either(_) => "auto",
            Kind::Gpu(_) => "gpu",
            Kind::Interpreter(_) => "interpreter",
        }
    }

    /// Threads at work.
    pub(crate) fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Pages to pass in one batch for full speed.
    pub(crate) fn batch_pages(&self) -> usize {
        match self.kind {
            Kind::Cpu(_) => CPU_BATCH_PAGES,
            Kind::Either(_) | Kind::Gpu(_) => GPU_BATCH_PAGES,
            Kind::Interpreter(_) => INTERPRETER_BATCH_PAGES,
        }
    }

    /// Which back end this is and why, for `-v`.
    pub(crate) fn describe(&self) -> String {
        let (threads, why) = (self.threads(), &self.why);
        match &self.kind {
            Kind::Cpu(compressor) => {
                format!("CPU, {} threads, {} ({why})", compressor.threads(), compressor.instruction_set())
            }
            Kind::Either(compressor) => {
                let device = compressor.device().map_or("GPU", |device| &device.name);
                format!("{device} and CPU, {threads} threads ({why})")
            }
            Kind::Gpu(compressor) => format!("GPU {}, {threads} threads ({why})", compressor.config().device_index),
            Kind::Interpreter(_) => format!("the GPU's kernels in the interpreter, {threads} threads ({why})"),
        }
    }
}

fn cpu(threads: NonZeroUsize) -> Result<Kind, Failure> {
    let compressor = build_pool(threads)
        .and_then(|pool| CpuBatchCompressor::with_pool(Algorithm::Lz4, InstructionSet::detect(), pool))
        .map_err(|error| Failure::at("CPU back end", error))?;
    Ok(Kind::Cpu(compressor))
}

/// GPU and CPU where there is a GPU, else the CPU; and why.
fn either(threads: NonZeroUsize) -> Result<(Kind, String), Failure> {
    let compressor = BatchCompressor::new(config(GPU_SLOT_PAGES), &options(threads))
        .map_err(|error| Failure::at("back end", error))?;
    match compressor.why_no_gpu() {
        Some(why) => Ok((cpu(threads)?, format!("no GPU: {why}"))),
        None => Ok((Kind::Either(Box::new(compressor)), "by what each is measured to do".to_owned())),
    }
}

fn config(slot_pages: usize) -> GpuBatchConfig {
    GpuBatchConfig { batch_size: slot_pages, ..GpuBatchConfig::default() }
}

fn options(threads: NonZeroUsize) -> GpuOptions {
    // What a number of threads out of range leads to is reported by the compressor.
    build_pool(threads).map_or_else(|_| GpuOptions::new(), |pool| GpuOptions::new().pool(pool))
}

/// Compresses on one thread, beside others.
pub(crate) enum Lane<'a> {
    /// By itself.
    Codec(PageCodec),
    /// With an engine that one lane has at a time, while others read and hash.
    Shared(Arc<Mutex<&'a mut Engine>>),
}

impl Lane<'_> {
    /// Compresses `pages` into `batch`, which is emptied first.
    pub(crate) fn compress_into(&mut self, pages: &[Page], batch: &mut CompressedBatch) -> Result<(), Error> {
        match self {
            Lane::Codec(codec) => {
                batch.clear();
                let mut out = [0; PAGE_SIZE];
                for page in pages {
                    batch.push(codec.compress(page, &mut out)?);
                }
                Ok(())
            }
            // An engine starts every batch anew, whatever happened to the one before.
            Lane::Shared(engine) => engine.lock().unwrap_or_else(PoisonError::into_inner).compress_into(pages, batch),
        }
    }
}
