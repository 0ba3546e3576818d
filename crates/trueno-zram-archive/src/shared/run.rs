//! Pages that follow each other: one read for the blocks of many.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;

use trueno_zram_core::{PAGE_SIZE, Page};

use super::{SharedReader, number_of};
use crate::blocks::BlockPlace;
use crate::error::{Error, Result};
use crate::group::{Depth, GroupBlocks, StreamReach};
use crate::index::{GROUP_PAGES, page_len};
use crate::read_at::{Positioned, ReadAt};
use crate::resident::{Located, ResidentGroup};

/// Pages of a group that are decoded at a time.
const DECODE_PAGES: usize = 16;

impl<F: ReadAt> SharedReader<F> {
    /// Reads pages that follow each other, with fewer reads of the file than page by page. If the last page of the content is
    /// shorter, the rest of it is zero.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_shared_archive(3 * 4096 + 5);
    /// let mut pages = [[0xff; 4096]; 3];
    /// archive.read_pages_at(1, &mut pages)?;
    /// assert_eq!(pages, [[0; 4096]; 3]);
    /// assert!(archive.read_pages_at(2, &mut pages).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`read_page_at`](Self::read_page_at), for the first page that cannot be read. The contents of `pages` are then
    /// unspecified.
    pub fn read_pages_at(&self, first: u64, pages: &mut [Page]) -> Result<()> {
        let mut failed = Ok(());
        let end = first.saturating_add(pages.len() as u64);
        self.visit_pages(first..end, pages, |_, result| match result {
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        })?;
        failed
    }

    /// Reads pages that follow each other into `buffer`, as many as it holds, and calls `visit` with the number of the first
    /// of them, again and again. If there is room for all of them, each has its own place.
    ///
    /// A portion that cannot be read is an error, and the next ones follow. Its pages can still be read one by one.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// # let archive = trueno_zram_archive::doc_shared_archive(3000 * 4096);
    /// let (mut buffer, mut count) = ([[0; 4096]; 16], 0);
    /// archive.visit_pages(100..3000, &mut buffer, |_, pages| {
    ///     count += pages.map_or(0, |pages| pages.len());
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(count, 2900);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`] if there are no such pages.
    pub fn visit_pages(
        &self,
        pages: Range<u64>,
        buffer: &mut [Page],
        mut visit: impl FnMut(u64, Result<&[Page]>) -> ControlFlow<()>,
    ) -> Result<()> {
        let Range { start, end } = pages;
        if start > end || end > self.page_count() {
            return Err(Error::PageRange { start, end, pages: self.page_count() });
        }
        if buffer.is_empty() {
            return Ok(());
        }
        // With room for all pages, each has its place; without, every portion starts at the front.
        let fits_all = buffer.len() as u64 >= end - start;
        let mut next = start;
        while next < end {
            let group_end = (number_of(next) + 1) * GROUP_PAGES as u64;
            let part = next..end.min(group_end);
            let place = if fits_all { usize::try_from(next - start).expect("in a slice") } else { 0 };
            if self.visit_group(part.clone(), &mut buffer[place..], &mut visit).is_break() {
                break;
            }
            next = part.end;
        }
        Ok(())
    }

    /// Visits pages of one group.
    fn visit_group(
        &self,
        pages: Range<u64>,
        buffer: &mut [Page],
        visit: &mut impl FnMut(u64, Result<&[Page]>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let number = number_of(pages.start);
        let slot = self.slot(number);
        if let Some(group) = slot.and_then(|slot| slot.get()) {
            return in_portions(pages, buffer, |part, out| self.read_run(group, part, out), visit);
        }
        if let Some(out) = self.room_for_group(&pages, buffer)
            && self.restore_group(number, out)
        {
            return visit(pages.start, Ok(out));
        }
        let visited = self.with_group(number, |blocks| {
            if let (Some(slot), Some(places)) = (slot, blocks.intact_places()) {
                slot.get_or_init(|| self.resident(places));
            }
            Ok(in_portions(pages.clone(), buffer, |part, out| self.decode_run(blocks, part, out), visit))
        });
        match visited {
            Ok(flow) => flow,
            Err(error) => visit(pages.start, Err(error)),
        }
    }

    /// Returns the part of a buffer for a whole group, if all its pages are wanted and fit.
    fn room_for_group<'b>(&self, pages: &Range<u64>, buffer: &'b mut [Page]) -> Option<&'b mut [Page]> {
        let first = number_of(pages.start) * GROUP_PAGES as u64;
        let is_whole = pages.start == first && pages.end == self.page_count().min(first + GROUP_PAGES as u64);
        let count = usize::try_from(pages.end - pages.start).ok().filter(|_| is_whole)?;
        buffer.get_mut(..count)
    }

    /// Restores a whole group whose blocks were not compared with the index before. That all of them become pages proves
    /// their places, so nothing is decoded twice. Returns `false` if the group needs a closer look.
    fn restore_group(&self, number: u64, out: &mut [Page]) -> bool {
        let _working = self.in_work.begin(number);
        self.with_headers(number, |blocks, places| {
            let first = number * GROUP_PAGES as u64;
            let pages = first..first + out.len() as u64;
            let is_restored = self.decode_run(blocks, pages, out).is_ok() && self.prove_groups_before(number);
            if let Some(slot) = self.slot(number).filter(|_| is_restored) {
                slot.get_or_init(|| self.resident(places));
            }
            is_restored
        })
    }

    /// Reads a group, and compares the headers of its blocks with the index. Returns `false` if they differ, else what `work`
    /// returns.
    fn with_headers(&self, number: u64, work: impl FnOnce(&GroupBlocks, &[BlockPlace]) -> bool) -> bool {
        let (mut blocks, mut file) = (self.take_idle(), Positioned::new(&self.file, self.file_len));
        let read = blocks.read_to(Depth::Headers, &mut file, number, self.index(), StreamReach::Reaches);
        let places = blocks.intact_places().filter(|_| read.is_ok());
        let done = places.is_some_and(|places| work(&blocks, places));
        self.give_idle(blocks);
        done
    }

    /// Sees to it that the groups before one that was restored are proven as well, as far as the walk limit reaches: waits
    /// for those that other threads work on, and compares the others with the index. Returns `false` if one is not what the
    /// index says.
    fn prove_groups_before(&self, number: u64) -> bool {
        let target = self.table.get(number).map_or(0, |group| group.offset);
        loop {
            let proven = self.proven_groups.load(Ordering::Acquire);
            if proven == number {
                self.advance_proven(number, number + 1);
                return true;
            }
            let next = self.table.get(proven).map_or(0, |group| group.offset);
            if proven > number || target.saturating_sub(next) > self.walk_limit {
                return true;
            }
            // A thread waits for groups before its own only, so the one with the first of them never waits.
            let Some(_working) = self.in_work.begin(proven) else {
                self.in_work.wait_for(proven);
                continue;
            };
            if !self.prove_group(proven) {
                return false;
            }
        }
    }

    /// Restores a group and drops its pages. Returns `false` if it needs a closer look.
    fn prove_group(&self, number: u64) -> bool {
        let first = number * GROUP_PAGES as u64;
        let end = self.page_count().min(first + GROUP_PAGES as u64);
        let mut room = [[0; PAGE_SIZE]; DECODE_PAGES];
        let is_proven = self.with_headers(number, |blocks, _| {
            (first..end).step_by(DECODE_PAGES).all(|start| {
                let part = start..end.min(start + DECODE_PAGES as u64);
                let count = usize::try_from(part.end - part.start).expect("a few");
                self.decode_part(blocks, &part, &mut room[..count]).is_ok()
            })
        });
        if is_proven {
            self.advance_proven(number, number + 1);
        }
        is_proven
    }

    /// Reads the blocks of pages by one read, and restores them.
    fn read_run(&self, group: &ResidentGroup, pages: Range<u64>, out: &mut [Page]) -> Result<()> {
        let (number, len) = (number_of(pages.start), out.len());
        let within = usize::try_from(pages.start % GROUP_PAGES as u64).expect("a group is small");
        let run = || group.locate_run(within..within + len, &self.layout);
        let block = |located: Located| match located {
            Located::Block { offset, entry } => Some((offset, entry)),
            Located::Zero => None,
        };
        let Some((start, _)) = run().find_map(block) else {
            out.as_flattened_mut().fill(0);
            return Ok(());
        };
        let end = run().filter_map(block).last().map_or(start, |(at, entry)| at + self.layout.stored_len(entry) as u64);
        let first = self.table.get(number).map_or(0, |group| group.offset);
        let mut window = self.windows.take();
        window.resize(usize::try_from(end - start).expect("a group is small"), 0);
        let read = self.read_bytes(pages.start, first + start, &mut window);
        let restored = read.and_then(|()| {
            for ((page, located), out) in pages.zip(run()).zip(&mut *out) {
                let Some((offset, entry)) = block(located) else {
                    out.fill(0);
                    continue;
                };
                let from = usize::try_from(offset - start).expect("within the window");
                let bytes = &window[from..from + self.layout.stored_len(entry)];
                self.restore_block(page, first + offset, entry, bytes, out)?;
            }
            Ok(())
        });
        self.windows.give_back(window);
        restored
    }

    /// Restores pages of a group that is in memory. A few at a time are compared with their checksums and decoded, so that
    /// their blocks stay in the core's cache, and no other thread is woken.
    fn decode_run(&self, group: &GroupBlocks, pages: Range<u64>, out: &mut [Page]) -> Result<()> {
        let mut next = pages.start;
        for out in out.chunks_mut(DECODE_PAGES) {
            let part = next..next + out.len() as u64;
            next = part.end;
            self.decode_part(group, &part, out)?;
        }
        Ok(())
    }

    fn decode_part(&self, group: &GroupBlocks, pages: &Range<u64>, out: &mut [Page]) -> Result<()> {
        let (places, blocks) = group.blocks_of(pages)?;
        for (place, block) in places.iter().zip(blocks) {
            let part = place.first_page.max(pages.start)..(place.first_page + place.pages).min(pages.end);
            let [from, to] =
                [part.start, part.end].map(|page| usize::try_from(page - pages.start).expect("in a slice"));
            if place.zero {
                out[from..to].as_flattened_mut().fill(0);
            } else {
                self.decode(block, group.window(), self.page_len(part.start), &mut out[from])?;
            }
        }
        Ok(())
    }

    /// Returns the length of a page's content: less than 4096 for the last one.
    pub(super) fn page_len(&self, page: u64) -> usize {
        page_len(self.content_len(), page)
    }
}

/// Reads pages portion by portion.
fn in_portions(
    pages: Range<u64>,
    buffer: &mut [Page],
    read: impl Fn(Range<u64>, &mut [Page]) -> Result<()>,
    visit: &mut impl FnMut(u64, Result<&[Page]>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut next = pages.start;
    while next < pages.end {
        let count = buffer.len().min(usize::try_from(pages.end - next).unwrap_or(usize::MAX));
        let (part, out) = (next..next + count as u64, &mut buffer[..count]);
        let result = read(part.clone(), out).map(|()| &*out);
        visit(next, result)?;
        next = part.end;
    }
    ControlFlow::Continue(())
}
