//! nvCOMP as an engine: pages that lie on the device, kernels timed by events, no transfers counted.
#![deny(unsafe_code)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trueno_zram_core::gpu::GpuError;
use trueno_zram_core::gpu::raw::{DeviceBuffer, Event, GpuContext, Stream};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::{Batch, NvComp, failed};
use crate::batch::BatchEngine;
use crate::error::Result;

/// A kernel that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The library and the device that it runs on.
pub struct Session {
    nvcomp: NvComp,
    context: GpuContext,
    stream: Stream,
}

impl Session {
    /// Loads nvCOMP from a file, and opens the first device.
    ///
    /// # Errors
    /// Without a GPU, or without nvCOMP in that file.
    pub fn new(file: &Path) -> Result<Self> {
        let context = GpuContext::new(0).map_err(failed)?;
        let nvcomp = NvComp::load(file)?;
        let stream = Stream::new(&context).map_err(failed)?;
        Ok(Self { nvcomp, context, stream })
    }

    /// nvCOMP's version, such as 6000.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.nvcomp.version
    }
}

/// nvCOMP's batched LZ4 on pages that lie on the device.
pub struct Resident<'a> {
    session: &'a Session,
    input: Arc<DeviceBuffer>,
    decoded: Arc<DeviceBuffer>,
    batch: Batch<'a>,
    start: Event,
    end: Event,
    last: Duration,
}

impl<'a> Resident<'a> {
    /// Room for batches of so many pages, no more and no fewer.
    ///
    /// # Errors
    /// nvCOMP's or the driver's.
    pub fn new(session: &'a Session, pages: usize) -> Result<Self> {
        let buffer = || DeviceBuffer::new(&session.context, pages * PAGE_SIZE).map(Arc::new).map_err(failed);
        let (input, decoded) = (buffer()?, buffer()?);
        let batch = session.nvcomp.batch(&session.context, &session.stream, &input, &decoded)?;
        let event = || Event::timed(&session.context).map_err(failed);
        Ok(Self { session, input, decoded, batch, start: event()?, end: event()?, last: Duration::ZERO })
    }

    fn time(&self, queue: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let stream = &self.session.stream;
        stream.record(&self.start).map_err(failed)?;
        queue()?;
        stream.record(&self.end).map_err(failed)?;
        let waited = self.end.wait_for(TIMEOUT);
        if let Err(error @ GpuError::TimedOut { .. }) = &waited {
            // Nothing of the context is touched again, so that nothing waits for ever.
            self.session.context.abandon(&error.to_string());
        }
        waited.map_err(failed)?;
        self.end.since(&self.start).map_err(failed)
    }
}

impl BatchEngine for Resident<'_> {
    fn name(&self) -> &str {
        "nvcomp-lz4"
    }

    fn threads(&self) -> usize {
        1
    }

    fn compress(&mut self, pages: &[Page]) -> Result<Duration> {
        self.session.stream.upload(&self.input, 0, pages.as_flattened()).map_err(failed)?;
        self.last = self.time(|| self.batch.compress())?;
        Ok(self.last)
    }

    fn held_bytes(&self) -> Result<u64> {
        self.batch.held_bytes()
    }

    fn decompress(&mut self, pages: &mut [Page]) -> Result<Duration> {
        self.last = self.time(|| self.batch.decompress())?;
        self.batch.check_statuses()?;
        self.session.stream.download(&self.decoded, 0, pages.as_flattened_mut()).map_err(failed)?;
        Ok(self.last)
    }

    fn stages(&self) -> Vec<(&'static str, Duration)> {
        vec![("kernel", self.last)]
    }
}
