//! The parts of a call that differ: staging, the device's copies and kernel, delivery.

use std::time::Duration;

use super::device::RingDevice;
use super::piece::Piece;
use super::slot::{IndexCopy, Slot};
use crate::gpu::error::GpuResult;

/// Fills a piece's host memory from the batch. Runs on the pool.
pub(super) trait Stage<D: RingDevice>: Sync {
    fn stage(&self, piece: &mut Piece<D>) -> GpuResult<()>;
}

/// For calls from the caller's own page-locked memory.
pub(super) struct NoStage;

impl<D: RingDevice> Stage<D> for NoStage {
    fn stage(&self, _piece: &mut Piece<D>) -> GpuResult<()> {
        Ok(())
    }
}

/// Queues a slot's work. Runs on the driving thread.
pub(super) trait Submit<D: RingDevice> {
    /// Whether the kernel's index is copied before the rest.
    fn index_copy(&self) -> IndexCopy;

    /// Queues the copy to the device and the kernel.
    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()>;
    /// Queues the copy to the host, when the kernel is done.
    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()>;
    /// At the end of a call, waits until no copy uses the caller's memory.
    fn settle(&mut self, _time_limit: Duration) -> GpuResult<()> {
        Ok(())
    }
}

/// Takes the results of complete slots.
pub(crate) trait Deliver<D: RingDevice> {
    /// What one delivery needs, such as a part of the destination.
    type Share: Send;

    /// Returns the share for a slot, in page order; `None` while an earlier delivery has what is needed.
    fn share(&mut self, slot: &Slot<D>) -> Option<Self::Share>;
    /// Takes a slot's result. Runs on the pool, in parallel with other deliveries.
    fn deliver(share: &mut Self::Share, slot: &mut Slot<D>) -> GpuResult<()>;
    /// Takes a share back, in any order.
    fn give_back(&mut self, share: Self::Share);
}
