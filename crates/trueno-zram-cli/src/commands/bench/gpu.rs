//! The GPU's part of the bench: our own batches there, or why there are none.

use std::num::NonZeroUsize;
use std::time::Duration;

use trueno_bench_engines::{BatchEngine, Error, Result};
use trueno_zram_core::gpu::raw::GpuContext;
use trueno_zram_core::gpu::{BatchTimes, GpuBatchCompressor, GpuBatchConfig, GpuDeviceInfo, GpuOptions};
use trueno_zram_core::{CompressedBatch, Page};

use crate::args::Backend;
use crate::failure::Failure;

/// The name in all rows.
pub(crate) const NAME: &str = "trueno-gpu";

/// Whether an engine runs on the GPU, whatever the threads that feed it.
pub(crate) fn runs_there(engine: &str) -> bool {
    matches!(engine, NAME | "nvcomp-lz4")
}

/// The GPU, if it takes part.
#[derive(Debug)]
pub(crate) enum Gpu {
    /// It does: the device's index, and the threads of the CPU that feed it.
    Present { device_index: u32, threads: NonZeroUsize },
    /// It does not, and why.
    Absent(String),
}

/// Looks for the GPU. An error if it was asked for and is not there.
pub(crate) fn open(choice: Backend, threads: NonZeroUsize) -> std::result::Result<Gpu, Failure> {
    let device = GpuDeviceInfo::all().into_iter().find(GpuDeviceInfo::is_supported);
    match (choice, device) {
        (Backend::Cpu, _) => Ok(Gpu::Absent("--backend cpu".into())),
        (_, Some(device)) => Ok(Gpu::Present { device_index: device.index, threads }),
        (_, None) => {
            let why =
                GpuContext::new(0).err().map_or_else(|| "no device is supported".into(), |error| error.to_string());
            if choice == Backend::Gpu { Err(Failure::at("--backend gpu", why)) } else { Ok(Gpu::Absent(why)) }
        }
    }
}

impl Gpu {
    /// A new engine, if the GPU takes part.
    pub(crate) fn engine(&self) -> Result<Option<Box<dyn BatchEngine>>> {
        match self {
            Self::Present { device_index, threads } => Ok(Some(Box::new(TruenoGpu::new(*device_index, *threads)?))),
            Self::Absent(_) => Ok(None),
        }
    }

    /// Why it does not take part.
    pub(crate) fn why_absent(&self) -> Option<&str> {
        match self {
            Self::Present { .. } => None,
            Self::Absent(why) => Some(why),
        }
    }
}

/// Our own batches on the GPU: from memory of the CPU and back to it.
struct TruenoGpu {
    compressor: GpuBatchCompressor,
    batch: CompressedBatch,
    threads: usize,
    last: BatchTimes,
}

impl TruenoGpu {
    fn new(device_index: u32, threads: NonZeroUsize) -> Result<Self> {
        let config = GpuBatchConfig { device_index, ..GpuBatchConfig::default() };
        let options = GpuOptions::new().pool(trueno_zram_core::build_pool(threads).map_err(failed)?);
        let compressor = GpuBatchCompressor::with_options(config, &options).map_err(failed)?;
        let (batch, last) = (CompressedBatch::new(), BatchTimes::default());
        Ok(Self { compressor, batch, threads: threads.get(), last })
    }

    /// What the CPU did in the GPU's stead must not pass for the GPU's.
    fn done(&mut self, times: BatchTimes) -> Result<Duration> {
        if let Some(why) = &self.compressor.stats().fallback.last_reason {
            return Err(failed(format!("the CPU had to stand in: {why}")));
        }
        self.last = times;
        Ok(Duration::from_nanos(times.total_time_ns))
    }
}

impl BatchEngine for TruenoGpu {
    fn name(&self) -> &str {
        NAME
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        let times = self.compressor.compress_into(pages, &mut self.batch, &()).map_err(failed)?;
        self.done(times)
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.batch.iter().map(|page| page.bytes().len() as u64).sum())
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        let times = self.compressor.decompress_into(&self.batch, pages, &()).map_err(failed)?;
        self.done(times)
    }

    fn stages(&self) -> Vec<(&'static str, Duration)> {
        let BatchTimes { h2d_time_ns, kernel_time_ns, d2h_time_ns, .. } = self.last;
        let stages = [("to the GPU", h2d_time_ns), ("kernel", kernel_time_ns), ("back", d2h_time_ns)];
        stages.map(|(stage, ns)| (stage, Duration::from_nanos(ns))).to_vec()
    }
}

fn failed(reason: impl ToString) -> Error {
    Error::Engine { engine: NAME, reason: reason.to_string() }
}
