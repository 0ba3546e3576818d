//! The slots of streams: allocation, leases, and reuse.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::compressed_pages::UnrestoredPage;
use super::device::{PinnedMemory, RingDevice};
use super::slot::RingSlot;
use super::transfer::{Direction, SlotTransfer};
use super::{Ring, RingShape};
use crate::arena::IndexEntry;
use crate::gpu::BatchTimes;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::codec::PageFormat;
use crate::gpu::error::GpuResult;
use crate::page::{PAGE_SIZE, Page};

/// Memory for one slot of a stream.
#[derive(Debug)]
enum SlotMemory<D: RingDevice> {
    /// Page-locked memory, and memory on the device. No copy is in progress.
    Slot(Box<RingSlot<D>>),
    /// Ordinary memory, once there is no device.
    Heap(Vec<u8>),
}

/// The slots of a ring's streams. It outlives them: slots that a caller still has when its stream ends serve the next one.
#[derive(Debug)]
pub(crate) struct StreamSlots<D: RingDevice> {
    state: Mutex<StreamSlotsState<D>>,
    slot_pages: u32,
    time_limit: Duration,
}

#[derive(Debug)]
struct StreamSlotsState<D: RingDevice> {
    free: Vec<SlotMemory<D>>,
    /// The number of slots that exist, free or leased.
    allocated: usize,
    /// The maximum of `allocated`.
    max: usize,
    /// The allocator of slots while the device is in use. If it is not, slots are freed when they come back.
    device: Option<(D::Allocator, PageFormat)>,
}

/// A slot to fill, or the permission to allocate one.
#[derive(Debug)]
pub(crate) enum SlotOffer<D: RingDevice> {
    Ready(SlotLease<D>),
    /// One more may be allocated. It is counted already: [`StreamSlots::allocate`] allocates it, or takes the count back.
    Allocate,
}

impl<D: RingDevice> StreamSlots<D> {
    /// Creates the slots of streams on a device, or in ordinary memory.
    pub(crate) fn new(shape: RingShape, device: Option<&D>) -> Arc<Self> {
        let device = device.map(|device| (device.allocator(), device.format()));
        let state = StreamSlotsState { free: Vec::new(), allocated: 0, max: shape.stream_slots(), device };
        Arc::new(Self { state: Mutex::new(state), slot_pages: shape.slot_pages, time_limit: shape.time_limit })
    }

    fn lock(&self) -> MutexGuard<'_, StreamSlotsState<D>> {
        // Counts and lists are consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free slot, or counts one more that the caller is to allocate. Returns `None` if all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<SlotOffer<D>> {
        let mut state = self.lock();
        if let Some(memory) = state.free.pop() {
            return Some(SlotOffer::Ready(self.lease_memory(memory)));
        }
        if state.allocated >= state.max {
            return None;
        }
        state.allocated += 1;
        Some(SlotOffer::Allocate)
    }

    /// Allocates a slot that was offered. This takes milliseconds, while other threads use the stream.
    pub(crate) fn allocate(self: &Arc<Self>) -> std::thread::Result<GpuResult<SlotLease<D>>> {
        let device = self.lock().device.clone();
        let slot = catch_unwind(AssertUnwindSafe(|| {
            let Some((allocator, format)) = device else { return Ok(self.lease_memory(self.heap_memory())) };
            let mut slot = RingSlot::new(&allocator, format, self.slot_pages)?;
            // Streams of both directions need the same memory.
            slot.ensure(&allocator, self.slot_pages, &SlotTransfer::of_stream(Direction::Compress))?;
            Ok(self.lease(slot))
        }));
        if !matches!(slot, Ok(Ok(_))) {
            self.lock().allocated -= 1;
        }
        slot
    }

    fn heap_memory(&self) -> SlotMemory<D> {
        // Widening: `usize` has 64 bits wherever CUDA runs.
        SlotMemory::Heap(vec![0; self.slot_pages as usize * PAGE_SIZE])
    }

    /// Allocates no more slots from now on. Returns `false`, and changes nothing, if there are none.
    pub(crate) fn stop_growing(&self) -> bool {
        let mut state = self.lock();
        state.max = if state.allocated > 0 { state.allocated } else { state.max };
        state.allocated > 0
    }

    /// Leases a slot that is not in flight, with the pages in it.
    pub(crate) fn lease(self: &Arc<Self>, mut slot: RingSlot<D>) -> SlotLease<D> {
        let (pages, entries) = (slot.range.len(), std::mem::take(&mut slot.entries));
        let mut lease = self.lease_memory(SlotMemory::Slot(Box::new(slot)));
        (lease.pages, lease.entries) = (pages, entries);
        lease
    }

    fn lease_memory(self: &Arc<Self>, memory: SlotMemory<D>) -> SlotLease<D> {
        SlotLease {
            memory: Some(memory),
            stream_slots: Arc::clone(self),
            pages: 0,
            entries: Vec::new(),
            device_times: None,
        }
    }

    /// Allocates no more slots on the device. Free slots are dropped with the ring, which may take time.
    pub(crate) fn leave_device(&self) {
        self.lock().device = None;
    }

    /// Ends the use of the device and drops the free slots.
    fn close(&self) {
        let mut state = self.lock();
        state.device = None;
        let (slots, heap): (Vec<_>, Vec<_>) =
            state.free.drain(..).partition(|memory| matches!(memory, SlotMemory::Slot(_)));
        state.allocated -= slots.len();
        state.free = heap;
        drop(state);
        drop(slots);
    }

    fn put(&self, memory: SlotMemory<D>) {
        let mut state = self.lock();
        let is_reusable = match &memory {
            SlotMemory::Slot(slot) => state.device.is_some() && slot.is_reusable(),
            // While a device is in use, it replaced a slot that was retired.
            SlotMemory::Heap(_) => state.device.is_none(),
        };
        if is_reusable {
            state.free.push(memory);
            return;
        }
        state.allocated -= 1;
        drop(state);
        drop(BoundedDrop::new(memory, self.time_limit));
    }
}

impl<D: RingDevice> Drop for Ring<D> {
    fn drop(&mut self) {
        self.stream_slots.close();
    }
}

/// A slot in use, and its pages. Dropping it returns the memory.
#[derive(Debug)]
pub struct SlotLease<D: RingDevice> {
    /// `None` only while the lease is dropped or taken apart.
    memory: Option<SlotMemory<D>>,
    stream_slots: Arc<StreamSlots<D>>,
    pub(crate) pages: usize,
    /// The place of each compressed page: in the input of a decompression, in the output of a compression.
    pub(crate) entries: Vec<IndexEntry>,
    /// The device's times for the pages, once it has done them.
    pub(crate) device_times: Option<BatchTimes>,
}

impl<D: RingDevice> SlotLease<D> {
    fn memory(&self) -> &SlotMemory<D> {
        self.memory.as_ref().expect("a lease has memory until it is dropped")
    }

    fn slot(&self) -> &RingSlot<D> {
        match self.memory() {
            SlotMemory::Slot(slot) => slot,
            SlotMemory::Heap(_) => unreachable!("what a device has done is in a slot"),
        }
    }

    /// Takes the slot out, to be submitted, if it is one of `stream_slots`, which have a device; otherwise returns the lease.
    pub(crate) fn into_slot(mut self, stream_slots: &Arc<StreamSlots<D>>) -> Result<RingSlot<D>, Self> {
        match self
            .memory
            .take_if(|memory| matches!(memory, SlotMemory::Slot(_)) && Arc::ptr_eq(&self.stream_slots, stream_slots))
        {
            Some(SlotMemory::Slot(mut slot)) => {
                slot.claim(0..self.pages);
                slot.entries = std::mem::take(&mut self.entries);
                Ok(*slot)
            }
            _ => Err(self),
        }
    }

    /// Returns a lease that can be filled again. A slot that a copy may still use is replaced by ordinary memory.
    pub(crate) fn into_fillable(mut self) -> Self {
        if matches!(self.memory(), SlotMemory::Slot(slot) if !slot.is_reusable()) {
            let retired = self.memory.replace(self.stream_slots.heap_memory());
            drop(BoundedDrop::new(retired, self.stream_slots.time_limit));
        }
        self.device_times = None;
        self
    }

    /// Returns the number of pages that fit.
    pub(crate) fn capacity(&self) -> usize {
        self.stream_slots.slot_pages as usize
    }

    /// Returns the bytes that the caller fills.
    pub(crate) fn input(&self) -> &[u8] {
        match self.memory() {
            SlotMemory::Slot(slot) => slot.input().bytes().expect("a device only reads a slot's input"),
            SlotMemory::Heap(bytes) => bytes,
        }
    }

    pub(crate) fn input_mut(&mut self) -> &mut [u8] {
        match self.memory.as_mut().expect("a lease has memory until it is dropped") {
            SlotMemory::Slot(slot) => slot.input_mut().bytes_mut().expect("no copy of a slot in use is in progress"),
            SlotMemory::Heap(bytes) => bytes,
        }
    }

    /// Returns the packed bytes of a compression.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.slot().output()[..self.slot().packed_bytes]
    }

    /// Returns the pages of a decompression.
    pub(crate) fn restored(&self) -> &[Page] {
        &self.slot().output().as_chunks().0[..self.pages]
    }

    /// Returns the compressed pages, those of them that the device did not restore, and the restored pages.
    pub(crate) fn restored_parts(&mut self) -> (&[u8], &[UnrestoredPage], &mut [Page]) {
        match self.memory.as_mut() {
            Some(SlotMemory::Slot(slot)) => slot.restored_parts(),
            _ => unreachable!("what a device has done is in a slot"),
        }
    }
}

impl<D: RingDevice> Drop for SlotLease<D> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.stream_slots.put(memory);
        }
    }
}
