//! Pages that follow each other: one read for the blocks of many.

use std::ops::{ControlFlow, Range};

use trueno_zram_core::Page;

use super::{Archive, group_of};
use crate::archive::group::{CheckDepth, GroupBuffer, StreamReach};
use crate::block::Block;
use crate::error::Result;
use crate::index::blocks::BlockPlace;
use crate::index::layout::GROUP_PAGES;
use crate::index::resident::ResidentGroup;
use crate::pages::{Pages, Visit, visit_portions};
use crate::read_at::read_part;

/// Pages that are decoded at a time: their blocks stay in the core's cache between checksum and decoder.
const DECODE_PAGES: usize = 16;

impl Archive {
    /// Reads consecutive pages, from `first` on. A shorter last page is filled up with zeros.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, PAGE_SIZE, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut pages = [[0; PAGE_SIZE]; 10];
    /// archive.read_pages(20, &mut pages)?;
    /// assert_eq!(pages, [[7; PAGE_SIZE]; 10]);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`read_page`](Self::read_page), for the first page that cannot be read.
    pub fn read_pages(&self, first: u64, out: &mut [Page]) -> Result<()> {
        let mut failed = Ok(());
        let end = first.saturating_add(out.len() as u64);
        self.visit_groups(first..end, out, &mut |_, result| match result {
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        });
        failed
    }

    /// Reads pages that follow each other into `buffer`, group by group, as [`Pages::visit`] says.
    pub(super) fn visit_groups(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) {
        let Range { start, end } = pages;
        if let Err(error) = self.check_range(&pages) {
            let _ = visit(start, Err(error));
            return;
        }
        // A buffer for all pages is filled from front to back; in a smaller one, every portion starts at the front.
        let fits_all = buffer.len() as u64 >= end - start;
        let mut next = start;
        while next < end && !buffer.is_empty() {
            let part = next..end.min((group_of(next) + 1) * GROUP_PAGES as u64);
            let start_at = if fits_all { page_index(next - start) } else { 0 };
            next = part.end;
            if self.visit_group(part, &mut buffer[start_at..], visit).is_break() {
                break;
            }
        }
    }

    fn visit_group(&self, pages: Range<u64>, buffer: &mut [Page], visit: &mut Visit<'_>) -> ControlFlow<()> {
        let (number, start) = (group_of(pages.start), pages.start);
        let known = self.known(number).filter(|_| self.proofs.is_proven(number));
        if known.is_none()
            && let Some(out) = self.room_for_group(&pages, buffer)
        {
            match self.restore_group(number, out) {
                Ok(true) => return visit(start, Ok(out)),
                Ok(false) => {}
                Err(error) => return visit(start, Err(error)),
            }
        }
        let known = if self.trusts_index(number) { self.locate(number) } else { Ok(known) };
        match known {
            Ok(Some(group)) => {
                return visit_portions(pages, buffer, visit, |first, out| self.read_run(group, first, out));
            }
            Ok(None) => {}
            Err(error) => return visit(start, Err(error)),
        }
        let visited = self.with_group(number, |group| {
            self.keep_places(number, group);
            let decode = |first, out: &mut [Page]| self.decode_run(group, first, out);
            Ok(visit_portions(pages, buffer, visit, decode))
        });
        match visited {
            Ok(flow) => flow,
            Err(error) => visit(start, Err(error)),
        }
    }

    /// Returns the part of a buffer for a whole group, if all its pages are wanted and fit.
    fn room_for_group<'b>(&self, pages: &Range<u64>, buffer: &'b mut [Page]) -> Option<&'b mut [Page]> {
        let first = group_of(pages.start) * GROUP_PAGES as u64;
        let is_whole = pages.start == first && pages.end == self.page_count().min(first + GROUP_PAGES as u64);
        let count = usize::try_from(pages.end - pages.start).ok().filter(|_| is_whole)?;
        buffer.get_mut(..count)
    }

    /// Restores a whole group whose blocks were not compared with the index before. That all blocks decode to pages proves
    /// their positions, so nothing is decoded twice. Returns `false` if the group has to be read with all checks.
    ///
    /// # Errors
    /// [`Error::Disproven`](crate::Error::Disproven) if that is found here, or was before.
    fn restore_group(&self, number: u64, out: &mut [Page]) -> Result<bool> {
        self.proofs.check(number)?;
        // Groups before this one are proven before its pages are returned, or later.
        let trusts_index = self.trusts_index(number);
        let stream = if trusts_index { self.reach() } else { StreamReach::Reaches };
        let _guard = self.in_flight.begin(number);
        let mut group = self.take_buffer();
        let read = group.read_to(CheckDepth::Headers, number, self.index(), stream);
        let is_decoded = read.is_ok() && self.decode_run(&group, number * GROUP_PAGES as u64, out).is_ok();
        let is_restored = is_decoded && (trusts_index || self.prove_before(number).is_ok());
        if is_restored {
            self.note_compared(number, &group);
            if trusts_index {
                self.proofs.touch(number);
            } else {
                self.keep_places(number, &group);
            }
        }
        self.return_buffer(group);
        if trusts_index && let Err(error) = read {
            let _ = self.note_failure(number, error);
            self.proofs.check(number)?;
        }
        Ok(is_restored)
    }

    /// Reads pages by the entries alone, for a caller that compares them with their hashes.
    pub(crate) fn read_by_entries(&self, first: u64, out: &mut [Page]) -> Result<()> {
        let end = first.saturating_add(out.len() as u64);
        self.check_range(&(first..end))?;
        let (mut next, mut rest) = (first, out);
        while next < end {
            let part_end = end.min((group_of(next) + 1) * GROUP_PAGES as u64);
            let (now, after) = rest.split_at_mut(page_index(part_end - next));
            let group = self.locate_by_entries(group_of(next))?;
            match now {
                [page] => self.read_located(group.locate(next, &self.layout), page)?,
                pages => self.read_run(group, next, pages)?,
            }
            (next, rest) = (part_end, after);
        }
        Ok(())
    }

    /// Reads the blocks of pages by one read, and restores them.
    fn read_run(&self, group: &ResidentGroup, first: u64, out: &mut [Page]) -> Result<()> {
        let places: Vec<_> = group.locate_run(first, &self.layout).take(out.len()).collect();
        let mut blocks = places.iter().flatten();
        let Some((start, last)) = blocks.next().map(|block| (block.offset, blocks.last().unwrap_or(block))) else {
            out.as_flattened_mut().fill(0);
            return Ok(());
        };
        let stored_len = |block: &BlockPlace| self.layout.overhead() + block.len_bytes as usize;
        let index = |at: u64| usize::try_from(at - start).expect("a group is small");
        let mut buffer = self.take_buffer();
        let window = buffer.window_mut(index(last.offset) + stored_len(last));
        let read = read_part(&*self.file, start, window, Some(first), "a block");
        let restored = read.and_then(|()| {
            for (place, out) in places.iter().zip(&mut *out) {
                match place {
                    Some(place) => {
                        let bytes = &window[index(place.offset)..][..stored_len(place)];
                        self.restore_block(place, bytes, out)?;
                    }
                    None => out.fill(0),
                }
            }
            Ok(())
        });
        self.return_buffer(buffer);
        restored
    }

    /// Restores pages of a group that is in memory. A few at a time are compared with their checksums and decoded, so that
    /// their blocks stay in the core's cache, and no other thread is woken.
    pub(super) fn decode_run(&self, group: &GroupBuffer, first: u64, out: &mut [Page]) -> Result<()> {
        let starts = (first..).step_by(DECODE_PAGES);
        let parts = starts.zip(out.chunks_mut(DECODE_PAGES));
        parts.into_iter().try_for_each(|(start, out)| self.decode_part(group, start..start + out.len() as u64, out))
    }

    pub(super) fn decode_part(&self, group: &GroupBuffer, pages: Range<u64>, out: &mut [Page]) -> Result<()> {
        let mut blocks = group.blocks_of(&pages)?;
        blocks.try_for_each(|(place, block)| self.restore_block_of(group, place, block, &pages, out))
    }

    /// Restores the pages of a block that are in the range `pages`, which `out` holds.
    pub(super) fn restore_block_of(
        &self,
        group: &GroupBuffer,
        place: &BlockPlace,
        block: &Block,
        pages: &Range<u64>,
        out: &mut [Page],
    ) -> Result<()> {
        let [start, end] = [place.first_page, place.first_page + place.pages]
            .map(|page| page_index(page.clamp(pages.start, pages.end) - pages.start));
        if place.zero {
            out[start..end].as_flattened_mut().fill(0);
            return Ok(());
        }
        self.decode(block, group.window(), &mut out[start])
    }
}

/// Returns a number of pages as an index into a slice that holds them.
pub(super) fn page_index(pages: u64) -> usize {
    usize::try_from(pages).expect("in a slice")
}
