//! Memory of streams: who has which slot, and where it goes when its owner is done with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::compressed_pages::LeftPage;
use super::device::{PinnedMemory, RingDevice};
use super::slot::Slot;
use super::transfer::{Direction, Source, Transfer};
use super::{Ring, RingShape};
use crate::arena::IndexEntry;
use crate::gpu::BatchTimes;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::gpu::codec::PageFormat;
use crate::gpu::error::GpuResult;
use crate::page::{PAGE_SIZE, Page};

/// Memory for one slot of a stream.
#[derive(Debug)]
enum Room<D: RingDevice> {
    /// Page-locked memory, and memory on the device. No copy is in progress.
    Slot(Box<Slot<D>>),
    /// Ordinary memory, once there is no device.
    Heap(Vec<u8>),
}

/// The rooms of a ring's streams. It outlives them: slots that a caller still has when its stream ends serve the next one.
#[derive(Debug)]
pub(crate) struct Rooms<D: RingDevice> {
    state: Mutex<State<D>>,
    slot_pages: u32,
    time_limit: Duration,
}

#[derive(Debug)]
struct State<D: RingDevice> {
    free: Vec<Room<D>>,
    /// Rooms that exist, wherever they are.
    made: usize,
    /// The most there may be.
    most: usize,
    /// The allocator of slots while the device is in use. If it is not, slots are freed when they come back.
    device: Option<(D::Allocator, PageFormat)>,
}

/// Memory to fill, or the way to it.
#[derive(Debug)]
pub(crate) enum Offer<D: RingDevice> {
    Room(Lease<D>),
    /// One more may be made. It is counted already: [`Rooms::make`] makes it, or takes the count back.
    Make,
}

impl<D: RingDevice> Rooms<D> {
    /// The slots of streams on a device, or ordinary memory in their place.
    pub(crate) fn new(shape: RingShape, device: Option<&D>) -> Arc<Self> {
        let device = device.map(|device| (device.allocator(), device.format()));
        let state = State { free: Vec::new(), made: 0, most: shape.stream_slots(), device };
        Arc::new(Self { state: Mutex::new(state), slot_pages: shape.slot_pages, time_limit: shape.time_limit })
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        // Counts and lists are consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free room, or counts one more that the caller is to make. `None` if all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Offer<D>> {
        let mut state = self.lock();
        if let Some(room) = state.free.pop() {
            return Some(Offer::Room(self.lease_room(room)));
        }
        if state.made >= state.most {
            return None;
        }
        state.made += 1;
        Some(Offer::Make)
    }

    /// Makes a room that was offered. A slot takes milliseconds, while others use the stream.
    pub(crate) fn make(self: &Arc<Self>) -> std::thread::Result<GpuResult<Lease<D>>> {
        let device = self.lock().device.clone();
        let made = catch_unwind(AssertUnwindSafe(|| {
            let Some((allocator, format)) = device else { return Ok(self.lease_room(self.heap_room())) };
            let mut slot = Slot::new(&allocator, format, self.slot_pages)?;
            slot.ensure(&allocator, self.slot_pages, &Transfer::new(Direction::Compress, Source::Input, None))?;
            Ok(self.lease(slot))
        }));
        if !matches!(made, Ok(Ok(_))) {
            self.lock().made -= 1;
        }
        made
    }

    fn heap_room(&self) -> Room<D> {
        // Widening: `usize` has 64 bits wherever CUDA runs.
        Room::Heap(vec![0; self.slot_pages as usize * PAGE_SIZE])
    }

    /// Makes no more rooms than there are. Returns `false` if there is none, which would be too few.
    pub(crate) fn stop_growing(&self) -> bool {
        let mut state = self.lock();
        state.most = if state.made > 0 { state.made } else { state.most };
        state.made > 0
    }

    /// Leases a slot that is not in flight, with the pages in it.
    pub(crate) fn lease(self: &Arc<Self>, mut slot: Slot<D>) -> Lease<D> {
        let (pages, entries) = (slot.range.len(), std::mem::take(&mut slot.entries));
        let mut lease = self.lease_room(Room::Slot(Box::new(slot)));
        (lease.pages, lease.entries) = (pages, entries);
        lease
    }

    fn lease_room(self: &Arc<Self>, room: Room<D>) -> Lease<D> {
        Lease { room: Some(room), rooms: Arc::clone(self), pages: 0, entries: Vec::new(), device_times: None }
    }

    /// Makes no more slots on the device. Those that nobody has are freed with the ring, which may take its time.
    pub(crate) fn leave_device(&self) {
        self.lock().device = None;
    }

    /// Ends the use of the device. Frees the slots that nobody has.
    fn close(&self) {
        let mut state = self.lock();
        state.device = None;
        let (slots, heap): (Vec<_>, Vec<_>) = state.free.drain(..).partition(|room| matches!(room, Room::Slot(_)));
        state.made -= slots.len();
        state.free = heap;
        drop(state);
        drop(slots);
    }

    fn put(&self, room: Room<D>) {
        let mut state = self.lock();
        let is_reusable = match &room {
            Room::Slot(slot) => state.device.is_some() && slot.is_reusable(),
            // Beside a device, it stood in for a slot that was retired.
            Room::Heap(_) => state.device.is_none(),
        };
        if is_reusable {
            state.free.push(room);
            return;
        }
        state.made -= 1;
        drop(state);
        drop(BoundedDrop::new(room, self.time_limit));
    }
}

impl<D: RingDevice> Drop for Ring<D> {
    fn drop(&mut self) {
        self.rooms.close();
    }
}

/// A room in use, and the pages in it. It goes back when dropped.
#[derive(Debug)]
pub struct Lease<D: RingDevice> {
    /// `None` only while it is dropped or taken apart.
    room: Option<Room<D>>,
    rooms: Arc<Rooms<D>>,
    pub(crate) pages: usize,
    /// The place of each compressed page: in the input of a decompression, in the output of a compression.
    pub(crate) entries: Vec<IndexEntry>,
    /// The device's times for the pages, once it has done them.
    pub(crate) device_times: Option<BatchTimes>,
}

impl<D: RingDevice> Lease<D> {
    fn room(&self) -> &Room<D> {
        self.room.as_ref().expect("a lease has a room until it is dropped")
    }

    fn slot(&self) -> &Slot<D> {
        match self.room() {
            Room::Slot(slot) => slot,
            Room::Heap(_) => unreachable!("what a device has done is in a slot"),
        }
    }

    /// Takes the slot out, to be submitted, if it is one of `rooms`, which have a device; else gives the lease back.
    pub(crate) fn into_slot(mut self, rooms: &Arc<Rooms<D>>) -> Result<Slot<D>, Self> {
        match self.room.take_if(|room| matches!(room, Room::Slot(_)) && Arc::ptr_eq(&self.rooms, rooms)) {
            Some(Room::Slot(mut slot)) => {
                slot.claim(0..self.pages);
                slot.entries = std::mem::take(&mut self.entries);
                Ok(*slot)
            }
            _ => Err(self),
        }
    }

    /// Returns a lease that can be filled again. A slot that a copy may still use gives way to ordinary memory.
    pub(crate) fn into_fillable(mut self) -> Self {
        if matches!(self.room(), Room::Slot(slot) if !slot.is_reusable()) {
            let retired = self.room.replace(self.rooms.heap_room());
            drop(BoundedDrop::new(retired, self.rooms.time_limit));
        }
        self.device_times = None;
        self
    }

    /// The most pages that fit.
    pub(crate) fn capacity(&self) -> usize {
        self.rooms.slot_pages as usize
    }

    /// The bytes that the caller fills.
    pub(crate) fn input(&self) -> &[u8] {
        match self.room() {
            Room::Slot(slot) => slot.input().bytes().expect("a device only reads a slot's input"),
            Room::Heap(bytes) => bytes,
        }
    }

    pub(crate) fn input_mut(&mut self) -> &mut [u8] {
        match self.room.as_mut().expect("a lease has a room until it is dropped") {
            Room::Slot(slot) => slot.input_mut().bytes_mut().expect("no copy of a slot in use is in progress"),
            Room::Heap(bytes) => bytes,
        }
    }

    /// The packed bytes of a compression.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.slot().output()[..self.slot().packed_bytes]
    }

    /// The pages of a decompression.
    pub(crate) fn restored(&self) -> &[Page] {
        &self.slot().output().as_chunks().0[..self.pages]
    }

    /// The compressed pages, those of them that the device left, and the restored pages.
    pub(crate) fn left_parts(&mut self) -> (&[u8], &[LeftPage], &mut [Page]) {
        match self.room.as_mut() {
            Some(Room::Slot(slot)) => slot.restored_parts(),
            _ => unreachable!("what a device has done is in a slot"),
        }
    }
}

impl<D: RingDevice> Drop for Lease<D> {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.rooms.put(room);
        }
    }
}
