//! Prefix scans over the lanes of a warp.

use crate::{KernelBuilder, Reg, Var};

/// Combines, in each lane, the values of all lanes up to and including its own. Takes five steps of two instructions.
pub(super) fn scan<'k>(
    k: &'k KernelBuilder,
    value: Reg<'k, u32>,
    combine: impl Fn(Reg<'k, u32>, Reg<'k, u32>) -> Reg<'k, u32>,
) -> Var<'k, u32> {
    let all = k.var(value);
    for distance in [1u32, 2, 4, 8, 16] {
        let (before, there_is) = all.shfl_up_checked(distance);
        k.when(there_is).set(all, combine(*all, before));
    }
    all
}
