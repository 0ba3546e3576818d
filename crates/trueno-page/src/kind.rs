//! The form in which a compressed page is held.

use std::error::Error;
use std::fmt;
use std::ops::RangeInclusive;

use crate::{FILL_WORD_BYTES, PAGE_SIZE};

/// The form in which a compressed page is held.
///
/// The numbers are part of the formats that store them: in memory, in the index of packed GPU batches, and in files.
///
/// ```
/// use trueno_page::PageKind;
/// assert_eq!(PageKind::try_from(PageKind::Lz4 as u8), Ok(PageKind::Lz4));
/// assert!(PageKind::try_from(9).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PageKind {
    /// One 8-byte word that fills the page; only the word is held.
    SameFilled = 0,
    /// A standard LZ4 block, shorter than the page.
    Lz4 = 1,
    /// A standard Zstandard frame, shorter than the page.
    Zstd = 2,
    /// The page itself, because it did not shrink or was not compressed.
    Raw = 3,
}

impl PageKind {
    /// Returns the lengths in bytes that a page held in this form can have.
    ///
    /// ```
    /// use trueno_page::PageKind;
    /// assert_eq!(PageKind::SameFilled.held_len_bytes(), 8..=8);
    /// assert!(!PageKind::Lz4.held_len_bytes().contains(&4096));
    /// ```
    #[must_use]
    pub const fn held_len_bytes(self) -> RangeInclusive<usize> {
        match self {
            Self::SameFilled => FILL_WORD_BYTES..=FILL_WORD_BYTES,
            Self::Lz4 | Self::Zstd => 1..=PAGE_SIZE - 1,
            Self::Raw => PAGE_SIZE..=PAGE_SIZE,
        }
    }
}

impl TryFrom<u8> for PageKind {
    type Error = UnknownPageKind;

    fn try_from(value: u8) -> Result<Self, UnknownPageKind> {
        match value {
            0 => Ok(Self::SameFilled),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            3 => Ok(Self::Raw),
            _ => Err(UnknownPageKind { value }),
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SameFilled => "same-filled",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Raw => "raw",
        })
    }
}

/// The error for a number that is not a [`PageKind`].
///
/// ```
/// use trueno_page::{PageKind, UnknownPageKind};
/// assert_eq!(PageKind::try_from(9), Err(UnknownPageKind { value: 9 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPageKind {
    /// The number.
    pub value: u8,
}

impl fmt::Display for UnknownPageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown page kind {}", self.value)
    }
}

impl Error for UnknownPageKind {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_numbers_of_kinds_convert_back() {
        for value in 0..=u8::MAX {
            match PageKind::try_from(value) {
                Ok(kind) => assert_eq!(kind as u8, value),
                Err(error) => {
                    assert!(value > 3);
                    assert_eq!(error.to_string(), format!("unknown page kind {value}"));
                }
            }
        }
    }
}
