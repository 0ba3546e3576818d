//! Measures the bus between the host and a device.

use std::time::Duration;

use super::context::GpuContext;
use super::error::GpuResult;
use super::event::CudaEvent;
use super::memory::DeviceBuffer;
use super::pinned::{HostCaching, PinnedBuffer};
use super::stream::CudaStream;
use crate::error::Result;

/// Bytes per copy: enough to make the cost of starting it negligible.
const COPY_BYTES: usize = 256 << 20;
/// Copies per direction. The fastest counts, because other processes may use the bus.
const ROUNDS: usize = 5;

/// The bandwidth between page-locked host memory and a device, in 10^9 bytes per second.
///
/// No batch from host memory is compressed faster than `to_device_gbps`.
///
/// ```
/// use trueno_zram_core::gpu::{BusBandwidth, GpuDeviceInfo};
/// for device in GpuDeviceInfo::all() {
///     let bus = BusBandwidth::measure(device.index)?;
///     println!("{}: {:.1} GB/s there, {:.1} GB/s back", device.name, bus.to_device_gbps, bus.from_device_gbps);
/// }
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BusBandwidth {
    /// From the host to the device.
    pub to_device_gbps: f64,
    /// From the device to the host.
    pub from_device_gbps: f64,
}

impl BusBandwidth {
    /// Copies 256 MiB five times in each direction and returns the fastest of each.
    ///
    /// ```no_run
    /// let bus = trueno_zram_core::gpu::BusBandwidth::measure(0)?;
    /// println!("10 GB take at least {:.1} s", 10.0 / bus.to_device_gbps);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GpuNotAvailable`](crate::Error::GpuNotAvailable) if the device cannot be used;
    /// [`Error::Gpu`](crate::Error::Gpu) if it fails or does not have 256 MiB of free memory.
    pub fn measure(device_index: u32) -> Result<Self> {
        let context = GpuContext::new(device_index)?;
        let stream = CudaStream::new(&context)?;
        let device = DeviceBuffer::new(&context, COPY_BYTES)?;
        let mut host = PinnedBuffer::new(&context, COPY_BYTES, HostCaching::Cached)?;
        host.bytes_mut()?.fill(0x5a);
        let to_device = fastest(&context, &stream, || stream.upload_pinned(&device, 0, &mut host, 0..COPY_BYTES))?;
        let from_device = fastest(&context, &stream, || stream.download_pinned(&device, 0, &mut host, 0..COPY_BYTES))?;
        Ok(Self { to_device_gbps: to_device, from_device_gbps: from_device })
    }
}

/// Returns the bandwidth of the fastest of several copies that `copy` queues on the stream.
fn fastest(context: &GpuContext, stream: &CudaStream, mut copy: impl FnMut() -> GpuResult<()>) -> GpuResult<f64> {
    let (start, end) = (CudaEvent::timed(context)?, CudaEvent::timed(context)?);
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS {
        stream.record(&start)?;
        copy()?;
        stream.record(&end)?;
        end.wait()?;
        least = least.min(end.since(&start)?);
    }
    Ok(COPY_BYTES as f64 / 1e9 / least.as_secs_f64())
}
