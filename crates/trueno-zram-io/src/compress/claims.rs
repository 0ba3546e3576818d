//! Claims pages of a source in order.

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::Error;
use crate::input::page_source::{Claim, ClaimedRange, PageSource};
use crate::pipeline::timeline::{Stage, timed};
use crate::workers::Observer;

/// Pages of a hole in one unit: 64 MiB of content, and 300 KB of blocks.
const ZERO_PAGES: u64 = 16 << 10;

/// The content of a unit.
pub(super) enum Claimed {
    /// To be read outside the lock.
    Range(ClaimedRange),
    /// This many bytes are in the room.
    Bytes(usize),
    /// This many zero pages.
    Zeros(u64),
}

impl Claimed {
    /// Reads a range into the room. Other lanes read at the same time.
    pub(super) fn read(&mut self, room: &mut [Page], observer: &dyn Observer) -> Result<(), Error> {
        if let Self::Range(range) = self {
            *self = Self::Bytes(timed(observer, Stage::Read, || range.read(room))?);
        }
        Ok(())
    }
}

/// A source whose pages are numbered as they are claimed.
pub(super) struct PageClaims<S> {
    source: S,
    next_page: u64,
    /// Pages of a hole that were claimed and not handed out.
    zero_pages: u64,
}

impl<S: PageSource> PageClaims<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, next_page: 0, zero_pages: 0 }
    }

    pub(super) fn into_source(self) -> S {
        self.source
    }

    /// Claims what comes next, with the number of its first page; none at the end.
    pub(super) fn claim(&mut self, room: &mut [Page]) -> Result<Option<(u64, Claimed)>, S::Error> {
        let claimed = match self.zero_pages {
            0 => match self.source.claim(room)? {
                Claim::Range(range) => Claimed::Range(range),
                Claim::Filled(len_bytes) => Claimed::Bytes(len_bytes),
                Claim::Zeros(len_bytes) => self.claim_zeros(len_bytes / PAGE_SIZE as u64),
                Claim::End => return Ok(None),
            },
            left => self.claim_zeros(left),
        };
        let pages = match &claimed {
            Claimed::Range(range) => range.len_bytes().div_ceil(PAGE_SIZE) as u64,
            Claimed::Bytes(len_bytes) => len_bytes.div_ceil(PAGE_SIZE) as u64,
            Claimed::Zeros(pages) => *pages,
        };
        let first_page = self.next_page;
        self.next_page += pages;
        Ok(Some((first_page, claimed)))
    }

    /// Claims zeros of a hole that has this many left.
    fn claim_zeros(&mut self, left: u64) -> Claimed {
        // Ends at a multiple, so that runs of zeros end where they would in one piece.
        let pages = left.min(ZERO_PAGES - self.next_page % ZERO_PAGES);
        self.zero_pages = left - pages;
        Claimed::Zeros(pages)
    }
}
