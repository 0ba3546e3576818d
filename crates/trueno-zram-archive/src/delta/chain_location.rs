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

/// A page of a delta that was looked up in all files of the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPage {
    /// Its origin in the delta itself.
    pub(super) origin: PageOrigin,
    pub(super) location: ChainLocation,
    /// Its hash, unless it is zero.
    pub(super) hash: Option<PageHash>,
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
    fn stored_at(&self, level: usize) -> Result<&Archive> {
        let lowest = || self.lowest.as_ref().map(|lowest| &lowest.archive);
        let archive = self.layers.get(level).map(|layer| &layer.stored).or_else(lowest);
        archive.ok_or_else(|| Error::delta("it has no base"))
    }

    /// Finds a page in the files of the chain.
    pub(super) fn find(&self, page: u64) -> Result<FoundPage> {
        let (origin, hash) = self.own().origin(page)?;
        self.follow(page, origin, hash)
    }

    /// Finds the location of a page by the maps of the deltas beneath, one after the other, and its hash by the first file that
    /// has it.
    pub(super) fn follow(&self, page: u64, first: PageOrigin, own_hash: Option<PageHash>) -> Result<FoundPage> {
        let (mut level, mut number, mut len_bytes) = (0, page, PAGE_SIZE);
        let (mut origin, mut hash) = (first, own_hash);
        let stored = loop {
            match origin {
                PageOrigin::Zero => break None,
                PageOrigin::Stored(stored) => break Some(stored),
                PageOrigin::Base(next) => (level, number) = (level + 1, next),
            }
            let Some(layer) = self.layers.get(level) else {
                hash = hash.or_else(|| self.lowest.as_ref()?.hashes.as_ref()?.get(number, &mut 0));
                break Some(number);
            };
            let found = layer.origin(number).map_err(|error| self.at_level(level, error, Some(page)))?;
            (origin, hash) = (found.0, hash.or(found.1));
            len_bytes = len_bytes.min(page_len(layer.footer.content_len, number));
        };
        if hash.is_none() && first != PageOrigin::Zero {
            return Err(Error::delta(format!("page {page} has no hash: the base states none for its page")));
        }
        let location = ChainLocation { level, page: number, stored, len_bytes };
        Ok(FoundPage { origin: first, location, hash })
    }

    /// Reads the pages from `first` on. Those that follow each other in their file are read together.
    pub(super) fn read_runs(&self, first: u64, found: &[FoundPage], out: &mut [Page]) -> Result<()> {
        let (mut rest, mut page) = (out, first);
        for run in found.chunk_by(|before, next| next.location.follows(before.location)) {
            let (start, last) = (run[0].location, run[run.len() - 1].location);
            let (pages, after) = rest.split_at_mut(run.len());
            self.read_run(page, start, last, pages)?;
            (rest, page) = (after, page + run.len() as u64);
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
        let archive = self.stored_at(start.level)?;
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
        let location = self.find(page)?.location;
        let Some(stored) = location.stored else {
            out.fill(0);
            return Ok(());
        };
        let read = self.stored_at(location.level)?.read_unproven(stored, out);
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
            Some(above) => Error::Base { base: above.base_name(), reason: error.to_string(), page },
        }
    }

    /// Returns `true` if reading the page at this location takes no other pages.
    pub(super) fn is_located_at(&self, location: ChainLocation) -> bool {
        let archive = |level| self.stored_at(level).ok();
        let is_located = |stored| {
            self.verify == Verify::Touched || archive(location.level).is_some_and(|archive| archive.is_located(stored))
        };
        location.stored.is_none_or(is_located)
    }
}
