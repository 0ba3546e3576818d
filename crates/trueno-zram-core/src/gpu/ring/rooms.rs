//! Memory of streams: who has which slot, and where it goes when its owner is done with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::device::{PinnedMemory, RingDevice};
use super::slot::Slot;
use crate::gpu::bounded_drop::BoundedDrop;
use crate::page::PAGE_SIZE;

/// Memory for one slot of a stream.
#[derive(Debug)]
pub(super) enum Room<D: RingDevice> {
    /// Page-locked memory, and memory on the device. No copy is in progress.
    Slot(Box<Slot<D>>),
    /// Ordinary memory, once there is no device.
    Heap(Vec<u8>),
}

/// The rooms of a ring's streams. It outlives them: slots that a caller still has when its stream ends serve the next one.
#[derive(Debug)]
pub(crate) struct Rooms<D: RingDevice> {
    state: Mutex<State<D>>,
    slot_pages: usize,
    time_limit: Duration,
}

#[derive(Debug)]
struct State<D: RingDevice> {
    free: Vec<Room<D>>,
    /// Rooms that exist, wherever they are.
    made: usize,
    /// The most there may be.
    most: usize,
    /// Whether the device is in use. If not, slots are freed when they come back.
    has_device: bool,
}

/// What a new room is to be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Slot,
    Heap,
}

impl<D: RingDevice> Rooms<D> {
    pub(super) fn new(most: usize, slot_pages: u32, time_limit: Duration) -> Arc<Self> {
        let state = State { free: Vec::new(), made: 0, most, has_device: true };
        // Widening: `usize` has 64 bits wherever CUDA runs.
        Arc::new(Self { state: Mutex::new(state), slot_pages: slot_pages as usize, time_limit })
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        // Counts and lists are consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free room. `Err` says that there is none, and which kind the caller is to make, if any. That one is counted.
    pub(super) fn take(self: &Arc<Self>) -> Result<Lease<D>, Option<Wanted>> {
        let mut state = self.lock();
        if let Some(room) = state.free.pop() {
            return Ok(self.lease(room));
        }
        if state.made >= state.most {
            return Err(None);
        }
        state.made += 1;
        Err(Some(if state.has_device { Wanted::Slot } else { Wanted::Heap }))
    }

    /// Takes back the count of a room that could not be made.
    pub(super) fn uncount(&self) {
        self.lock().made -= 1;
    }

    /// Makes a room of ordinary memory, which is counted already.
    pub(super) fn heap(self: &Arc<Self>) -> Lease<D> {
        self.lease(self.heap_room())
    }

    fn heap_room(&self) -> Room<D> {
        Room::Heap(vec![0; self.slot_pages * PAGE_SIZE])
    }

    /// Makes no more rooms than there are. Returns `false` if there is none, which would be too few.
    pub(super) fn stop_growing(&self) -> bool {
        let mut state = self.lock();
        state.most = if state.made > 0 { state.made } else { state.most };
        state.made > 0
    }

    pub(super) fn lease(self: &Arc<Self>, room: Room<D>) -> Lease<D> {
        Lease { room: Some(room), rooms: Arc::clone(self) }
    }

    /// Ends the use of the device. Returns the slots that nobody has, to be freed.
    pub(super) fn close(&self) -> Vec<Room<D>> {
        let mut state = self.lock();
        state.has_device = false;
        let (slots, heap): (Vec<_>, Vec<_>) = state.free.drain(..).partition(|room| matches!(room, Room::Slot(_)));
        state.made -= slots.len();
        state.free = heap;
        slots
    }

    fn put(&self, room: Room<D>) {
        let mut state = self.lock();
        let is_reusable = match &room {
            Room::Slot(slot) => state.has_device && slot.is_reusable(),
            // Beside a device, it stood in for a slot that was retired.
            Room::Heap(_) => !state.has_device,
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

/// A room in use. It goes back when dropped.
#[derive(Debug)]
pub(crate) struct Lease<D: RingDevice> {
    /// `None` only while it is dropped or taken apart.
    room: Option<Room<D>>,
    rooms: Arc<Rooms<D>>,
}

impl<D: RingDevice> Lease<D> {
    fn room(&self) -> &Room<D> {
        self.room.as_ref().expect("a lease has a room until it is dropped")
    }

    /// The slot, unless the room is ordinary memory.
    pub(super) fn slot(&self) -> Option<&Slot<D>> {
        match self.room() {
            Room::Slot(slot) => Some(slot),
            Room::Heap(_) => None,
        }
    }

    pub(super) fn slot_mut(&mut self) -> Option<&mut Slot<D>> {
        match self.room.as_mut() {
            Some(Room::Slot(slot)) => Some(slot),
            _ => None,
        }
    }

    /// Takes the slot out if it is one of `rooms`, which have a device; else gives the lease back.
    pub(super) fn into_slot(mut self, rooms: &Arc<Rooms<D>>) -> Result<Box<Slot<D>>, Self> {
        if !Arc::ptr_eq(&self.rooms, rooms) {
            return Err(self);
        }
        match self.room.take() {
            Some(Room::Slot(slot)) => Ok(slot),
            room => {
                self.room = room;
                Err(self)
            }
        }
    }

    /// Returns a lease that can be filled again. A slot that a copy may still use gives way to ordinary memory.
    pub(crate) fn into_fillable(mut self) -> Self {
        if self.slot().is_some_and(|slot| !slot.is_reusable()) {
            let retired = self.room.replace(self.rooms.heap_room());
            drop(BoundedDrop::new(retired, self.rooms.time_limit));
        }
        self
    }

    /// The most pages that fit.
    pub(crate) fn capacity(&self) -> usize {
        self.rooms.slot_pages
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
}

impl<D: RingDevice> Drop for Lease<D> {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.rooms.put(room);
        }
    }
}
