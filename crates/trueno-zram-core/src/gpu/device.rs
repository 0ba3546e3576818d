//! The devices that the driver lists, and their optimal batch sizes.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::OnceLock;

use super::driver::{CUdevice, CUdevice_attribute, Driver, driver, non_negative};
use super::error::{GpuError, GpuResult};
use crate::page::PAGE_SIZE;

/// Returns `true` if this machine has a GPU that can compress pages: an NVIDIA driver that loads, and a
/// [supported](GpuDeviceInfo::is_supported) device.
///
/// The driver is queried at run time, once per process. This function never panics, whether a driver is installed or
/// not.
///
/// ```
/// use trueno_zram_core::gpu::gpu_available;
///
/// if gpu_available() {
///     println!("CUDA GPU detected");
/// }
/// ```
#[must_use]
pub fn gpu_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| GpuDeviceInfo::all().iter().any(GpuDeviceInfo::is_supported))
}

/// The interface through which a device is used.
///
/// ```
/// use trueno_zram_core::gpu::{GpuBackend, GpuDeviceInfo};
/// assert!(GpuDeviceInfo::all().iter().all(|device| device.backend == GpuBackend::Cuda));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GpuBackend {
    /// NVIDIA's driver.
    Cuda,
    /// Any other interface. Such devices can be described but are not supported.
    Other,
}

/// The description of a GPU.
///
/// ```
/// use trueno_zram_core::gpu::{GpuBackend, GpuDeviceInfo};
///
/// let info = GpuDeviceInfo {
///     index: 0,
///     name: "RTX 4090".to_string(),
///     total_memory: 24 * 1024 * 1024 * 1024,
///     l2_cache_size: 72 * 1024 * 1024,
///     compute_capability: (8, 9),
///     backend: GpuBackend::Cuda,
/// };
///
/// println!("Optimal batch: {} pages", info.optimal_batch_size());
/// println!("Supported: {}", info.is_supported());
/// # assert_eq!((info.optimal_batch_size(), info.is_supported()), (14_745, true));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDeviceInfo {
    /// The driver's index, for [`GpuBatchConfig::device_index`](super::GpuBatchConfig::device_index).
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Bytes of device memory.
    pub total_memory: u64,
    /// Bytes of L2 cache.
    pub l2_cache_size: u64,
    /// Compute capability, as major and minor number.
    pub compute_capability: (u32, u32),
    /// The interface through which the device is used.
    pub backend: GpuBackend,
}

impl GpuDeviceInfo {
    /// The smallest [`optimal_batch_size`](Self::optimal_batch_size): fewer pages do not fill a GPU.
    const MIN_BATCH_PAGES: u64 = 6_144;
    /// The lowest compute capability that the kernels support.
    const MIN_CAPABILITY: (u32, u32) = (7, 0);

    /// Returns all devices that the driver lists, supported or not. The list is empty if there is no driver.
    ///
    /// ```
    /// for device in trueno_zram_core::gpu::GpuDeviceInfo::all() {
    ///     println!("{}: {}, {} GiB", device.index, device.name, device.total_memory >> 30);
    /// }
    /// ```
    #[must_use]
    pub fn all() -> Vec<Self> {
        let Ok(driver) = driver() else { return Vec::new() };
        let count = device_count(driver).unwrap_or(0);
        // Skip devices that cannot even be described.
        (0..count).filter_map(|index| CudaDevice::find(driver, index).ok()).map(|device| device.info).collect()
    }

    /// Returns the number of pages that fill 80 % of the L2 cache, but at least 6,144.
    ///
    /// H100: 10,240; A100: 8,192; RTX 4090: 14,745; RTX 3090: 6,144.
    ///
    /// ```
    /// use trueno_zram_core::gpu::{GpuBatchConfig, GpuDeviceInfo};
    /// for device in GpuDeviceInfo::all() {
    ///     let batch_size = device.optimal_batch_size();
    ///     let config = GpuBatchConfig { device_index: device.index, batch_size, ..GpuBatchConfig::default() };
    /// }
    /// ```
    #[must_use]
    pub fn optimal_batch_size(&self) -> usize {
        let in_cache = self.l2_cache_size / 5 * 4 + self.l2_cache_size % 5 * 4 / 5;
        let pages = (in_cache / PAGE_SIZE as u64).max(Self::MIN_BATCH_PAGES);
        usize::try_from(pages).unwrap_or(usize::MAX)
    }

    /// Returns `true` if pages can be compressed on the device: CUDA with compute capability 7.0 or higher.
    ///
    /// ```
    /// use trueno_zram_core::gpu::GpuDeviceInfo;
    /// let usable: Vec<_> = GpuDeviceInfo::all().into_iter().filter(GpuDeviceInfo::is_supported).collect();
    /// println!("{} GPUs to share the batches", usable.len());
    /// ```
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.backend == GpuBackend::Cuda && self.compute_capability >= Self::MIN_CAPABILITY
    }
}

/// The limits of a device for kernel launches.
///
/// ```no_run
/// let context = trueno_zram_core::gpu::raw::GpuContext::new(0)?;
/// let limits = context.limits();
/// println!("{} SMs, {} KiB of shared memory per block", limits.multiprocessors, limits.shared_bytes_per_block >> 10);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Maximum shared memory per block, for kernels that request more than the usual 48 KiB.
    pub shared_bytes_per_block: u32,
    /// The CUDA version of the driver, such as 13000 for 13.0.
    pub driver_version: u32,
}

/// A device listed by the driver.
pub(crate) struct CudaDevice {
    pub(crate) handle: CUdevice,
    pub(crate) info: GpuDeviceInfo,
}

impl CudaDevice {
    pub(crate) fn find(driver: &Driver, index: u32) -> GpuResult<Self> {
        let count = device_count(driver)?;
        let ordinal = i32::try_from(index).ok().filter(|_| index < count);
        let ordinal = ordinal.ok_or(GpuError::NoDevice { index, count })?;
        let mut handle = 0;
        // SAFETY: the destination is a local variable; the ordinal is below the count.
        unsafe { driver.cuDeviceGet(&raw mut handle, ordinal) }?;
        let mut total_memory = 0usize;
        // SAFETY: the destination is a local variable; the device comes from the driver.
        unsafe { driver.cuDeviceTotalMem_v2(&raw mut total_memory, handle) }?;
        use CUdevice_attribute as A;
        let attribute = |which, what| attribute(driver, handle, which, what);
        let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute capability")?;
        let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "compute capability")?;
        let l2_cache_size = attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "L2 cache size")?;
        let info = GpuDeviceInfo {
            index,
            name: name(driver, handle)?,
            total_memory: total_memory as u64,
            l2_cache_size: l2_cache_size.into(),
            compute_capability: (major, minor),
            backend: GpuBackend::Cuda,
        };
        Ok(Self { handle, info })
    }

    pub(crate) fn limits(&self, driver: &Driver) -> GpuResult<DeviceLimits> {
        use CUdevice_attribute as A;
        let attribute = |which, what| attribute(driver, self.handle, which, what);
        let mut version = 0;
        // SAFETY: the destination is a local variable.
        unsafe { driver.cuDriverGetVersion(&raw mut version) }?;
        Ok(DeviceLimits {
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "SM count")?,
            shared_bytes_per_block: attribute(
                A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                "shared memory per block",
            )?,
            driver_version: non_negative("driver version", version)?,
        })
    }
}

fn device_count(driver: &Driver) -> GpuResult<u32> {
    let mut count = 0;
    // SAFETY: the destination is a local variable.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }?;
    non_negative("device count", count)
}

fn attribute(driver: &Driver, device: CUdevice, which: CUdevice_attribute, what: &'static str) -> GpuResult<u32> {
    let mut value = 0;
    // SAFETY: the destination is a local variable; the device comes from the driver.
    unsafe { driver.cuDeviceGetAttribute(&raw mut value, which, device) }?;
    non_negative(what, value)
}

fn name(driver: &Driver, device: CUdevice) -> GpuResult<String> {
    const ROOM_BYTES: u8 = 255;
    let mut bytes = [0u8; ROOM_BYTES as usize + 1];
    // SAFETY: the destination is one byte longer than the length passed, so it always ends with a zero.
    unsafe { driver.cuDeviceGetName(bytes.as_mut_ptr().cast(), ROOM_BYTES.into(), device) }?;
    let text = CStr::from_bytes_until_nul(&bytes).expect("the last byte stays zero");
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(l2_cache_size: u64, compute_capability: (u32, u32)) -> GpuDeviceInfo {
        GpuDeviceInfo {
            index: 0,
            name: String::new(),
            total_memory: 1 << 34,
            l2_cache_size,
            compute_capability,
            backend: GpuBackend::Cuda,
        }
    }

    #[test]
    fn optimal_batch_sizes_match_the_table() {
        const MIB: u64 = 1 << 20;
        for (name, l2_mib, pages) in
            [("H100", 50, 10_240), ("A100", 40, 8_192), ("RTX 4090", 72, 14_745), ("RTX 3090", 6, 6_144)]
        {
            assert_eq!(device(l2_mib * MIB, (8, 0)).optimal_batch_size(), pages, "{name}");
        }
        assert_eq!(device(30 * MIB, (8, 0)).optimal_batch_size(), 6_144, "exactly 80 % of 30 MiB");
        assert_eq!(device(30 * MIB + 5120, (8, 0)).optimal_batch_size(), 6_145, "one page more");
        assert_eq!(device(0, (8, 0)).optimal_batch_size(), 6_144);
        assert!(device(u64::MAX, (8, 0)).optimal_batch_size() > 1 << 50);
    }

    #[test]
    fn supports_compute_capability_7_0_and_higher() {
        for (capability, supported) in
            [((6, 2), false), ((7, 0), true), ((7, 5), true), ((9, 0), true), ((12, 0), true), ((0, 9), false)]
        {
            assert_eq!(device(0, capability).is_supported(), supported, "{capability:?}");
        }
        assert!(!GpuDeviceInfo { backend: GpuBackend::Other, ..device(0, (9, 0)) }.is_supported());
    }

    #[test]
    fn device_queries_are_consistent_and_repeatable() {
        let supported = GpuDeviceInfo::all().iter().any(GpuDeviceInfo::is_supported);
        assert_eq!(gpu_available(), supported);
        assert_eq!(gpu_available(), supported);
        if driver().is_err() {
            assert_eq!(GpuDeviceInfo::all(), []);
        }
    }
}
