//! A block of a frame that was read: its checksum, what page it may be, and its decoding by the general decoder.

use trueno_zram_core::{PAGE_SIZE, PageData, PageKind};

use crate::constant::{WORD_BLOCK, word_of, zero_block};
use crate::error::{Error, Result};
use crate::hash::xxh32;

/// A block, by its place in the window on the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Where its size word stands in the stream.
    pub(crate) at: u64,
    /// Where its bytes start in the window.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) raw: bool,
    /// Pages of zeros, if it is one of our blocks of these; else 0.
    pub(crate) zero_pages: usize,
}

impl Block {
    pub(crate) fn bytes<'a>(&self, window: &'a [u8]) -> &'a [u8] {
        &window[self.start..self.start + self.len]
    }

    /// Compares the block with the checksum that follows it.
    pub(crate) fn verify(&self, window: &[u8]) -> Result<()> {
        let stored = &window[self.start + self.len..][..4];
        let expected = u32::from_le_bytes(stored.try_into().expect("four bytes"));
        let actual = match self.zero_pages {
            0 => xxh32(self.bytes(window)),
            pages => zero_block(pages).checksum,
        };
        if actual == expected { Ok(()) } else { Err(Error::BlockChecksum { at: self.at, expected, actual }) }
    }

    /// The block as a page, if it may be one.
    pub(crate) fn as_page<'a>(&self, window: &'a [u8]) -> Option<PageData<'a>> {
        let bytes = self.bytes(window);
        if self.raw {
            return PageData::new(PageKind::Raw, bytes).ok();
        }
        if self.len == WORD_BLOCK && word_of(bytes).is_some() {
            return PageData::new(PageKind::SameFilled, &bytes[1..9]).ok();
        }
        PageData::new(PageKind::Lz4, bytes).ok()
    }

    /// Decodes the block, whatever its length, with what came before it in its frame as dictionary; gives the
    /// number of bytes.
    pub(crate) fn decode(&self, window: &[u8], dictionary: &[u8], out: &mut [u8]) -> Result<usize> {
        let bytes = self.bytes(window);
        if self.raw {
            let place = out.get_mut(..bytes.len());
            let place = place.ok_or_else(|| self.corrupt("it is longer than the frame allows"))?;
            place.copy_from_slice(bytes);
            return Ok(bytes.len());
        }
        let decoded = if dictionary.is_empty() {
            lz4_flex::block::decompress_into(bytes, out)
        } else {
            lz4_flex::block::decompress_into_with_dict(bytes, out, dictionary)
        };
        decoded.map_err(|error| self.corrupt(error))
    }

    /// Says that the block does not decode.
    pub(crate) fn corrupt(&self, reason: impl ToString) -> Error {
        Error::Block { at: self.at, reason: reason.to_string() }
    }

    /// Whether the block may hold a page, the last and shorter one included, or a run of zero pages.
    pub(crate) fn may_be_page(&self) -> bool {
        if self.raw { self.len <= PAGE_SIZE } else { self.len < PAGE_SIZE }
    }
}
