//! A small example: flags the pages that are filled with one 8-byte word.

use super::packed::PAGE_BYTES;
use super::{Kernel, ResourceBudget};
use crate::builder::KernelBuilder;
use crate::ir::LoadHint;
use crate::validate::ValidKernel;
use crate::value::{Pred, Reg};

/// Bytes that the warp reads at once, 16 per lane.
const ROW_BYTES: u32 = 32 * 16;
const WARPS_PER_BLOCK: u32 = 4;

/// Writes, for each page of `pages`, 1 to `flags` if one 8-byte word fills the page, and 0 if not.
///
/// On the CPU, [`trueno_page::same_filled`] computes the same.
///
/// Parameters: `pages` (device pointer, 16-byte aligned), `flags` (device pointer to `u32`), `page_count` (`u32`).
///
/// ```
/// use trueno_gpu::kernels::{Kernel, SameFillKernel};
/// assert_eq!(SameFillKernel::new().name(), "same_fill");
/// ```
#[derive(Debug, Clone)]
pub struct SameFillKernel {
    ir: ValidKernel,
}

impl SameFillKernel {
    /// Builds the kernel.
    ///
    /// # Panics
    /// Never. The kernel is always the same, and tests cover it.
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
            k.section("load 16 bytes per lane and row");
            let lane = k.lane_id().named("lane");
            let own = pages.step(page, PAGE_BYTES).step(lane, 16);
            let rows: Vec<[Reg<'_, u32>; 4]> = (0..PAGE_BYTES / ROW_BYTES)
                .map(|row| own.byte_offset((row * ROW_BYTES).cast_signed()).load_vec_with(LoadHint::NonCoherent))
                .collect();

            k.section("compare with the first word");
            let same = is_same_filled(&rows);
            k.when(lane.eq(0)).store(flags.index(page), same.to_u32());
        });
        Self { ir: k.finish().expect("the kernel is always the same, and tests cover it") }
    }
}

/// Returns a predicate that holds if all 8-byte words of all lanes equal lane 0's first.
fn is_same_filled<'k>(rows: &[[Reg<'k, u32>; 4]]) -> Pred<'k> {
    let first = [rows[0][0].shfl(0).named("first_low"), rows[0][1].shfl(0).named("first_high")];
    let words = rows.as_flattened().iter().zip(first.into_iter().cycle());
    let difference = words.skip(1).fold(rows[0][0] ^ first[0], |sum, (word, first)| word.xor_or(first, sum));
    difference.eq(0).all()
}

impl Default for SameFillKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel for SameFillKernel {
    fn ir(&self) -> &ValidKernel {
        &self.ir
    }

    fn budget(&self) -> ResourceBudget {
        ResourceBudget { registers: 48, shared_bytes: 0 }
    }
}
