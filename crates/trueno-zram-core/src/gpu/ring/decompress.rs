//! Decompression through the ring: compressed pages in, pages out.

use std::time::Duration;

use rayon::ThreadPool;
use rayon::prelude::*;
use trueno_gpu::kernels::packed::{PackedEntry, PageStatus};

use super::device::{Buffer, Mark, PinnedMemory, Queue, RingDevice};
use super::entries::{for_kernel, next_place};
use super::pack::{Crossing, Pack};
use super::piece::{PIECE_PAGES, Piece, PieceMemory};
use super::slot::{HostMemory, IndexCopy, STATUS_BYTES, Slot};
use super::stages::{Deliver, NoStage, Submit};
use super::{Outcome, Ring};
use crate::arena::{CompressedBatch, IndexEntry};
use crate::fill_page;
use crate::gpu::codec::PageFormat;
use crate::gpu::error::GpuResult;
use crate::page::{CompressedPage, PAGE_SIZE, Page, PageData, PageKind};
use crate::progress::Progress;

/// Compressed pages, found by their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CompressedPages<'a> {
    Values(&'a [CompressedPage]),
    /// Anywhere in memory.
    Borrowed(&'a [PageData<'a>]),
    /// Bytes with an index into them.
    Parts {
        arena: &'a [u8],
        index: &'a [IndexEntry],
    },
}

impl<'a> CompressedPages<'a> {
    /// The first pages of these.
    pub(crate) fn first(self, pages: usize) -> Self {
        match self {
            Self::Values(values) => Self::Values(&values[..pages]),
            Self::Borrowed(borrowed) => Self::Borrowed(&borrowed[..pages]),
            Self::Parts { arena, index } => Self::Parts { arena, index: &index[..pages] },
        }
    }

    pub(crate) fn len(self) -> usize {
        match self {
            Self::Values(pages) => pages.len(),
            Self::Borrowed(pages) => pages.len(),
            Self::Parts { index, .. } => index.len(),
        }
    }

    pub(crate) fn get(self, page: usize) -> PageData<'a> {
        match self {
            Self::Values(pages) => pages[page].data(),
            Self::Borrowed(pages) => pages[page],
            Self::Parts { arena, index } => index[page].find(arena).expect("the index fits the bytes"),
        }
    }
}

impl<'a> From<&'a CompressedBatch> for CompressedPages<'a> {
    fn from(batch: &'a CompressedBatch) -> Self {
        Self::Parts { arena: batch.arena(), index: batch.index() }
    }
}

/// A page that the device did not restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeftPage {
    pub(crate) page: usize,
    pub(crate) refusal: Refusal,
}

/// Why the device did not restore a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// The kernel does not decode its kind, or the form of its frame. The CPU may.
    Unsupported,
    /// The kernel says that it is corrupt, or nothing that makes sense.
    Corrupt,
}

impl Refusal {
    /// Returns the reason that a kernel's status stands for, or `None` if the page was restored.
    pub(crate) fn of_status(code: [u8; STATUS_BYTES]) -> Option<Self> {
        match PageStatus::from_code(u32::from_le_bytes(code)) {
            Some(PageStatus::Restored) => None,
            Some(PageStatus::Unsupported) => Some(Self::Unsupported),
            Some(PageStatus::BadEntry | PageStatus::BadBlock) | None => Some(Self::Corrupt),
        }
    }

    /// The same for a page of a known kind.
    pub(crate) fn of(kind: PageKind, format: PageFormat, code: [u8; STATUS_BYTES]) -> Option<Self> {
        if format.reads(kind) { Self::of_status(code) } else { Some(Self::Unsupported) }
    }
}

/// How a call ended, and which pages it left to the CPU.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) outcome: Outcome,
    /// In any order.
    pub(crate) left: Vec<LeftPage>,
}

impl Restored {
    fn new(outcome: Outcome, mut left: Vec<LeftPage>) -> Self {
        // All pages after `pages_done` are left anyway.
        left.retain(|left| left.page < outcome.pages_done);
        Self { outcome, left }
    }
}

/// Packed pages in page-locked memory, one after the other, each aligned as the kernel needs it.
pub(crate) struct PackedFrom<'a, D: RingDevice> {
    pub(crate) memory: &'a mut D::Pinned,
    pub(crate) index: &'a [IndexEntry],
}

impl<D: RingDevice> Ring<D> {
    /// Restores pages to any memory: workers copy them out of page-locked memory.
    pub(crate) fn decompress(
        &mut self,
        pool: &ThreadPool,
        from: CompressedPages<'_>,
        to: &mut [Page],
        progress: &dyn Progress,
    ) -> Restored {
        debug_assert_eq!(from.len(), to.len(), "checked by the callers");
        if let Err(error) = self.ensure(&[HostMemory::Pieces(PieceMemory::In), HostMemory::Pieces(PieceMemory::Out)]) {
            return Restored { outcome: Outcome::failed(error), left: Vec::new() };
        }
        let stage = Pack { from, format: self.device.format(), which: Crossing::Blocks };
        let mut sink = ToPages { from, to, left: Vec::new() };
        let outcome = self.drive(pool, from.len(), Some(&stage), &mut ToStaging, &mut sink, progress);
        Restored::new(outcome, sink.left)
    }

    /// Restores pages to page-locked memory, straight from the device.
    pub(crate) fn decompress_pinned(
        &mut self,
        pool: &ThreadPool,
        from: CompressedPages<'_>,
        to: &mut D::Pinned,
        progress: &dyn Progress,
    ) -> Restored {
        if let Err(error) = self.ensure(&[HostMemory::Pieces(PieceMemory::In)]) {
            return Restored { outcome: Outcome::failed(error), left: Vec::new() };
        }
        let stage = Pack { from, format: self.device.format(), which: Crossing::All };
        let kind_of = |page| from.get(page).kind();
        let mut sink = InPlace::new(&kind_of);
        let outcome = self.drive(pool, from.len(), Some(&stage), &mut ToPinned(to), &mut sink, progress);
        Restored::new(outcome, sink.left)
    }

    /// Restores packed pages in page-locked memory to page-locked memory: the device reads and writes both by itself.
    pub(crate) fn decompress_all_pinned(
        &mut self,
        pool: &ThreadPool,
        packed: PackedFrom<'_, D>,
        to: &mut D::Pinned,
        progress: &dyn Progress,
    ) -> Restored {
        let index = packed.index;
        let kind_of = |page: usize| index[page].kind;
        let mut sink = InPlace::new(&kind_of);
        let outcome =
            self.drive(pool, index.len(), None::<&NoStage>, &mut AllPinned { from: packed, to }, &mut sink, progress);
        Restored::new(outcome, sink.left)
    }
}

/// Queues a decompression to a slot's own memory.
struct ToStaging;

/// Queues a decompression to the caller's page-locked memory.
struct ToPinned<'a, P>(&'a mut P);

/// Queues a decompression from and to the caller's page-locked memory.
struct AllPinned<'a, D: RingDevice> {
    from: PackedFrom<'a, D>,
    to: &'a mut D::Pinned,
}

impl<D: RingDevice> Submit<D> for ToStaging {
    fn index_copy(&self) -> IndexCopy {
        IndexCopy::None
    }

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        device.mark(&slot.device, Mark::D2hStart)?;
        let (pieces, on_device) = slot.pieces();
        for piece in pieces.iter_mut().filter(|piece| piece.crossing > 0) {
            let (at, part) = (piece.first_place * PAGE_SIZE, 0..piece.crossing * PAGE_SIZE);
            device.download(Queue::D2h, on_device, Buffer::Pages, at, piece.memory_out(), part)?;
        }
        download_status(device, slot)
    }
}

impl<D: RingDevice> Submit<D> for ToPinned<'_, D::Pinned> {
    fn index_copy(&self) -> IndexCopy {
        IndexCopy::None
    }

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        download_pinned(device, slot, self.0)
    }

    fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        self.0.settle(time_limit)
    }
}

impl<D: RingDevice> Submit<D> for AllPinned<'_, D> {
    fn index_copy(&self) -> IndexCopy {
        IndexCopy::None
    }

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        let entries = &self.from.index[slot.range.clone()];
        let start = entries[0].offset;
        let mut end = start;
        let index = slot.index.bytes_mut()?.as_chunks_mut::<{ PackedEntry::BYTES }>().0;
        for (entry, packed) in entries.iter().zip(index) {
            *packed = for_kernel(*entry, start, slot.format);
            end = next_place(*entry);
        }
        let place = |offset| usize::try_from(offset).expect("the batch lies in memory");
        device.mark(&slot.device, Mark::H2dStart)?;
        device.upload(&slot.device, Buffer::Packed, 0, self.from.memory, place(start)..place(end))?;
        slot.packed_bytes = place(end - start);
        launch(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        download_pinned(device, slot, self.to)
    }

    fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        self.from.memory.settle(time_limit).and(self.to.settle(time_limit))
    }
}

/// Queues the copy of the slot's pages to the caller's page-locked memory.
fn download_pinned<D: RingDevice>(device: &mut D, slot: &mut Slot<D>, to: &mut D::Pinned) -> GpuResult<()> {
    let part = slot.range.start * PAGE_SIZE..slot.range.end * PAGE_SIZE;
    device.mark(&slot.device, Mark::D2hStart)?;
    device.download(Queue::D2h, &slot.device, Buffer::Pages, 0, to, part)?;
    download_status(device, slot)
}

pub(super) fn start_kernel<D: RingDevice>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    let index = slot.index.bytes_mut()?.as_chunks_mut::<{ PackedEntry::BYTES }>().0;
    for piece in &slot.pieces[..slot.pieces_used] {
        index[piece.first_place..][..piece.crossing].copy_from_slice(&piece.index);
    }
    device.mark(&slot.device, Mark::H2dStart)?;
    let (pieces, on_device) = slot.pieces();
    let mut packed_bytes = 0;
    for piece in pieces.iter_mut().filter(|piece| piece.crossing > 0) {
        let (at, part) = (piece.number * PIECE_PAGES * PAGE_SIZE, 0..piece.bytes_in);
        packed_bytes = at + part.end;
        device.upload(on_device, Buffer::Packed, at, piece.memory_in(), part)?;
    }
    slot.packed_bytes = packed_bytes;
    launch(device, slot)
}

/// Queues the copy of the index, and the kernel.
pub(super) fn launch<D: RingDevice>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    device.upload(&slot.device, Buffer::Index, 0, &mut slot.index, 0..slot.crossing * PackedEntry::BYTES)?;
    device.mark(&slot.device, Mark::H2dEnd)?;
    let pages = slot.crossing_u32();
    device.decompress(&mut slot.device, slot.packed_bytes, pages)
}

pub(super) fn download_status<D: RingDevice>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    let part = 0..slot.crossing * STATUS_BYTES;
    device.download(Queue::D2h, &slot.device, Buffer::Status, 0, &mut slot.status, part)?;
    device.mark(&slot.device, Mark::D2hEnd)
}

/// Copies restored pages out of page-locked memory, and makes those that did not cross the bus.
struct ToPages<'a> {
    from: CompressedPages<'a>,
    /// Places not yet given to a slot.
    to: &'a mut [Page],
    left: Vec<LeftPage>,
}

impl<D: RingDevice> Deliver<D> for ToPages<'_> {
    type Share = Self;

    fn share(&mut self, slot: &Slot<D>) -> Option<Self> {
        let to = self.to.split_off_mut(..slot.range.len())?;
        Some(Self { from: self.from, to, left: Vec::new() })
    }

    fn deliver(share: &mut Self, slot: &mut Slot<D>) -> GpuResult<()> {
        let status = slot.status.bytes()?.as_chunks::<STATUS_BYTES>().0;
        let pieces = slot.pieces[..slot.pieces_used].par_iter_mut().zip(share.to.par_chunks_mut(PIECE_PAGES));
        let left: Vec<GpuResult<Vec<LeftPage>>> =
            pieces.map(|(piece, to)| restore_piece(share.from, piece, status, to)).collect();
        for left in left {
            share.left.extend(left?);
        }
        Ok(())
    }

    fn give_back(&mut self, share: Self) {
        self.left.extend(share.left);
    }
}

/// Fills the pages of a piece. Returns those left.
fn restore_piece<D: RingDevice>(
    from: CompressedPages<'_>,
    piece: &mut Piece<D>,
    status: &[[u8; STATUS_BYTES]],
    to: &mut [Page],
) -> GpuResult<Vec<LeftPage>> {
    let (range, places, first_place) = (piece.range.clone(), std::mem::take(&mut piece.places), piece.first_place);
    let restored = piece.memory_out().bytes()?.as_chunks::<PAGE_SIZE>().0;
    let mut left = Vec::new();
    for ((number, place), page) in range.zip(&places).zip(to) {
        let data = from.get(number);
        let refusal = match (place, data.kind()) {
            (Some(place), _) => {
                // Widening: places are below the piece's pages.
                let place = *place as usize;
                let refusal = Refusal::of_status(status[first_place + place]);
                if refusal.is_none() {
                    *page = restored[place];
                }
                refusal
            }
            (None, PageKind::SameFilled) => {
                fill_page(page, data.bytes().try_into().expect("a same-filled page is held as a word"));
                None
            }
            (None, PageKind::Raw) => {
                page.copy_from_slice(data.bytes());
                None
            }
            (None, PageKind::Lz4 | PageKind::Zstd) => Some(Refusal::Unsupported),
        };
        left.extend(refusal.map(|refusal| LeftPage { page: number, refusal }));
    }
    piece.places = places;
    Ok(left)
}

/// Collects the pages that the device did not restore. The others are in their places.
struct InPlace<'a> {
    kind_of: &'a (dyn Fn(usize) -> PageKind + Sync),
    left: Vec<LeftPage>,
}

impl<'a> InPlace<'a> {
    fn new(kind_of: &'a (dyn Fn(usize) -> PageKind + Sync)) -> Self {
        Self { kind_of, left: Vec::new() }
    }
}

impl<D: RingDevice> Deliver<D> for InPlace<'_> {
    type Share = Self;

    fn share(&mut self, _slot: &Slot<D>) -> Option<Self> {
        Some(Self::new(self.kind_of))
    }

    fn deliver(share: &mut Self, slot: &mut Slot<D>) -> GpuResult<()> {
        // All pages crossed: a page's place on the device is its place in the slot.
        let status = slot.status.bytes()?.as_chunks::<STATUS_BYTES>().0;
        let (format, kind_of) = (slot.format, share.kind_of);
        let left = slot.range.clone().zip(status).filter_map(|(page, code)| {
            Refusal::of(kind_of(page), format, *code).map(|refusal| LeftPage { page, refusal })
        });
        share.left.extend(left);
        Ok(())
    }

    fn give_back(&mut self, share: Self) {
        self.left.extend(share.left);
    }
}
