//! Copies in shared memory by a whole warp.

use crate::{KernelBuilder, Reg};

/// Copies bytes in shared memory, 32 at a time. `len` is uniform and not 0.
pub(super) fn copy_by_warp<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    from: Reg<'k, u32>,
    to: Reg<'k, u32>,
    len: Reg<'k, u32>,
) {
    let base = k.var(0u32);
    k.do_while_uniform(|| {
        let at = base + lane;
        let inside = at.lt(len);
        let byte = k.when(inside).load_or((from + at).shared::<u8>(), 0u32);
        k.when(inside).store((to + at).shared::<u8>(), byte);
        base.set(base + 32);
        base.lt(len)
    });
}
