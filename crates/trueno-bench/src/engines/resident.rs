//! The session and the timing that engines on device memory share. Transfers are not counted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{CudaEvent, CudaStream, DeviceBuffer, GpuContext, GpuResult, PageFormat};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::nvcomp::{Batch, NvComp};
use super::{NVCOMP, NVCOMP_ZSTD};
use crate::engine::Engine;
use crate::error::{Error, Result};

/// A kernel that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A device, and nvCOMP if it was asked for.
pub(crate) struct Session {
    pub(crate) context: GpuContext,
    pub(crate) stream: CudaStream,
    /// The start of the time that [`time`](Self::time) measures. What it times may record it again, after its preparations.
    pub(super) start: CudaEvent,
    end: CudaEvent,
    pub(crate) nvcomp: Option<NvComp>,
}

impl Session {
    pub(crate) fn new(device_index: u32, nvcomp: Option<&Path>) -> Result<Self> {
        let failed = Error::engine(if nvcomp.is_some() { "nvCOMP" } else { "GPU" });
        let context = GpuContext::new(device_index).map_err(&failed)?;
        let nvcomp = nvcomp.map(NvComp::load).transpose()?;
        let set_up = || Ok((CudaStream::new(&context)?, CudaEvent::timed(&context)?, CudaEvent::timed(&context)?));
        let (stream, start, end) = set_up().map_err(device_failed)?;
        Ok(Self { context, stream, start, end, nvcomp })
    }

    /// Times what `queue` puts on the stream.
    pub(crate) fn time(&self, queue: impl FnOnce() -> Result<()>) -> Result<Duration> {
        self.stream.record(&self.start).map_err(device_failed)?;
        queue()?;
        self.stream.record(&self.end).map_err(device_failed)?;
        let waited = self.end.wait_for(TIMEOUT);
        if let Err(error @ GpuError::TimedOut { .. }) = &waited {
            // Nothing of the context is touched again, so that nothing waits for ever.
            self.context.abandon(&error.to_string());
        }
        waited.and_then(|()| self.end.since(&self.start)).map_err(device_failed)
    }

    pub(crate) fn buffer(&self, len_bytes: usize) -> GpuResult<DeviceBuffer> {
        DeviceBuffer::new(&self.context, len_bytes)
    }

    pub(crate) fn download(&self, buffer: &DeviceBuffer, len_bytes: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes];
        self.stream.download(buffer, 0, &mut bytes).map_err(device_failed)?;
        Ok(bytes)
    }
}

pub(crate) fn device_failed(error: GpuError) -> Error {
    Error::engine("GPU")(error)
}

/// nvCOMP's batched LZ4 or Zstandard on pages in device memory.
pub(crate) struct NvCompEngine<'a> {
    name: &'static str,
    session: &'a Session,
    input: Arc<DeviceBuffer>,
    decoded: Arc<DeviceBuffer>,
    batch: Batch<'a>,
    last: Duration,
}

impl<'a> NvCompEngine<'a> {
    /// An engine for batches of exactly `pages` pages, in a session with nvCOMP.
    pub(crate) fn new(session: &'a Session, format: PageFormat, pages: usize) -> Result<Self> {
        let name = match format {
            PageFormat::Lz4 => NVCOMP,
            PageFormat::Zstd => NVCOMP_ZSTD,
        };
        let nvcomp = session.nvcomp.as_ref().ok_or_else(|| Error::engine(name)("nvCOMP is not loaded"))?;
        let buffer = || session.buffer(pages * PAGE_SIZE).map(Arc::new).map_err(device_failed);
        let (input, decoded) = (buffer()?, buffer()?);
        let batch = nvcomp.batch(format, &session.context, &session.stream, &input, &decoded)?;
        Ok(Self { name, session, input, decoded, batch, last: Duration::ZERO })
    }
}

impl Engine for NvCompEngine<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn threads(&self) -> usize {
        1
    }

    fn load(&mut self, pages: &[Page]) -> Result<()> {
        self.session.stream.upload(&self.input, 0, pages.as_flattened()).map_err(device_failed)
    }

    fn compress(&mut self, _: &[Page]) -> Result<Duration> {
        self.last = self.session.time(|| self.batch.compress())?;
        Ok(self.last)
    }

    fn held_bytes(&self) -> Result<u64> {
        self.batch.held_bytes()
    }

    fn decompress(&mut self, _: &mut [Page]) -> Result<Duration> {
        self.last = self.session.time(|| self.batch.decompress())?;
        Ok(self.last)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<()> {
        self.batch.check_statuses()?;
        self.session.stream.download(&self.decoded, 0, pages.as_flattened_mut()).map_err(device_failed)
    }

    fn stages(&self) -> Vec<(&'static str, Duration)> {
        vec![("kernel", self.last)]
    }

    fn note(&self) -> String {
        let version = self.session.nvcomp.as_ref().map_or(0, |nvcomp| nvcomp.version);
        format!("version {version}, {} MB of temporary memory", self.batch.temp_bytes() / 1_000_000)
    }
}
