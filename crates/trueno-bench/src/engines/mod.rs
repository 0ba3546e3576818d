//! The engines: our own, and the rivals.

pub(crate) mod bus;
pub(crate) mod codec;
pub(crate) mod cpu;
pub(crate) mod cross;
pub(crate) mod gpu;
pub(crate) mod in_cache;
pub(crate) mod kernels;
pub(crate) mod nvcomp;
pub(crate) mod pooled;
pub(crate) mod resident;
pub(crate) mod zram;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use trueno_gpu::kernels::packed::Mode;
use trueno_zram_core::Algorithm;
use trueno_zram_core::gpu::raw::PageFormat;

use codec::{C_LZ4, RIVALS};
use cpu::{Memcpy, Pool, Trueno};
use kernels::KernelEngine;
use pooled::Pooled;
use zram::Zram;

pub use gpu::Gpu;

use crate::document::LeftOut;
use crate::engine::Engine;
use crate::error::Result;

/// The engine that CPU engines are compared with.
pub(crate) const BAR: &str = "c-lz4";
/// Names of the engines that run on a GPU: whole batches with their transfers, and kernels on pages in device memory.
pub(crate) const TRUENO_GPU: &str = "trueno-gpu";
pub(crate) const TRUENO_GPU_ZSTD: &str = "trueno-gpu-zstd";
pub(crate) const TRUENO_KERNEL: &str = "trueno-kernel";
pub(crate) const TRUENO_KERNEL_ZSTD: &str = "trueno-kernel-zstd";
pub(crate) const NVCOMP: &str = "nvcomp-lz4";
pub(crate) const NVCOMP_ZSTD: &str = "nvcomp-zstd";
/// Our own, and all of them.
const OURS_ON_GPU: [&str; 4] = [TRUENO_GPU, TRUENO_GPU_ZSTD, TRUENO_KERNEL, TRUENO_KERNEL_ZSTD];
pub(crate) const ON_GPU: [&str; 6] =
    [TRUENO_GPU, TRUENO_GPU_ZSTD, TRUENO_KERNEL, TRUENO_KERNEL_ZSTD, NVCOMP, NVCOMP_ZSTD];
/// The level of our own Zstandard engines.
pub(crate) const ZSTD: Algorithm = Algorithm::Zstd { level: 3 };

/// How to build the rivals into the tool.
const HOW_TO_GET_RIVALS: &str =
    "not in this build; use `cargo run --release -p trueno-zram --features rivals -- bench`";

pub(crate) type Engines<'a> = Vec<Box<dyn Engine + 'a>>;

/// Rivals outside this process, which run only if asked for.
#[derive(Clone, Debug, Default)]
pub struct Rivals {
    /// The file `libnvcomp.so`.
    pub nvcomp: Option<PathBuf>,
    /// Whether to add a zram device to the kernel.
    pub zram: bool,
}

/// Everything that `bench` can run on this machine.
pub(crate) struct Lineup {
    pub(crate) gpu: Gpu,
    /// For kernels on pages in device memory: ours, and nvCOMP's if it was asked for.
    session: Option<resident::Session>,
    zram: bool,
}

impl Lineup {
    pub(crate) fn new(gpu: Gpu, rivals: &Rivals) -> Result<Self> {
        let nvcomp = rivals.nvcomp.as_deref();
        let session = match gpu {
            Gpu::Present { device_index } => Some(resident::Session::new(device_index, nvcomp)?),
            Gpu::Absent(_) => nvcomp.map(|file| resident::Session::new(0, Some(file))).transpose()?,
        };
        Ok(Self { gpu, session, zram: rivals.zram })
    }

    /// CPU engines for batches of `pages` pages.
    pub(crate) fn on_cpu(&self, threads: NonZeroUsize, pages: usize) -> Result<Engines<'static>> {
        let pool = cpu::pool(threads)?;
        let mut engines: Engines<'static> = Vec::new();
        for rival in RIVALS {
            engines.push(Box::new(Pooled::new(&pool, rival)?));
        }
        engines.insert(engines.len().min(1), Box::new(Trueno::cpu(&pool)?));
        if self.zram {
            engines.push(Box::new(Zram::new("lz4", pages, &pool)?));
        }
        engines.push(Box::new(Memcpy::new(&pool)));
        Ok(engines)
    }

    /// GPU engines for batches of `pages` pages.
    pub(crate) fn on_gpu(&self, pages: usize, pool: &Pool) -> Result<Engines<'_>> {
        let mut engines: Engines<'_> = Vec::new();
        if let Gpu::Present { device_index } = self.gpu {
            engines.push(Box::new(gpu::TruenoGpu::new(TRUENO_GPU, Algorithm::Lz4, device_index, pool)?));
            engines.push(Box::new(gpu::TruenoGpu::new(TRUENO_GPU_ZSTD, ZSTD, device_index, pool)?));
        }
        let Some(session) = &self.session else {
            return Ok(engines);
        };
        for (format, name) in [(PageFormat::Lz4, TRUENO_KERNEL), (PageFormat::Zstd, TRUENO_KERNEL_ZSTD)] {
            engines.push(Box::new(KernelEngine::of_product(session, name, format, Mode::Fast, pages)?));
        }
        if session.nvcomp.is_some() {
            for format in PageFormat::ALL {
                engines.push(Box::new(resident::NvCompEngine::new(session, format, pages)?));
            }
        }
        Ok(engines)
    }

    /// Engines that do not run, and why.
    pub(crate) fn left_out(&self) -> Vec<LeftOut> {
        let left_out = |engine: &str, why: &str| LeftOut { engine: engine.to_owned(), why: why.to_owned() };
        let mut all = Vec::new();
        if C_LZ4.is_none() {
            let rivals = [BAR, "lz4-flex", "zstd-1", "zstd-3", "zstd-9"];
            all.extend(rivals.map(|engine| left_out(engine, HOW_TO_GET_RIVALS)));
        }
        if let Gpu::Absent(why) = &self.gpu {
            all.extend(OURS_ON_GPU.map(|engine| left_out(engine, why)));
        }
        if self.session.as_ref().is_none_or(|session| session.nvcomp.is_none()) {
            all.extend([NVCOMP, NVCOMP_ZSTD].map(|engine| left_out(engine, "runs only with --rival nvcomp=PATH")));
        }
        if !self.zram {
            all.push(left_out("zram-lz4", "runs only with --rival zram, as root"));
        }
        all
    }
}
