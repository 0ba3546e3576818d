//! Errors between this crate and the GPU, by the call that failed.

/// A failed call of the CUDA driver.
///
/// ```no_run
/// use trueno_zram_core::gpu::GpuError;
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext};
/// let context = GpuContext::new(0)?;
/// match DeviceBuffer::new(&context, usize::MAX) {
///     Err(GpuError::Driver(error)) => assert_eq!((error.call, error.code), ("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {code} ({number})")]
pub struct DriverError {
    /// The driver's function, such as `cuMemAlloc`.
    pub call: &'static str,
    /// The name of the CUDA error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub code: &'static str,
    /// The number of the CUDA error, such as 700.
    pub number: u32,
}

/// Errors after which CUDA rejects all further work of a context: the kernel, the device or the driver failed. Each is
/// documented to leave the context, or the process's use of CUDA, unusable.
const POISONING: [u32; 17] = [
    4,   // CUDA_ERROR_DEINITIALIZED
    46,  // CUDA_ERROR_DEVICE_UNAVAILABLE
    214, // CUDA_ERROR_ECC_UNCORRECTABLE
    220, // CUDA_ERROR_NVLINK_UNCORRECTABLE
    226, // CUDA_ERROR_CONTAINED
    700, // CUDA_ERROR_ILLEGAL_ADDRESS
    702, // CUDA_ERROR_LAUNCH_TIMEOUT
    709, // CUDA_ERROR_CONTEXT_IS_DESTROYED
    710, // CUDA_ERROR_ASSERT
    714, // CUDA_ERROR_HARDWARE_STACK_ERROR
    715, // CUDA_ERROR_ILLEGAL_INSTRUCTION
    716, // CUDA_ERROR_MISALIGNED_ADDRESS
    717, // CUDA_ERROR_INVALID_ADDRESS_SPACE
    718, // CUDA_ERROR_INVALID_PC
    719, // CUDA_ERROR_LAUNCH_FAILED
    721, // CUDA_ERROR_TENSOR_MEMORY_LEAK
    999, // CUDA_ERROR_UNKNOWN: what a lost device gives
];

/// The poisoning errors that a kernel causes. CUDA stops the context's work, including copies, before it reports them.
/// After the other errors nothing is known about copies in flight.
const STOPPING: [u32; 9] = [700, 702, 710, 714, 715, 716, 717, 718, 719];

impl DriverError {
    pub(crate) const NOT_READY: u32 = 600;

    /// Returns `true` if the device has stopped all work of the context.
    pub(crate) fn has_stopped_device(&self) -> bool {
        STOPPING.contains(&self.number)
    }

    /// Returns `true` if the context can no longer be used.
    ///
    /// ```
    /// use trueno_zram_core::gpu::DriverError;
    /// let error = |code, number| DriverError { call: "cuStreamSynchronize", code, number };
    /// assert!(error("CUDA_ERROR_ILLEGAL_ADDRESS", 700).poisons_context());
    /// assert!(!error("CUDA_ERROR_OUT_OF_MEMORY", 2).poisons_context());
    /// ```
    #[must_use]
    pub fn poisons_context(&self) -> bool {
        POISONING.contains(&self.number)
    }
}

/// `true` if this build is static and so cannot load the driver's library at run time. On Windows static builds can.
pub(crate) const IS_STATIC_BUILD: bool = cfg!(all(unix, target_feature = "crt-static"));

/// The text of [`GpuError::NoDriver`].
const NO_DRIVER: &str = if IS_STATIC_BUILD {
    "libcuda cannot be loaded: this is a static build, which cannot load a driver at run time; \
     use a dynamically linked build for the GPU"
} else {
    "libcuda cannot be loaded: no NVIDIA driver is installed"
};

/// The error of a GPU operation.
///
/// ```
/// use trueno_zram_core::gpu::GpuError;
/// assert_eq!(GpuError::NoDevice { index: 1, count: 1 }.to_string(), "CUDA device 1 does not exist: the driver lists 1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No NVIDIA driver is installed, it cannot be loaded, or this is a static build, which cannot load one.
    #[error("{NO_DRIVER}")]
    NoDriver,
    /// The driver is broken or older than any supported version.
    #[error("libcuda has no {symbol}: the NVIDIA driver is broken or older than CUDA 11.0")]
    MissingSymbol {
        /// The missing function.
        symbol: &'static str,
    },
    /// The driver lists no device with that index.
    #[error("CUDA device {index} does not exist: the driver lists {count}")]
    NoDevice {
        /// The requested index.
        index: u32,
        /// The number of devices listed.
        count: u32,
    },
    /// The device's compute capability is below 7.0.
    #[error("{name} has compute capability {major}.{minor}; 7.0 or higher is required")]
    OldDevice {
        /// The device's name.
        name: String,
        /// Major number of its compute capability.
        major: u32,
        /// Minor number of its compute capability.
        minor: u32,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The context was given up earlier, because an error poisoned it or a kernel hung.
    #[error("the CUDA context was given up: {reason}")]
    ContextLost {
        /// The first failure.
        reason: String,
    },
    /// A compressor was used in a child of the process that created it.
    #[error("the compressor belongs to process {owner}; a forked child must create its own")]
    OtherProcess {
        /// The process that created it.
        owner: u32,
    },
    /// The driver rejected a kernel's PTX.
    #[error("the driver rejected the PTX: {error}\n{log}")]
    Ptx {
        /// The failed call.
        error: DriverError,
        /// The messages of the driver's compiler, with line numbers.
        log: String,
    },
    /// A string for the driver contains a zero byte.
    #[error("a string for the driver contains a zero byte at {at}")]
    ZeroByte {
        /// Position of the zero byte.
        at: usize,
    },
    /// The arguments of a launch do not match the kernel's parameters.
    #[error("{kernel} takes {expected}, not {given}")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// The kernel's parameters.
        expected: String,
        /// The given arguments.
        given: String,
    },
    /// A kernel cannot be generated for the device.
    #[error("{kernel} cannot be generated for this device: {reason}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// The feature that the device lacks.
        reason: String,
    },
    /// Not even one block of the kernel fits on a multiprocessor.
    #[error("{kernel}: a block of {threads} threads with {shared_bytes} bytes of shared memory does not fit an SM")]
    BlockTooLarge {
        /// The kernel.
        kernel: String,
        /// Threads per block.
        threads: u32,
        /// Shared memory per block.
        shared_bytes: u32,
    },
    /// A buffer is too small for the pages.
    #[error("the {what} buffer has {len_bytes} bytes; {needed_bytes} are required")]
    ShortBuffer {
        /// The buffer's role in the launch.
        what: &'static str,
        /// The buffer's length.
        len_bytes: usize,
        /// The length that the pages need.
        needed_bytes: u64,
    },
    /// A length is not a multiple of the required alignment.
    #[error("the {what} is {value}, which is not a multiple of {align}")]
    Misaligned {
        /// The meaning of the length.
        what: &'static str,
        /// The length.
        value: u64,
        /// The required alignment.
        align: u32,
    },
    /// A buffer, stream or event of one context was used in another.
    #[error("{what} belongs to another CUDA context")]
    ForeignContext {
        /// The object.
        what: &'static str,
    },
    /// A copy would exceed its buffer.
    #[error("bytes {offset} to {offset} + {len_bytes} lie outside the buffer of {buffer_len_bytes} bytes")]
    OutsideBuffer {
        /// Start of the copy.
        offset: usize,
        /// Length of the copy.
        len_bytes: usize,
        /// Length of the buffer.
        buffer_len_bytes: usize,
    },
    /// The GPU did not finish in time.
    #[error("the GPU did not finish within {timeout_ms} ms")]
    TimedOut {
        /// The time limit.
        timeout_ms: u128,
    },
    /// The index that the device wrote does not describe the given pages.
    #[error("the device's index entry for page {page} makes no sense: {bits:#018x}")]
    WrongIndex {
        /// The page's number in its batch.
        page: usize,
        /// The index entry.
        bits: u64,
    },
    /// A value from or for the driver does not fit its type.
    #[error("{what} is out of range: {value}")]
    OutOfRange {
        /// The meaning of the value.
        what: &'static str,
        /// The value.
        value: i128,
    },
}

/// The result type of the driver layer.
///
/// ```
/// fn listed() -> trueno_zram_core::gpu::raw::GpuResult<usize> {
///     Ok(trueno_zram_core::gpu::GpuDeviceInfo::all().len())
/// }
/// assert!(listed().is_ok());
/// ```
pub type GpuResult<T> = Result<T, GpuError>;

impl GpuError {
    /// Returns `true` if the context that returned this error can no longer be used.
    ///
    /// ```
    /// use trueno_zram_core::gpu::GpuError;
    /// assert!(GpuError::ContextLost { reason: "a kernel hung".into() }.poisons_context());
    /// assert!(!GpuError::NoDriver.poisons_context());
    /// ```
    #[must_use]
    pub fn poisons_context(&self) -> bool {
        match self {
            Self::Driver(error) | Self::Ptx { error, .. } => error.poisons_context(),
            Self::ContextLost { .. } => true,
            _ => false,
        }
    }

    /// Returns `true` if the driver is too old for the PTX version. An older version may work.
    pub(crate) fn is_unsupported_ptx_version(&self) -> bool {
        const UNSUPPORTED_PTX_VERSION: u32 = 222;
        matches!(self, Self::Ptx { error, .. } if error.number == UNSUPPORTED_PTX_VERSION)
    }

    /// Returns `true` if memory ran out. Less memory may do.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        const OUT_OF_MEMORY: u32 = 2;
        matches!(self, Self::Driver(error) if error.number == OUT_OF_MEMORY)
    }

    /// Converts the error of a device that cannot be opened or set up.
    pub(crate) fn not_available(self) -> crate::Error {
        crate::Error::GpuNotAvailable(self.to_string())
    }
}

impl From<GpuError> for crate::Error {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::NoDriver
            | GpuError::MissingSymbol { .. }
            | GpuError::NoDevice { .. }
            | GpuError::OldDevice { .. } => error.not_available(),
            error => Self::Gpu(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_call_code_and_number() {
        let error = DriverError { call: "cuLaunchKernel", code: "CUDA_ERROR_LAUNCH_FAILED", number: 719 };
        assert_eq!(error.to_string(), "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719)");
        assert_eq!(crate::Error::from(GpuError::from(error)), crate::Error::Gpu(GpuError::Driver(error)));
        assert_eq!(GpuError::from(error).not_available(), crate::Error::GpuNotAvailable(error.to_string()));
    }

    #[test]
    fn kernel_failures_poison_the_context_and_rejections_do_not() {
        let poisons = |number| DriverError { call: "", code: "", number }.poisons_context();
        // Errors that kernels cause: bad address, misaligned address, launch failed, driver watchdog.
        assert!([700, 716, 719, 702].into_iter().all(poisons));
        // Invalid value, out of memory, no device, invalid PTX, not ready, too many resources.
        assert!(![1, 2, 100, 218, 600, 701].into_iter().any(poisons));
    }

    #[test]
    fn only_one_driver_error_says_that_memory_ran_out() {
        let is_out_of_memory = |number| GpuError::from(DriverError { call: "", code: "", number }).is_out_of_memory();
        assert!(is_out_of_memory(2));
        // Invalid value, not initialized, bad address, too many resources.
        assert!(![1, 3, 700, 701].into_iter().any(is_out_of_memory));
        assert!(!GpuError::NoDriver.is_out_of_memory());
    }

    #[test]
    fn missing_driver_message_fits_the_build() {
        let text = GpuError::NoDriver.to_string();
        assert_eq!(text.contains("this is a static build, which cannot load a driver at run time"), IS_STATIC_BUILD);
        assert_eq!(text.contains("no NVIDIA driver is installed"), !IS_STATIC_BUILD);
    }

    #[cfg(all(unix, target_feature = "crt-static"))]
    #[test]
    fn static_build_reports_no_driver() {
        assert_eq!(crate::gpu::driver::driver().err(), Some(GpuError::NoDriver));
    }
}
