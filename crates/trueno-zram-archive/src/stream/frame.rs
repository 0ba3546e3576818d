//! The state of a frame that is being read.

use trueno_zram_core::PAGE_SIZE;

use crate::error::{Error, Result};
use crate::hashes::content_hash::ContentHash;
use crate::index::builder::IndexBuilder;
use crate::index::entry::PageEntry;
use crate::lz4::header::Lz4Header;
use crate::stream::history::History;

/// The most memory for a batch of large blocks: each has a slot of the size that its frame allows.
const SLOT_BYTES: usize = 64 << 20;

/// Memory for a batch at the start of the input. It grows with the bytes that were read, so that a small file cannot
/// claim much.
const FIRST_BATCH_BYTES: usize = 16 << 20;

/// Blocks of zeros in a batch for each page that it has room for: they need none.
const ZERO_BLOCKS_PER_PAGE: usize = 4;

/// The most blocks of a batch that is not made of pages.
pub(crate) const MAX_BATCH_BLOCKS: usize = 16 << 10;

/// A frame that is being read.
pub(crate) struct FrameState {
    /// Its position.
    pub(crate) at: u64,
    pub(crate) header: Lz4Header,
    pub(crate) shape: FrameShape,
    pub(crate) hash: ContentHash,
    /// Length of the content before the frame.
    pub(crate) content_start: u64,
    pub(crate) content_len: u64,
    /// All its blocks are gathered.
    pub(crate) ended: bool,
    /// Present as long as all blocks are such as an archive has.
    pub(crate) index: Option<IndexBuilder>,
    /// A page was shorter: nothing may follow it in an archive.
    has_tail: bool,
    pub(crate) history: History,
    /// Content was lost, so that the frame's checksums cannot hold.
    pub(crate) damaged: bool,
}

/// The shape of a frame's blocks, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameShape {
    /// One page each, or a run of zero pages.
    Pages,
    /// Of any length, independent.
    Blocks,
    /// Each refers to those before it.
    Linked,
    /// The legacy format: blocks of 8 MiB, without an end mark.
    Legacy,
    /// Zstandard frames of pages, one after the other, each of which counts as a block.
    PageFrames,
    /// One Zstandard frame of any other form.
    Foreign,
}

impl FrameShape {
    /// Returns `true` if blocks are pages or runs of zero pages.
    pub(crate) fn is_pages(self) -> bool {
        matches!(self, Self::Pages | Self::PageFrames)
    }
}

impl FrameState {
    pub(crate) fn new(
        at: u64,
        content_start: u64,
        header: Lz4Header,
        shape: FrameShape,
        index: Option<IndexBuilder>,
    ) -> Self {
        Self {
            at,
            header,
            shape,
            hash: ContentHash::new(),
            content_start,
            content_len: 0,
            ended: false,
            index,
            has_tail: false,
            history: History::default(),
            damaged: false,
        }
    }

    /// Returns the number of blocks in a batch: those that need memory, and those of zeros, which need none.
    /// `consumed` is the length of the input so far.
    pub(crate) fn batch_blocks(&self, batch_bytes: usize, consumed: u64) -> (usize, usize) {
        let allowed_bytes = FIRST_BATCH_BYTES.saturating_add(usize::try_from(consumed).unwrap_or(usize::MAX));
        if self.shape.is_pages() {
            let pages = (batch_bytes.min(allowed_bytes) / PAGE_SIZE).max(1);
            return (pages, pages * ZERO_BLOCKS_PER_PAGE);
        }
        let max_block_len = self.header.max_block_len;
        // Two steps, so that the content of one is hashed while the other is decoded.
        let least = 2 * rayon::current_num_threads();
        let blocks = (batch_bytes / max_block_len).max(least).min(SLOT_BYTES.min(allowed_bytes) / max_block_len).max(1);
        (blocks, usize::MAX)
    }

    /// Returns how many bytes of input a batch may have.
    pub(crate) fn input_bound(&self, batch_bytes: usize) -> usize {
        if self.shape.is_pages() { batch_bytes } else { SLOT_BYTES }
    }

    /// Returns the number of the next page to decode, if the frame is made of pages so far.
    pub(crate) fn next_page(&self) -> Option<u64> {
        let page = PAGE_SIZE as u64;
        let aligned = self.content_start.is_multiple_of(page) && self.content_len.is_multiple_of(page);
        (self.index.is_some() && aligned).then(|| (self.content_start + self.content_len) / page)
    }

    /// Adds a decoded block to the index that the frame should have.
    pub(crate) fn record_block(&mut self, entry: PageEntry, len_bytes: u64) {
        let Some(index) = &mut self.index else { return };
        let whole_bytes = entry.pages() * PAGE_SIZE as u64;
        let possible = !self.has_tail && (1..=whole_bytes).contains(&len_bytes);
        self.has_tail |= len_bytes != whole_bytes;
        if !possible || !index.push_read(entry, len_bytes) {
            self.index = None;
        }
    }

    /// Compares the length of the whole content with the one announced.
    pub(crate) fn check_len(&self) -> Result<()> {
        match self.header.content_size {
            Some(announced) if announced != self.content_len => {
                Err(Error::ContentSize { at: self.at, announced, actual: self.content_len })
            }
            _ => Ok(()),
        }
    }

    /// Refuses more content than the header announces.
    pub(crate) fn check_room(&self, more: u64) -> Result<()> {
        match self.header.content_size {
            Some(announced) if announced < self.content_len + more => {
                Err(Error::ContentSize { at: self.at, announced, actual: self.content_len + more })
            }
            _ => Ok(()),
        }
    }

    /// Returns how much of `len_bytes` the frame has room for by its announced length.
    pub(crate) fn clip(&self, len_bytes: u64) -> u64 {
        self.header.content_size.map_or(len_bytes, |size| len_bytes.min(size.saturating_sub(self.content_len)))
    }
}
