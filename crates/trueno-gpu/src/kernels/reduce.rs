//! Reductions over the lanes of a warp; the results are uniform.

use crate::ir::ReduxOp;
use crate::{KernelBuilder, Reg};

/// The first SM that reduces in one instruction.
const REDUX_SM: u32 = 80;

/// Combines the values of all lanes: in one instruction where the target has it, otherwise in five steps of two
/// instructions and a last one that makes the result uniform.
fn reduce<'k>(
    k: &'k KernelBuilder,
    value: Reg<'k, u32>,
    op: ReduxOp,
    combine: impl Fn(Reg<'k, u32>, Reg<'k, u32>) -> Reg<'k, u32>,
) -> Reg<'k, u32> {
    if k.target_sm() >= REDUX_SM {
        return value.redux(op);
    }
    let all = k.var(value);
    for distance in [16u32, 8, 4, 2, 1] {
        all.set(combine(*all, all.shfl_xor(distance)));
    }
    all.shfl(0u32)
}

/// Returns the sum of all lanes' values.
pub(super) fn warp_sum<'k>(k: &'k KernelBuilder, value: Reg<'k, u32>) -> Reg<'k, u32> {
    reduce(k, value, ReduxOp::Add, |a, b| a + b)
}

/// Returns the largest of all lanes' values.
pub(super) fn warp_max<'k>(k: &'k KernelBuilder, value: Reg<'k, u32>) -> Reg<'k, u32> {
    reduce(k, value, ReduxOp::Max, |a, b| a.max(b))
}

/// Returns the bits that are set in any lane's value.
pub(super) fn warp_or<'k>(k: &'k KernelBuilder, value: Reg<'k, u32>) -> Reg<'k, u32> {
    reduce(k, value, ReduxOp::Or, |a, b| a | b)
}
