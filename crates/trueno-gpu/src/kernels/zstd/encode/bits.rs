//! Joins the bits of several lanes, and computes logarithms.

use crate::ir::AtomOp;
use crate::{KernelBuilder, Reg};

/// Sets the bits of a 64-bit value from bit `at` on, in zeroed shared memory. `base` is a multiple of 4. Lanes whose
/// value is 0 write nothing.
pub(super) fn or_bits<'k>(k: &'k KernelBuilder, base: Reg<'k, u32>, at: Reg<'k, u32>, [low, high]: [Reg<'k, u32>; 2]) {
    let word = (base + ((at >> 5) << 2)).shared::<u32>();
    let shift = at & 31;
    let parts = [low << shift, low.funnel_shl(high, shift), high.funnel_shl(0u32, shift)];
    for (part, n) in parts.into_iter().zip(0..) {
        k.when(part.ne(0)).reduce(word.at(n), AtomOp::Or, part);
    }
}

/// Appends up to 32 bits to fewer than 32, and returns the 64 bits.
pub(super) fn append<'k>(bits: Reg<'k, u32>, count: Reg<'k, u32>, more: Reg<'k, u32>) -> [Reg<'k, u32>; 2] {
    [bits | (more << count), more.funnel_shl_clamp(0u32, count)]
}

/// Returns the low `count` bits of a value, for a `count` below 32.
pub(super) fn low_bits<'k>(value: Reg<'k, u32>, count: Reg<'k, u32>) -> Reg<'k, u32> {
    value & ((1u32 << count) - 1)
}

/// Returns the logarithm to base 2 in steps of 1/256, linear between powers of two. The value is not 0 and below 2^24.
pub(super) fn log2_fixed<'k>(value: Reg<'k, u32>) -> Reg<'k, u32> {
    let whole = value.bfind();
    whole.mad(256, (value << 8) >> whole) - 256
}
