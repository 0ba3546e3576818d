//! Kernels' text, compiled by the driver.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_void};
use std::fmt;

use super::context::GpuContext;
use super::driver::{CUfunction, CUjit_option, CUmodule};
use super::error::{GpuError, GpuResult};

/// A PTX text, compiled for a device. The kernels in it run through a [`Launcher`](super::launch::Launcher). Dropping it
/// waits, as dropping a [`DeviceBuffer`](super::memory::DeviceBuffer) does.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{GpuContext, Module};
/// let context = GpuContext::new(0)?;
/// let module = Module::from_ptx(&context, ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }")?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct Module {
    context: GpuContext,
    handle: CUmodule,
}

// SAFETY: the handle is a token of the driver, which may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Module {}

/// Room for what the driver's compiler says of a bad text; it cuts off what is longer.
const LOG_BYTES: usize = 16 * 1024;

impl Module {
    /// Compiles a text. The driver keeps what it compiled on disk: the first time takes tens of milliseconds, later ones less.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::GpuError;
    /// use trueno_zram_core::gpu::raw::{GpuContext, Module};
    /// # let context = GpuContext::new(0)?;
    /// match Module::from_ptx(&context, ".version 6.4\n.target sm_70\nno PTX") {
    ///     Err(GpuError::Ptx { log, .. }) => println!("{log}"), // says in which line
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::Ptx`] with the compiler's words if the text is wrong, or too new for the driver or the device.
    pub fn from_ptx(context: &GpuContext, ptx: &str) -> GpuResult<Self> {
        let text = c_text(ptx)?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // Sizes are passed in the place of the pointers: that is how the driver takes them. One byte stays for the zero.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES - 1)];
        let mut handle = std::ptr::null_mut();
        let loaded = context.call(|driver| {
            // SAFETY: the text ends with a zero; there are two options with their two values, of which the first is a
            // buffer longer than the second says; all outlive the call. `drop` unloads the module.
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

    /// The function of a kernel. It lives as long as the module.
    pub(crate) fn function(&self, entry: &str) -> GpuResult<CUfunction> {
        let name = c_text(entry)?;
        let mut function = std::ptr::null_mut();
        self.context.call(|driver| {
            // SAFETY: the destination is a value of ours, the module lives, and the name ends with a zero.
            unsafe { driver.cuModuleGetFunction(&raw mut function, self.handle, name.as_ptr()) }
        })?;
        Ok(function)
    }

    pub(crate) fn context(&self) -> &GpuContext {
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
            // SAFETY: no arguments. Kernels of the module are done after it.
            unsafe { driver.cuCtxSynchronize() }?;
            // SAFETY: `from_ptx` loaded it; launchers keep it alive, so none is left.
            unsafe { driver.cuModuleUnload(self.handle) }
        });
    }
}
