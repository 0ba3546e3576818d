//! Flags the pages that are one 32-bit word repeated.

use super::{Budget, Kernel};
use crate::builder::KernelBuilder;
use crate::ir::{KernelIr, LoadHint};
use crate::value::{Pred, Reg};

/// Bytes of a page.
const PAGE_BYTES: u32 = 4096;
/// Bytes the warp reads at once: 16 a lane.
const ROW_BYTES: u32 = 32 * 16;
const WARPS_PER_BLOCK: u32 = 4;

/// For each page of `pages`, writes to `flags` 1 if all its 32-bit words are equal, else 0.
///
/// Parameters: `pages` (device pointer, 16-byte aligned), `flags` (device pointer to `u32`), `page_count` (`u32`).
///
/// ```
/// use trueno_gpu::kernels::{Kernel, SameFillKernel};
/// assert_eq!(SameFillKernel::new().name(), "same_fill");
/// ```
#[derive(Debug, Clone)]
pub struct SameFillKernel {
    ir: KernelIr,
}

impl SameFillKernel {
    /// Builds the kernel.
    ///
    /// # Panics
    /// Never: the kernel is the same each time, and tested.
    ///
    /// ```
    /// let kernel = trueno_gpu::kernels::SameFillKernel::new();
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn new() -> Self {
        let k = KernelBuilder::new("same_fill").with_warps_per_block(WARPS_PER_BLOCK);
        let pages = k.param_ptr::<u32>("pages");
        let flags = k.param_ptr::<u32>("flags");
        let page_count = k.param_u32("page_count");

        let page = k.block_id().mad(WARPS_PER_BLOCK, k.warp_id()).named("page");
        k.block_uniform(|b| {
            b.exit_if(page.ge(page_count));
            k.section("load 16 bytes a lane and row");
            let lane = k.lane_id().named("lane");
            let own = pages.step(page, PAGE_BYTES).step(lane, 16);
            let rows: Vec<[Reg<'_, u32>; 4]> = (0..PAGE_BYTES / ROW_BYTES)
                .map(|row| own.byte_offset((row * ROW_BYTES).cast_signed()).load_vec_with(LoadHint::NonCoherent))
                .collect();

            k.section("compare with the first word");
            let same = all_equal(&rows);
            k.when(lane.eq(0)).store(flags.index(page), same.to_u32());
        });
        Self { ir: k.finish().expect("the same kernel each time, covered by tests") }
    }
}

/// Whether all words of all lanes equal lane 0's first.
fn all_equal<'k>(rows: &[[Reg<'k, u32>; 4]]) -> Pred<'k> {
    let first = rows[0][0].shfl(0).named("first");
    let words = rows.as_flattened();
    let difference = words[1..].iter().fold(words[0] ^ first, |sum, word| word.xor_or(first, sum));
    difference.eq(0).all()
}

impl Default for SameFillKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel for SameFillKernel {
    fn ir(&self) -> &KernelIr {
        &self.ir
    }

    fn budget(&self) -> Budget {
        Budget { registers: 48, shared_bytes: 0 }
    }
}
