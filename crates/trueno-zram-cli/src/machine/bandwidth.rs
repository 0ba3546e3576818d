//! Measures the bandwidth to a GPU and back.

use std::time::Duration;

use serde::Serialize;
use trueno_zram_core::gpu::raw::{DeviceBuffer, Event, GpuContext, GpuResult, HostCaching, PinnedBuffer, Stream};

/// Bytes per copy: enough to make the cost of starting it negligible.
const LEN_BYTES: usize = 256 << 20;
/// The best round counts: others may use the bus.
const ROUNDS: usize = 5;

/// The bandwidth of the bus in 10^9 bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bandwidth {
    pub(crate) to_gpu_gbps: f64,
    pub(crate) from_gpu_gbps: f64,
}

impl Bandwidth {
    pub(crate) fn measure(context: &GpuContext) -> GpuResult<Self> {
        let stream = Stream::new(context)?;
        let device = DeviceBuffer::new(context, LEN_BYTES)?;
        let mut host = PinnedBuffer::new(context, LEN_BYTES, HostCaching::Cached)?;
        host.bytes_mut()?.fill(0x5a);
        let (start, end) = (Event::timed(context)?, Event::timed(context)?);
        let best = |copy: &mut dyn FnMut() -> GpuResult<()>| -> GpuResult<f64> {
            let mut least = Duration::MAX;
            for _ in 0..ROUNDS {
                stream.record(&start)?;
                copy()?;
                stream.record(&end)?;
                end.wait()?;
                least = least.min(end.since(&start)?);
            }
            Ok(LEN_BYTES as f64 / 1e9 / least.as_secs_f64())
        };
        Ok(Self {
            to_gpu_gbps: best(&mut || stream.upload_pinned(&device, 0, &mut host, 0..LEN_BYTES))?,
            from_gpu_gbps: best(&mut || stream.download_pinned(&device, 0, &mut host, 0..LEN_BYTES))?,
        })
    }
}
