//! Reductions over the lanes of a warp; the results are uniform.

use crate::{KernelBuilder, Reg};

/// Combines the values of all lanes, in five steps of two instructions and a last one that makes the result uniform.
fn reduce<'k>(
    k: &'k KernelBuilder,
    value: Reg<'k, u32>,
    combine: impl Fn(Reg<'k, u32>, Reg<'k, u32>) -> Reg<'k, u32>,
) -> Reg<'k, u32> {
    let all = k.var(value);
    for distance in [16u32, 8, 4, 2, 1] {
        all.set(combine(*all, all.shfl_xor(distance)));
    }
    all.shfl(0u32)
}

/// The sum of all lanes' values.
pub(super) fn warp_sum<'k>(k: &'k KernelBuilder, value: Reg<'k, u32>) -> Reg<'k, u32> {
    reduce(k, value, |a, b| a + b)
}

/// The largest of all lanes' values.
pub(super) fn warp_max<'k>(k: &'k KernelBuilder, value: Reg<'k, u32>) -> Reg<'k, u32> {
    reduce(k, value, |a, b| a.max(b))
}

/// The bits that are set in any lane's value.
pub(super) fn warp_or<'k>(k: &'k KernelBuilder, value: Reg<'k, u32>) -> Reg<'k, u32> {
    reduce(k, value, |a, b| a | b)
}
