//! Which engines run, and why others do not.

use std::cell::RefCell;
use std::num::NonZeroUsize;

use trueno_bench_engines::{BatchEngine, CLz4, Corpus, Flex, Memcpy, Pooled, Result, TruenoCpu, Zram, Zstd, nvcomp};

use super::document::LeftOut;
use super::gpu::{self, Gpu};
use super::scaling;

/// What there is to run on this machine.
pub(crate) struct Lineup {
    pub(crate) gpu: Gpu,
    nvcomp: Vec<nvcomp::Session>,
    /// The kernel's zram, the first time it could not be used.
    zram_failure: RefCell<Option<String>>,
}

impl Lineup {
    pub(crate) fn new(gpu: Gpu, nvcomp: Vec<nvcomp::Session>) -> Self {
        Self { gpu, nvcomp, zram_failure: RefCell::new(None) }
    }

    /// The engines of the CPU on so many threads, for batches of `pages` pages; the first is the bar.
    pub(crate) fn cpu(&self, threads: NonZeroUsize, pages: usize) -> Result<Vec<Box<dyn BatchEngine + '_>>> {
        let pool = Pooled::pool(threads)?;
        let mut engines: Vec<Box<dyn BatchEngine>> = vec![
            Box::new(Pooled::new(&pool, || Ok(CLz4::new()))?),
            Box::new(TruenoCpu::new(threads)?),
            Box::new(Pooled::new(&pool, || Ok(Flex))?),
            Box::new(Pooled::new(&pool, Zstd::new)?),
            Box::new(Memcpy::new(&pool)),
        ];
        if self.zram_failure.borrow().is_none() {
            match Zram::new("lz4", pages, &pool) {
                Ok(zram) => engines.insert(4, Box::new(zram)),
                Err(e) => *self.zram_failure.borrow_mut() = Some(e.to_string()),
            }
        }
        Ok(engines)
    }

    /// The engines of the GPU.
    pub(crate) fn on_gpu(&self, pages: usize) -> Result<Vec<Box<dyn BatchEngine + '_>>> {
        let mut engines: Vec<Box<dyn BatchEngine + '_>> = Vec::new();
        if let Some(engine) = self.gpu.engine()? {
            engines.push(engine);
        }
        for session in &self.nvcomp {
            engines.push(Box::new(nvcomp::Resident::new(session, pages)?));
        }
        Ok(engines)
    }

    /// Engines that did not run, and why.
    pub(crate) fn left_out(&self) -> Vec<LeftOut> {
        let left_out = |engine: &str, why: &str| LeftOut { engine: engine.to_owned(), why: why.to_owned() };
        let mut all: Vec<LeftOut> = self.gpu.why_absent().map(|why| left_out(gpu::NAME, why)).into_iter().collect();
        if self.nvcomp.is_empty() {
            all.push(left_out("nvcomp-lz4", "not asked for by --rival nvcomp=PATH"));
        }
        all.extend(self.zram_failure.borrow().as_deref().map(|why| left_out("zram-lz4", why)));
        all
    }

    /// About how many steps a run has.
    pub(crate) fn steps(&self, corpora: &[Corpus], threads: NonZeroUsize, rounds: usize) -> usize {
        let passes = if threads.get() == 1 { 1 } else { 2 };
        let on_gpu = self.nvcomp.len() + usize::from(self.gpu.why_absent().is_none());
        let engines = passes * 6 + on_gpu;
        corpora.len() * engines * (rounds + 1) + scaling::steps(threads, rounds)
    }
}
