//! The GPUs as the driver describes them, or why none can be used.

use std::fs;

use serde::Serialize;
use trueno_zram_core::Error;
use trueno_zram_core::gpu::raw::GpuContext;
use trueno_zram_core::gpu::{GpuDeviceInfo, gpu_available};

use super::Measure;
use super::bandwidth::Bandwidth;

/// All GPUs of the driver.
#[derive(Debug, Serialize)]
pub(crate) struct Gpus {
    /// Whether a GPU can be used.
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

impl Gpus {
    pub(crate) fn look(measure: Measure) -> Self {
        let (mut cuda_version, mut devices) = (None, Vec::new());
        for info in GpuDeviceInfo::all() {
            let mut gpu = Gpu::from(&info);
            match GpuContext::new(info.index) {
                Ok(context) => {
                    let limits = context.limits();
                    cuda_version = Some(cuda_version_text(limits.driver_version));
                    gpu.multiprocessors = Some(limits.multiprocessors);
                    gpu.free_memory_bytes = context.free_memory().ok();
                    if measure == Measure::Bandwidth {
                        let measured = Bandwidth::measure(&context);
                        gpu.error = measured.as_ref().err().map(ToString::to_string);
                        gpu.bandwidth = measured.ok();
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

/// Returns the error of opening the first device.
fn why_none() -> String {
    match GpuContext::new(0) {
        Ok(_) => "the GPU works now, but did not at first".into(),
        Err(error) => reason_of(error),
    }
}

/// The text of the driver's error, without the introduction that there is no GPU.
fn reason_of(error: Error) -> String {
    match error {
        Error::GpuNotAvailable(why) => why,
        other => other.to_string(),
    }
}

/// CUDA encodes 13.0 as 13000.
fn cuda_version_text(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
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
        assert_eq!(cuda_version_text(13000), "13.0");
        assert_eq!(cuda_version_text(11040), "11.4");
    }

    #[test]
    fn there_is_a_reason_exactly_where_there_is_no_gpu() {
        let gpus = Gpus::look(Measure::Nothing);
        assert_eq!(gpus.reason.is_none(), gpus.available);
        assert_eq!(gpus.available, gpus.devices.iter().any(|gpu| gpu.supported));
    }
}
