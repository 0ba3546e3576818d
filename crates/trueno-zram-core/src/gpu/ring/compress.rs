//! Compression through the ring: pages in, packed pages out.

use std::time::Duration;

use rayon::ThreadPool;

use super::device::{Buffer, Mark, PinnedMemory, Queue, RingDevice};
use super::into_pinned::IntoPinned;
use super::piece::{Piece, PieceMemory};
use super::slot::{HostMemory, IndexCopy, Slot};
use super::stages::{Deliver, NoStage, Stage, Submit};
use super::{Outcome, Ring};
use crate::arena::IndexEntry;
use crate::gpu::error::GpuResult;
use crate::page::{PAGE_SIZE, Page};
use crate::progress::Progress;
use crate::same_filled;

impl<D: RingDevice> Ring<D> {
    /// Compresses pages in any memory: workers copy them to page-locked memory first.
    pub(crate) fn compress(
        &mut self,
        pool: &ThreadPool,
        pages: &[Page],
        sink: &mut impl Deliver<D>,
        progress: &dyn Progress,
    ) -> Outcome {
        if let Err(error) = self.ensure(&[HostMemory::Pieces(PieceMemory::In), HostMemory::Output]) {
            return Outcome::failed(error);
        }
        self.drive(pool, pages.len(), Some(&StagePages(pages)), &mut Staged, sink, progress)
    }

    /// Compresses pages in page-locked memory.
    pub(crate) fn compress_pinned(
        &mut self,
        pool: &ThreadPool,
        pages: &mut D::Pinned,
        len: usize,
        sink: &mut impl Deliver<D>,
        progress: &dyn Progress,
    ) -> Outcome {
        if let Err(error) = self.ensure(&[HostMemory::Output]) {
            return Outcome::failed(error);
        }
        self.drive(pool, len, None::<&NoStage>, &mut FromPinned(pages), sink, progress)
    }

    /// Compresses pages in page-locked memory to page-locked memory with room for as many: the device reads and writes both
    /// by itself.
    pub(crate) fn compress_all_pinned(
        &mut self,
        pool: &ThreadPool,
        pages: &mut D::Pinned,
        len: usize,
        packed: PackedTo<'_, D>,
        progress: &dyn Progress,
    ) -> Outcome {
        let PackedTo { memory, index } = packed;
        let mut submit = AllPinned { from: pages, to: memory, end: 0 };
        self.drive(pool, len, None::<&NoStage>, &mut submit, &mut IntoPinned::new(index), progress)
    }
}

/// Where packed pages go.
pub(crate) struct PackedTo<'a, D: RingDevice> {
    pub(crate) memory: &'a mut D::Pinned,
    pub(crate) index: &'a mut Vec<IndexEntry>,
}

/// Copies pages into page-locked memory, except same-filled ones.
struct StagePages<'a>(&'a [Page]);

impl<D: RingDevice> Stage<D> for StagePages<'_> {
    fn stage(&self, piece: &mut Piece<D>) -> GpuResult<()> {
        let pages = &self.0[piece.range.clone()];
        // Most pages differ in their first words: this reads little, and what it reads is copied next.
        piece.fills.extend(pages.iter().map(same_filled));
        piece.crossing = piece.fills.iter().filter(|fill| fill.is_none()).count();
        piece.bytes_in = piece.crossing * PAGE_SIZE;
        if piece.crossing == pages.len() {
            let bytes = pages.as_flattened();
            piece.memory_in().bytes_mut()?[..bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let fills = std::mem::take(&mut piece.fills);
        let places = piece.memory_in().bytes_mut()?.as_chunks_mut::<PAGE_SIZE>().0.iter_mut();
        let crossing = pages.iter().zip(&fills).filter(|(_, fill)| fill.is_none());
        places.zip(crossing).for_each(|(place, (page, _))| *place = *page);
        piece.fills = fills;
        Ok(())
    }
}

/// Queues a compression from a slot's own memory.
struct Staged;

/// Queues a compression from the caller's page-locked memory.
struct FromPinned<'a, P>(&'a mut P);

/// Queues a compression from the caller's page-locked memory to more of it.
struct AllPinned<'a, P> {
    from: &'a mut P,
    to: &'a mut P,
    /// Bytes of `to` that hold the slots before.
    end: usize,
}

impl<D: RingDevice> Submit<D> for Staged {
    fn index_copy(&self) -> IndexCopy {
        IndexCopy::First
    }

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        device.mark(&slot.device, Mark::H2dStart)?;
        let (pieces, on_device) = slot.pieces();
        for piece in pieces.iter_mut().filter(|piece| piece.crossing > 0) {
            let (at, part) = (piece.first_place * PAGE_SIZE, 0..piece.bytes_in);
            device.upload(on_device, Buffer::Pages, at, piece.memory_in(), part)?;
        }
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        download_packed(device, slot)
    }
}

impl<D: RingDevice> Submit<D> for FromPinned<'_, D::Pinned> {
    fn index_copy(&self) -> IndexCopy {
        IndexCopy::First
    }

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        upload_pinned(device, slot, self.0)?;
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        download_packed(device, slot)
    }

    fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        self.0.settle(time_limit)
    }
}

impl<D: RingDevice> Submit<D> for AllPinned<'_, D::Pinned> {
    fn index_copy(&self) -> IndexCopy {
        IndexCopy::First
    }

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        upload_pinned(device, slot, self.from)?;
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        slot.read_packed_bytes()?;
        // Slots finish in the order of their pages.
        slot.packed_at = self.end;
        self.end += slot.packed_bytes;
        device.mark(&slot.device, Mark::D2hStart)?;
        device.download(Queue::D2h, &slot.device, Buffer::Packed, 0, self.to, slot.packed_at..self.end)?;
        device.mark(&slot.device, Mark::D2hEnd)
    }

    fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        self.from.settle(time_limit).and(self.to.settle(time_limit))
    }
}

/// Queues the copy of the slot's pages from the caller's page-locked memory.
fn upload_pinned<D: RingDevice>(device: &mut D, slot: &mut Slot<D>, from: &mut D::Pinned) -> GpuResult<()> {
    let part = slot.range.start * PAGE_SIZE..slot.range.end * PAGE_SIZE;
    device.mark(&slot.device, Mark::H2dStart)?;
    device.upload(&slot.device, Buffer::Pages, 0, from, part)
}

pub(super) fn start_kernel<D: RingDevice>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    device.mark(&slot.device, Mark::H2dEnd)?;
    let pages = slot.crossing_u32();
    device.compress(&mut slot.device, pages)?;
    slot.download_index(device)
}

pub(super) fn download_packed<D: RingDevice>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    slot.read_packed_bytes()?;
    let part = 0..slot.packed_bytes;
    device.mark(&slot.device, Mark::D2hStart)?;
    let to = slot.output.as_mut().expect("a call ensures what it uses");
    device.download(Queue::D2h, &slot.device, Buffer::Packed, 0, to, part)?;
    device.mark(&slot.device, Mark::D2hEnd)
}
