//! The state of a frame that is being read.

use trueno_zram_core::PAGE_SIZE;

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::hash::ContentHash;
use crate::header::Header;
use crate::index::IndexBuilder;
use crate::lots::Decoded;

/// Memory for a batch of large blocks, at most: each has a place of the size that its frame allows.
const SLOT_BYTES: usize = 64 << 20;

/// Blocks of zeros in a batch for each page that it has room for: they need none.
const ZERO_BLOCKS_PER_PAGE: usize = 4;

/// A frame that is being read.
pub(crate) struct Frame {
    /// Where it starts.
    pub(crate) at: u64,
    pub(crate) header: Header,
    pub(crate) shape: Shape,
    pub(crate) hash: ContentHash,
    pub(crate) content_len: u64,
    /// All its blocks are gathered.
    pub(crate) ended: bool,
    /// As long as all blocks are such as an archive has.
    pub(crate) index: Option<IndexBuilder>,
    /// A page that is cut short was seen: nothing may follow it in an archive.
    has_tail: bool,
    pub(crate) history: Vec<u8>,
}

/// What a frame's blocks are like, for all that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One page each, or a run of zero pages.
    Pages,
    /// Of any length, each for itself.
    Blocks,
    /// Each refers to those before.
    Linked,
    /// The old format: of 8 MiB, without an end mark.
    Legacy,
}

impl Frame {
    pub(crate) fn new(at: u64, header: Header, shape: Shape, index: Option<IndexBuilder>) -> Self {
        let (hash, history) = (ContentHash::new(), Vec::new());
        Self { at, header, shape, hash, content_len: 0, ended: false, index, has_tail: false, history }
    }

    /// Blocks in a batch: those that need room, and those of zeros, which need none.
    pub(crate) fn batch_blocks(&self, batch_bytes: usize) -> (usize, usize) {
        let max_block = self.header.max_block;
        if self.shape == Shape::Pages {
            let pages = (batch_bytes / PAGE_SIZE).max(1);
            return (pages, pages * ZERO_BLOCKS_PER_PAGE);
        }
        // Two lots, so that one can be hashed while the other is decoded.
        let lots = 2 * rayon::current_num_threads();
        let blocks = (batch_bytes / max_block).max(lots).min(SLOT_BYTES / max_block);
        (blocks, usize::MAX)
    }

    /// Bytes of input that are gathered before no more is.
    pub(crate) fn input_bound(&self, batch_bytes: usize) -> usize {
        if self.shape == Shape::Pages { batch_bytes } else { SLOT_BYTES }
    }

    /// Enters decoded blocks into the index that the frame should have.
    pub(crate) fn enter(&mut self, decoded: &Decoded) {
        for (entry, len_bytes) in &decoded.entries {
            let Some(index) = &mut self.index else { return };
            let whole = *len_bytes == entry.pages() * PAGE_SIZE as u64;
            let possible = !self.has_tail && (1..=entry.pages() * PAGE_SIZE as u64).contains(len_bytes);
            self.has_tail |= !whole;
            if !possible || Entry::decode(entry.encode()) != Some(*entry) || !index.push(*entry) {
                self.index = None;
            }
        }
    }

    /// Holds the content's length to the one announced.
    pub(crate) fn check_len(&self, fits: impl Fn(u64, u64) -> bool) -> Result<()> {
        match self.header.content_size {
            Some(announced) if !fits(announced, self.content_len) => {
                Err(Error::ContentSize { at: self.at, announced, actual: self.content_len })
            }
            _ => Ok(()),
        }
    }
}
