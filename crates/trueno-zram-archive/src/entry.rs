//! One page's entry in the index: two bytes that say how it is held and in how many bytes.

use trueno_zram_core::PAGE_SIZE;

use crate::constant::{RUN_PAGES, WORD_BLOCK, zero_block};

/// How a page is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A page of zeros, in the block of a page before it.
    Continues,
    /// The first of so many pages of zeros in one block.
    Zeros(u16),
    /// One repeated word that is not zero.
    Word,
    /// An LZ4 block of so many bytes.
    Lz4(u16),
    /// As it is; the last page may be shorter.
    Raw(u16),
}

/// The lower bits hold a length, the upper three the kind.
const KIND_SHIFT: u32 = 13;
const LEN_MASK: u16 = (1 << KIND_SHIFT) - 1;

impl Entry {
    pub(crate) fn encode(self) -> [u8; 2] {
        let (kind, len) = match self {
            Self::Continues => (0, 0),
            Self::Zeros(pages) => (1, pages),
            Self::Word => (2, 0),
            Self::Lz4(len) => (3, len),
            Self::Raw(len) => (4, len),
        };
        (kind << KIND_SHIFT | len).to_le_bytes()
    }

    /// `None` for bytes that no entry has.
    pub(crate) fn decode(bytes: [u8; 2]) -> Option<Self> {
        let value = u16::from_le_bytes(bytes);
        let len = value & LEN_MASK;
        let entry = match value >> KIND_SHIFT {
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

    /// Bytes of the block that begins here, without size word and checksum; none if none begins.
    pub(crate) fn block_len(self) -> Option<usize> {
        match self {
            Self::Continues => None,
            Self::Zeros(pages) => Some(zero_block(usize::from(pages)).bytes.len()),
            Self::Word => Some(WORD_BLOCK),
            Self::Lz4(len) | Self::Raw(len) => Some(usize::from(len)),
        }
    }

    /// Pages in the block that begins here.
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
            Entry::decode(bytes).is_some_and(|entry| {
                assert_eq!(entry.encode(), bytes);
                true
            })
        });
        // Continues, Word, 16 runs, 4095 blocks, 4096 raw.
        assert_eq!(valid.count(), 2 + 16 + 4095 + 4096);
    }
}
