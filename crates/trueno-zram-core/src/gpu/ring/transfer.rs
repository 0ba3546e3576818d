//! The device's part of a slot: the copies and the kernel between where pages come from and where results go.

use std::time::Duration;

use trueno_gpu::kernels::packed::PackedEntry;

use super::device::{DeviceQueue, Mark, PinnedMemory, RingDevice, SlotBuffer};
use super::piece::{PIECE_PAGES, SlotPiece};
use super::slot::RingSlot;
use super::slot_index::{for_kernel, next_place};
use crate::arena::IndexEntry;
use crate::gpu::codec::STATUS_BYTES;
use crate::gpu::error::GpuResult;
use crate::page::PAGE_SIZE;

/// The work of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Compresses pages.
    Compress,
    /// Restores packed pages.
    Decompress,
}

/// The memory that slots are copied from: pages of a compression, packed pages of a decompression.
#[derive(Debug)]
pub(super) enum TransferSource<'a, P> {
    /// The slot's input, which the caller of a stream fills.
    Input,
    /// The slot's pieces, which workers fill.
    Pieces,
    /// The caller's page-locked memory, and where packed pages lie in it.
    Pinned(&'a mut P, &'a [IndexEntry]),
}

/// Queues the work of slots, one after the other. Runs on the driving thread, and never waits.
#[derive(Debug)]
pub(super) struct SlotTransfer<'a, D: RingDevice> {
    direction: Direction,
    pub(super) source: TransferSource<'a, D::Pinned>,
    /// The caller's page-locked memory for results, or `None` if they go to the slot's output.
    pub(super) target: Option<&'a mut D::Pinned>,
    /// Bytes of `target` that hold packed pages of earlier slots.
    packed_end: usize,
}

impl<'a, D: RingDevice> SlotTransfer<'a, D> {
    pub(super) fn new(
        direction: Direction,
        source: TransferSource<'a, D::Pinned>,
        target: Option<&'a mut D::Pinned>,
    ) -> Self {
        Self { direction, source, target, packed_end: 0 }
    }

    /// Creates a transfer for slots that the caller of a stream fills.
    pub(super) fn of_stream(direction: Direction) -> Self {
        Self::new(direction, TransferSource::Input, None)
    }

    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the mark after everything that the kernel writes for the host: the index has the length of the packed pages.
    pub(super) fn kernel_done(&self) -> Mark {
        match self.direction {
            Direction::Compress => Mark::IndexEnd,
            Direction::Decompress => Mark::KernelEnd,
        }
    }

    /// Queues the copies to the device and the kernel.
    pub(super) fn start(&mut self, device: &mut D, slot: &mut RingSlot<D>) -> GpuResult<()> {
        if self.direction == Direction::Decompress {
            self.write_index(slot)?;
        }
        device.mark(&mut slot.device, Mark::H2dStart)?;
        self.upload(device, slot)?;
        let index = 0..slot.device_pages * PackedEntry::BYTES;
        if self.direction == Direction::Decompress {
            device.upload(&mut slot.device, SlotBuffer::Index, 0, &mut slot.index, index.clone())?;
        }
        device.mark(&mut slot.device, Mark::H2dEnd)?;
        let pages = u32::try_from(slot.device_pages).expect("a slot is made for a u32 of pages");
        match self.direction {
            Direction::Compress => {
                device.compress(&mut slot.device, pages)?;
                device.download(DeviceQueue::Compute, &mut slot.device, SlotBuffer::Index, &mut slot.index, index)?;
                device.mark(&mut slot.device, Mark::IndexEnd)
            }
            Direction::Decompress => device.decompress(&mut slot.device, slot.packed_bytes, pages),
        }
    }

    /// Queues the copies to the host, when the kernel is done.
    pub(super) fn finish(&mut self, device: &mut D, slot: &mut RingSlot<D>) -> GpuResult<()> {
        let (buffer, place, len_bytes) = match self.direction {
            Direction::Compress => {
                slot.read_packed_bytes()?;
                // Slots finish in the order of their pages.
                let place = self.packed_end;
                self.packed_end += slot.packed_bytes;
                (SlotBuffer::Packed, place, slot.packed_bytes)
            }
            Direction::Decompress => (SlotBuffer::Pages, slot.range.start * PAGE_SIZE, slot.device_pages * PAGE_SIZE),
        };
        device.mark(&mut slot.device, Mark::D2hStart)?;
        let (to, part) = match &mut self.target {
            Some(memory) => (&mut **memory, place..place + len_bytes),
            None => (slot.output.as_mut().expect("a call ensures what it uses"), 0..len_bytes),
        };
        device.download(DeviceQueue::D2h, &mut slot.device, buffer, to, part)?;
        if self.direction == Direction::Decompress {
            let part = 0..slot.device_pages * STATUS_BYTES;
            device.download(DeviceQueue::D2h, &mut slot.device, SlotBuffer::Status, &mut slot.status, part)?;
        }
        device.mark(&mut slot.device, Mark::D2hEnd)
    }

    /// Waits until no copy uses the caller's memory.
    pub(super) fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        let source = match &mut self.source {
            TransferSource::Pinned(memory, _) => memory.settle(time_limit),
            TransferSource::Input | TransferSource::Pieces => Ok(()),
        };
        let target = self.target.as_mut().map_or(Ok(()), |memory| memory.settle(time_limit));
        source.and(target)
    }

    /// Queues the copy of the pages or packed pages to the device.
    fn upload(&mut self, device: &D, slot: &mut RingSlot<D>) -> GpuResult<()> {
        let (buffer, len_bytes) = match self.direction {
            Direction::Compress => (SlotBuffer::Pages, slot.device_pages * PAGE_SIZE),
            Direction::Decompress => (SlotBuffer::Packed, slot.packed_bytes),
        };
        let RingSlot { device: on_device, input, pieces, pieces_used, range, .. } = slot;
        match &mut self.source {
            TransferSource::Input => {
                let input = input.as_mut().expect("slots of streams have it");
                device.upload(on_device, buffer, 0, input, 0..len_bytes)
            }
            TransferSource::Pieces => {
                let mut device_pages = pieces[..*pieces_used].iter_mut().filter(|piece| piece.device_pages > 0);
                device_pages.try_for_each(|piece| {
                    let (at, part) = (place_on_device(piece, self.direction), 0..piece.bytes_in);
                    device.upload(on_device, buffer, at, piece.memory(), part)
                })
            }
            TransferSource::Pinned(memory, index) => {
                let start = match self.direction {
                    Direction::Compress => range.start * PAGE_SIZE,
                    Direction::Decompress => in_memory(index[range.start].offset),
                };
                device.upload(on_device, buffer, 0, memory, start..start + len_bytes)
            }
        }
    }

    /// Writes the index of packed pages as the kernel reads it, and notes their length.
    fn write_index(&self, slot: &mut RingSlot<D>) -> GpuResult<()> {
        let RingSlot { format, index, pieces, pieces_used, entries, range, .. } = slot;
        let packed = index.bytes_mut()?.as_chunks_mut::<{ PackedEntry::BYTES }>().0;
        let entries = match &self.source {
            TransferSource::Input => &entries[..],
            TransferSource::Pinned(_, index) => &index[range.clone()],
            TransferSource::Pieces => {
                for piece in pieces[..*pieces_used].iter().filter(|piece| piece.device_pages > 0) {
                    packed[piece.first_place..][..piece.device_pages].copy_from_slice(&piece.index);
                    slot.packed_bytes = place_on_device(piece, Direction::Decompress) + piece.bytes_in;
                }
                return Ok(());
            }
        };
        let (start, end) = (entries[0].offset, entries.last().map_or(0, |last| next_place(*last)));
        packed.iter_mut().zip(entries).for_each(|(packed, entry)| *packed = for_kernel(*entry, start, *format));
        slot.packed_bytes = in_memory(end - start);
        Ok(())
    }
}

/// Returns the offset of a piece in its device buffer. Pages follow each other. Packed pages start at a fixed place, which is known
/// before the other pieces are staged.
fn place_on_device<D: RingDevice>(piece: &SlotPiece<D>, direction: Direction) -> usize {
    match direction {
        Direction::Compress => piece.first_place * PAGE_SIZE,
        Direction::Decompress => piece.number * PIECE_PAGES * PAGE_SIZE,
    }
}

fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).expect("the packed pages lie in memory")
}
