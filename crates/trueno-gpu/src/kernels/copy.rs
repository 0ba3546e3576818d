//! Copies in shared memory by a whole warp.

use crate::{KernelBuilder, Reg, Var};

/// Copies bytes in shared memory, 32 at a time.
#[derive(Clone, Copy)]
pub(super) struct WarpCopy<'k> {
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    /// The byte on its way. It is loaded under a guard, so that its register is occupied all the time, and not only while a
    /// copy is made: several copies can share it.
    byte: Var<'k, u32>,
}

impl<'k> WarpCopy<'k> {
    pub(super) fn new(k: &'k KernelBuilder, lane: Reg<'k, u32>) -> Self {
        Self { k, lane, byte: k.var_arbitrary() }
    }

    /// Copies `len` bytes, which is uniform and not 0.
    pub(super) fn copy(self, from: Reg<'k, u32>, to: Reg<'k, u32>, len: Reg<'k, u32>) {
        let Self { k, lane, byte } = self;
        let base = k.var(0u32);
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
