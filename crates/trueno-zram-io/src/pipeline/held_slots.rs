//! Results of a GPU that units of work hold, for work that runs with and without one.

use std::convert::Infallible;

use trueno_zram_core::Page;

/// The slots of a GPU, as far as work needs to know them that may run without one.
pub(crate) trait HeldSlots: Sync {
    /// A result of the GPU, which keeps its slot until it is released.
    type Done: Send;

    /// Returns the plain pages of a result.
    fn pages(done: &Self::Done) -> &[Page];

    /// Frees the slot of a result.
    fn release(&self, done: Self::Done);
}

/// Lanes on the CPU alone: there are no slots.
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
