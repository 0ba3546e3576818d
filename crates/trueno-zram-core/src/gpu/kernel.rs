//! Turns a kernel's IR into something that can be launched on a device.
#![allow(unsafe_code)]

use std::sync::Arc;

use trueno_gpu::ir::ParamTy;
use trueno_gpu::{Target, ValidKernel, emit_for};

use super::context::GpuContext;
use super::device::DeviceLimits;
use super::error::{GpuError, GpuResult};
use super::launch::{KernelAttributes, LaunchArgs, Launcher, ParamKind};
use super::module::Module;
use super::stream::CudaStream;

/// The number of warps per block of the page kernels, and the lowest target that supports it.
///
/// ```
/// use trueno_zram_core::gpu::raw::LaunchShape;
/// assert_eq!((LaunchShape::EVERYWHERE.warps_per_block, LaunchShape::WIDE.warps_per_block), (4, 28));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Warps per block.
    pub warps_per_block: u32,
    /// The target that the kernel is validated for.
    pub target: Target,
}

impl LaunchShape {
    /// Four warps with static shared memory. Runs on every supported device.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchShape;
    /// assert!(LaunchShape::EVERYWHERE.shared_bytes() <= 48 * 1024, "every device has 48 KiB");
    /// ```
    pub const EVERYWHERE: Self = Self { warps_per_block: 4, target: Target::SM_70 };
    /// One block that fills a multiprocessor: the fastest shape on Hopper.
    ///
    /// ```no_run
    /// use trueno_gpu::kernels::packed::{Mode, TableStores};
    /// use trueno_zram_core::gpu::raw::{LaunchShape, GpuContext, PageCompressor, PageFormat};
    /// # let context = GpuContext::new(0)?;
    /// // On a device without that much shared memory this is an error.
    /// let (format, stores) = (PageFormat::Zstd, TableStores::ReadBack);
    /// let compressor = PageCompressor::with_shape(&context, format, Mode::Fast, stores, LaunchShape::WIDE)?;
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    pub const WIDE: Self = Self { warps_per_block: 28, target: Target::SM_90 };
    /// Maximum shared memory per warp of the page kernels.
    const WARP_SHARED_BYTES: u32 = 8 * 1024;
    /// Shared memory per block lost to the alignment of the pages.
    const SLACK_BYTES: u32 = 3 * 1024;

    /// Returns the maximum shared memory of a block of the page kernels.
    ///
    /// ```
    /// use trueno_zram_core::gpu::raw::LaunchShape;
    /// assert!(LaunchShape::WIDE.shared_bytes() <= 227 * 1024);
    /// ```
    #[must_use]
    pub const fn shared_bytes(self) -> u32 {
        self.warps_per_block * Self::WARP_SHARED_BYTES + Self::SLACK_BYTES
    }

    /// Returns the best shape for a device: the wide one, if the device has enough shared memory and is new enough.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{LaunchShape, GpuContext};
    /// let context = GpuContext::new(0)?;
    /// let shape = LaunchShape::best_for(context.info().compute_capability, context.limits());
    /// println!("{} warps per block", shape.warps_per_block);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn best_for(compute_capability: (u32, u32), limits: &DeviceLimits) -> Self {
        let (major, minor) = compute_capability;
        let wide = Self::WIDE;
        // Some devices newer than Hopper have less shared memory, so both are checked.
        let fits = Target::for_capability(major, minor)
            .is_some_and(|target| is_at_least(target, wide.target) && target.max_shared_bytes() >= wide.shared_bytes());
        if fits && limits.shared_bytes_per_block >= wide.shared_bytes() { wide } else { Self::EVERYWHERE }
    }
}

/// Returns `true` if a device of target `target` runs code generated for `wanted`.
fn is_at_least(target: Target, wanted: Target) -> bool {
    let place = |target| Target::ALL.iter().position(|known| *known == target);
    place(target) >= place(wanted)
}

/// A kernel loaded on a device, with its block size and the grid that fills the device.
///
/// The PTX is generated for the device's own target, or for the newest older one that the driver supports.
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
#[derive(Debug)]
pub struct LoadedKernel {
    context: GpuContext,
    launcher: Launcher,
    target: Target,
    block_threads: u32,
    dynamic_shared_bytes: u32,
    blocks_per_multiprocessor: u32,
}

impl LoadedKernel {
    /// Generates a kernel's PTX for the device and compiles it with the driver.
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
        let (module, target) = compile(context, kernel)?;
        let launcher = Launcher::new(&Arc::new(module), &kernel.name, &param_kinds(kernel))?;
        let block_threads = kernel.warps_per_block * 32;
        let dynamic_shared_bytes = kernel.shared.launch_bytes();
        if dynamic_shared_bytes > 0 {
            launcher.allow_dynamic_shared(dynamic_shared_bytes)?;
        }
        let blocks_per_multiprocessor = launcher.blocks_per_multiprocessor(block_threads, dynamic_shared_bytes)?;
        if blocks_per_multiprocessor == 0 {
            let shared_bytes = kernel.shared.total_bytes();
            return Err(GpuError::BlockTooLarge { kernel: kernel.name.clone(), threads: block_threads, shared_bytes });
        }
        let context = context.clone();
        Ok(Self { context, launcher, target, block_threads, dynamic_shared_bytes, blocks_per_multiprocessor })
    }

    /// Returns the device's context.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel, CudaStream};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// let stream = CudaStream::new(loaded.context())?; // a stream that can launch it
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn context(&self) -> &GpuContext {
        &self.context
    }

    /// Returns the target that the PTX was generated for.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// println!("compiled for sm_{}", loaded.target().sm);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// Returns the number of threads per block.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// let pages_at_a_time = loaded.resident_blocks() * loaded.block_threads() / 32; // one page per warp
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn block_threads(&self) -> u32 {
        self.block_threads
    }

    /// Returns the dynamic shared memory per block.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// println!("{} of {} bytes", loaded.dynamic_shared_bytes(), context.limits().shared_bytes_per_block);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn dynamic_shared_bytes(&self) -> u32 {
        self.dynamic_shared_bytes
    }

    /// Returns how many blocks fit on one multiprocessor at a time.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// let threads = loaded.blocks_per_multiprocessor() * loaded.block_threads();
    /// println!("occupancy {:.2}", f64::from(threads) / f64::from(context.limits().threads_per_multiprocessor));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    #[must_use]
    pub fn blocks_per_multiprocessor(&self) -> u32 {
        self.blocks_per_multiprocessor
    }

    /// Returns how many blocks fit on the device at a time: the grid for kernels that fetch their pages from a counter.
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
        self.blocks_per_multiprocessor.saturating_mul(self.context.limits().multiprocessors)
    }

    /// Returns the resources that the driver's compiler assigned to the kernel.
    ///
    /// ```no_run
    /// use trueno_zram_core::gpu::raw::{GpuContext, LoadedKernel};
    /// # use trueno_gpu::kernels::{Kernel, SameFillKernel};
    /// # let context = GpuContext::new(0)?;
    /// # let loaded = LoadedKernel::new(&context, SameFillKernel::new().ir())?;
    /// assert_eq!(loaded.attributes()?.local_bytes, 0, "no spills");
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn attributes(&self) -> GpuResult<KernelAttributes> {
        self.launcher.attributes()
    }

    /// Queues a launch of `grid` blocks. The arguments are checked against the kernel's parameters.
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
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Launcher::launch`].
    ///
    /// # Safety
    /// The requirements of [`Launcher::launch`]: with these arguments, the kernel stays within the buffers among them.
    pub unsafe fn launch(&self, stream: &CudaStream, grid: u32, args: &LaunchArgs<'_>) -> GpuResult<()> {
        // SAFETY: the caller guarantees the kernel's behaviour with these arguments.
        unsafe { self.launcher.launch(stream, grid, self.block_threads, self.dynamic_shared_bytes, args) }
    }
}

/// Compiles the kernel for the device's target. A driver that is too old for that PTX version gets an older one.
fn compile(context: &GpuContext, kernel: &ValidKernel) -> GpuResult<(Module, Target)> {
    let (major, minor) = context.info().compute_capability;
    let mut refused = None;
    for target in targets_for(major, minor).map(|target| target.with_ptx(kernel.target.ptx)) {
        let written = emit_for(kernel, target)
            .map_err(|error| GpuError::Kernel { kernel: kernel.name.clone(), reason: error.to_string() });
        match written.and_then(|ptx| Module::from_ptx(context, &ptx)) {
            Ok(module) => return Ok((module, target)),
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
    use trueno_gpu::kernels::packed::{Mode, TableStores};
    use trueno_gpu::kernels::zstd::{ZstdGroupDecompressKernel, ZstdGroupOrderKernel};
    use trueno_gpu::kernels::{Kernel, LaneRuleKernel};

    /// The kernels of both formats in a shape: compression and decompression of each.
    fn kernels(shape: LaunchShape) -> Vec<(CompressKernel, DecompressKernel)> {
        let compress = |format| CompressKernel::new(format, 1, Mode::Fast, TableStores::ReadBack, shape);
        PageFormat::ALL.map(|format| (compress(format), DecompressKernel::new(format, 1, shape))).into()
    }

    fn limits(shared_kib: u32) -> DeviceLimits {
        DeviceLimits {
            multiprocessors: 132,
            shared_bytes_per_block: shared_kib * 1024,
            shared_bytes_per_multiprocessor: (shared_kib + 1) * 1024,
            threads_per_multiprocessor: 2048,
            driver_version: 13_000,
        }
    }

    #[test]
    fn wide_shape_needs_enough_shared_memory() {
        for (capability, shared_kib, wide) in [
            ((7, 0), 96, false),
            ((7, 5), 64, false),
            ((8, 0), 163, false),
            ((8, 6), 99, false),
            ((9, 0), 227, true),
            ((9, 0), 226, false),
            ((10, 0), 227, true),
            ((10, 3), 227, true),
            ((12, 0), 99, false),
            // Newer than Hopper, of a kind without that much memory, whatever the driver reports.
            ((12, 0), 227, false),
            ((8, 9), 227, false),
        ] {
            let expected = if wide { LaunchShape::WIDE } else { LaunchShape::EVERYWHERE };
            assert_eq!(LaunchShape::best_for(capability, &limits(shared_kib)), expected, "{capability:?}");
        }
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
