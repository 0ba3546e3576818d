//! PTX modules, compiled by the driver.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::fmt;

use super::context::GpuContext;
use super::driver::{CUfunction, CUjit_option, CUmodule};
use super::error::{GpuError, GpuResult};

/// A PTX module compiled for a device. Dropping it waits like dropping a [`DeviceBuffer`](super::memory::DeviceBuffer).
pub(super) struct Module {
    context: GpuContext,
    handle: CUmodule,
}

// SAFETY: the handle is a driver token that any thread may use.
unsafe impl Send for Module {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Module {}

/// Capacity for the messages of the driver's compiler, which truncates longer ones.
const LOG_BYTES: usize = 16 * 1024;

impl Module {
    /// Compiles PTX. The driver caches the result on disk: the first time takes tens of milliseconds, later times less.
    ///
    /// # Errors
    /// [`GpuError::Ptx`] with the compiler's messages if the PTX is invalid, or too new for the driver or the device.
    pub(super) fn from_ptx(context: &GpuContext, ptx: &str) -> GpuResult<Self> {
        let text = c_text(ptx)?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver takes sizes in place of the pointers. One byte is reserved for the final zero.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES - 1)];
        let mut handle = std::ptr::null_mut();
        let loaded = context.call(|driver| {
            // SAFETY: the PTX ends with a zero. There are two options with two values; the first value is a buffer
            // longer than the second says. All outlive the call. `drop` unloads the module.
            unsafe {
                driver.cuModuleLoadDataEx(
                    &raw mut handle,
                    text.as_ptr().cast(),
                    2,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            }
        });
        match loaded {
            Ok(()) => Ok(Self { context: context.clone(), handle }),
            Err(GpuError::Driver(error)) => {
                let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
                Err(GpuError::Ptx { error, log: log.trim_end().to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the function of a kernel. It lives as long as the module.
    pub(super) fn function(&self, entry: &str) -> GpuResult<CUfunction> {
        let name = c_text(entry)?;
        let mut function = std::ptr::null_mut();
        self.context.call(|driver| {
            // SAFETY: the destination is a local variable, the module exists, and the name ends with a zero.
            unsafe { driver.cuModuleGetFunction(&raw mut function, self.handle, name.as_ptr()) }
        })?;
        Ok(function)
    }

    pub(super) fn context(&self) -> &GpuContext {
        &self.context
    }
}

fn c_text(text: &str) -> GpuResult<CString> {
    CString::new(text).map_err(|error| GpuError::ZeroByte { at: error.nul_position() })
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:p})", self.handle)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.call_in_drop(|driver| {
            // SAFETY: the call takes no arguments. After it, kernels of the module are done.
            unsafe { driver.cuCtxSynchronize() }?;
            // SAFETY: `from_ptx` loaded the module, and the kernel that owns it is dropped with it.
            unsafe { driver.cuModuleUnload(self.handle) }
        });
    }
}
