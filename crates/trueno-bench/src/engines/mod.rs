//! The engines: our own, and the rivals.

#[cfg(feature = "device")]
pub(crate) mod bus;
pub(crate) mod codec;
pub(crate) mod cpu;
pub(crate) mod gpu;
pub(crate) mod in_cache;
#[cfg(feature = "device")]
pub(crate) mod kernels;
#[cfg(feature = "device")]
pub(crate) mod nvcomp;
pub(crate) mod on_device;
#[cfg(feature = "device")]
pub(crate) mod ours_to_nvcomp;
pub(crate) mod pooled;
#[cfg(feature = "device")]
pub(crate) mod resident;
pub(crate) mod zram;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use trueno_zram_core::Algorithm;
#[cfg(feature = "device")]
use trueno_zram_core::gpu::raw::PageFormat;

use codec::{C_LZ4, RIVALS};
use cpu::{Memcpy, Pool, Trueno};
use on_device::OnDevice;
use pooled::Pooled;
use zram::Zram;

pub use gpu::Gpu;

use crate::document::LeftOut;
use crate::engine::Engine;
#[cfg(not(feature = "device"))]
use crate::error::Error;
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
/// Our decompressor on blocks that C lz4 made on the CPU. Their ratio is the bar.
pub(crate) const C_LZ4_BLOCKS: &str = "c-lz4 blocks";
/// Our own, and all of them.
const OURS_ON_GPU: [&str; 4] = [TRUENO_GPU, TRUENO_GPU_ZSTD, TRUENO_KERNEL, TRUENO_KERNEL_ZSTD];
pub(crate) const ON_GPU: [&str; 6] =
    [TRUENO_GPU, TRUENO_GPU_ZSTD, TRUENO_KERNEL, TRUENO_KERNEL_ZSTD, NVCOMP, NVCOMP_ZSTD];
/// The level of our own Zstandard engines.
pub(crate) const ZSTD: Algorithm = Algorithm::Zstd { level: 3 };

/// The reason why a rival was left out of the tool, and the way to get it.
const NOT_IN_THIS_BUILD: &str =
    "not in this build; use `cargo run --release -p trueno-zram --features rivals -- bench`";

pub(crate) type Engines<'a> = Vec<Box<dyn Engine + 'a>>;

/// Rivals outside this process, which run only if asked for.
#[derive(Clone, Debug, Default)]
pub struct Rivals {
    /// The file `libnvcomp.so`.
    pub nvcomp: Option<PathBuf>,
    /// Add a zram device to the kernel.
    pub zram: bool,
}

/// Everything that `bench` can run on this machine.
pub(crate) struct Lineup {
    pub(crate) gpu: Gpu,
    /// A session with nvCOMP, if it was asked for.
    #[cfg(feature = "device")]
    nvcomp: Option<resident::Session>,
    zram: bool,
}

impl Lineup {
    pub(crate) fn new(gpu: Gpu, rivals: &Rivals) -> Result<Self> {
        #[cfg(feature = "device")]
        let nvcomp = {
            let device_index = if let Gpu::Present { device_index } = gpu { device_index } else { 0 };
            rivals.nvcomp.as_deref().map(|file| resident::Session::new(device_index, Some(file))).transpose()?
        };
        #[cfg(not(feature = "device"))]
        if rivals.nvcomp.is_some() {
            return Err(Error::engine("nvCOMP")(NOT_IN_THIS_BUILD));
        }
        Ok(Self {
            gpu,
            #[cfg(feature = "device")]
            nvcomp,
            zram: rivals.zram,
        })
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
            engines.push(Box::new(Zram::new(pages, &pool)?));
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
            engines.push(Box::new(OnDevice::new(TRUENO_KERNEL, Algorithm::Lz4, device_index, pages, pool)?));
            engines.push(Box::new(OnDevice::new(TRUENO_KERNEL_ZSTD, ZSTD, device_index, pages, pool)?));
        }
        #[cfg(feature = "device")]
        if let Some(session) = &self.nvcomp {
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
            all.extend(rivals.map(|engine| left_out(engine, NOT_IN_THIS_BUILD)));
        }
        if let Gpu::Absent(why) = &self.gpu {
            all.extend(OURS_ON_GPU.map(|engine| left_out(engine, why)));
        }
        #[cfg(feature = "device")]
        let no_nvcomp = self.nvcomp.is_none().then_some("runs only with --rival nvcomp=PATH");
        #[cfg(not(feature = "device"))]
        let no_nvcomp = Some(NOT_IN_THIS_BUILD);
        if let Some(why) = no_nvcomp {
            all.extend([NVCOMP, NVCOMP_ZSTD].map(|engine| left_out(engine, why)));
        }
        if !self.zram {
            all.push(left_out(Zram::NAME, "runs only with --rival zram, as root"));
        }
        all
    }
}
