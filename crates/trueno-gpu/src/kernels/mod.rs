//! The kernels, and the [`Kernel`] trait that launchers use.
//!
//! - [`lz4`] and [`zstd`] compress and restore batches of pages.
//! - [`packed`] has what both share: the layout of a packed batch, its index, and the loop over pages.
//! - [`LaneRuleKernel`] probes a property of the device that decides which compressor it gets.
//! - [`SameFillKernel`] is a small, complete example.

mod lane_rule;
pub mod lz4;
mod match_table;
pub mod packed;
mod reduce;
mod same_fill;
mod scan;
mod shared_copy;
mod window;
pub mod zstd;

pub use lane_rule::{LaneRuleCounts, LaneRuleKernel};
pub use same_fill::SameFillKernel;

use crate::emit::{emit, emit_for};
use crate::kernels::packed::{KernelFormat, Mode, TableStores, WarpCompressKernel, WarpDecompressKernel};
use crate::target::Target;
use crate::validate::{ValidKernel, ValidateError};

/// A kernel that works on batches of 4 KiB pages.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, SameFillKernel};
/// let kernel = SameFillKernel::new();
/// assert_eq!(kernel.block(), 128);
/// assert_eq!(kernel.grid(1000), 250);
/// assert!(kernel.emit_ptx().contains(kernel.name()));
/// ```
pub trait Kernel {
    /// Returns the kernel as data, valid for its own target.
    fn ir(&self) -> &ValidKernel;

    /// Returns the resources that the kernel may use on any target.
    fn budget(&self) -> ResourceBudget;

    /// Returns the name of the entry point.
    fn name(&self) -> &str {
        &self.ir().name
    }

    /// Returns the PTX text for the kernel's own target, which is the oldest that it runs on.
    fn emit_ptx(&self) -> String {
        emit(self.ir())
    }

    /// Returns the PTX text for a device's target ([`Target::for_capability`]).
    ///
    /// # Errors
    /// If the target lacks an instruction or the shared memory that the kernel needs.
    fn emit_ptx_for(&self, target: Target) -> Result<String, ValidateError> {
        emit_for(self.ir(), target)
    }

    /// Returns the largest useful number of blocks for a batch of `pages`; 0 for an empty batch.
    fn grid(&self, pages: u32) -> u32 {
        pages.div_ceil(self.ir().warps_per_block)
    }

    /// Returns the number of threads per block.
    fn block(&self) -> u32 {
        self.ir().warps_per_block * 32
    }

    /// Returns the shared memory per block in bytes, static and dynamic.
    fn shared_bytes(&self) -> usize {
        self.ir().shared.total_bytes() as usize
    }

    /// Returns the dynamic shared memory to request at launch, in bytes; 0 if all of it is static.
    fn dynamic_shared_bytes(&self) -> u32 {
        self.ir().shared.launch_bytes()
    }
}

/// Limits on the resources of a kernel, checked for every target. Spills are never allowed.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, SameFillKernel};
/// assert!(SameFillKernel::new().budget().registers <= 64);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceBudget {
    /// Registers per thread.
    pub registers: u32,
    /// Static and dynamic shared memory per block.
    pub shared_bytes: u32,
}

/// Returns every kernel in every launch shape, with a name for each. Golden files and the ptxas gate cover all of them.
///
/// ```
/// for (name, kernel) in trueno_gpu::kernels::shapes() {
///     println!("{name}: {} threads, {} bytes of shared memory", kernel.block(), kernel.shared_bytes());
/// }
/// ```
#[must_use]
pub fn shapes() -> Vec<(String, Box<dyn Kernel>)> {
    let mut shapes: Vec<(String, Box<dyn Kernel>)> = vec![
        ("same_fill".into(), Box::new(SameFillKernel::new())),
        ("lane_rule".into(), Box::new(LaneRuleKernel::new())),
    ];
    add_shapes_of::<lz4::Lz4>("lz4", &mut shapes);
    add_shapes_of::<zstd::Zstd>("zstd", &mut shapes);
    shapes.push(("zstd_group_order".into(), Box::new(zstd::ZstdGroupOrderKernel::new(SHAPE_PAGES))));
    let kernel = zstd::ZstdGroupDecompressKernel::new(SHAPE_PAGES);
    let sm_90 = kernel.clone().with_target(Target::SM_90);
    shapes.push(("zstd_group_decompress".into(), Box::new(kernel)));
    shapes.push(("zstd_group_decompress_sm_90".into(), Box::new(sm_90)));
    shapes
}

/// The largest batch of [`shapes`].
const SHAPE_PAGES: u32 = 65_536;

/// Adds the kernels of a format that work on one page per warp: with four warps per block, and with as many as an SM of
/// compute capability 9.0 holds.
fn add_shapes_of<F: KernelFormat>(format: &str, shapes: &mut Vec<(String, Box<dyn Kernel>)>) {
    for (mode, mode_name) in [(Mode::Fast, "fast"), (Mode::Ratio, "ratio")] {
        for (stores, stores_name) in
            [(TableStores::ReadBack, "read_back"), (TableStores::LowestLaneWins, "lowest_lane")]
        {
            let kernel = || WarpCompressKernel::<F>::new(SHAPE_PAGES).with_mode(mode).with_table_stores(stores);
            let name = format!("{format}_compress_{mode_name}_{stores_name}");
            let wide = kernel().with_target(Target::SM_90).with_warps_per_block(28);
            shapes.push((name.clone(), Box::new(kernel())));
            shapes.push((format!("{name}_28_warps"), Box::new(wide)));
        }
    }
    let kernel = || WarpDecompressKernel::<F>::new(SHAPE_PAGES);
    let wide = kernel().with_target(Target::SM_90).with_warps_per_block(28);
    shapes.push((format!("{format}_decompress"), Box::new(kernel())));
    shapes.push((format!("{format}_decompress_28_warps"), Box::new(wide)));
}
