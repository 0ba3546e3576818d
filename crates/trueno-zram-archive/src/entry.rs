//! The two bytes of the index that describe one page: its form, and the length of its block.

use trueno_zram_core::PAGE_SIZE;

use crate::constant::{RUN_PAGES, WORD_BLOCK, zero_block};

/// What the index says of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageEntry {
    /// A zero page in the block of an earlier page.
    Continues,
    /// The first of this many zero pages in one block.
    Zeros(u16),
    /// A page of one repeated word, in a block of [`WORD_BLOCK`] bytes.
    Word,
    /// An LZ4 block of this many bytes.
    Lz4(u16),
    /// A stored block of this many bytes: a page, or less for the last one.
    Raw(u16),
}

/// The lower 13 bits hold a length, the upper three the form.
const FORM_SHIFT: u32 = 13;
const LEN_MASK: u16 = (1 << FORM_SHIFT) - 1;

impl PageEntry {
    pub(crate) fn encode(self) -> [u8; 2] {
        let (form, len) = match self {
            Self::Continues => (0, 0),
            Self::Zeros(pages) => (1, pages),
            Self::Word => (2, 0),
            Self::Lz4(len) => (3, len),
            Self::Raw(len) => (4, len),
        };
        (form << FORM_SHIFT | len).to_le_bytes()
    }

    /// Returns `None` for bytes that encode no entry.
    pub(crate) fn decode(bytes: [u8; 2]) -> Option<Self> {
        let value = u16::from_le_bytes(bytes);
        let len = value & LEN_MASK;
        let entry = match value >> FORM_SHIFT {
            0 => Self::Continues,
            1 => Self::Zeros(len),
            2 => Self::Word,
            3 => Self::Lz4(len),
            4 => Self::Raw(len),
            _ => return None,
        };
        let fits = match entry {
            Self::Continues | Self::Word => len == 0,
            Self::Zeros(pages) => (1..=RUN_PAGES).contains(&usize::from(pages)),
            Self::Lz4(len) => (1..PAGE_SIZE).contains(&usize::from(len)),
            Self::Raw(len) => (1..=PAGE_SIZE).contains(&usize::from(len)),
        };
        fits.then_some(entry)
    }

    /// Length in bytes of the block that starts with this page, without size word and checksum.
    pub(crate) fn block_len(self) -> Option<usize> {
        match self {
            Self::Continues => None,
            Self::Zeros(pages) => Some(zero_block(usize::from(pages)).bytes.len()),
            Self::Word => Some(WORD_BLOCK),
            Self::Lz4(len) | Self::Raw(len) => Some(usize::from(len)),
        }
    }

    /// Pages in the block that starts with this page.
    pub(crate) fn pages(self) -> u64 {
        match self {
            Self::Continues => 0,
            Self::Zeros(pages) => u64::from(pages),
            Self::Word | Self::Lz4(_) | Self::Raw(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decodes_encodes_to_the_same_bytes() {
        let valid = (0..=u16::MAX).filter(|value| {
            let bytes = value.to_le_bytes();
            PageEntry::decode(bytes).is_some_and(|entry| {
                assert_eq!(entry.encode(), bytes);
                true
            })
        });
        // Continues, Word, 16 runs, 4095 blocks, 4096 raw.
        assert_eq!(valid.count(), 2 + 16 + 4095 + 4096);
    }
}
