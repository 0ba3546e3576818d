//! Launches kernels, with arguments checked against the kernel's parameters. All launches go through here.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::driver::{CUfunction, CUfunction_attribute, non_negative};
use super::error::{GpuError, GpuResult};
use super::memory::DeviceBuffer;
use super::module::Module;
use super::stream::CudaStream;

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
const MAX_PARAMS: usize = 16;

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
    slots: [ArgumentSlot<'a>; MAX_PARAMS],
    /// The number of arguments given. May exceed the capacity; then no kernel accepts them.
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct ArgumentSlot<'a> {
    /// The argument, at the start of its 8 bytes.
    value: [u8; 8],
    kind: ParamKind,
    buffer: Option<&'a DeviceBuffer>,
}

impl<'a> LaunchArgs<'a> {
    /// Creates an empty argument list.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{LaunchArgs, Launcher, CudaStream};
    /// # fn run(nothing: &Launcher, stream: &CudaStream) -> Result<(), trueno_zram_core::Error> {
    /// // SAFETY: the kernel has no parameters, and touches no memory.
    /// unsafe { nothing.launch(stream, 1, 32, 0, &LaunchArgs::new()) }?;
    /// # Ok(())
    /// # }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { slots: [ArgumentSlot { value: [0; 8], kind: ParamKind::U64, buffer: None }; MAX_PARAMS], count: 0 }
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
        self.push(ArgumentSlot { value: buffer.address().to_ne_bytes(), kind: ParamKind::Buffer, buffer: Some(buffer) })
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
        self.push(ArgumentSlot { value: [a, b, c, d, 0, 0, 0, 0], kind: ParamKind::U32, buffer: None })
    }

    /// Adds a 64-bit number.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchArgs;
    /// let args = LaunchArgs::new().u64(1 << 33).u32(1000); // for `kernel(u64 len_bytes, u32 pages)`
    /// ```
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.push(ArgumentSlot { value: value.to_ne_bytes(), kind: ParamKind::U64, buffer: None })
    }

    fn push(mut self, slot: ArgumentSlot<'a>) -> Self {
        if let Some(place) = self.slots.get_mut(self.count) {
            *place = slot;
        }
        self.count += 1;
        self
    }

    fn given(&self) -> &[ArgumentSlot<'a>] {
        &self.slots[..self.count.min(MAX_PARAMS)]
    }

    /// Checks number, order and width of the arguments against a kernel's parameters.
    fn check(&self, kernel: &str, params: &[ParamKind]) -> GpuResult<()> {
        let kinds = self.given().iter().map(|slot| slot.kind);
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

/// The resources that the driver's compiler assigned to a kernel.
///
/// ```no_run
/// # fn of(launcher: &trueno_zram_core::gpu::raw::Launcher) -> trueno_zram_core::gpu::raw::GpuResult<()> {
/// let made = launcher.attributes()?;
/// assert_eq!(made.local_bytes, 0, "no spills");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAttributes {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread, mostly spilled registers.
    pub local_bytes: u32,
    /// Shared memory that the kernel itself declares.
    pub static_shared_bytes: u32,
    /// Maximum number of threads per block.
    pub max_block_threads: u32,
}

/// A kernel ready to launch.
///
/// ```no_run
/// use std::sync::Arc;
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, LaunchArgs, Launcher, Module, ParamKind, CudaStream};
/// const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n
///     .visible .entry store7(.param .u64 to) {
///         .reg .u64 %to;
///         ld.param.u64 %to, [to];
///         st.global.u32 [%to], 7;
///         ret;
///     }";
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let buffer = DeviceBuffer::new(&context, 4)?;
/// let store7 = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "store7", &[ParamKind::Buffer])?;
/// // SAFETY: the kernel writes the first 4 bytes of its argument, which has 4 bytes.
/// unsafe { store7.launch(&stream, 1, 1, 0, &LaunchArgs::new().buffer(&buffer)) }?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct Launcher {
    module: Arc<Module>,
    function: CUfunction,
    entry: String,
    params: Vec<ParamKind>,
}

// SAFETY: the handle is a driver token that any thread may use; the module keeps it valid.
unsafe impl Send for Launcher {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Launcher {}

impl Launcher {
    /// Finds a kernel in a module. `params` are its declared parameters, which the driver cannot report.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, Launcher, Module};
    /// # use std::sync::Arc;
    /// # let context = GpuContext::new(0)?;
    /// # const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }";
    /// let module = Arc::new(Module::from_ptx(&context, PTX)?);
    /// let nothing = Launcher::new(&module, "nothing", &[])?;
    /// assert!(Launcher::new(&module, "something", &[]).is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_FOUND` if the module has no such kernel.
    pub fn new(module: &Arc<Module>, entry: &str, params: &[ParamKind]) -> GpuResult<Self> {
        let function = module.function(entry)?;
        Ok(Self { module: Arc::clone(module), function, entry: entry.to_owned(), params: params.to_vec() })
    }

    /// Allows launches with this much dynamic shared memory per block. The default limit is 48 KiB.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, Launcher, Module};
    /// # use std::sync::Arc;
    /// # let context = GpuContext::new(0)?;
    /// # const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }";
    /// # let nothing = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "nothing", &[])?;
    /// let most = context.limits().shared_bytes_per_block;
    /// nothing.allow_dynamic_shared(most)?; // from here on, launches may use up to `most`
    /// assert!(nothing.allow_dynamic_shared(most + 1).is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device does not have that much.
    pub fn allow_dynamic_shared(&self, bytes: u32) -> GpuResult<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = c_int_of("dynamic shared memory", bytes)?;
        // SAFETY: the function lives as long as the module.
        self.module.context().call(|driver| unsafe { driver.cuFuncSetAttribute(self.function, attribute, value) })
    }

    /// Returns the resources that the compiler assigned to the kernel.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, Launcher, Module};
    /// # use std::sync::Arc;
    /// # let context = GpuContext::new(0)?;
    /// # const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }";
    /// # let nothing = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "nothing", &[])?;
    /// let made = nothing.attributes()?;
    /// println!("{} registers, {} bytes spilled", made.registers, made.local_bytes);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn attributes(&self) -> GpuResult<KernelAttributes> {
        use CUfunction_attribute as A;
        Ok(KernelAttributes {
            registers: self.attribute(A::CU_FUNC_ATTRIBUTE_NUM_REGS, "registers")?,
            local_bytes: self.attribute(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, "local memory")?,
            static_shared_bytes: self.attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, "shared memory")?,
            max_block_threads: self.attribute(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, "block size")?,
        })
    }

    fn attribute(&self, which: CUfunction_attribute, what: &'static str) -> GpuResult<u32> {
        let mut value = 0;
        self.module.context().call(|driver| {
            // SAFETY: the destination is a local variable; the function lives as long as the module.
            unsafe { driver.cuFuncGetAttribute(&raw mut value, which, self.function) }
        })?;
        non_negative(what, value)
    }

    /// Returns how many blocks of that shape fit on one multiprocessor at a time; 0 if none fits.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, Launcher, Module};
    /// # use std::sync::Arc;
    /// # let context = GpuContext::new(0)?;
    /// # const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }";
    /// # let nothing = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "nothing", &[])?;
    /// let resident = nothing.blocks_per_multiprocessor(128, 0)? * context.limits().multiprocessors;
    /// println!("a grid of {resident} blocks fills the device");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn blocks_per_multiprocessor(&self, block_threads: u32, dynamic_shared_bytes: u32) -> GpuResult<u32> {
        let mut blocks = 0;
        let threads = c_int_of("block size", block_threads)?;
        // Widening: `usize` has 64 bits wherever CUDA runs.
        let shared = dynamic_shared_bytes as usize;
        self.module.context().call(|driver| {
            // SAFETY: the destination is a local variable; the function lives as long as the module.
            unsafe {
                driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.function, threads, shared)
            }
        })?;
        non_negative("occupancy", blocks)
    }

    /// Queues a launch of `grid` blocks of `block_threads` threads. Number, order and width of the arguments are checked
    /// against the parameters. The caller guarantees that the buffers are large enough for the kernel.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LaunchArgs, Launcher, Module, CudaStream};
    /// # use std::sync::Arc;
    /// # let context = GpuContext::new(0)?;
    /// # const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }";
    /// # let stream = CudaStream::new(&context)?;
    /// # let nothing = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "nothing", &[])?;
    /// // SAFETY: the kernel touches no memory.
    /// unsafe { nothing.launch(&stream, 132, 256, 0, &LaunchArgs::new()) }?;
    /// // SAFETY: as above. An argument that the kernel does not have is rejected.
    /// assert!(unsafe { nothing.launch(&stream, 132, 256, 0, &LaunchArgs::new().u32(1)) }.is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::Arguments`] if the arguments do not match the parameters, or the driver's error. An error in the
    /// kernel itself appears in the first call that waits for it.
    ///
    /// # Safety
    /// With these arguments, the kernel accesses nothing but the buffers among them and stays within their bounds.
    /// (The buffers outlive the kernel: freeing one waits.)
    pub unsafe fn launch(
        &self,
        stream: &CudaStream,
        grid: u32,
        block_threads: u32,
        dynamic_shared_bytes: u32,
        args: &LaunchArgs<'_>,
    ) -> GpuResult<()> {
        let context = self.module.context();
        context.check_same(stream.context(), "the stream")?;
        args.check(&self.entry, &self.params)?;
        for buffer in args.given().iter().filter_map(|slot| slot.buffer) {
            context.check_same(buffer.context(), "the buffer")?;
        }
        let mut values: [*mut c_void; MAX_PARAMS] = args.slots.each_ref().map(|s| s.value.as_ptr().cast_mut().cast());
        context.call(|driver| {
            // SAFETY: there are at least as many pointers as the kernel has parameters, each to at least the bytes of
            // that parameter, and the driver copies them before it returns. Function and stream exist. The caller
            // guarantees the kernel's behaviour.
            unsafe {
                driver.cuLaunchKernel(
                    self.function,
                    grid,
                    1,
                    1,
                    block_threads,
                    1,
                    1,
                    dynamic_shared_bytes,
                    stream.handle(),
                    values.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        })
    }
}

fn c_int_of(what: &'static str, value: u32) -> GpuResult<i32> {
    i32::try_from(value).map_err(|_| GpuError::OutOfRange { what, value: value.into() })
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launcher({}, {:?})", self.entry, self.params)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rejects_arguments_of_wrong_number_order_or_width() {
        use ParamKind::{Buffer, U32, U64};
        let args = || LaunchArgs::new().u64(1).u32(2);
        assert_eq!(args().check("k", &[U64, U32]), Ok(()));
        for params in [&[U64][..], &[U64, U32, U32], &[U32, U64], &[U64, U64], &[Buffer, U32], &[]] {
            let error = args().check("k", params).unwrap_err();
            assert_eq!(error.to_string(), format!("k takes {params:?}, not [U64, U32]"));
        }
        assert_eq!(LaunchArgs::new().check("none", &[]), Ok(()));
    }

    #[test]
    fn rejects_more_arguments_than_the_capacity() {
        let args = |count| (0..count).fold(LaunchArgs::new(), |args, i| args.u32(i));
        assert_eq!(args(16).check("k", &[ParamKind::U32; 16]), Ok(()));
        assert!(args(17).check("k", &[ParamKind::U32; 16]).unwrap_err().to_string().ends_with("not 17 arguments"));
        assert!(args(17).check("k", &[ParamKind::U32; 17]).is_err());
    }

    #[test]
    fn arguments_are_stored_at_the_start_of_their_bytes() {
        let args = LaunchArgs::new().u32(0x0102_0304).u64(5);
        assert_eq!(args.slots[0].value[..4], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(args.slots[1].value, 5u64.to_ne_bytes());
    }
}
