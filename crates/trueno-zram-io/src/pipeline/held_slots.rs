//! The results of a GPU that units of work hold. Work is generic over them, since it runs with and without a GPU.

use std::convert::Infallible;

use trueno_zram_core::Page;

/// The slots whose results units hold: those of a GPU, or [`NoSlots`].
pub(crate) trait HeldSlots: Sync {
    /// A result of the GPU, which keeps its slot until it is released.
    type Done: Send;

    /// Returns the plain pages of a result.
    fn pages(done: &Self::Done) -> &[Page];

    /// Frees the slot of a result.
    fn release(&self, done: Self::Done);
}

/// The slots of lanes on the CPU alone: there are none.
pub(crate) struct NoSlots;

impl HeldSlots for NoSlots {
    type Done = Infallible;

    fn pages(done: &Infallible) -> &[Page] {
        match *done {}
    }

    fn release(&self, done: Infallible) {
        match done {}
    }
}
