//! Kernels loaded on a device. All launches go through here.
#![allow(unsafe_code)]

use std::fmt;
use std::num::NonZeroU32;

use trueno_gpu::ir::ParamTy;
use trueno_gpu::{Target, ValidKernel, emit_for};

use super::context::GpuContext;
use super::driver::{CUfunction, CUfunction_attribute, non_negative};
use super::error::{GpuError, GpuResult};
use super::launch_args::{LaunchArgs, ParamKind};
use super::launch_shape::is_at_least;
use super::module::Module;
use super::stream::CudaStream;

/// Threads per warp.
const WARP_THREADS: u32 = 32;

/// A kernel in PTX text: its name, its parameters and the shape of its blocks. The driver reports neither of the latter two.
///
/// ```
/// use trueno_zram_core::gpu::raw::{EntryPoint, ParamKind};
/// let (name, params) = ("store7", &[ParamKind::Buffer]);
/// let entry = EntryPoint { name, params, block_threads: 32, dynamic_shared_bytes: 0 };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EntryPoint<'a> {
    /// The kernel's name.
    pub name: &'a str,
    /// The kernel's parameters.
    pub params: &'a [ParamKind],
    /// Threads per block.
    pub block_threads: u32,
    /// Dynamic shared memory per block.
    pub dynamic_shared_bytes: u32,
}

/// The resources that the driver's compiler assigned to a kernel.
///
/// ```no_run
/// # fn of(kernel: &trueno_zram_core::gpu::raw::LoadedKernel) -> trueno_zram_core::gpu::raw::GpuResult<()> {
/// let attributes = kernel.attributes()?;
/// assert_eq!(attributes.local_bytes, 0, "no spills");
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
}

/// A kernel loaded on a device, with its block size and the grid that fills the device.
///
/// ```no_run
/// use trueno_gpu::kernels::{Kernel, SameFillKernel};
/// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, LaunchArgs, LoadedKernel, CudaStream};
/// let context = GpuContext::new(0)?;
/// let stream = CudaStream::new(&context)?;
/// let kernel = SameFillKernel::new();
/// let loaded = LoadedKernel::new(&context, kernel.ir())?;
/// let (pages, flags) = (DeviceBuffer::new(&context, 8 * 4096)?, DeviceBuffer::new(&context, 8 * 4)?);
/// stream.fill(&pages, 0..8 * 4096, 7)?;
/// // SAFETY: the kernel reads 8 pages and writes 8 flags.
/// unsafe { loaded.launch(&stream, kernel.grid(8), &LaunchArgs::new().buffer(&pages).buffer(&flags).u32(8)) }?;
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub struct LoadedKernel {
    /// Keeps the function valid.
    module: Module,
    function: CUfunction,
    name: String,
    params: Vec<ParamKind>,
    block_threads: u32,
    dynamic_shared_bytes: u32,
    blocks_per_multiprocessor: u32,
    /// The most multiprocessors that launches may occupy, or `None` for all.
    max_multiprocessors: Option<NonZeroU32>,
}

// SAFETY: the handle is a driver token that any thread may use; the module keeps it valid.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for LoadedKernel {}

impl LoadedKernel {
    /// Generates a kernel's PTX for the device's own target, or for the newest older one that the driver supports, and compiles
    /// it with the driver.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// let context = GpuContext::new(0)?;
    /// let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::Kernel`] if the device lacks a feature that the kernel needs; [`GpuError::BlockTooLarge`] if not
    /// even one block fits on a multiprocessor; [`GpuError::Ptx`] if the driver rejects the PTX.
    pub fn new(context: &GpuContext, kernel: &ValidKernel) -> GpuResult<Self> {
        let entry = EntryPoint {
            name: &kernel.name,
            params: &param_kinds(kernel),
            block_threads: kernel.warps_per_block * WARP_THREADS,
            dynamic_shared_bytes: kernel.shared.launch_bytes(),
        };
        Self::in_module(compile(context, kernel)?, entry)
    }

    /// Compiles PTX text with the driver and finds a kernel in it.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{CudaStream, DeviceBuffer, EntryPoint, GpuContext, LaunchArgs, LoadedKernel, ParamKind};
    /// const PTX: &str = ".version 6.4\n.target sm_70\n.address_size 64\n
    ///     .visible .entry store7(.param .u64 to) {
    ///         .reg .u64 %to;
    ///         ld.param.u64 %to, [to];
    ///         st.global.u32 [%to], 7;
    ///         ret;
    ///     }";
    /// let context = GpuContext::new(0)?;
    /// let (stream, buffer) = (CudaStream::new(&context)?, DeviceBuffer::new(&context, 4)?);
    /// let (name, params) = ("store7", &[ParamKind::Buffer]);
    /// let entry = EntryPoint { name, params, block_threads: 1, dynamic_shared_bytes: 0 };
    /// let store7 = LoadedKernel::from_ptx(&context, PTX, entry)?;
    /// // SAFETY: the kernel writes the first 4 bytes of its argument, which has 4 bytes.
    /// unsafe { store7.launch(&stream, 1, &LaunchArgs::new().buffer(&buffer)) }?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::Ptx`] with the compiler's messages if the PTX is invalid, or too new for the driver or the device;
    /// `CUDA_ERROR_NOT_FOUND` if it has no such kernel; [`GpuError::BlockTooLarge`] or the driver's error if the device does
    /// not have as much shared memory.
    pub fn from_ptx(context: &GpuContext, ptx: &str, entry: EntryPoint<'_>) -> GpuResult<Self> {
        Self::in_module(Module::from_ptx(context, ptx)?, entry)
    }

    fn in_module(module: Module, entry: EntryPoint<'_>) -> GpuResult<Self> {
        let EntryPoint { name, params, block_threads, dynamic_shared_bytes } = entry;
        let function = module.function(name)?;
        let mut kernel = Self {
            module,
            function,
            name: name.to_owned(),
            params: params.to_vec(),
            block_threads,
            dynamic_shared_bytes,
            blocks_per_multiprocessor: 0,
            max_multiprocessors: None,
        };
        if dynamic_shared_bytes > 0 {
            kernel.allow_dynamic_shared()?;
        }
        kernel.blocks_per_multiprocessor = kernel.occupancy()?;
        if kernel.blocks_per_multiprocessor == 0 {
            let shared_bytes = kernel.attributes()?.static_shared_bytes.saturating_add(dynamic_shared_bytes);
            return Err(GpuError::BlockTooLarge { kernel: kernel.name, threads: block_threads, shared_bytes });
        }
        Ok(kernel)
    }

    /// Allows launches with the kernel's dynamic shared memory. Without this, the limit is 48 KiB.
    fn allow_dynamic_shared(&self) -> GpuResult<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = c_int_of("dynamic shared memory", self.dynamic_shared_bytes)?;
        // SAFETY: the function lives as long as the module.
        self.context().call(|driver| unsafe { driver.cuFuncSetAttribute(self.function, attribute, bytes) })
    }

    /// Asks the driver how many blocks fit on one multiprocessor at a time; 0 if none fits.
    fn occupancy(&self) -> GpuResult<u32> {
        let mut blocks = 0;
        let threads = c_int_of("block size", self.block_threads)?;
        // Widening: `usize` has 64 bits wherever CUDA runs.
        let shared = self.dynamic_shared_bytes as usize;
        self.context().call(|driver| {
            // SAFETY: the destination is a local variable; the function lives as long as the module.
            unsafe {
                driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.function, threads, shared)
            }
        })?;
        non_negative("occupancy", blocks)
    }

    /// Returns the context in which the kernel is loaded.
    #[must_use]
    pub fn context(&self) -> &GpuContext {
        self.module.context()
    }

    /// Returns the number of threads per block.
    #[must_use]
    pub fn block_threads(&self) -> u32 {
        self.block_threads
    }

    /// Returns the number of blocks that fit on one multiprocessor at a time.
    #[must_use]
    pub fn blocks_per_multiprocessor(&self) -> u32 {
        self.blocks_per_multiprocessor
    }

    /// Limits the multiprocessors that [`resident_blocks`](Self::resident_blocks) counts. `None` removes the limit.
    pub(crate) fn limit_multiprocessors(&mut self, most: Option<NonZeroU32>) {
        self.max_multiprocessors = most;
    }

    /// Returns the number of blocks that fit on the device at a time, or on the multiprocessors that the kernel may occupy: the
    /// grid for kernels that fetch their pages from a counter.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// let grid = loaded.resident_blocks().min(1000); // more blocks would only wait
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn resident_blocks(&self) -> u32 {
        let all = self.context().limits().multiprocessors;
        let multiprocessors = self.max_multiprocessors.map_or(all, |most| all.min(most.get()));
        self.blocks_per_multiprocessor.saturating_mul(multiprocessors)
    }

    /// Returns the number of warps that fit on the device at a time.
    pub(crate) fn resident_warps(&self) -> u32 {
        self.resident_blocks().saturating_mul(self.block_threads / WARP_THREADS)
    }

    /// Returns the resources that the driver's compiler assigned to the kernel.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// println!("{} registers per thread", loaded.attributes()?.registers);
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
        })
    }

    fn attribute(&self, which: CUfunction_attribute, what: &'static str) -> GpuResult<u32> {
        let mut value = 0;
        self.context().call(|driver| {
            // SAFETY: the destination is a local variable; the function lives as long as the module.
            unsafe { driver.cuFuncGetAttribute(&raw mut value, which, self.function) }
        })?;
        non_negative(what, value)
    }

    /// Queues a launch of `grid` blocks. Number, order and width of the arguments are checked against the parameters. The
    /// caller guarantees that the buffers are large enough for the kernel.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{DeviceBuffer, GpuContext, LaunchArgs, LoadedKernel, CudaStream};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let stream = CudaStream::new(&context)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// let (pages, flags) = (DeviceBuffer::new(&context, 8 * 4096)?, DeviceBuffer::new(&context, 8 * 4)?);
    /// let args = LaunchArgs::new().buffer(&pages).buffer(&flags).u32(8);
    /// // SAFETY: the kernel reads 8 pages and writes 8 flags.
    /// unsafe { loaded.launch(&stream, SameFillKernel::new().grid(8), &args) }?;
    /// // SAFETY: as above. An argument that the kernel does not have is rejected.
    /// assert!(unsafe { loaded.launch(&stream, SameFillKernel::new().grid(8), &args.u32(1)) }.is_err());
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
    pub unsafe fn launch(&self, stream: &CudaStream, grid: u32, args: &LaunchArgs<'_>) -> GpuResult<()> {
        let context = self.context();
        context.check_same(stream.context(), "the stream")?;
        args.check(&self.name, &self.params)?;
        args.buffers().try_for_each(|buffer| context.check_same(buffer.context(), "the buffer"))?;
        let mut pointers = args.pointers();
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
                    self.block_threads,
                    1,
                    1,
                    self.dynamic_shared_bytes,
                    stream.handle(),
                    pointers.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        })
    }
}

impl fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedKernel({}, {:?})", self.name, self.params)
    }
}

fn c_int_of(what: &'static str, value: u32) -> GpuResult<i32> {
    i32::try_from(value).map_err(|_| GpuError::OutOfRange { what, value: value.into() })
}

/// Compiles the kernel for the device's target. A driver that is too old for that PTX version gets an older one.
fn compile(context: &GpuContext, kernel: &ValidKernel) -> GpuResult<Module> {
    let (major, minor) = context.info().compute_capability;
    let mut refused = None;
    for target in targets_for(major, minor).map(|target| target.with_ptx(kernel.target.ptx)) {
        let written = emit_for(kernel, target)
            .map_err(|error| GpuError::Kernel { kernel: kernel.name.clone(), reason: error.to_string() });
        match written.and_then(|ptx| Module::from_ptx(context, &ptx)) {
            Ok(module) => return Ok(module),
            Err(error) if error.is_unsupported_ptx_version() => refused = Some(error),
            // An older target may lack a feature, but the cause is that the driver rejected the newer one.
            Err(error) => return Err(refused.unwrap_or(error)),
        }
    }
    let no_target = || format!("unknown compute capability {major}.{minor}");
    Err(refused.unwrap_or_else(|| GpuError::Kernel { kernel: kernel.name.clone(), reason: no_target() }))
}

/// Returns the targets that a device supports, newest first.
fn targets_for(major: u32, minor: u32) -> impl Iterator<Item = Target> {
    let newest = Target::for_capability(major, minor);
    let runs = move |target: &Target| newest.is_some_and(|newest| is_at_least(newest, *target));
    Target::ALL.iter().rev().copied().filter(runs)
}

/// Returns the kinds of the kernel's parameters.
fn param_kinds(kernel: &ValidKernel) -> Vec<ParamKind> {
    let kind = |ty| match ty {
        ParamTy::U32 => ParamKind::U32,
        ParamTy::U64 => ParamKind::U64,
        ParamTy::Pointer(_) => ParamKind::Buffer,
    };
    kernel.params.iter().map(|param| kind(param.ty)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::codec::{CompressKernel, DecompressKernel, PageFormat};
    use crate::gpu::launch_shape::LaunchShape;
    use trueno_gpu::kernels::packed::{Mode, TableStores};
    use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel};
    use trueno_gpu::kernels::{Kernel, LaneRuleKernel};

    /// The kernels of both formats in a shape: compression and decompression of each.
    fn kernels(shape: LaunchShape) -> Vec<(CompressKernel, DecompressKernel)> {
        let compress = |format| CompressKernel::new(format, 1, Mode::Fast, TableStores::ReadBack, shape);
        PageFormat::ALL.map(|format| (compress(format), DecompressKernel::new(format, 1, shape))).into()
    }

    #[test]
    fn all_kernels_stay_within_their_shape() {
        for shape in [LaunchShape::EVERYWHERE, LaunchShape::WIDE] {
            for (compress, decompress) in kernels(shape) {
                for kernel in [compress.kernel(), decompress.kernel()] {
                    assert!(kernel.shared_bytes() <= shape.shared_bytes() as usize, "{} of {shape:?}", kernel.name());
                    assert_eq!(kernel.dynamic_shared_bytes() == 0, shape == LaunchShape::EVERYWHERE);
                }
            }
        }
    }

    #[test]
    fn targets_are_listed_from_newest_to_oldest() {
        assert_eq!(targets_for(8, 0).collect::<Vec<_>>(), [Target::SM_80, Target::SM_75, Target::SM_70]);
        assert_eq!(targets_for(9, 0).next(), Some(Target::SM_90));
        assert_eq!(targets_for(13, 7).next(), Target::ALL.last().copied());
        assert_eq!(targets_for(6, 1).next(), None);
    }

    #[test]
    fn parameter_kinds_match_the_kernels() {
        use ParamKind::{Buffer, U32, U64};
        for (compress, decompress) in kernels(LaunchShape::EVERYWHERE) {
            assert_eq!(param_kinds(compress.kernel().ir()), [Buffer, Buffer, Buffer, Buffer, Buffer, U32]);
            assert_eq!(param_kinds(decompress.kernel().ir()), [Buffer, U64, Buffer, Buffer, Buffer, Buffer, U32]);
        }
        let (order, group) = (ZstdGroupOrderKernel::new(1), ZstdGroupDecompressKernel::new(1));
        for kernel in [order.ir(), group.ir()] {
            assert_eq!(param_kinds(kernel), [Buffer, U64, Buffer, Buffer, Buffer, Buffer, U32]);
        }
        assert_eq!(param_kinds(LaneRuleKernel::new().ir()), [Buffer, U32]);
    }
}
