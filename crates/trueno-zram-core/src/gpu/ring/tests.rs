//! Delivery of results to any sink.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::calls::PagesFrom;
use super::deliver::Deliver;
use super::device::{DeviceAllocator, PinnedMemory, RingDevice};
use super::fake::{FakeDevice, Schedule};
use super::slot::RingSlot;
use super::{CallOutcome, Ring, RingShape};
use crate::gpu::PinnedPages;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::pinned::HostCaching;
use crate::page::{PAGE_SIZE, Page};

const SLOT_PAGES: usize = 2;
const PAGES: usize = 8;

/// Runs pages that all cross the bus through a ring of two slots. Nothing is staged: the one core that did so might deliver
/// a slot meanwhile, which waits for a slot that is to be staged.
fn run(sink: &mut impl Deliver<FakeDevice>) -> CallOutcome {
    let time_limit = Duration::from_secs(30);
    let shape = RingShape { slots: 2, slot_pages: 2, call_slot_pages: 2, time_limit };
    let mut ring = Ring::new(FakeDevice::new(Schedule::Eager), shape).unwrap();
    let page: Page = std::array::from_fn(|i| u8::try_from(i % 251).unwrap());
    let mut pages = ring.device.allocator().pinned(PAGES * PAGE_SIZE, HostCaching::Cached).unwrap();
    pages.bytes_mut().unwrap().copy_from_slice([page; PAGES].as_flattened());
    let mut pages = PinnedPages::new(BoundedDrop::new(pages, time_limit), PAGES);
    let outcome = ring.compress(&pool(), &mut PagesFrom::Pinned(&mut pages), sink, &());
    assert_eq!(ring.free.len(), 2, "no slot is lost");
    outcome
}

fn pool() -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(3).build().unwrap()
}

/// Deliveries that each wait for another one.
struct InPairs(Barrier);

impl Deliver<FakeDevice> for &InPairs {
    type Share = Self;

    fn share(&mut self, _slot: &RingSlot<FakeDevice>) -> Option<Self> {
        Some(self)
    }

    fn deliver(share: &mut Self, _slot: &mut RingSlot<FakeDevice>) -> GpuResult<()> {
        share.0.wait();
        Ok(())
    }

    fn give_back(&mut self, _share: Self) {}
}

#[test]
fn deliveries_run_beside_each_other_where_the_sink_lets_them() {
    // One at a time, they would wait for ever.
    let outcome = run(&mut &InPairs(Barrier::new(2)));
    assert_eq!((outcome.pages_done, outcome.failure), (PAGES, None));
}

/// The first delivery fails, but not before the second has come back.
#[derive(Default)]
struct FirstFailsLast {
    came_back: AtomicUsize,
}

impl Deliver<FakeDevice> for &FirstFailsLast {
    type Share = Self;

    fn share(&mut self, _slot: &RingSlot<FakeDevice>) -> Option<Self> {
        Some(self)
    }

    fn deliver(share: &mut Self, slot: &mut RingSlot<FakeDevice>) -> GpuResult<()> {
        if slot.range.start > 0 {
            return Ok(());
        }
        while share.came_back.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        Err(GpuError::WrongIndex { page: 0, bits: 0 })
    }

    fn give_back(&mut self, _share: Self) {
        self.came_back.fetch_add(1, Ordering::Release);
    }
}

#[test]
fn pages_behind_a_delivery_that_failed_are_not_done_though_they_came_first() {
    let sink = FirstFailsLast::default();
    let outcome = run(&mut &sink);
    assert_eq!(outcome.failure, Some(GpuError::WrongIndex { page: 0, bits: 0 }));
    assert_eq!(outcome.pages_done, 0, "what the caller does again starts at the first page that is missing");
    assert!(sink.came_back.into_inner() >= 2, "every share comes back");
}

/// Deliveries to places that must be handed out from front to back; one at a time.
struct InOrder {
    next: usize,
    busy: bool,
}

impl Deliver<FakeDevice> for InOrder {
    type Share = usize;

    fn share(&mut self, slot: &RingSlot<FakeDevice>) -> Option<usize> {
        if self.busy {
            return None;
        }
        assert_eq!(slot.range.start, self.next, "shares are asked for in the order of the pages");
        self.busy = true;
        Some(slot.range.end)
    }

    fn deliver(share: &mut usize, slot: &mut RingSlot<FakeDevice>) -> GpuResult<()> {
        assert_eq!(*share, slot.range.end, "the share is the slot's");
        assert!(slot.packed_bytes > 0 && slot.packed_bytes < SLOT_PAGES * PAGE_SIZE);
        Ok(())
    }

    fn give_back(&mut self, share: usize) {
        (self.next, self.busy) = (share, false);
    }
}

#[test]
fn a_sink_that_has_no_share_to_give_is_asked_again() {
    let mut sink = InOrder { next: 0, busy: false };
    let outcome = run(&mut sink);
    assert_eq!((outcome.pages_done, outcome.failure, sink.next), (PAGES, None, PAGES));
}
