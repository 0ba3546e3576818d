//! One group of a damaged archive: its blocks, found by the index or by their headers.

use std::io::Read;
use std::ops::Range;

use trueno_zram_core::PAGE_SIZE;

use super::readable;
use super::walk::walk;
use crate::archive::Archive;
use crate::block::{Block, Fit};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::index::blocks::BlockPlace;
use crate::index::entry::PageEntry;
use crate::index::layout::{GROUP_PAGES, pages_of};
use crate::lz4::header::ARCHIVE_MAX_BLOCK_LEN;
use crate::read_at::SequentialReader;
use crate::salvage::damage::DamageKind;
use crate::stream::content::SpanRef;
use crate::stream::parallel::decode_extra;

/// The longest group that is read: 1,024 raw pages with headers and checksums take less.
const MAX_GROUP_BYTES: u64 = 5 << 20;

/// The bytes of a group that the file still has, in memory.
pub(super) struct DamagedGroup<'a> {
    layout: &'a Layout,
    /// Length of the archive's content.
    content_len: u64,
    /// Position of the group in the file.
    pub(super) start: u64,
    pub(super) window: Vec<u8>,
    /// The blocks that were found, in order.
    pub(super) places: Vec<BlockPlace>,
    /// The group's pages.
    pages: Range<u64>,
    /// Position after the last block, if all pages were found; else what the index says.
    pub(super) blocks_end: u64,
}

impl<'a> DamagedGroup<'a> {
    /// Reads a group into the memory of `window`. Without usable entries, blocks are found by their headers.
    pub(super) fn read(archive: &'a Archive, number: u64, mut window: Vec<u8>) -> Result<Self> {
        let index = archive.index();
        let (start, end) = (archive.offset_of(number)?, index.end(number));
        let len = end.saturating_sub(start).min(MAX_GROUP_BYTES);
        window.clear();
        let mut blocks = SequentialReader::new(&archive.file, start..start + len)?;
        blocks.read_to_end(&mut window).map_err(|source| Error::Read { at: start, source })?;
        let (content_len, layout, first_page) = (index.footer.content_len, index.layout, number * GROUP_PAGES as u64);
        let pages = first_page..pages_of(content_len).min(first_page + GROUP_PAGES as u64);
        let (places, found_end) = match readable(index.places(number))? {
            Some(places) => (places, end),
            None => walk(&window, start, layout, first_page, pages.end - first_page),
        };
        let mut group = Self { layout, content_len, start, window, places, pages, blocks_end: end };
        if group.next_page() == group.pages.end {
            group.blocks_end = found_end;
        }
        Ok(group)
    }

    /// Returns the page after the last one that was found.
    fn next_page(&self) -> u64 {
        self.places.last().map_or(self.pages.start, |place| place.first_page + place.pages)
    }

    /// Returns the content of pages that were not found.
    pub(super) fn lost_content(&self) -> Range<u64> {
        self.content_from(self.next_page())..self.content_from(self.pages.end)
    }

    /// Returns the content that a block holds.
    pub(super) fn content_of(&self, place: &BlockPlace) -> Range<u64> {
        self.content_from(place.first_page)..self.content_from(place.first_page + place.pages)
    }

    fn content_from(&self, page: u64) -> u64 {
        (page * PAGE_SIZE as u64).min(self.content_len)
    }

    /// Restores a block, which must hold `len_bytes`. Returns its content and its index entry.
    pub(super) fn restore(
        &self,
        place: &BlockPlace,
        len_bytes: u64,
        extra: &mut Vec<u8>,
    ) -> std::result::Result<(SpanRef, PageEntry), DamageKind> {
        let (window, layout) = (&self.window[..], self.layout);
        let at = usize::try_from(place.offset - self.start).unwrap_or(usize::MAX);
        let end = at.saturating_add(layout.overhead() + place.len_bytes as usize);
        if end > window.len() {
            return Err(DamageKind::Truncated);
        }
        let (block, fit) = Block::described(place, layout, self.start, window, self.content_len);
        if fit == Fit::HeaderDiffers {
            return Err(DamageKind::Header);
        }
        if layout.block_checksums() {
            block.verify(window).map_err(|_| DamageKind::Checksum)?;
        }
        if place.zero {
            let whole = block.zero_pages as u64 == place.pages && len_bytes == place.pages * PAGE_SIZE as u64;
            return if whole { Ok((SpanRef::Zeros(len_bytes), block.entry(window))) } else { Err(DamageKind::Block) };
        }
        let before = extra.len();
        match decode_extra(&block, window, &[], ARCHIVE_MAX_BLOCK_LEN, extra) {
            Ok(span_ref) if span_ref.len_bytes() == len_bytes => Ok((span_ref, block.entry(window))),
            _ => {
                extra.truncate(before);
                Err(DamageKind::Block)
            }
        }
    }
}
