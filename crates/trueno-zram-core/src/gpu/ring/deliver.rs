//! Delivery: takes the results of a call's slots to their destination.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::arenas::Arenas;
use super::compressed_pages::{CompressedPages, UnrestoredPage, UnrestoredReason};
use super::device::{PinnedMemory, RingDevice};
use super::piece::PIECE_PAGES;
use super::slot::RingSlot;
use super::slot_index::{build_index, indexed_pages, next_place};
use crate::arena::{CompressedBatch, IndexEntry, held_bytes};
use crate::fill_page;
use crate::gpu::codec::{PageFormat, STATUS_BYTES};
use crate::gpu::error::GpuResult;
use crate::page::{CompressedPage, Page, PageData, PageKind};

/// Takes the results of complete slots.
pub(crate) trait Deliver<D: RingDevice> {
    /// Data of one delivery, such as a part of the destination.
    type Share: Send;

    /// Returns the share for a slot, in page order; `None` while an earlier delivery has what is needed.
    fn share(&mut self, slot: &RingSlot<D>) -> Option<Self::Share>;
    /// Takes a slot's result. Runs on the pool, in parallel with other deliveries.
    fn deliver(share: &mut Self::Share, slot: &mut RingSlot<D>) -> GpuResult<()>;
    /// Takes a share back, in any order.
    fn give_back(&mut self, share: Self::Share);
}

/// Delivers one slot at a time, in page order.
pub(crate) struct OneAtATime<F>(Option<F>);

impl<D: RingDevice, F: FnMut(&mut RingSlot<D>) -> GpuResult<()> + Send> Deliver<D> for OneAtATime<F> {
    type Share = F;

    fn share(&mut self, _slot: &RingSlot<D>) -> Option<F> {
        self.0.take()
    }

    fn deliver(share: &mut F, slot: &mut RingSlot<D>) -> GpuResult<()> {
        share(slot)
    }

    fn give_back(&mut self, share: F) {
        self.0 = Some(share);
    }
}

/// Delivers several slots at a time, each to its own part of the destination.
pub(crate) struct ToParts<'a, T, F> {
    /// Places not yet given to a slot.
    places: &'a mut [T],
    deliver: F,
}

impl<'a, D, T, F> Deliver<D> for ToParts<'a, T, F>
where
    D: RingDevice,
    T: Send,
    F: Fn(&mut RingSlot<D>, &mut [T]) -> GpuResult<()> + Copy + Send,
{
    type Share = (&'a mut [T], F);

    fn share(&mut self, slot: &RingSlot<D>) -> Option<Self::Share> {
        self.places.split_off_mut(..slot.range.len()).map(|places| (places, self.deliver))
    }

    fn deliver((places, deliver): &mut Self::Share, slot: &mut RingSlot<D>) -> GpuResult<()> {
        deliver(slot, places)
    }

    fn give_back(&mut self, _share: Self::Share) {}
}

/// Appends packed pages to a batch, whose arena may have to grow. It will have `pages` pages.
pub(crate) fn into_batch<D: RingDevice>(batch: &mut CompressedBatch, pages: usize) -> impl Deliver<D> {
    OneAtATime(Some(move |slot: &mut RingSlot<D>| {
        let (bytes, entries) = indexed_pages(slot)?;
        batch.append_piece(bytes, entries, pages);
        Ok(())
    }))
}

/// Lists packed pages that the device has put into the caller's page-locked memory.
pub(super) fn into_index<D: RingDevice>(index: &mut Vec<IndexEntry>) -> impl Deliver<D> {
    OneAtATime(Some(move |slot: &mut RingSlot<D>| {
        build_index(slot)?;
        let base = index.last().map_or(0, |last| next_place(*last));
        index.extend(slot.entries.iter().map(|entry| IndexEntry { offset: base + entry.offset, ..*entry }));
        Ok(())
    }))
}

/// Makes values of packed pages, which share the arena of their slot. Adds their bytes to `held`.
pub(crate) fn into_pages<D: RingDevice>(
    places: &mut [CompressedPage],
    arenas: &Arenas,
    held: &AtomicU64,
) -> impl Deliver<D> {
    let deliver = move |slot: &mut RingSlot<D>, places: &mut [CompressedPage]| {
        let packed_bytes = slot.packed_bytes;
        let (bytes, entries) = indexed_pages(slot)?;
        // Fill words, which lie behind the packed pages, need no arena.
        let arena = arenas.hold(&bytes[..packed_bytes]);
        for (place, entry) in places.iter_mut().zip(entries) {
            let start = usize::try_from(entry.offset).expect("checked against the slot's length");
            let data = PageData::trusted(entry.kind, &bytes[start..start + usize::from(entry.len_bytes)]);
            *place = match entry.kind {
                PageKind::SameFilled => data.into(),
                _ => CompressedPage::in_arena(&arena, start, data),
            };
        }
        held.fetch_add(held_bytes(entries), Ordering::Relaxed);
        Ok(())
    };
    ToParts { places, deliver }
}

/// Notes the pages that the device did not restore, by their kinds. The others are in their places.
pub(super) struct InPlace<F>(pub(super) F);

impl<D: RingDevice, F: Fn(usize) -> PageKind + Copy + Send> Deliver<D> for InPlace<F> {
    type Share = F;

    fn share(&mut self, _slot: &RingSlot<D>) -> Option<F> {
        Some(self.0)
    }

    fn deliver(share: &mut F, slot: &mut RingSlot<D>) -> GpuResult<()> {
        slot.list_unrestored(*share)
    }

    fn give_back(&mut self, _share: F) {}
}

/// Copies restored pages out of page-locked memory, and makes those that did not cross the bus.
pub(super) fn to_pages<'a, D: RingDevice>(from: CompressedPages<'a>, places: &'a mut [Page]) -> impl Deliver<D> {
    let deliver = move |slot: &mut RingSlot<D>, places: &mut [Page]| {
        let RingSlot { format, status, output, pieces, pieces_used, unrestored, .. } = slot;
        let status = status.bytes()?.as_chunks::<STATUS_BYTES>().0;
        let restored = output.as_ref().expect("a call ensures what it uses").bytes()?.as_chunks().0;
        let pieces = pieces[..*pieces_used].par_iter_mut().zip(places.par_chunks_mut(PIECE_PAGES));
        let unrestored_by_piece: Vec<_> = pieces
            .map(|(piece, places)| {
                let mut crossed = status[piece.first_place..].iter().zip(&restored[piece.first_place..]);
                let restore = |(page, place)| {
                    let reason = restore_page(from.get(page), *format, &mut crossed, place)?;
                    Some(UnrestoredPage { page, reason })
                };
                piece.range.clone().zip(places).filter_map(restore).collect::<Vec<_>>()
            })
            .collect();
        unrestored.extend(unrestored_by_piece.into_iter().flatten());
        Ok(())
    };
    ToParts { places, deliver }
}

/// Fills a page. Those in the kernel's format come from the device, with their status, in order. Returns why one is left.
fn restore_page<'a>(
    data: PageData<'_>,
    format: PageFormat,
    crossed: &mut impl Iterator<Item = (&'a [u8; STATUS_BYTES], &'a Page)>,
    place: &mut Page,
) -> Option<UnrestoredReason> {
    match data.kind() {
        kind if kind == format.kind() => {
            let (status, page) = crossed.next().expect("a page in the kernel's format crosses the bus");
            let reason = UnrestoredReason::of_status(*status);
            if reason.is_none() {
                *place = *page;
            }
            reason
        }
        PageKind::SameFilled => {
            fill_page(place, data.bytes().try_into().expect("a same-filled page is held as a word"));
            None
        }
        PageKind::Raw => {
            place.copy_from_slice(data.bytes());
            None
        }
        PageKind::Lz4 | PageKind::Zstd => Some(UnrestoredReason::Unsupported),
    }
}
