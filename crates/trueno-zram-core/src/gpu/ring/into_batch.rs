//! Delivery of packed pages into the caller's batch.

use super::device::RingDevice;
use super::entries::listed;
use super::slot::Slot;
use super::stages::Deliver;
use crate::arena::CompressedBatch;
use crate::gpu::error::GpuResult;

/// Appends slots to a batch one at a time, since its arena may have to grow.
pub(crate) struct IntoBatch<'a>(Option<Growing<'a>>);

/// A batch that grows.
pub(crate) struct Growing<'a> {
    batch: &'a mut CompressedBatch,
    /// The number of pages the batch will have, to reserve memory for.
    pages_in_all: usize,
}

impl<'a> IntoBatch<'a> {
    pub(crate) fn new(batch: &'a mut CompressedBatch, pages_in_all: usize) -> Self {
        Self(Some(Growing { batch, pages_in_all }))
    }
}

impl<'a, D: RingDevice> Deliver<D> for IntoBatch<'a> {
    type Share = Growing<'a>;

    fn share(&mut self, _slot: &Slot<D>) -> Option<Growing<'a>> {
        self.0.take()
    }

    fn deliver(share: &mut Growing<'a>, slot: &mut Slot<D>) -> GpuResult<()> {
        let (bytes, entries) = listed(slot)?;
        share.batch.append_piece(bytes, entries, share.pages_in_all);
        Ok(())
    }

    fn give_back(&mut self, share: Growing<'a>) {
        self.0 = Some(share);
    }
}
