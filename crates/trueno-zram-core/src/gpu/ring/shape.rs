//! The dimensions of a ring: how many slots it has, and how many pages each.

use std::time::Duration;

use crate::gpu::GpuBatchConfig;

/// The dimensions of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    /// The most slots in flight.
    pub(crate) slots: usize,
    /// The most pages per slot of a stream.
    pub(crate) slot_pages: u32,
    /// The most pages per slot of a call.
    pub(crate) call_slot_pages: u32,
    /// The time that a slot may stay in one state before the device counts as hung.
    pub(crate) time_limit: Duration,
}

impl RingShape {
    /// Returns the dimensions that a configuration asks for.
    pub(crate) fn new(config: &GpuBatchConfig, time_limit: Duration) -> Self {
        let pages = |pages: usize| u32::try_from(pages).expect("checked against MAX_SLOT_PAGES");
        let slots = if config.async_dma { config.ring_buffer_slots } else { 1 };
        let call_slot_pages = pages(config.batch_size * joined_batches(config.batch_size, slots));
        Self { slots, slot_pages: pages(config.batch_size), call_slot_pages, time_limit }
    }

    /// Returns the number of slots of streams: a third is filled, a third in flight, a third read.
    pub(crate) fn stream_slots(&self) -> usize {
        self.slots.saturating_mul(3)
    }
}

/// Returns how many batches of a long call share a slot.
///
/// A call from ordinary memory is limited by the number of bytes in flight: with four slots of 1,000 pages it reaches 0.35 of
/// the bus, with four of 4,096 pages 0.76 (H200, 16 cores). Callers who choose very small batches want little memory in use.
fn joined_batches(batch_size: usize, slots: usize) -> usize {
    const SMALLEST_BATCH: usize = 256;
    const SLOT_PAGES: usize = 4096;
    const RING_PAGES: usize = 4 * SLOT_PAGES;
    // In a single slot nothing overlaps.
    if slots == 1 || batch_size < SMALLEST_BATCH {
        return 1;
    }
    (SLOT_PAGES.min(RING_PAGES / slots) / batch_size).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_batches_are_joined_up_to_4096_pages() {
        let call_slot = |batch_size, async_dma, ring_buffer_slots| {
            let config = GpuBatchConfig { batch_size, async_dma, ring_buffer_slots, ..GpuBatchConfig::default() };
            let shape = RingShape::new(&config, Duration::from_secs(1));
            assert_eq!(shape.slot_pages as usize, batch_size, "the slots of streams are as configured");
            shape.call_slot_pages
        };
        assert_eq!(call_slot(1000, true, 4), 4000);
        assert_eq!([2, 3, 8, 64].map(|slots| call_slot(1000, true, slots)), [4000, 4000, 2000, 1000]);
        assert_eq!(call_slot(2048, true, 4), 4096);
        assert_eq!([16, 255].map(|batch_size| call_slot(batch_size, true, 4)), [16, 255]);
        assert_eq!([2049, 4096, 65_536].map(|batch_size| call_slot(batch_size, true, 4)), [2049, 4096, 65_536]);
        assert_eq!((call_slot(1000, false, 4), call_slot(1000, true, 1)), (1000, 1000));
    }
}
