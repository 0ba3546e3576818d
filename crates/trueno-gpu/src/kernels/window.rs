//! Sources inside the window of 32 output bytes that a warp writes together, by gathering one byte per lane.

use crate::{KernelBuilder, Reg, Var};

/// Handles a window inside one match with an offset below 32: a multiple of the offset points before the window. The
/// segment keeps a multiple that also points before the following windows.
pub(super) fn repeat_pattern<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    distance: Var<'k, i32>,
    entry: Reg<'k, u32>,
) {
    let offset = (0 - *distance).as_u32();
    let reciprocal = offset.to_f32().rcp_approx();
    // Adding a half keeps the quotient away from whole numbers, where the approximation could round the wrong way.
    let times = |n: Reg<'k, f32>| ((n + 0.5f32) * reciprocal).to_u32() + 1;
    distance.set((0 - offset * times(lane.to_f32())).as_i32());
    let whole_window = 0 - offset * times(k.value(31.0f32));
    k.sync_warp();
    // All lanes store the same value, because the assembler would make a branch of a store by one lane.
    entry.shared::<u16>().store_conflicting(whole_window);
}

/// Handles a window with several segments: each lane whose source lies in the window adds that lane's distance, until
/// none does.
pub(super) fn follow_sources<'k>(k: &'k KernelBuilder, lane: Reg<'k, u32>, distance: Var<'k, i32>) {
    let source = k.var((lane.as_i32() + distance).as_u32());
    k.do_while_uniform(|| {
        let inside = source.lt(32);
        let theirs = distance.shfl(source);
        k.when(inside).set(distance, distance + theirs);
        source.set((lane.as_i32() + distance).as_u32());
        source.lt(32).any()
    });
}
