//! Copies in shared memory by a whole warp.

use crate::{KernelBuilder, Reg, Var};

/// Copies `len` bytes in shared memory, 32 at a time. `len` is uniform and not 0.
pub(super) fn copy_by_warp<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    from: Reg<'k, u32>,
    to: Reg<'k, u32>,
    len: Reg<'k, u32>,
) {
    let base = k.var(0u32);
    WarpCopy::new(k, lane).copy_from(base, from, to, len);
}

/// Copies that share a register. The byte in flight is loaded under a guard, so its register is occupied all the time
/// and not only during a copy. A kernel with several copies and few registers uses one `WarpCopy` for all.
#[derive(Clone, Copy)]
pub(super) struct WarpCopy<'k> {
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    byte: Var<'k, u32>,
}

impl<'k> WarpCopy<'k> {
    pub(super) fn new(k: &'k KernelBuilder, lane: Reg<'k, u32>) -> Self {
        Self { k, lane, byte: k.var_arbitrary() }
    }

    /// Like [`copy_by_warp`], with the shared register.
    pub(super) fn copy(self, from: Reg<'k, u32>, to: Reg<'k, u32>, len: Reg<'k, u32>) {
        self.copy_from(self.k.var(0u32), from, to, len);
    }

    fn copy_from(self, base: Var<'k, u32>, from: Reg<'k, u32>, to: Reg<'k, u32>, len: Reg<'k, u32>) {
        let Self { k, lane, byte } = self;
        k.do_while_uniform(|| {
            let at = base + lane;
            let inside = at.lt(len);
            k.when(inside).load(byte, (from + at).shared::<u8>());
            k.when(inside).store((to + at).shared::<u8>(), byte);
            base.set(base + 32);
            base.lt(len)
        });
    }
}
