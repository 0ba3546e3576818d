//! Delivery of packed pages that the device put into the caller's page-locked memory.

use super::device::RingDevice;
use super::entries::list_entries;
use super::slot::Slot;
use super::stages::Deliver;
use crate::arena::IndexEntry;
use crate::gpu::error::GpuResult;

/// Lists pages whose bytes the device has put in their place.
pub(crate) struct IntoPinned<'a>(Option<&'a mut Vec<IndexEntry>>);

impl<'a> IntoPinned<'a> {
    pub(crate) fn new(index: &'a mut Vec<IndexEntry>) -> Self {
        Self(Some(index))
    }
}

impl<'a, D: RingDevice> Deliver<D> for IntoPinned<'a> {
    type Share = &'a mut Vec<IndexEntry>;

    fn share(&mut self, _slot: &Slot<D>) -> Option<Self::Share> {
        self.0.take()
    }

    fn deliver(share: &mut Self::Share, slot: &mut Slot<D>) -> GpuResult<()> {
        // Nothing was staged: there are no fill words.
        list_entries(slot, &mut [])?;
        let base = slot.packed_at as u64;
        share.extend(slot.entries.iter().map(|entry| IndexEntry { offset: base + entry.offset, ..*entry }));
        Ok(())
    }

    fn give_back(&mut self, share: Self::Share) {
        self.0 = Some(share);
    }
}
