//! Decompression through the ring: compressed pages in, pages out.

use std::time::Duration;

use rayon::ThreadPool;
use rayon::prelude::*;
use trueno_gpu::kernels::lz4::{PACK_ALIGN_BYTES, PackedEntry, PageKind as PackedKind, PageStatus};

use super::device::{Buffer, Device, Mark, PinnedMemory, Queue};
use super::piece::{PIECE_PAGES, Piece, PieceMemory};
use super::slot::{HostMemory, INDEX_ENTRY_BYTES, IndexCopy, STATUS_BYTES, Slot};
use super::{Deliver, Outcome, Ring, Stage, Submit};
use crate::arena::CompressedBatch;
use crate::gpu::error::GpuResult;
use crate::page::{CompressedPage, PAGE_SIZE, Page, PageData, PageKind};
use crate::progress::Progress;
use crate::samefill::fill_page;

/// Compressed pages, found by their number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CompressedPages<'a> {
    Pages(&'a [CompressedPage]),
    Batch(&'a CompressedBatch),
    /// The first so many pages of a batch.
    Head(&'a CompressedBatch, usize),
}

impl<'a> CompressedPages<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            Self::Batch(batch) => batch.len(),
            Self::Head(_, pages) => pages,
        }
    }

    pub(crate) fn get(self, page: usize) -> PageData<'a> {
        match self {
            Self::Pages(pages) => pages[page].data(),
            Self::Batch(batch) | Self::Head(batch, _) => batch.get(page).expect("pages are numbered below the length"),
        }
    }
}

/// How a run ended, and which pages it left to others: those that the device refused, and those it does not know.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) outcome: Outcome,
    /// In no order.
    pub(crate) left: Vec<usize>,
}

impl<D: Device> Ring<D> {
    /// Restores pages to anywhere: all cores take them out of page-locked memory.
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
        let stage = Pack { from, which: Crossing::Blocks };
        let mut sink = ToPages { from, to, left: Vec::new() };
        let outcome = self.drive(pool, from.len(), Some(&stage), &mut ToStaging, &mut sink, progress);
        Restored { outcome, left: sink.left }
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
        let stage = Pack { from, which: Crossing::All };
        let mut sink = InPlace { from, left: Vec::new() };
        let outcome = self.drive(pool, from.len(), Some(&stage), &mut ToPinned(to), &mut sink, progress);
        Restored { outcome, left: sink.left }
    }
}

/// Which pages go over the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crossing {
    /// LZ4 blocks alone: to copy or fill a page is less work for the CPU than to fetch it.
    Blocks,
    /// All, since the device puts them in their final places. A page that it does not know is sent as zeros in its stead.
    All,
}

/// A page as the kernel takes it, if it goes to the device.
fn as_packed(data: PageData<'_>, which: Crossing) -> Option<(PackedKind, &[u8])> {
    match (data.kind(), which) {
        (PageKind::Lz4, _) => Some((PackedKind::Lz4, data.bytes())),
        (PageKind::Raw, Crossing::All) => Some((PackedKind::Raw, data.bytes())),
        (PageKind::SameFilled, Crossing::All) => Some((PackedKind::SameFilled, data.bytes())),
        (PageKind::Zstd, Crossing::All) => Some((PackedKind::SameFilled, &[0; 8])),
        (_, Crossing::Blocks) => None,
    }
}

/// Packs compressed pages into page-locked memory as the kernel wants them, and writes their index.
struct Pack<'a> {
    from: CompressedPages<'a>,
    which: Crossing,
}

impl<D: Device> Stage<D> for Pack<'_> {
    fn stage(&self, piece: &mut Piece<D>) -> GpuResult<()> {
        let Piece { range, places, index, .. } = piece;
        // Each piece has its own room on the device, however little of it is used.
        let first_offset = (piece.number * PIECE_PAGES * PAGE_SIZE) as u64;
        let mut end = 0;
        for page in range.clone() {
            let place = as_packed(self.from.get(page), self.which).map(|(kind, bytes)| {
                let len_bytes = u16::try_from(bytes.len()).expect("PageData holds at most 4096 bytes");
                index.push(PackedEntry::new(first_offset + end as u64, len_bytes, kind).bits().to_le_bytes());
                end += bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize);
                u32::try_from(index.len() - 1).expect("a piece has few pages")
            });
            places.push(place);
        }
        (piece.crossing, piece.bytes_in) = (index.len(), end);
        let range = piece.range.clone();
        let mut rest = &mut piece.memory_in().bytes_mut()?[..end];
        for (_, bytes) in range.filter_map(|page| as_packed(self.from.get(page), self.which)) {
            let aligned = bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize);
            let (to, after) = std::mem::take(&mut rest).split_at_mut(aligned);
            to[..bytes.len()].copy_from_slice(bytes);
            rest = after;
        }
        Ok(())
    }
}

/// Queues a decompression to a slot's own memory.
struct ToStaging;

/// Queues a decompression to the caller's page-locked memory.
struct ToPinned<'a, P>(&'a mut P);

impl<D: Device> Submit<D> for ToStaging {
    const INDEX_COPY: IndexCopy = IndexCopy::None;

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

impl<D: Device> Submit<D> for ToPinned<'_, D::Pinned> {
    const INDEX_COPY: IndexCopy = IndexCopy::None;

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        let part = slot.range.start * PAGE_SIZE..slot.range.end * PAGE_SIZE;
        device.mark(&slot.device, Mark::D2hStart)?;
        device.download(Queue::D2h, &slot.device, Buffer::Pages, 0, self.0, part)?;
        download_status(device, slot)
    }

    fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        self.0.settle(time_limit)
    }
}

fn start_kernel<D: Device>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    let index = slot.index.bytes_mut()?.as_chunks_mut::<INDEX_ENTRY_BYTES>().0;
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
    device.upload(&slot.device, Buffer::Index, 0, &mut slot.index, 0..slot.crossing * INDEX_ENTRY_BYTES)?;
    device.mark(&slot.device, Mark::H2dEnd)?;
    slot.packed_bytes = packed_bytes;
    device.decompress(&slot.device, packed_bytes, slot.crossing_u32())
}

fn download_status<D: Device>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    let part = 0..slot.crossing * STATUS_BYTES;
    device.download(Queue::D2h, &slot.device, Buffer::Status, 0, &mut slot.status, part)?;
    device.mark(&slot.device, Mark::D2hEnd)
}

/// Whether the device restored the page at that place.
fn is_restored(status: &[[u8; STATUS_BYTES]], place: usize) -> bool {
    PageStatus::from_code(u32::from_le_bytes(status[place])) == Some(PageStatus::Restored)
}

/// Takes restored pages out of page-locked memory, and makes those that did not cross the bus.
struct ToPages<'a> {
    from: CompressedPages<'a>,
    to: &'a mut [Page],
    left: Vec<usize>,
}

impl<D: Device> Deliver<D> for ToPages<'_> {
    fn deliver(&mut self, slot: &mut Slot<D>) -> GpuResult<()> {
        let status = slot.status.bytes()?.as_chunks::<STATUS_BYTES>().0;
        let to = self.to[slot.range.clone()].par_chunks_mut(PIECE_PAGES);
        let pieces = slot.pieces[..slot.pieces_used].par_iter_mut().zip(to);
        let left: Vec<GpuResult<Vec<usize>>> =
            pieces.map(|(piece, to)| restore_piece(self.from, piece, status, to)).collect();
        for left in left {
            self.left.extend(left?);
        }
        Ok(())
    }
}

/// Fills the pages of a piece; the numbers of those left.
fn restore_piece<D: Device>(
    from: CompressedPages<'_>,
    piece: &mut Piece<D>,
    status: &[[u8; STATUS_BYTES]],
    to: &mut [Page],
) -> GpuResult<Vec<usize>> {
    let (range, places, first_place) = (piece.range.clone(), std::mem::take(&mut piece.places), piece.first_place);
    let restored = piece.memory_out().bytes()?.as_chunks::<PAGE_SIZE>().0;
    let mut left = Vec::new();
    for ((number, place), page) in range.zip(&places).zip(to) {
        let data = from.get(number);
        // Widening: places are below the piece's pages.
        match (place.map(|place| place as usize), data.kind()) {
            (Some(place), _) if is_restored(status, first_place + place) => *page = restored[place],
            (None, PageKind::SameFilled) => {
                fill_page(page, data.bytes().try_into().expect("a same-filled page is held as a word"));
            }
            (None, PageKind::Raw) => page.copy_from_slice(data.bytes()),
            _ => left.push(number),
        }
    }
    piece.places = places;
    Ok(left)
}

/// Notes which pages the device did not restore; the others are in their places.
struct InPlace<'a> {
    from: CompressedPages<'a>,
    left: Vec<usize>,
}

impl<D: Device> Deliver<D> for InPlace<'_> {
    fn deliver(&mut self, slot: &mut Slot<D>) -> GpuResult<()> {
        // All pages crossed: a page's place on the device is its place in the slot.
        let status = slot.status.bytes()?.as_chunks::<STATUS_BYTES>().0;
        let is_left = |(place, page): &(usize, usize)| {
            self.from.get(*page).kind() == PageKind::Zstd || !is_restored(status, *place)
        };
        self.left.extend(slot.range.clone().enumerate().filter(is_left).map(|(_, page)| page));
        Ok(())
    }
}
