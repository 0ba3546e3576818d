//! What a run is made of: who stages pages, who queues their way through the device, who takes the results.

use std::time::Duration;

use super::device::Device;
use super::piece::Piece;
use super::slot::{IndexCopy, Slot};
use crate::gpu::error::GpuResult;

/// Fills a piece's host memory from the batch; on the pool.
pub(super) trait Stage<D: Device>: Sync {
    fn stage(&self, piece: &mut Piece<D>) -> GpuResult<()>;
}

/// For runs from the caller's own page-locked memory.
pub(super) struct NoStage;

impl<D: Device> Stage<D> for NoStage {
    fn stage(&self, _piece: &mut Piece<D>) -> GpuResult<()> {
        Ok(())
    }
}

/// Queues a slot's work; on the thread that drives.
pub(super) trait Submit<D: Device> {
    /// Whether the kernel's index is copied before the rest.
    fn index_copy(&self) -> IndexCopy;

    /// Queues the copy to the device and the kernel.
    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()>;
    /// Queues the copy to the host, when the kernel is done.
    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()>;
    /// At the end: finds out whether the caller's memory is still in use.
    fn settle(&mut self, _time_limit: Duration) -> GpuResult<()> {
        Ok(())
    }
}

/// Takes the results of complete slots.
pub(crate) trait Deliver<D: Device> {
    /// What a delivery needs of it: a part of the destination, say.
    type Share: Send;

    /// The share for a slot, in the order of the pages; none while an earlier delivery has what is needed.
    fn share(&mut self, slot: &Slot<D>) -> Option<Self::Share>;
    /// Takes a slot's result; on the pool, beside other deliveries.
    fn deliver(share: &mut Self::Share, slot: &mut Slot<D>) -> GpuResult<()>;
    /// Takes a share back, in any order.
    fn give_back(&mut self, share: Self::Share);
}
