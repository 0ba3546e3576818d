//! The devices that the driver lists, and what batches suit them.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::OnceLock;

use super::driver::{CUdevice, CUdevice_attribute, Driver, driver, non_negative};
use super::error::{GpuError, GpuResult};
use crate::page::PAGE_SIZE;

/// Whether this machine has a GPU that can compress pages: an NVIDIA driver that loads, and a device it
/// [supports](GpuDeviceInfo::is_supported).
///
/// Asked of the driver at run time, once a process; never panics, whatever is or is not installed.
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

/// What a device is driven through.
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
    /// Anything else. Such devices can be described, and are not supported.
    Other,
}

/// What is known of a GPU.
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
    /// The product's name.
    pub name: String,
    /// Bytes of device memory.
    pub total_memory: u64,
    /// Bytes of L2 cache.
    pub l2_cache_size: u64,
    /// Major and minor number.
    pub compute_capability: (u32, u32),
    /// What it is driven through.
    pub backend: GpuBackend,
}

impl GpuDeviceInfo {
    /// The fewest pages that [`optimal_batch_size`](Self::optimal_batch_size) gives: less does not fill a GPU.
    const LEAST_BATCH_PAGES: u64 = 6_144;
    /// The oldest compute capability that the kernels run on.
    const LEAST_CAPABILITY: (u32, u32) = (7, 0);

    /// All devices that the driver lists, supported or not; none where there is no driver.
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
        // A device that cannot even be described is of no use to anyone.
        (0..count).filter_map(|index| Device::find(driver, index).ok()).map(|device| device.info).collect()
    }

    /// Pages that fill 80 % of the L2 cache, but 6,144 at least.
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
        let pages = (in_cache / PAGE_SIZE as u64).max(Self::LEAST_BATCH_PAGES);
        usize::try_from(pages).unwrap_or(usize::MAX)
    }

    /// Whether pages can be compressed on it: CUDA, compute capability 7.0 or higher.
    ///
    /// ```
    /// use trueno_zram_core::gpu::GpuDeviceInfo;
    /// let usable: Vec<_> = GpuDeviceInfo::all().into_iter().filter(GpuDeviceInfo::is_supported).collect();
    /// println!("{} GPUs to share the batches", usable.len());
    /// ```
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.backend == GpuBackend::Cuda && self.compute_capability >= Self::LEAST_CAPABILITY
    }
}

/// What bounds a kernel launch on a device.
///
/// ```no_run
/// let context = trueno_zram_core::gpu::raw::GpuContext::new(0)?;
/// let limits = context.limits();
/// println!("{} SMs, {} KiB of shared memory a block", limits.multiprocessors, limits.shared_bytes_per_block >> 10);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most shared memory a block can have, for kernels that ask for more than the usual 48 KiB.
    pub shared_bytes_per_block: u32,
    /// Shared memory of one multiprocessor.
    pub shared_bytes_per_multiprocessor: u32,
    /// The most threads resident on one multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// The CUDA version that the driver knows, such as 13000 for 13.0.
    pub driver_version: u32,
}

/// A device of the driver.
pub(crate) struct Device {
    pub(crate) handle: CUdevice,
    pub(crate) info: GpuDeviceInfo,
}

impl Device {
    pub(crate) fn find(driver: &Driver, index: u32) -> GpuResult<Self> {
        let count = device_count(driver)?;
        let ordinal = i32::try_from(index).ok().filter(|_| index < count);
        let ordinal = ordinal.ok_or(GpuError::NoDevice { index, count })?;
        let mut handle = 0;
        // SAFETY: the destination is a value of ours; the ordinal is below the count.
        unsafe { driver.cuDeviceGet(&raw mut handle, ordinal) }?;
        let mut total_memory = 0usize;
        // SAFETY: the destination is a value of ours; the device is the driver's.
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
        // SAFETY: the destination is a value of ours.
        unsafe { driver.cuDriverGetVersion(&raw mut version) }?;
        Ok(DeviceLimits {
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "SM count")?,
            shared_bytes_per_block: attribute(
                A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                "shared memory a block",
            )?,
            shared_bytes_per_multiprocessor: attribute(
                A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
                "shared memory an SM",
            )?,
            threads_per_multiprocessor: attribute(
                A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                "threads an SM",
            )?,
            driver_version: non_negative("driver version", version)?,
        })
    }
}

fn device_count(driver: &Driver) -> GpuResult<u32> {
    let mut count = 0;
    // SAFETY: the destination is a value of ours.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }?;
    non_negative("device count", count)
}

fn attribute(driver: &Driver, device: CUdevice, which: CUdevice_attribute, what: &'static str) -> GpuResult<u32> {
    let mut value = 0;
    // SAFETY: the destination is a value of ours; the device is the driver's.
    unsafe { driver.cuDeviceGetAttribute(&raw mut value, which, device) }?;
    non_negative(what, value)
}

fn name(driver: &Driver, device: CUdevice) -> GpuResult<String> {
    const ROOM_BYTES: u8 = 255;
    let mut bytes = [0u8; ROOM_BYTES as usize + 1];
    // SAFETY: the destination is one byte longer than it is said to be, so that a zero always ends it.
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
    fn optimal_batches_are_those_of_the_table() {
        const MIB: u64 = 1 << 20;
        for (name, l2_mib, pages) in
            [("H100", 50, 10_240), ("A100", 40, 8_192), ("RTX 4090", 72, 14_745), ("RTX 3090", 6, 6_144)]
        {
            assert_eq!(device(l2_mib * MIB, (8, 0)).optimal_batch_size(), pages, "{name}");
        }
        assert_eq!(device(30 * MIB, (8, 0)).optimal_batch_size(), 6_144, "exactly 80 % of 30 MiB");
        assert_eq!(device(30 * MIB + 5120, (8, 0)).optimal_batch_size(), 6_145, "a page more");
        assert_eq!(device(0, (8, 0)).optimal_batch_size(), 6_144);
        assert!(device(u64::MAX, (8, 0)).optimal_batch_size() > 1 << 50);
    }

    #[test]
    fn supported_from_volta_on() {
        for (capability, supported) in
            [((6, 2), false), ((7, 0), true), ((7, 5), true), ((9, 0), true), ((12, 0), true), ((0, 9), false)]
        {
            assert_eq!(device(0, capability).is_supported(), supported, "{capability:?}");
        }
        assert!(!GpuDeviceInfo { backend: GpuBackend::Other, ..device(0, (9, 0)) }.is_supported());
    }

    #[test]
    fn the_answers_agree_and_stay() {
        let supported = GpuDeviceInfo::all().iter().any(GpuDeviceInfo::is_supported);
        assert_eq!(gpu_available(), supported);
        assert_eq!(gpu_available(), supported);
        if driver().is_err() {
            assert_eq!(GpuDeviceInfo::all(), []);
        }
    }
}
