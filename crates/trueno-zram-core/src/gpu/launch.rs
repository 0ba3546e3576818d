//! The one place that launches kernels, with arguments checked against the kernel's parameters.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::driver::{CUfunction, CUfunction_attribute, non_negative};
use super::error::{GpuError, GpuResult};
use super::memory::DeviceBuffer;
use super::module::Module;
use super::stream::Stream;

/// What a kernel takes in one of its parameters.
///
/// ```
/// use trueno_zram_core::gpu::raw::ParamKind;
/// assert_eq!(format!("{:?}", [ParamKind::Buffer, ParamKind::U32]), "[Buffer, U32]");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// An address in device memory.
    Buffer,
    /// 32 bits.
    U32,
    /// 64 bits.
    U64,
}

/// The most parameters that a kernel here can have.
const MAX_PARAMS: usize = 16;

/// Arguments for a launch, in order; sixteen at most. They are kept in place: a launch allocates nothing.
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
    slots: [Slot<'a>; MAX_PARAMS],
    /// How many were given, even past what there is room for: then no kernel takes them.
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot<'a> {
    /// The argument, from the front of its 8 bytes.
    value: [u8; 8],
    kind: ParamKind,
    buffer: Option<&'a DeviceBuffer>,
}

impl<'a> LaunchArgs<'a> {
    /// None yet.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{LaunchArgs, Launcher, Stream};
    /// # fn run(nothing: &Launcher, stream: &Stream) -> Result<(), trueno_zram_core::Error> {
    /// // SAFETY: the kernel has no parameters, and touches no memory.
    /// unsafe { nothing.launch(stream, 1, 32, 0, &LaunchArgs::new()) }?;
    /// # Ok(())
    /// # }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { slots: [Slot { value: [0; 8], kind: ParamKind::U64, buffer: None }; MAX_PARAMS], count: 0 }
    }

    /// A buffer's address.
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
        self.push(Slot { value: buffer.address().to_ne_bytes(), kind: ParamKind::Buffer, buffer: Some(buffer) })
    }

    /// A 32-bit number.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchArgs;
    /// let args = LaunchArgs::new().u32(1000).u32(16); // for `kernel(u32 pages, u32 rounds)`
    /// ```
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        let [a, b, c, d] = value.to_ne_bytes();
        self.push(Slot { value: [a, b, c, d, 0, 0, 0, 0], kind: ParamKind::U32, buffer: None })
    }

    /// A 64-bit number.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchArgs;
    /// let args = LaunchArgs::new().u64(1 << 33).u32(1000); // for `kernel(u64 len_bytes, u32 pages)`
    /// ```
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.push(Slot { value: value.to_ne_bytes(), kind: ParamKind::U64, buffer: None })
    }

    fn push(mut self, slot: Slot<'a>) -> Self {
        if let Some(place) = self.slots.get_mut(self.count) {
            *place = slot;
        }
        self.count += 1;
        self
    }

    fn given(&self) -> &[Slot<'a>] {
        &self.slots[..self.count.min(MAX_PARAMS)]
    }

    /// Checks number, order and width against a kernel's parameters.
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

/// What the driver's compiler made of a kernel.
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
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of local memory a thread: spilled registers, mostly.
    pub local_bytes: u32,
    /// Shared memory that the kernel declares itself.
    pub static_shared_bytes: u32,
    /// The most threads a block can have.
    pub max_block_threads: u32,
}

/// A kernel ready to run.
///
/// ```no_run
/// use std::sync::Arc;
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, LaunchArgs, Launcher, Module, ParamKind, Stream};
/// const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n
///     .visible .entry store7(.param .u64 to) {
///         .reg .u64 %to;
///         ld.param.u64 %to, [to];
///         st.global.u32 [%to], 7;
///         ret;
///     }";
/// let context = GpuContext::new(0)?;
/// let stream = Stream::new(&context)?;
/// let buffer = DeviceBuffer::new(&context, 4)?;
/// let store7 = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "store7", &[ParamKind::Buffer])?;
/// // SAFETY: the kernel writes the first 4 bytes of its argument, which has 4.
/// unsafe { store7.launch(&stream, 1, 1, 0, &LaunchArgs::new().buffer(&buffer)) }?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct Launcher {
    module: Arc<Module>,
    function: CUfunction,
    entry: String,
    params: Vec<ParamKind>,
}

// SAFETY: the handle is a token of the driver, which may be used from any thread; the module keeps it valid.
unsafe impl Send for Launcher {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Launcher {}

impl Launcher {
    /// Finds a kernel. `params` are its parameters, as its maker declares them: the driver cannot be asked.
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

    /// Allows launches with this much dynamic shared memory a block; without it, 48 KiB is the most.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, Launcher, Module};
    /// # use std::sync::Arc;
    /// # let context = GpuContext::new(0)?;
    /// # const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }";
    /// # let nothing = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "nothing", &[])?;
    /// let most = context.limits().shared_bytes_per_block;
    /// nothing.allow_dynamic_shared(most)?; // from here on, launches may ask for up to `most`
    /// assert!(nothing.allow_dynamic_shared(most + 1).is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device has not as much.
    pub fn allow_dynamic_shared(&self, bytes: u32) -> GpuResult<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = c_int_of("dynamic shared memory", bytes)?;
        // SAFETY: the function lives as long as the module.
        self.module.context().call(|driver| unsafe { driver.cuFuncSetAttribute(self.function, attribute, value) })
    }

    /// What the compiler made of it.
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
            // SAFETY: the destination is a value of ours; the function lives as long as the module.
            unsafe { driver.cuFuncGetAttribute(&raw mut value, which, self.function) }
        })?;
        non_negative(what, value)
    }

    /// How many blocks of that shape one multiprocessor holds at a time; 0 if none fits.
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
            // SAFETY: the destination is a value of ours; the function lives as long as the module.
            unsafe {
                driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.function, threads, shared)
            }
        })?;
        non_negative("occupancy", blocks)
    }

    /// Queues a launch of `grid` blocks of `block_threads` threads. Number, order and width of the arguments are checked
    /// against the parameters; that the buffers are large enough for what the kernel does is the caller's word.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LaunchArgs, Launcher, Module, Stream};
    /// # use std::sync::Arc;
    /// # let context = GpuContext::new(0)?;
    /// # const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n.entry nothing() { ret; }";
    /// # let stream = Stream::new(&context)?;
    /// # let nothing = Launcher::new(&Arc::new(Module::from_ptx(&context, PTX)?), "nothing", &[])?;
    /// // SAFETY: the kernel touches no memory.
    /// unsafe { nothing.launch(&stream, 132, 256, 0, &LaunchArgs::new()) }?;
    /// // SAFETY: as above. A number that the kernel does not take is refused.
    /// assert!(unsafe { nothing.launch(&stream, 132, 256, 0, &LaunchArgs::new().u32(1)) }.is_err());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::Arguments`] for arguments that are not the parameters, or what the driver says. An error of the kernel
    /// itself shows in the first call that waits for it.
    ///
    /// # Safety
    /// With these arguments, the kernel accesses nothing but the buffers among them, and stays inside them.
    /// (The buffers outlive the kernel by themselves: freeing one waits.)
    pub unsafe fn launch(
        &self,
        stream: &Stream,
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
            // SAFETY: there are at least as many pointers as the kernel has parameters, each to at least the bytes of that
            // parameter, which the driver copies before it returns; function and stream live; the caller vouches for
            // what the kernel does.
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
    fn arguments_must_be_the_parameters_in_number_order_and_width() {
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
    fn more_arguments_than_there_is_room_for_suit_no_kernel() {
        let args = |count| (0..count).fold(LaunchArgs::new(), |args, i| args.u32(i));
        assert_eq!(args(16).check("k", &[ParamKind::U32; 16]), Ok(()));
        assert!(args(17).check("k", &[ParamKind::U32; 16]).unwrap_err().to_string().ends_with("not 17 arguments"));
        assert!(args(17).check("k", &[ParamKind::U32; 17]).is_err());
    }

    #[test]
    fn arguments_stand_at_the_front_of_their_bytes() {
        let args = LaunchArgs::new().u32(0x0102_0304).u64(5);
        assert_eq!(args.slots[0].value[..4], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(args.slots[1].value, 5u64.to_ne_bytes());
    }
}
