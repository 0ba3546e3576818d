//! A source whose pages are numbered as they are claimed.

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::Error;
use crate::input::page_source::{Claim, ClaimedRange, PageSource};
use crate::pipeline::timeline::{Stage, timed};
use crate::workers::Observer;

/// Pages of a hole in one unit: 64 MiB of content, and 300 KB of blocks.
const ZERO_PAGES: u64 = 16 << 10;

/// The content of a unit.
pub(super) enum UnitContent {
    /// A range that is read outside the pipeline's lock.
    Range(ClaimedRange),
    /// This many bytes, which are in the buffer.
    Bytes(usize),
    /// This many zero pages.
    Zeros(u64),
}

impl UnitContent {
    /// Reads a range into the buffer. Other lanes read at the same time.
    pub(super) fn read(&mut self, buffer: &mut [Page], observer: &dyn Observer) -> Result<(), Error> {
        if let Self::Range(range) = self {
            *self = Self::Bytes(timed(observer, Stage::Read, || range.read(buffer))?);
        }
        Ok(())
    }
}

/// A source whose pages are numbered as they are claimed.
pub(super) struct NumberedSource<S> {
    source: S,
    next_page: u64,
    /// Pages of a hole that were claimed and not handed out.
    zero_pages: u64,
}

impl<S: PageSource> NumberedSource<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, next_page: 0, zero_pages: 0 }
    }

    pub(super) fn into_source(self) -> S {
        self.source
    }

    /// Claims the next content, and returns it with the number of its first page; `None` at the end.
    pub(super) fn claim(&mut self, buffer: &mut [Page]) -> Result<Option<(u64, UnitContent)>, S::Error> {
        let claimed = match self.zero_pages {
            0 => match self.source.claim(buffer)? {
                Claim::Range(range) => UnitContent::Range(range),
                Claim::Filled(len_bytes) => UnitContent::Bytes(len_bytes),
                Claim::Zeros(len_bytes) => self.claim_zeros(len_bytes / PAGE_SIZE as u64),
                Claim::End => return Ok(None),
            },
            left => self.claim_zeros(left),
        };
        let pages = match &claimed {
            UnitContent::Range(range) => range.len_bytes().div_ceil(PAGE_SIZE) as u64,
            UnitContent::Bytes(len_bytes) => len_bytes.div_ceil(PAGE_SIZE) as u64,
            UnitContent::Zeros(pages) => *pages,
        };
        let first_page = self.next_page;
        self.next_page += pages;
        Ok(Some((first_page, claimed)))
    }

    /// Claims zeros of a hole that has this many left.
    fn claim_zeros(&mut self, left: u64) -> UnitContent {
        // Ends at a multiple of `ZERO_PAGES`, so that blocks of zeros are the same as for a hole in one piece.
        let pages = left.min(ZERO_PAGES - self.next_page % ZERO_PAGES);
        self.zero_pages = left - pages;
        UnitContent::Zeros(pages)
    }
}
