//! What can go wrong between here and the GPU, by the call that failed.

/// A call of the CUDA driver that failed.
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
    /// Its number, such as 700.
    pub number: u32,
}

/// Errors after which CUDA refuses all further work of a context: the kernel, the device or the driver failed.
/// Each is documented to leave the context, or the process's use of CUDA, unusable.
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

/// Of these, the ones that a kernel causes: CUDA ends the context's work, copies among it, before it reports them. After the
/// others nothing is known of copies under way.
const STOPPING: [u32; 9] = [700, 702, 710, 714, 715, 716, 717, 718, 719];

impl DriverError {
    pub(crate) const NOT_READY: u32 = 600;

    /// Whether the device has stopped all work of the context.
    pub(crate) fn has_stopped_device(&self) -> bool {
        STOPPING.contains(&self.number)
    }

    /// Whether the context can be used no more.
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

/// Why the GPU did not do what it was asked.
///
/// ```
/// use trueno_zram_core::gpu::GpuError;
/// assert_eq!(GpuError::NoDevice { index: 1, count: 1 }.to_string(), "there is no CUDA device 1: the driver lists 1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No NVIDIA driver is installed, or it cannot be loaded.
    #[error("libcuda cannot be loaded: there is no NVIDIA driver")]
    NoDriver,
    /// The driver is older than anything supported, or broken.
    #[error("libcuda has no {symbol}: the NVIDIA driver is broken or older than CUDA 11.0")]
    MissingSymbol {
        /// The function that is not there.
        symbol: &'static str,
    },
    /// The driver lists no device of that index.
    #[error("there is no CUDA device {index}: the driver lists {count}")]
    NoDevice {
        /// The index asked for.
        index: u32,
        /// Devices listed.
        count: u32,
    },
    /// The device is older than compute capability 7.0.
    #[error("{name} has compute capability {major}.{minor}; 7.0 is needed")]
    OldDevice {
        /// The device's name.
        name: String,
        /// Its compute capability.
        major: u32,
        /// The part after the point.
        minor: u32,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The context was given up earlier: an error poisoned it, or a kernel hung.
    #[error("the CUDA context was given up: {reason}")]
    ContextLost {
        /// The first failure.
        reason: String,
    },
    /// A compressor was used in a child of the process that made it.
    #[error("the compressor belongs to process {owner}; a forked child needs one of its own")]
    OtherProcess {
        /// The process that made it.
        owner: u32,
    },
    /// The driver did not accept a kernel's text.
    #[error("the driver refuses the PTX: {error}\n{log}")]
    Ptx {
        /// The failed call.
        error: DriverError,
        /// What the driver's compiler says, with line numbers.
        log: String,
    },
    /// Text that cannot be handed to the driver: it has a zero byte inside.
    #[error("a zero byte at {at} of a text for the driver")]
    ZeroByte {
        /// Its position.
        at: usize,
    },
    /// A launch with other arguments than the kernel declares.
    #[error("{kernel} takes {expected}, not {given}")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// Its parameters.
        expected: String,
        /// The arguments.
        given: String,
    },
    /// A kernel that cannot be written for the device.
    #[error("{kernel} cannot be written for this device: {reason}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// What the device lacks.
        reason: String,
    },
    /// A kernel of which not one block fits a multiprocessor.
    #[error("{kernel}: a block of {threads} threads with {shared_bytes} bytes of shared memory does not fit")]
    BlockTooLarge {
        /// The kernel.
        kernel: String,
        /// Threads a block.
        threads: u32,
        /// Shared memory a block.
        shared_bytes: u32,
    },
    /// A buffer that is too small for so many pages.
    #[error("the {what} buffer has {len_bytes} bytes; {needed_bytes} are needed")]
    ShortBuffer {
        /// Its part in the launch.
        what: &'static str,
        /// What it has.
        len_bytes: usize,
        /// What the pages need.
        needed_bytes: u64,
    },
    /// A length that must be a multiple of something and is not.
    #[error("the {what}, {value}, is no multiple of {align}")]
    Misaligned {
        /// Its meaning.
        what: &'static str,
        /// The length.
        value: u64,
        /// What it must be a multiple of.
        align: u32,
    },
    /// A buffer, stream or event of one context was used in another.
    #[error("{what} belongs to another CUDA context")]
    ForeignContext {
        /// What was misplaced.
        what: &'static str,
    },
    /// A copy that would leave its buffer.
    #[error("bytes {offset} to {offset} + {len_bytes} lie outside the buffer of {buffer_len_bytes} bytes")]
    OutsideBuffer {
        /// Where it would start.
        offset: usize,
        /// Its length.
        len_bytes: usize,
        /// What there is.
        buffer_len_bytes: usize,
    },
    /// The GPU did not finish in time.
    #[error("the GPU did not finish within {timeout_ms} ms")]
    TimedOut {
        /// The limit.
        timeout_ms: u128,
    },
    /// The device's index does not describe the pages that it was given.
    #[error("the device's index entry of page {page} makes no sense: {bits:#018x}")]
    WrongIndex {
        /// The page, in its batch.
        page: usize,
        /// The entry.
        bits: u64,
    },
    /// A value that the driver gave, or should be given, does not fit its type.
    #[error("{what} is out of range: {value}")]
    OutOfRange {
        /// Its meaning.
        what: &'static str,
        /// The value.
        value: i128,
    },
}

/// Result of the layer over the driver.
///
/// ```
/// fn listed() -> trueno_zram_core::gpu::raw::GpuResult<usize> {
///     Ok(trueno_zram_core::gpu::GpuDeviceInfo::all().len())
/// }
/// assert!(listed().is_ok());
/// ```
pub type GpuResult<T> = Result<T, GpuError>;

impl GpuError {
    /// Whether the context that gave this error can be used no more.
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
}

impl GpuError {
    /// The driver is older than the PTX version of a text: an older version may do.
    pub(crate) fn is_unsupported_ptx_version(&self) -> bool {
        const UNSUPPORTED_PTX_VERSION: u32 = 222;
        matches!(self, Self::Ptx { error, .. } if error.number == UNSUPPORTED_PTX_VERSION)
    }
}

impl GpuError {
    /// The error of a device that cannot be opened or set up.
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
    fn the_text_names_the_call_the_code_and_the_number() {
        let error = DriverError { call: "cuLaunchKernel", code: "CUDA_ERROR_LAUNCH_FAILED", number: 719 };
        assert_eq!(error.to_string(), "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719)");
        assert_eq!(crate::Error::from(GpuError::from(error)), crate::Error::Gpu(GpuError::Driver(error)));
        assert_eq!(GpuError::from(error).not_available(), crate::Error::GpuNotAvailable(error.to_string()));
    }

    #[test]
    fn failures_of_kernels_poison_and_refusals_do_not() {
        let poisons = |number| DriverError { call: "", code: "", number }.poisons_context();
        // The four that kernels give: bad address, misaligned, launch failed, and the driver's watchdog.
        assert!([700, 716, 719, 702].into_iter().all(poisons));
        // Invalid value, no memory, no device, invalid PTX, not ready, too many resources.
        assert!(![1, 2, 100, 218, 600, 701].into_iter().any(poisons));
    }
}
