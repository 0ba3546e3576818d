//! The GPUs as the driver describes them, or why none can be used.

use std::fs;

use serde::Serialize;
use trueno_zram_core::Error;
use trueno_zram_core::gpu::{BusBandwidth, GpuDeviceInfo, GpuDeviceStatus, gpu_available};

use super::Measure;

/// All GPUs of the driver.
#[derive(Debug, Serialize)]
pub(crate) struct Gpus {
    /// `true` if a GPU can be used.
    pub(crate) available: bool,
    /// Why not.
    pub(crate) reason: Option<String>,
    /// The kernel module's version, such as `580.65.06`.
    pub(crate) driver_version: Option<String>,
    /// The CUDA version that the driver supports, such as `13.0`.
    pub(crate) cuda_version: Option<String>,
    pub(crate) devices: Vec<Gpu>,
}

/// One GPU.
#[derive(Debug, Serialize)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) supported: bool,
    pub(crate) compute_capability: (u32, u32),
    pub(crate) multiprocessors: Option<u32>,
    pub(crate) memory_bytes: u64,
    pub(crate) free_memory_bytes: Option<u64>,
    pub(crate) l2_cache_bytes: u64,
    pub(crate) optimal_batch_pages: usize,
    /// `None` unless it was measured.
    pub(crate) bandwidth: Option<Bandwidth>,
    /// Why the device cannot be used, or why measuring it failed.
    pub(crate) error: Option<String>,
}

/// The bandwidth of the bus in 10^9 bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bandwidth {
    pub(crate) to_gpu_gbps: f64,
    pub(crate) from_gpu_gbps: f64,
}

impl Gpus {
    pub(crate) fn look(measure: Measure) -> Self {
        let (mut cuda_version, mut devices) = (None, Vec::new());
        for info in GpuDeviceInfo::all() {
            let mut gpu = Gpu::from(&info);
            match GpuDeviceStatus::query(info.index) {
                Ok(status) => {
                    let (major, minor) = status.cuda_version;
                    cuda_version = Some(format!("{major}.{minor}"));
                    gpu.multiprocessors = Some(status.multiprocessors);
                    gpu.free_memory_bytes = Some(status.free_memory);
                    if measure == Measure::Bandwidth {
                        match BusBandwidth::measure(info.index) {
                            Ok(bus) => gpu.bandwidth = Some(bus.into()),
                            Err(error) => gpu.error = Some(reason_of(error)),
                        }
                    }
                }
                Err(error) => gpu.error = Some(reason_of(error)),
            }
            devices.push(gpu);
        }
        let available = gpu_available();
        Self { available, reason: (!available).then(why_none), driver_version: driver_version(), cuda_version, devices }
    }

    /// The versions of the driver that are known.
    pub(crate) fn driver_text(&self) -> Option<String> {
        match (&self.driver_version, &self.cuda_version) {
            (Some(driver), Some(cuda)) => Some(format!("NVIDIA {driver}, CUDA {cuda}")),
            (Some(driver), None) => Some(format!("NVIDIA {driver}")),
            (None, Some(cuda)) => Some(format!("CUDA {cuda}")),
            (None, None) => None,
        }
    }
}

impl From<&GpuDeviceInfo> for Gpu {
    fn from(info: &GpuDeviceInfo) -> Self {
        Self {
            index: info.index,
            name: info.name.clone(),
            supported: info.is_supported(),
            compute_capability: info.compute_capability,
            multiprocessors: None,
            memory_bytes: info.total_memory,
            free_memory_bytes: None,
            l2_cache_bytes: info.l2_cache_size,
            optimal_batch_pages: info.optimal_batch_size(),
            bandwidth: None,
            error: None,
        }
    }
}

impl From<BusBandwidth> for Bandwidth {
    fn from(bus: BusBandwidth) -> Self {
        Self { to_gpu_gbps: bus.to_device_gbps, from_gpu_gbps: bus.from_device_gbps }
    }
}

/// Returns the error of opening the first device.
fn why_none() -> String {
    match GpuDeviceStatus::query(0) {
        Ok(_) => "the GPU works now, but did not at first".into(),
        Err(error) => reason_of(error),
    }
}

/// Returns the text of the driver's error, without the introduction that there is no GPU or that it failed.
fn reason_of(error: Error) -> String {
    match error {
        Error::GpuNotAvailable(why) => why,
        Error::Gpu(failure) => failure.to_string(),
        other => other.to_string(),
    }
}

fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned()).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_drivers_own_text() {
        assert_eq!(reason_of(Error::GpuNotAvailable("cuInit: X (999)".into())), "cuInit: X (999)");
    }

    #[test]
    fn there_is_a_reason_exactly_where_there_is_no_gpu() {
        let gpus = Gpus::look(Measure::Nothing);
        assert_eq!(gpus.reason.is_none(), gpus.available);
        assert_eq!(gpus.available, gpus.devices.iter().any(|gpu| gpu.supported));
    }
}
