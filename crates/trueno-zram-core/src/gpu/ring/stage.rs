//! Staging: workers copy pages into the page-locked memory of pieces, in the form that the kernel reads.

use trueno_gpu::kernels::packed::{PACK_ALIGN_BYTES, PackedEntry};

use super::compressed_pages::CompressedPages;
use super::device::{PinnedMemory, RingDevice};
use super::piece::{PIECE_PAGES, SlotPiece};
use crate::gpu::codec::PageFormat;
use crate::gpu::error::GpuResult;
use crate::page::{PAGE_SIZE, Page, PageData, PageKind};
use crate::same_filled;

/// Fills a piece from the batch. Runs on the pool.
pub(super) type Stage<'a, D> = dyn Fn(&mut SlotPiece<D>) -> GpuResult<()> + Sync + 'a;

/// Copies pages, except same-filled ones.
pub(super) fn stage_pages<D: RingDevice>(pages: &[Page], piece: &mut SlotPiece<D>) -> GpuResult<()> {
    let pages = &pages[piece.range.clone()];
    // Most pages differ in their first words: this reads little, and what it reads is copied next.
    piece.fills.extend(pages.iter().map(same_filled));
    piece.device_pages = piece.fills.iter().filter(|fill| fill.is_none()).count();
    piece.bytes_in = piece.device_pages * PAGE_SIZE;
    if piece.device_pages == pages.len() {
        let bytes = pages.as_flattened();
        piece.memory().bytes_mut()?[..bytes.len()].copy_from_slice(bytes);
        return Ok(());
    }
    let fills = std::mem::take(&mut piece.fills);
    let places = piece.memory().bytes_mut()?.as_chunks_mut::<PAGE_SIZE>().0.iter_mut();
    let device_pages = pages.iter().zip(&fills).filter(|(_, fill)| fill.is_none());
    places.zip(device_pages).for_each(|(place, (page, _))| *place = *page);
    piece.fills = fills;
    Ok(())
}

/// The compressed pages that go over the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadFilter {
    /// Pages in the kernel's format only: for the CPU, copying or filling a page is less work than fetching it.
    Blocks,
    /// All pages, since the device puts them in their final places. Zeros are sent in place of a page of a kind that the kernel
    /// does not read.
    All,
}

/// Returns a page as the kernel reads it, if it goes to the device.
fn as_packed(data: PageData<'_>, format: PageFormat, which: UploadFilter) -> Option<(PageKind, &[u8])> {
    match which {
        UploadFilter::Blocks => (data.kind() == format.kind()).then_some((data.kind(), data.bytes())),
        UploadFilter::All if format.reads(data.kind()) => Some((data.kind(), data.bytes())),
        UploadFilter::All => Some((PageKind::SameFilled, &[0; 8])),
    }
}

/// Packs compressed pages for a kernel that reads `format`, and writes their index.
pub(super) fn pack<D: RingDevice>(
    from: CompressedPages<'_>,
    format: PageFormat,
    which: UploadFilter,
    piece: &mut SlotPiece<D>,
) -> GpuResult<()> {
    let SlotPiece { range, index, .. } = piece;
    // Each piece has a fixed place on the device, however little of it is used.
    let first_offset = (piece.number * PIECE_PAGES * PAGE_SIZE) as u64;
    let mut end = 0;
    for (kind, bytes) in range.clone().filter_map(|page| as_packed(from.get(page), format, which)) {
        let len_bytes = u16::try_from(bytes.len()).expect("PageData holds at most 4096 bytes");
        index.push(PackedEntry::new(first_offset + end as u64, len_bytes, kind).bits().to_le_bytes());
        end += bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize);
    }
    (piece.device_pages, piece.bytes_in) = (index.len(), end);
    let range = piece.range.clone();
    let mut rest = &mut piece.memory().bytes_mut()?[..end];
    for (_, bytes) in range.filter_map(|page| as_packed(from.get(page), format, which)) {
        let aligned = bytes.len().next_multiple_of(PACK_ALIGN_BYTES as usize);
        let (to, after) = std::mem::take(&mut rest).split_at_mut(aligned);
        to[..bytes.len()].copy_from_slice(bytes);
        rest = after;
    }
    Ok(())
}
