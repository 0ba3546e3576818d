//! Finds pages in the files of a chain by the maps of its deltas, and reads them.

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::archive::{Archive, Verify};
use crate::error::{Error, Result};
use crate::hashes::page_hash::PageHash;
use crate::index::layout::page_len;
use crate::pages::Pages;

use super::layout::HEAD_LEN;
use super::map::PageOrigin;
use super::reader::Delta;

/// The location of a page in the files of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainLocation {
    /// The file: 0 is the delta itself, 1 its base, and so on down to the standard archive.
    level: usize,
    /// The page's number in the content of that file.
    page: u64,
    /// Its number among the pages that the file stores; none if it is zero.
    stored: Option<u64>,
    /// Its bytes that lie within the content of every delta beneath the first. The rest is zero.
    len_bytes: usize,
}

impl ChainLocation {
    /// Returns `true` if the page can be read together with the one before it. Zero pages follow each other.
    fn follows(self, before: Self) -> bool {
        match (before.stored, self.stored) {
            (None, None) => true,
            (Some(stored), Some(next)) => {
                self.level == before.level
                    && stored.checked_add(1) == Some(next)
                    && before.page.checked_add(1) == Some(self.page)
                    && before.len_bytes == PAGE_SIZE
            }
            _ => false,
        }
    }
}

impl Delta {
    /// Returns the archive that has the stored pages of this level.
    fn stored_at(&self, level: usize) -> &Archive {
        self.layers.get(level).map_or(&self.lowest, |layer| &layer.stored)
    }

    /// Finds the location of a page by the maps of the deltas beneath, one after the other.
    pub(super) fn locate(&self, page: u64, origin: PageOrigin) -> Result<ChainLocation> {
        let (mut level, mut number, mut origin, mut len_bytes) = (0, page, origin, PAGE_SIZE);
        let stored = loop {
            match origin {
                PageOrigin::Zero => break None,
                PageOrigin::Stored(stored) => break Some(stored),
                PageOrigin::Base(next) => (level, number) = (level + 1, next),
            }
            let Some(layer) = self.layers.get(level) else { break Some(number) };
            let found = layer.origin(number).map_err(|error| self.at_level(level, error, Some(page)))?;
            origin = found.0;
            len_bytes = len_bytes.min(page_len(layer.footer.content_len, number));
        };
        Ok(ChainLocation { level, page: number, stored, len_bytes })
    }

    /// Reads the pages from `first` on. Those that follow each other in their file are read together.
    pub(super) fn read_runs(
        &self,
        first: u64,
        origins: &[(PageOrigin, Option<PageHash>)],
        out: &mut [Page],
    ) -> Result<()> {
        let (mut rest, mut page) = (out, first);
        let mut locations = (first..).zip(origins).map(|(page, (origin, _))| self.locate(page, *origin)).peekable();
        while let Some(start) = locations.next() {
            let start = start?;
            let (mut last, mut count) = (start, 1);
            while let Some(Ok(next)) = locations.next_if(|next| next.as_ref().is_ok_and(|next| next.follows(last))) {
                (last, count) = (next, count + 1);
            }
            let (pages, after) = rest.split_at_mut(count);
            self.read_run(page, start, last, pages)?;
            (rest, page) = (after, page + count as u64);
        }
        Ok(())
    }

    /// Reads the pages from `first` on, which follow each other in their file from `start` to `last`. The caller compares them with
    /// their hashes. Errors name the pages of the delta.
    pub(super) fn read_run(
        &self,
        first: u64,
        start: ChainLocation,
        last: ChainLocation,
        out: &mut [Page],
    ) -> Result<()> {
        let Some(stored) = start.stored else {
            out.as_flattened_mut().fill(0);
            return Ok(());
        };
        let count = out.len() as u64;
        // The distance of the faulty page from the first one.
        let within = |error: &Error| match error.page() {
            None => (count == 1).then_some(0),
            Some(found) => found.checked_sub(stored).filter(|within| *within < count),
        };
        let archive = self.stored_at(start.level);
        let read = match self.verify {
            Verify::Touched => archive.read_by_entries(stored, out),
            Verify::Group | Verify::All => archive.read(stored, out),
        };
        read.map_err(|error| {
            let within = within(&error);
            let error = self.in_file(start, error, within);
            self.at_level(start.level, error, within.map(|within| first + within))
        })?;
        if let Some(page) = out.last_mut() {
            page[last.len_bytes..].fill(0);
        }
        Ok(())
    }

    /// Reads a page where the indexes say it is, for a caller that compares it with its hash.
    pub(crate) fn read_unproven(&self, page: u64, out: &mut Page) -> Result<()> {
        let location = self.locate(page, self.origin(page)?.0)?;
        let Some(stored) = location.stored else {
            out.fill(0);
            return Ok(());
        };
        let read = self.stored_at(location.level).read_unproven(stored, out);
        read.map_err(|error| self.at_level(location.level, self.in_file(location, error, Some(0)), Some(page)))?;
        out[location.len_bytes..].fill(0);
        Ok(())
    }

    /// Turns an error of the stored pages into one of their file. The page lies `within` pages after the location.
    fn in_file(&self, location: ChainLocation, error: Error, within: Option<u64>) -> Error {
        match self.layers.get(location.level) {
            Some(_) => error.within(HEAD_LEN as u64, within.map(|within| location.page + within)),
            None => error,
        }
    }

    /// Turns an error of a file of the chain into one of the delta, whose `page` is read from there.
    fn at_level(&self, level: usize, error: Error, page: Option<u64>) -> Error {
        match level.checked_sub(1).and_then(|above| self.layers.get(above)) {
            None => error,
            Some(above) => Error::Base { base: above.base.to_string(), reason: error.to_string(), page },
        }
    }

    /// Returns `true` if reading the page at this location takes no other pages.
    pub(super) fn is_located_at(&self, location: ChainLocation) -> bool {
        let is_located = |stored| self.verify == Verify::Touched || self.stored_at(location.level).is_located(stored);
        location.stored.is_none_or(is_located)
    }
}
