//! The arguments of a launch, checked against the kernel's parameters.

use std::ffi::c_void;

use super::error::{GpuError, GpuResult};
use super::memory::DeviceBuffer;

/// The kind of a kernel parameter.
///
/// ```
/// use trueno_zram_core::gpu::raw::ParamKind;
/// assert_eq!(format!("{:?}", [ParamKind::Buffer, ParamKind::U32]), "[Buffer, U32]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// An address in device memory.
    Buffer,
    /// A 32-bit number.
    U32,
    /// A 64-bit number.
    U64,
}

/// Maximum number of kernel parameters.
pub(super) const MAX_PARAMS: usize = 16;

/// The arguments of a launch, in order, at most sixteen. They are stored inline, so a launch does not allocate.
///
/// ```no_run
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, LaunchArgs};
/// let context = GpuContext::new(0)?;
/// let pages = DeviceBuffer::new(&context, 8 * 4096)?;
/// let args = LaunchArgs::new().buffer(&pages).u32(8);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LaunchArgs<'a> {
    args: [Argument<'a>; MAX_PARAMS],
    /// The number of arguments given. May exceed the capacity; then no kernel accepts them.
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Argument<'a> {
    /// The argument, at the start of its 8 bytes.
    value: [u8; 8],
    kind: ParamKind,
    buffer: Option<&'a DeviceBuffer>,
}

impl<'a> LaunchArgs<'a> {
    /// Creates an empty argument list.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{CudaStream, LaunchArgs, LoadedKernel};
    /// # fn run(nothing: &LoadedKernel, stream: &CudaStream) -> Result<(), trueno_zram_core::Error> {
    /// // SAFETY: the kernel has no parameters, and touches no memory.
    /// unsafe { nothing.launch(stream, 1, &LaunchArgs::new()) }?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { args: [Argument { value: [0; 8], kind: ParamKind::U64, buffer: None }; MAX_PARAMS], count: 0 }
    }

    /// Adds a buffer's address.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, LaunchArgs};
    /// # let context = GpuContext::new(0)?;
    /// let (from, to) = (DeviceBuffer::new(&context, 4096)?, DeviceBuffer::new(&context, 4096)?);
    /// let args = LaunchArgs::new().buffer(&from).buffer(&to); // for `kernel(from, to)`
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn buffer(self, buffer: &'a DeviceBuffer) -> Self {
        self.push(Argument { value: buffer.address().to_ne_bytes(), kind: ParamKind::Buffer, buffer: Some(buffer) })
    }

    /// Adds a 32-bit number.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchArgs;
    /// let args = LaunchArgs::new().u32(1000).u32(16); // for `kernel(u32 pages, u32 rounds)`
    /// ```
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        let [a, b, c, d] = value.to_ne_bytes();
        self.push(Argument { value: [a, b, c, d, 0, 0, 0, 0], kind: ParamKind::U32, buffer: None })
    }

    /// Adds a 64-bit number.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchArgs;
    /// let args = LaunchArgs::new().u64(1 << 33).u32(1000); // for `kernel(u64 len_bytes, u32 pages)`
    /// ```
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.push(Argument { value: value.to_ne_bytes(), kind: ParamKind::U64, buffer: None })
    }

    fn push(mut self, argument: Argument<'a>) -> Self {
        if let Some(place) = self.args.get_mut(self.count) {
            *place = argument;
        }
        self.count += 1;
        self
    }

    fn given(&self) -> &[Argument<'a>] {
        &self.args[..self.count.min(MAX_PARAMS)]
    }

    /// Returns the buffers among the arguments.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &'a DeviceBuffer> {
        self.given().iter().filter_map(|argument| argument.buffer)
    }

    /// Returns a pointer to each argument, as the driver reads them.
    pub(super) fn pointers(&self) -> [*mut c_void; MAX_PARAMS] {
        self.args.each_ref().map(|argument| argument.value.as_ptr().cast_mut().cast())
    }

    /// Checks number, order and width of the arguments against a kernel's parameters.
    pub(super) fn check(&self, kernel: &str, params: &[ParamKind]) -> GpuResult<()> {
        let kinds = self.given().iter().map(|argument| argument.kind);
        if self.count <= MAX_PARAMS && kinds.clone().eq(params.iter().copied()) {
            return Ok(());
        }
        let given = match self.count {
            0..=MAX_PARAMS => format!("{:?}", kinds.collect::<Vec<_>>()),
            more => format!("{more} arguments"),
        };
        Err(GpuError::Arguments { kernel: kernel.to_owned(), expected: format!("{params:?}"), given })
    }
}

impl Default for LaunchArgs<'_> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_arguments_of_wrong_number_order_or_width() {
        use ParamKind::{Buffer, U32, U64};
        let args = || LaunchArgs::new().u64(1).u32(2);
        assert_eq!(args().check("k", &[U64, U32]), Ok(()));
        for params in [&[U64][..], &[U64, U32, U32], &[U32, U64], &[U64, U64], &[Buffer, U32], &[]] {
            assert!(matches!(args().check("k", params), Err(GpuError::Arguments { .. })), "{params:?}");
        }
        assert_eq!(LaunchArgs::new().check("none", &[]), Ok(()));
    }

    #[test]
    fn rejects_more_arguments_than_the_capacity() {
        let args = |count| (0..count).fold(LaunchArgs::new(), |args, i| args.u32(i));
        assert_eq!(args(16).check("k", &[ParamKind::U32; 16]), Ok(()));
        for params in [&[ParamKind::U32; 16][..], &[ParamKind::U32; 17]] {
            assert!(matches!(args(17).check("k", params), Err(GpuError::Arguments { .. })), "{params:?}");
        }
    }

    #[test]
    fn arguments_are_stored_at_the_start_of_their_bytes() {
        let args = LaunchArgs::new().u32(0x0102_0304).u64(5);
        assert_eq!(args.args[0].value[..4], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(args.args[1].value, 5u64.to_ne_bytes());
    }
}
