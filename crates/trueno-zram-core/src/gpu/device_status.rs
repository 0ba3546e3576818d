//! Facts about a device that are known only once it is opened.

use super::context::GpuContext;
use crate::error::Result;

/// A device that was opened successfully: its free memory, and facts that [`GpuDeviceInfo`](super::GpuDeviceInfo) does
/// not have.
///
/// ```
/// use trueno_zram_core::{Error, gpu::GpuDeviceStatus};
/// match GpuDeviceStatus::query(0) {
///     Ok(status) => println!("{} SMs, {} MiB free", status.multiprocessors, status.free_memory >> 20),
///     Err(Error::GpuNotAvailable(why)) => println!("no GPU: {why}"),
///     Err(other) => return Err(other),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuDeviceStatus {
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Free bytes of device memory.
    pub free_memory: u64,
    /// The CUDA version that the driver supports, as major and minor number.
    pub cuda_version: (u32, u32),
}

impl GpuDeviceStatus {
    /// Opens a device, asks for its status and closes it.
    ///
    /// ```no_run
    /// let status = trueno_zram_core::gpu::GpuDeviceStatus::query(0)?;
    /// println!("CUDA {}.{}", status.cuda_version.0, status.cuda_version.1);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::GpuNotAvailable`](crate::Error::GpuNotAvailable), with the failed call and the name of the CUDA error,
    /// if there is no driver or no such device, or the device is not supported or was given up earlier;
    /// [`Error::Gpu`](crate::Error::Gpu) if it fails after that.
    pub fn query(device_index: u32) -> Result<Self> {
        let context = GpuContext::new(device_index)?;
        let limits = context.limits();
        Ok(Self {
            multiprocessors: limits.multiprocessors,
            free_memory: context.free_memory()?,
            cuda_version: cuda_version(limits.driver_version),
        })
    }
}

/// CUDA encodes 13.0 as 13000.
fn cuda_version(number: u32) -> (u32, u32) {
    (number / 1000, number % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn cuda_versions_have_two_numbers() {
        assert_eq!(cuda_version(13000), (13, 0));
        assert_eq!(cuda_version(11040), (11, 4));
    }

    #[test]
    fn a_device_that_does_not_exist_is_not_available() {
        assert!(matches!(GpuDeviceStatus::query(u32::MAX), Err(Error::GpuNotAvailable(_))));
    }
}
