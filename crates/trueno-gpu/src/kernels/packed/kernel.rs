//! The launch shape of a kernel over batches, and its tree once built.

use std::sync::OnceLock;

use crate::{KernelBuilder, Target, ValidKernel};

/// Warps of an SM on other targets, for kernels that want more on large ones.
const WARPS_PER_SMALL_SM: u32 = 20;

/// The launch shape of a kernel that works on batches of pages, and its tree once built.
#[derive(Clone, Debug)]
pub(in crate::kernels) struct BatchKernel {
    max_pages: u32,
    warps_per_block: u32,
    /// Warps that an SM with much shared memory should hold.
    warps_per_sm: Option<u32>,
    target: Target,
    /// Built on first use, since options are set one after the other.
    ir: OnceLock<ValidKernel>,
}

impl BatchKernel {
    /// Makes a shape of four warps per block, for batches of up to `max_pages`.
    pub(in crate::kernels) fn new(max_pages: u32) -> Self {
        Self { max_pages, warps_per_block: 4, warps_per_sm: None, target: Target::default(), ir: OnceLock::new() }
    }

    /// Returns the same shape without the built tree, for a kernel whose own options change.
    pub(in crate::kernels) fn unbuilt(self) -> Self {
        Self { ir: OnceLock::new(), ..self }
    }

    pub(in crate::kernels) fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { warps_per_block, ..self.unbuilt() }
    }

    /// Limits registers so that an SM can hold this many warps, on targets with the shared memory of compute capability
    /// 9.0.
    pub(in crate::kernels) fn with_warps_per_sm(self, warps: u32) -> Self {
        Self { warps_per_sm: Some(warps), ..self.unbuilt() }
    }

    pub(in crate::kernels) fn with_target(self, target: Target) -> Self {
        Self { target, ..self.unbuilt() }
    }

    pub(in crate::kernels) fn warps_per_block(&self) -> u32 {
        self.warps_per_block
    }

    /// Returns `true` if an SM of the target has the shared memory of compute capability 9.0.
    pub(in crate::kernels) fn has_large_sm(&self) -> bool {
        self.target.max_shared_bytes() >= Target::SM_90.max_shared_bytes()
    }

    /// Returns the number of blocks that can each have pages to work on.
    pub(in crate::kernels) fn grid(&self, pages: u32) -> u32 {
        pages.min(self.max_pages).div_ceil(self.warps_per_block)
    }

    /// Returns the tree, which `build` makes on first use.
    ///
    /// # Panics
    /// If the target lacks the shared memory for that many warps.
    pub(in crate::kernels) fn ir(&self, name: &str, build: impl FnOnce(&KernelBuilder)) -> &ValidKernel {
        self.ir.get_or_init(|| {
            let k = KernelBuilder::new(name).with_target(self.target).with_warps_per_block(self.warps_per_block);
            let k = match self.warps_per_sm {
                Some(warps) => {
                    let warps = if self.has_large_sm() { warps } else { warps.min(WARPS_PER_SMALL_SM) };
                    k.with_min_blocks_per_sm((warps / self.warps_per_block).max(1))
                }
                None => k,
            };
            build(&k);
            k.finish().expect("the target has the shared memory for that many warps")
        })
    }
}
