//! Our kernels as the library launches them, on pages in device memory. No transfers are counted.

use std::time::Duration;

use trueno_zram_core::gpu::{BatchTimes, DevicePages, GpuBatchCompressor, GpuBatchConfig, GpuOptions, PackedOnDevice};
use trueno_zram_core::{Algorithm, CpuBatchCompressor, Page};

use super::cpu::Pool;
use crate::engine::{Engine, compare};
use crate::error::{Error, Result};

/// `GpuBatchCompressor` on pages that stay on the device.
pub(crate) struct OnDevice {
    name: &'static str,
    compressor: GpuBatchCompressor,
    input: DevicePages,
    packed: PackedOnDevice,
    restored: DevicePages,
    held_bytes: u64,
    last: Duration,
}

impl OnDevice {
    /// Creates an engine for batches of exactly `pages` pages.
    pub(crate) fn new(
        name: &'static str,
        algorithm: Algorithm,
        device_index: u32,
        pages: usize,
        pool: &Pool,
    ) -> Result<Self> {
        // Nothing passes through the ring.
        let config = GpuBatchConfig { device_index, algorithm, batch_size: 1, async_dma: false, ring_buffer_slots: 1 };
        let options = GpuOptions::new().with_pool(Pool::clone(pool));
        let set_up = || {
            let compressor = GpuBatchCompressor::with_options(config, &options)?;
            Ok(Self {
                name,
                input: compressor.device_pages(pages)?,
                packed: compressor.packed_on_device(pages)?,
                restored: compressor.device_pages(pages)?,
                compressor,
                held_bytes: 0,
                last: Duration::ZERO,
            })
        };
        set_up().map_err(|error: trueno_zram_core::Error| Error::engine(name)(error))
    }

    fn kernel_time(&mut self, times: BatchTimes) -> Result<Duration> {
        let by_cpu = self.compressor.stats().fallback.unsupported_pages;
        if by_cpu > 0 {
            return Err(Error::engine(self.name)(format!("the CPU restored {by_cpu} pages")));
        }
        self.last = Duration::from_nanos(times.kernel_time_ns);
        Ok(self.last)
    }
}

impl Engine for OnDevice {
    fn name(&self) -> &str {
        self.name
    }

    fn threads(&self) -> usize {
        1
    }

    /// Also compresses the pages and checks them with the CPU's decoder.
    fn load(&mut self, pages: &[Page]) -> Result<()> {
        let failed = Error::engine(self.name);
        self.input.upload(pages).map_err(&failed)?;
        self.compress(pages)?;
        let batch = self.packed.download().map_err(&failed)?;
        self.held_bytes = batch.stats().bytes_out;
        let restored = CpuBatchCompressor::default().decompress(&batch).map_err(&failed)?;
        compare(self.name, &restored, pages)
    }

    fn compress(&mut self, _: &[Page]) -> Result<Duration> {
        let times = self.compressor.compress_resident(&self.input, &mut self.packed);
        self.kernel_time(times.map_err(Error::engine(self.name))?)
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.held_bytes)
    }

    fn decompress(&mut self, _: &mut [Page]) -> Result<Duration> {
        let times = self.compressor.decompress_resident(&self.packed, &mut self.restored);
        self.kernel_time(times.map_err(Error::engine(self.name))?)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        self.restored.download(pages).map_err(Error::engine(self.name))
    }

    fn stages(&self) -> Vec<(&'static str, Duration)> {
        vec![("kernel", self.last)]
    }
}
