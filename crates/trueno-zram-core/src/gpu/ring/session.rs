//! A stream through the ring: slots that the caller fills and empties follow each other without a drain.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use trueno_gpu::kernels::packed::PackedEntry;

use super::compress::{self, download_packed};
use super::decompress::{LeftPage, Refusal, download_status, launch};
use super::device::{Buffer, Mark, PinnedMemory, Queue, RingDevice};
use super::entries::{for_kernel, list_entries, next_place};
use super::flight::Flight;
use super::rooms::{Lease, Room, Rooms, Wanted};
use super::slot::{HostMemory, IndexCopy, STATUS_BYTES, Slot, SlotState};
use super::stages::Submit;
use super::{Ring, RingShape, StageTimes};
use crate::arena::IndexEntry;
use crate::gpu::codec::PageFormat;
use crate::gpu::error::{GpuError, GpuResult};
use crate::page::{PAGE_SIZE, Page};

/// What a stream does with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Compress,
    Decompress,
}

/// A slot that was submitted, or is about to be.
#[derive(Debug)]
pub(crate) struct Filled<D: RingDevice> {
    pub(crate) lease: Lease<D>,
    pub(crate) pages: usize,
    /// Where compressed pages lie in the input, for a decompression.
    pub(crate) entries: Vec<IndexEntry>,
    pub(crate) submitted: Instant,
}

/// Why a session stopped using the device.
pub(crate) enum Cause {
    Error(GpuError),
    Panic(Box<dyn Any + Send>),
}

/// A failure, and the slots that were in flight, in order. Nothing is queued on the device any more, or it was given up.
pub(crate) struct Failed<D: RingDevice> {
    pub(crate) cause: Cause,
    pub(crate) slots: Vec<Filled<D>>,
}

/// The device's part of a stream.
#[derive(Debug)]
pub(crate) struct Session<D: RingDevice> {
    flight: Flight<D>,
    rooms: Arc<Rooms<D>>,
    direction: Direction,
}

impl RingShape {
    /// The slots of streams: a third is filled, a third in flight, a third read.
    fn stream_slots(&self) -> usize {
        self.slots.saturating_mul(3)
    }

    pub(super) fn rooms<D: RingDevice>(&self) -> Arc<Rooms<D>> {
        Rooms::new(self.stream_slots(), self.slot_pages, self.time_limit)
    }
}

/// A slot to fill, or the way to one.
#[derive(Debug)]
pub(crate) enum Offer<D: RingDevice> {
    Slot(Lease<D>),
    /// There may be one more. It is counted already: [`Session::keep`] takes it, or takes the count back.
    Make(SlotMaker<D>),
}

/// Makes a slot, which takes milliseconds, while others use the session.
#[derive(Debug)]
pub(crate) struct SlotMaker<D: RingDevice> {
    allocator: D::Allocator,
    format: PageFormat,
    slot_pages: u32,
}

/// A slot that was made, or why not.
pub(crate) type Made<D> = std::thread::Result<GpuResult<Slot<D>>>;

impl<D: RingDevice> SlotMaker<D> {
    /// Makes the slot.
    pub(crate) fn make(self) -> Made<D> {
        catch_unwind(AssertUnwindSafe(|| {
            let mut slot = Slot::new(&self.allocator, self.format, self.slot_pages)?;
            slot.ensure(&self.allocator, self.slot_pages, &[HostMemory::Input, HostMemory::Output])?;
            Ok(slot)
        }))
    }
}

impl<D: RingDevice> Drop for Ring<D> {
    fn drop(&mut self) {
        drop(self.rooms.close());
    }
}

impl<D: RingDevice> Session<D> {
    pub(crate) fn new(ring: &Ring<D>, direction: Direction) -> Self {
        Self { flight: Flight::new(ring.shape.time_limit), rooms: Arc::clone(&ring.rooms), direction }
    }

    /// A session that never has a device.
    pub(crate) fn without_device(shape: RingShape, direction: Direction) -> Self {
        let rooms = shape.rooms();
        drop(rooms.close());
        Self { flight: Flight::new(shape.time_limit), rooms, direction }
    }

    /// Takes a free slot, or counts one more that the caller is to make. `None` if all are in use.
    pub(crate) fn slot(&mut self, ring: Option<&Ring<D>>) -> Result<Option<Offer<D>>, Failed<D>> {
        match (self.rooms.take(), ring) {
            (Ok(lease), _) => Ok(Some(Offer::Slot(lease))),
            (Err(None), _) => Ok(None),
            (Err(Some(Wanted::Slot)), Some(ring)) => {
                if let Some(reason) = ring.device.loss() {
                    self.rooms.uncount();
                    return Err(self.fail(ring, Cause::Error(GpuError::ContextLost { reason })));
                }
                let (allocator, format) = (ring.device.allocator(), ring.device.format());
                Ok(Some(Offer::Make(SlotMaker { allocator, format, slot_pages: ring.shape.slot_pages })))
            }
            (Err(Some(_)), _) => Ok(Some(Offer::Slot(self.rooms.heap()))),
        }
    }

    /// Takes a slot that [`slot`](Self::slot) let the caller make. `None` if it could not be made and fewer slots will do.
    pub(crate) fn keep(&mut self, ring: Option<&Ring<D>>, made: Made<D>) -> Result<Option<Lease<D>>, Failed<D>> {
        let cause = match made {
            Ok(Ok(slot)) => return Ok(Some(self.rooms.lease(Room::Slot(Box::new(slot))))),
            Ok(Err(error)) => Cause::Error(error),
            Err(panic) => Cause::Panic(panic),
        };
        self.rooms.uncount();
        let fewer_will_do = matches!(&cause, Cause::Error(error) if !error.poisons_context());
        match ring {
            Some(ring) if !(fewer_will_do && self.rooms.stop_growing()) => Err(self.fail(ring, cause)),
            _ => Ok(None),
        }
    }

    /// Queues a slot's work on the device. A slot that is none of this ring's is given back.
    pub(crate) fn submit(&mut self, ring: &mut Ring<D>, filled: Filled<D>) -> Result<Option<Filled<D>>, Failed<D>> {
        let Filled { lease, pages, entries, submitted } = filled;
        let mut slot = match lease.into_slot(&self.rooms) {
            Ok(slot) => slot,
            Err(lease) => return Ok(Some(Filled { lease, pages, entries, submitted })),
        };
        slot.claim(0..pages);
        (slot.entries, slot.submitted) = (entries, submitted);
        self.flight.push(*slot);
        self.attempt(ring, |session, ring| {
            session.flight.start_newest(&mut ring.device, &mut session.direction)?;
            session.flight.poll(&mut ring.device, &mut session.direction)
        })?;
        Ok(None)
    }

    /// Moves slots on.
    pub(crate) fn advance(&mut self, ring: &mut Ring<D>) -> Result<(), Failed<D>> {
        if self.flight.is_empty() {
            return Ok(());
        }
        self.attempt(ring, |session, ring| {
            while session.flight.poll(&mut ring.device, &mut session.direction)? {}
            Ok(())
        })
    }

    /// Moves slots on. Returns the oldest one if it is complete, with its result checked and within reach.
    pub(crate) fn poll(&mut self, ring: &mut Ring<D>) -> Result<Option<Finished<D>>, Failed<D>> {
        if self.flight.is_empty() {
            return Ok(None);
        }
        let slot = self.attempt(ring, |session, ring| {
            while session.flight.poll(&mut ring.device, &mut session.direction)? {}
            let Some(slot) = session.flight.complete() else { return Ok(None) };
            session.direction.check(slot)?;
            slot.settle(ring.shape.time_limit)?;
            slot.enter(SlotState::Free);
            Ok(session.flight.pop())
        })?;
        Ok(slot.map(|slot| Finished { lease: self.rooms.lease(Room::Slot(Box::new(slot))) }))
    }

    /// Does something with the device. If that fails or panics, or the device is lost, nothing stays in flight.
    fn attempt<T>(
        &mut self,
        ring: &mut Ring<D>,
        work: impl FnOnce(&mut Self, &mut Ring<D>) -> GpuResult<T>,
    ) -> Result<T, Failed<D>> {
        let done = match ring.device.loss() {
            Some(reason) => Ok(Err(GpuError::ContextLost { reason })),
            None => catch_unwind(AssertUnwindSafe(|| work(self, ring))),
        };
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.fail(ring, Cause::Error(error))),
            Err(panic) => Err(self.fail(ring, Cause::Panic(panic))),
        }
    }

    fn fail(&mut self, ring: &Ring<D>, cause: Cause) -> Failed<D> {
        match &cause {
            Cause::Error(error) => ring.stop_after(error),
            Cause::Panic(_) => ring.stop_after_panic(),
        }
        Failed { cause, slots: self.take_stopped(ring) }
    }

    /// Ends the session. Slots in flight are waited for, no longer than the time limit, and their pages are dropped.
    pub(crate) fn end(&mut self, ring: &Ring<D>) {
        if self.flight.is_empty() {
            return;
        }
        if ring.device.loss().is_none() {
            ring.empty_queues("a stream was dropped");
        }
        drop(self.take_stopped(ring));
    }

    /// Takes all slots out of the flight. The device has stopped, or was given up.
    fn take_stopped(&mut self, ring: &Ring<D>) -> Vec<Filled<D>> {
        let slots = std::iter::from_fn(|| self.flight.pop());
        let stopped = |mut slot: Slot<D>| {
            slot.reset();
            // If a copy may still use it, the slot is freed when that is known to have ended, or leaks.
            let _ = slot.settle(ring.shape.time_limit);
            let (pages, entries, submitted) = (slot.range.len(), std::mem::take(&mut slot.entries), slot.submitted);
            Filled { lease: self.rooms.lease(Room::Slot(Box::new(slot))), pages, entries, submitted }
        };
        slots.map(stopped).collect()
    }
}

/// A slot that the device has done.
#[derive(Debug)]
pub(crate) struct Finished<D: RingDevice> {
    lease: Lease<D>,
}

impl<D: RingDevice> Finished<D> {
    fn slot(&self) -> &Slot<D> {
        self.lease.slot().expect("a finished lease has a slot")
    }

    pub(crate) fn lease(&self) -> &Lease<D> {
        &self.lease
    }

    /// Its memory, to be filled again.
    pub(crate) fn into_lease(self) -> Lease<D> {
        self.lease
    }

    pub(crate) fn times(&self) -> StageTimes {
        self.slot().times
    }

    pub(crate) fn submitted(&self) -> Instant {
        self.slot().submitted
    }

    pub(crate) fn pages(&self) -> usize {
        self.slot().range.len()
    }

    /// Where each page is: in the output of a compression, in the input of a decompression.
    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.slot().entries
    }

    /// The packed bytes of a compression.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.output()[..self.slot().packed_bytes]
    }

    /// The pages of a decompression.
    pub(crate) fn restored(&self) -> &[Page] {
        &self.output().as_chunks().0[..self.pages()]
    }

    fn output(&self) -> &[u8] {
        let output = self.slot().output.as_ref().expect("slots of streams have it");
        output.bytes().expect("no copy of a slot in use is in progress")
    }

    /// The compressed pages and the restored ones, to finish what the device left.
    pub(crate) fn left_parts(&mut self) -> (&[u8], &[IndexEntry], &[LeftPage], &mut [Page]) {
        let slot = self.lease.slot_mut().expect("a finished lease has a slot");
        slot.restored_parts()
    }
}

impl<D: RingDevice> Submit<D> for Direction {
    fn index_copy(&self) -> IndexCopy {
        match self {
            Self::Compress => IndexCopy::First,
            Self::Decompress => IndexCopy::None,
        }
    }

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        match self {
            Self::Compress => {
                device.mark(&slot.device, Mark::H2dStart)?;
                slot.upload_input(device, Buffer::Pages, slot.crossing * PAGE_SIZE)?;
                compress::start_kernel(device, slot)
            }
            Self::Decompress => {
                let Slot { format, entries, index, .. } = slot;
                let packed = index.bytes_mut()?.as_chunks_mut::<{ PackedEntry::BYTES }>().0;
                packed.iter_mut().zip(entries).for_each(|(packed, entry)| *packed = for_kernel(*entry, 0, *format));
                let end = slot.entries.last().map_or(0, |last| next_place(*last));
                slot.packed_bytes = usize::try_from(end).expect("the slot's input lies in memory");
                device.mark(&slot.device, Mark::H2dStart)?;
                slot.upload_input(device, Buffer::Packed, slot.packed_bytes)?;
                launch(device, slot)
            }
        }
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        match self {
            Self::Compress => download_packed(device, slot),
            Self::Decompress => {
                device.mark(&slot.device, Mark::D2hStart)?;
                let part = 0..slot.crossing * PAGE_SIZE;
                let output = slot.output.as_mut().expect("slots of streams have it");
                device.download(Queue::D2h, &slot.device, Buffer::Pages, 0, output, part)?;
                download_status(device, slot)
            }
        }
    }
}

impl Direction {
    /// Reads what the device says about a complete slot.
    fn check<D: RingDevice>(self, slot: &mut Slot<D>) -> GpuResult<()> {
        match self {
            // All pages are on the device: there are no fill words.
            Self::Compress => list_entries(slot, &mut []).map(drop),
            Self::Decompress => {
                let Slot { format, status, left, entries, .. } = slot;
                let status = status.bytes()?.as_chunks::<STATUS_BYTES>().0;
                left.clear();
                left.extend(entries.iter().zip(status).enumerate().filter_map(|(page, (entry, code))| {
                    Refusal::of(entry.kind, *format, *code).map(|refusal| LeftPage { page, refusal })
                }));
                Ok(())
            }
        }
    }
}
