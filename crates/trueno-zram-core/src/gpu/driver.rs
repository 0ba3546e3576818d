//! The CUDA driver, found at run time. This is the only file that uses cudarc.
//!
//! The driver is not called through cudarc's own functions, for two reasons: they panic if a symbol is missing, and
//! they return an `enum` of one CUDA version's errors, so an error introduced by a newer driver would be undefined
//! behaviour. Here the functions are looked up once, all together, and return plain numbers. cudarc's declarations
//! check the signatures at compile time.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;
pub(crate) use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUjit_option,
    CUmodule, CUstream,
};

use super::error::{DriverError, GpuError, GpuResult, IS_STATIC_BUILD};

/// Not among the functions below because cudarc declares its argument as the `enum` that is avoided here.
type GetErrorName = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;

macro_rules! driver_functions {
    ($($symbol:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The driver's functions. Those that take handles must be called with the handles' context current.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub(crate) struct Driver {
            get_error_name: GetErrorName,
            $($symbol: unsafe extern "C" fn($($ty),*) -> c_uint,)*
        }

        // This compiles only if cudarc's declarations, generated from CUDA's headers, have the same arguments.
        $(const _: unsafe fn($($ty),*) -> sys::CUresult = sys::$symbol;)*

        impl Driver {
            /// Looks up all functions.
            fn find() -> GpuResult<Self> {
                Ok(Self {
                    get_error_name: symbol("cuGetErrorName")?,
                    $($symbol: symbol(stringify!($symbol))?,)*
                })
            }
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the names and arguments are the driver's")]
        impl Driver {
            $(
                /// # Safety
                /// The arguments must satisfy CUDA's documentation of the function.
                pub(crate) unsafe fn $symbol(&self, $($arg: $ty),*) -> Result<(), DriverError> {
                    // SAFETY: the pointer is the driver's function of that name, and cudarc's declaration confirms the
                    // signature. The caller upholds the function's requirements on the arguments.
                    let status = unsafe { (self.$symbol)($($arg),*) };
                    self.check(stringify!($symbol), status)
                }
            )*
        }
    };
}

driver_functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxSynchronize();
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut CUdeviceptr, len: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemHostAlloc(address: *mut *mut c_void, len: usize, flags: c_uint);
    cuMemFreeHost(address: *mut c_void);
    cuMemHostRegister_v2(address: *mut c_void, len: usize, flags: c_uint);
    cuMemHostUnregister(address: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream);
    cuMemsetD8Async(to: CUdeviceptr, byte: c_uchar, len: usize, stream: CUstream);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuEventSynchronize(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        option_count: c_uint,
        options: *mut CUjit_option,
        option_values: *mut *mut c_void,
    );
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: CUfunction,
        block_threads: c_int,
        dynamic_shared_bytes: usize,
    );
    cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        dynamic_shared_bytes: c_uint,
        stream: CUstream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
}

/// Returns the driver, loaded and initialised on the first call. The result, good or bad, is kept: libraries and
/// devices do not come and go while a process runs.
pub(crate) fn driver() -> GpuResult<&'static Driver> {
    static DRIVER: OnceLock<GpuResult<Driver>> = OnceLock::new();
    DRIVER.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> GpuResult<Driver> {
    if IS_STATIC_BUILD {
        return Err(GpuError::NoDriver);
    }
    // SAFETY: loading libcuda runs its initialisers, as intended by installing an NVIDIA driver.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    // The library can still disappear before cudarc loads it again, and cudarc then panics.
    std::panic::catch_unwind(|| {
        // SAFETY: as above.
        unsafe { sys::culib() };
    })
    .map_err(|_| GpuError::NoDriver)?;
    let driver = Driver::find()?;
    // SAFETY: 0 is the only value that CUDA allows; the function may be called at any time.
    unsafe { driver.cuInit(0) }?;
    Ok(driver)
}

/// Looks up a function in libcuda. `load` has loaded the library for the lifetime of the process.
fn symbol<F: Copy>(name: &'static str) -> GpuResult<F> {
    // SAFETY: `load` has already loaded the library.
    let library = unsafe { sys::culib() };
    // SAFETY: the type is the signature of that function; see `driver_functions`.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| GpuError::MissingSymbol { symbol: name })
}

impl Driver {
    fn check(&self, symbol: &'static str, status: c_uint) -> Result<(), DriverError> {
        match status {
            0 => Ok(()),
            number => {
                // CUDA's documentation says `cuMemAlloc`; the suffix `_v2` is a detail of the library's exports.
                let call = symbol.trim_end_matches("_v2");
                Err(DriverError { call, code: self.error_name(number), number })
            }
        }
    }

    /// Returns the driver's own name for an error, so that errors of newer drivers have names too.
    fn error_name(&self, number: c_uint) -> &'static str {
        let mut name = std::ptr::null();
        // SAFETY: any number is allowed; the destination is a local variable.
        let status = unsafe { (self.get_error_name)(number, &raw mut name) };
        if status != 0 || name.is_null() {
            return "unknown CUDA error";
        }
        // SAFETY: on success this is a C string in libcuda, which is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("unknown CUDA error")
    }
}

/// Converts a count or size that the driver returns as a C `int` to a `u32`.
pub(crate) fn non_negative(what: &'static str, value: c_int) -> GpuResult<u32> {
    u32::try_from(value).map_err(|_| GpuError::OutOfRange { what, value: value.into() })
}
