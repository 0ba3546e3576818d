//! The two bytes of the index that describe one page: its form, and the length of its block.

use trueno_zram_core::PAGE_SIZE;

use crate::format::Format;

/// The entry of one page in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageEntry {
    /// A zero page in the block of an earlier page.
    Continues,
    /// The first of this many zero pages in one block.
    Zeros(u16),
    /// A page of one repeated word.
    Word,
    /// An LZ4 block or a Zstandard frame of this many bytes.
    Packed(u16),
    /// This many bytes of content, stored: a page, or less for the last one.
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
            Self::Packed(len) => (3, len),
            Self::Raw(len) => (4, len),
        };
        (form << FORM_SHIFT | len).to_le_bytes()
    }

    /// Decodes an index entry; `None` for bytes that encode no entry of the format.
    pub(crate) fn decode(bytes: [u8; 2], format: Format) -> Option<Self> {
        let value = u16::from_le_bytes(bytes);
        let len = value & LEN_MASK;
        let entry = match value >> FORM_SHIFT {
            0 => Self::Continues,
            1 => Self::Zeros(len),
            2 => Self::Word,
            3 => Self::Packed(len),
            4 => Self::Raw(len),
            _ => return None,
        };
        let fits = match entry {
            Self::Continues | Self::Word => len == 0,
            Self::Zeros(pages) => (1..=format.run_pages()).contains(&usize::from(pages)),
            Self::Packed(len) => (1..PAGE_SIZE).contains(&usize::from(len)),
            Self::Raw(len) => (1..=PAGE_SIZE).contains(&usize::from(len)),
        };
        fits.then_some(entry)
    }

    /// Returns the length of a [`Packed`](Self::Packed) entry from bytes that were encoded; `None` for other entries.
    pub(crate) fn packed_len(bytes: [u8; 2]) -> Option<usize> {
        let value = u16::from_le_bytes(bytes);
        (value >> FORM_SHIFT == 3).then_some(usize::from(value & LEN_MASK))
    }

    /// Pages in the block that starts with this page.
    pub(crate) fn pages(self) -> u64 {
        match self {
            Self::Continues => 0,
            Self::Zeros(pages) => u64::from(pages),
            Self::Word | Self::Packed(_) | Self::Raw(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decodes_encodes_to_the_same_bytes() {
        for (format, runs) in [(Format::Lz4, 16), (Format::Zstd, 1024)] {
            let valid = (0..=u16::MAX).filter(|value| {
                let bytes = value.to_le_bytes();
                PageEntry::decode(bytes, format).is_some_and(|entry| {
                    assert_eq!(entry.encode(), bytes);
                    true
                })
            });
            for value in 0..=u16::MAX {
                let packed = match PageEntry::decode(value.to_le_bytes(), format) {
                    Some(PageEntry::Packed(len)) => Some(usize::from(len)),
                    Some(_) => None,
                    None => continue,
                };
                assert_eq!(PageEntry::packed_len(value.to_le_bytes()), packed);
            }
            // Continues, Word, runs, 4095 blocks, 4096 raw.
            assert_eq!(valid.count(), 2 + runs + 4095 + 4096);
        }
    }
}
