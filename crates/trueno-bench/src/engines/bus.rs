//! The bus between host and device: copies from and to page-locked memory.

use std::ops::Range;
use std::time::{Duration, Instant};

use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{CudaStream, DeviceBuffer, GpuContext, GpuResult, HostCaching, PinnedBuffer};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::engine::Engine;
use crate::error::{Error, Result};

/// Bytes of one copy, as in the ring.
const COPY_BYTES: usize = 16 << 20;

/// Copies pages to the device instead of compressing them, and back.
pub(crate) struct Bus {
    stream: CudaStream,
    host: PinnedBuffer,
    device: DeviceBuffer,
    len_bytes: usize,
}

impl Bus {
    pub(crate) const NAME: &str = "bus";

    pub(crate) fn new(context: &GpuContext, pages: usize) -> Result<Self> {
        let len_bytes = pages * PAGE_SIZE;
        let set_up = || {
            let host = PinnedBuffer::new(context, len_bytes, HostCaching::Cached)?;
            Ok(Self {
                stream: CudaStream::new(context)?,
                host,
                device: DeviceBuffer::new(context, len_bytes)?,
                len_bytes,
            })
        };
        set_up().map_err(failed)
    }

    fn copy(&mut self, mut copy: impl FnMut(&mut Self, Range<usize>) -> GpuResult<()>) -> Result<Duration> {
        let start = Instant::now();
        for at in (0..self.len_bytes).step_by(COPY_BYTES) {
            copy(self, at..self.len_bytes.min(at + COPY_BYTES)).map_err(failed)?;
        }
        self.stream.synchronize().map_err(failed)?;
        Ok(start.elapsed())
    }
}

fn failed(error: GpuError) -> Error {
    Error::engine(Bus::NAME)(error)
}

impl Engine for Bus {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn threads(&self) -> usize {
        1
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        self.host.bytes_mut().map_err(failed)?.copy_from_slice(pages.as_flattened());
        Ok(())
    }

    fn compress(&mut self, _: &[Page]) -> Result<Duration> {
        self.copy(|bus, part| bus.stream.upload_pinned(&bus.device, part.start, &mut bus.host, part))
    }

    fn held_bytes(&self) -> Result<u64> {
        Ok(self.len_bytes as u64)
    }

    fn decompress(&mut self, _: &mut [Page]) -> Result<Duration> {
        self.copy(|bus, part| bus.stream.download_pinned(&bus.device, part.start, &mut bus.host, part))
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        pages.as_flattened_mut().copy_from_slice(self.host.bytes().map_err(failed)?);
        Ok(())
    }
}
