//! Batches from host memory through the GPU and back, beside the bus, memcpy and C lz4 in the same run.

use std::num::NonZeroU32;

use trueno_zram_core::Page;
use trueno_zram_core::gpu::GpuBatchConfig;
use trueno_zram_core::gpu::raw::GpuContext;
use trueno_zram_core::workers_beside_driver;

use crate::corpora::{Corpus, mix};
use crate::document::{Document, RunSettings};
use crate::engine::Engine;
use crate::engines::bus::Bus;
use crate::engines::codec::C_LZ4;
use crate::engines::cpu::{self, Memcpy, Pool, Trueno};
use crate::engines::gpu::{HostMemory, SharedPinned, TruenoGpu};
use crate::engines::pooled::Pooled;
use crate::engines::{BAR, Engines, TRUENO_GPU, TRUENO_GPU_ZSTD, ZSTD};
use crate::error::{Error, Result};
use crate::measure::{Batches, Observer, measure};
use crate::series;

/// The corpora mixed.
const MIX: &str = "mix";

/// Pages per call, from one to a million: the share of the largest call's speed shows what a call costs.
const CALL_PAGES: [usize; 10] = [1, 16, 64, 256, 1000, 4000, 16_000, 64_000, 256_000, 1_000_000];

/// Pages per slot of the ring, except where rings are compared. They fill the bus.
const SLOT_PAGES: usize = 4096;

/// Shapes of the ring: pages per slot, and slots.
const RINGS: [(usize, usize); 9] =
    [(1000, 4), (1000, 8), (2048, 4), (4096, 3), (4096, 4), (4096, 6), (8192, 3), (8192, 4), (16384, 4)];

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Section {
    /// Every path beside the bus, memcpy and C lz4.
    Paths,
    /// Calls of one to a million pages from ordinary memory, on the GPU and on the CPU.
    Calls,
    /// Shares of the multiprocessors.
    Share,
    /// Shapes of the ring.
    Rings,
    /// Every corpus by itself.
    Corpora,
}

struct Pipeline {
    config: GpuBatchConfig,
    context: GpuContext,
    pool: Pool,
    /// The thread that drives the ring has a core to itself.
    gpu_pool: Pool,
    pages: Vec<Page>,
}

/// Measures the named sections on `run.pages` pages of all corpora mixed.
///
/// ```no_run
/// use trueno_bench::pipeline::{self, Section};
/// use trueno_bench::{RunSettings, load, table};
///
/// let run = RunSettings { rounds: 3, pages: 524_288, threads: std::thread::available_parallelism().unwrap() };
/// let document = pipeline::run(&load(&[], usize::MAX)?, 0, &[Section::Paths], run, &())?;
/// println!("{}", table::draw(&document));
/// # Ok::<(), trueno_bench::Error>(())
/// ```
///
/// # Errors
/// No GPU, or that of the first engine that fails or restores other pages.
pub fn run(
    corpora: &[Corpus],
    device_index: u32,
    sections: &[Section],
    run: RunSettings,
    observer: &dyn Observer,
) -> Result<Document> {
    let context = GpuContext::new(device_index).map_err(Error::engine("GPU"))?;
    let pipeline = Pipeline {
        config: GpuBatchConfig { device_index, batch_size: SLOT_PAGES, ..GpuBatchConfig::default() },
        context,
        pool: cpu::pool(run.threads)?,
        gpu_pool: cpu::pool(workers_beside_driver(run.threads))?,
        pages: mix(corpora, run.pages)?,
    };
    let mut document = Document::new("pipeline", run, &[BAR, Bus::NAME], corpora);
    let has = |section| sections.contains(&section);
    for (section, engines) in [
        (Section::Paths, Pipeline::paths as fn(&Pipeline) -> Result<Engines<'static>>),
        (Section::Share, Pipeline::shares),
        (Section::Rings, Pipeline::rings),
    ] {
        if has(section) {
            observer.begin(&format!("{section:?}"));
            document.add_rows(
                MIX,
                0,
                &measure(engines(&pipeline)?, Batches::Whole(&pipeline.pages), run.rounds, observer)?,
            )?;
        }
    }
    if has(Section::Corpora) {
        for corpus in corpora {
            observer.begin(&corpus.name);
            let pages = mix(std::slice::from_ref(corpus), run.pages.div_ceil(4))?;
            let timed = measure(pipeline.of_corpus(pages.len())?, Batches::Whole(&pages), run.rounds, observer)?;
            document.add_rows(&corpus.name, corpus.same_filled, &timed)?;
        }
    }
    document.finish_rows();
    // Rows of the mixture and of single corpora have no mean that would say anything.
    document.means.clear();
    if has(Section::Calls) {
        observer.begin("calls");
        let mut sizes = CALL_PAGES.to_vec();
        if sizes.last().is_some_and(|largest| *largest > run.pages) {
            sizes.push(run.pages);
        }
        let engines = |_| {
            let gpu = pipeline.gpu(TRUENO_GPU, HostMemory::Pageable, &SharedPinned::default())?;
            let zstd = pipeline.zstd(TRUENO_GPU_ZSTD, HostMemory::Pageable, &SharedPinned::default())?;
            Ok(vec![gpu, zstd, Box::new(Trueno::cpu(&pipeline.pool)?) as Box<dyn Engine>])
        };
        (document.scaling, document.stages) = series::by_batch(&sizes, &pipeline.pages, run.rounds, observer, engines)?;
        document.crossing = series::gpu_overtakes_at(&document.scaling);
    }
    Ok(document)
}

impl Pipeline {
    fn gpu(&self, name: &str, memory: HostMemory, pinned: &SharedPinned) -> Result<Box<dyn Engine>> {
        self.gpu_with(name, self.config.clone(), None, memory, pinned)
    }

    /// The same with Zstandard.
    fn zstd(&self, name: &str, memory: HostMemory, pinned: &SharedPinned) -> Result<Box<dyn Engine>> {
        self.gpu_with(name, GpuBatchConfig { algorithm: ZSTD, ..self.config.clone() }, None, memory, pinned)
    }

    fn gpu_with(
        &self,
        name: &str,
        config: GpuBatchConfig,
        multiprocessors: Option<NonZeroU32>,
        memory: HostMemory,
        pinned: &SharedPinned,
    ) -> Result<Box<dyn Engine>> {
        Ok(Box::new(TruenoGpu::with(name, config, multiprocessors, &self.gpu_pool, memory, pinned)?))
    }

    fn bars(&self, pages: usize) -> Result<Engines<'static>> {
        let mut engines: Engines<'static> = vec![Box::new(Bus::new(&self.context, pages)?)];
        if let Some(c_lz4) = C_LZ4 {
            engines.push(Box::new(Pooled::new(&self.pool, &c_lz4)?));
        }
        Ok(engines)
    }

    fn paths(&self) -> Result<Engines<'static>> {
        let mut engines = self.bars(self.pages.len())?;
        engines.push(Box::new(Trueno::cpu(&self.pool)?));
        engines.push(Box::new(Memcpy::new(&self.pool)));
        let pinned = SharedPinned::default();
        for (name, memory) in [
            ("pinned to pinned", HostMemory::Pinned),
            ("pinned to arena", HostMemory::PinnedPages),
            ("pageable to arena", HostMemory::Pageable),
            ("compress_batch, dropped", HostMemory::Values),
            ("compress_batch, kept", HostMemory::KeptValues),
        ] {
            engines.push(self.gpu(name, memory, &pinned)?);
        }
        for (name, memory) in [
            ("zstd, pinned to pinned", HostMemory::Pinned),
            ("zstd, pinned to arena", HostMemory::PinnedPages),
            ("zstd, pageable to arena", HostMemory::Pageable),
        ] {
            engines.push(self.zstd(name, memory, &pinned)?);
        }
        let serial = GpuBatchConfig { async_dma: false, ring_buffer_slots: 1, ..self.config.clone() };
        engines.push(self.gpu_with("serial", serial, None, HostMemory::Pageable, &pinned)?);
        engines.push(Box::new(Trueno::adaptive(self.config.clone(), &self.gpu_pool)?));
        Ok(engines)
    }

    fn shares(&self) -> Result<Engines<'static>> {
        let (mut engines, pinned) = (self.bars(self.pages.len())?, SharedPinned::default());
        let all = self.context.limits().multiprocessors;
        for share in [8, 16, 24, 28, all / 4, all / 2, all] {
            let (name, share) = (format!("pinned, {share} of {all} SMs"), NonZeroU32::new(share));
            engines.push(self.gpu_with(&name, self.config.clone(), share, HostMemory::Pinned, &pinned)?);
            let zstd = GpuBatchConfig { algorithm: ZSTD, ..self.config.clone() };
            engines.push(self.gpu_with(&format!("zstd, {name}"), zstd, share, HostMemory::Pinned, &pinned)?);
        }
        Ok(engines)
    }

    fn rings(&self) -> Result<Engines<'static>> {
        let (mut engines, pinned) = (self.bars(self.pages.len())?, SharedPinned::default());
        for (batch_size, ring_buffer_slots) in RINGS {
            let config = GpuBatchConfig { batch_size, ring_buffer_slots, ..self.config.clone() };
            let zstd = GpuBatchConfig { algorithm: ZSTD, ..config.clone() };
            for (name, config, memory) in [
                ("pinned", config.clone(), HostMemory::Pinned),
                ("pageable", config, HostMemory::Pageable),
                ("zstd, pinned", zstd, HostMemory::Pinned),
            ] {
                let name = format!("{name}, {batch_size} x {ring_buffer_slots}");
                engines.push(self.gpu_with(&name, config, None, memory, &pinned)?);
            }
        }
        Ok(engines)
    }

    fn of_corpus(&self, pages: usize) -> Result<Engines<'static>> {
        let (mut engines, pinned) = (self.bars(pages)?, SharedPinned::default());
        engines.push(self.gpu("pinned to pinned", HostMemory::Pinned, &pinned)?);
        engines.push(self.gpu("pageable to arena", HostMemory::Pageable, &pinned)?);
        engines.push(self.zstd("zstd, pinned to pinned", HostMemory::Pinned, &pinned)?);
        engines.push(self.zstd("zstd, pageable to arena", HostMemory::Pageable, &pinned)?);
        Ok(engines)
    }
}
