//! The errors of the two sections of a snapshot, [`address_map`](crate::address_map) and
//! [`process_state`](crate::process_state), and the cursor that reads their bytes.

use crate::process_state::FileMapping;
use crate::varint::{self, VarintError};

/// The version of both sections.
pub(crate) const VERSION: u32 = 1;

/// The reason why a section of a snapshot cannot be read or written. `section` is its name in words.
///
/// ```
/// use trueno_zram_archive::SnapshotError;
/// use trueno_zram_archive::address_map::StoredMap;
/// let error = StoredMap::from_bytes(vec![2]).unwrap_err();
/// assert_eq!(error, SnapshotError::Version { section: "address map", version: 2 });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It is of another version.
    #[error("unsupported {section} version {version}; only version {VERSION} is supported")]
    Version {
        /// The section.
        section: &'static str,
        /// The version that it has.
        version: u64,
    },
    /// It is longer than is supported.
    #[error("the {section} needs {len_bytes} bytes; at most {max_bytes} are supported")]
    TooLarge {
        /// The section.
        section: &'static str,
        /// Its length.
        len_bytes: u64,
        /// The longest that is read and written.
        max_bytes: u64,
    },
    /// It ends too early.
    #[error("the {section} is truncated at byte {at}, in the {what}")]
    Truncated {
        /// The section.
        section: &'static str,
        /// The number of bytes that there are.
        at: usize,
        /// The part that is cut short.
        what: &'static str,
    },
    /// It is damaged.
    #[error("the {section} has an invalid {what} before byte {at}")]
    Invalid {
        /// The section.
        section: &'static str,
        /// The position after the part.
        at: usize,
        /// The part that is wrong.
        what: &'static str,
    },
    /// An address map has more pages than its archive.
    #[error("the address map places {claimed} pages in the archive, which has {pages}")]
    TooManyPages {
        /// The pages that the map places in the archive.
        claimed: u64,
        /// The pages that the archive has.
        pages: u64,
    },
    /// A mapping that is to be written has no pages, does not start at a page, or reaches into the one before it or beyond all
    /// addresses.
    #[error("the mapping at {start:#x} to {end:#x} of the address map is empty, not aligned to pages, or out of order")]
    Mapping {
        /// Its first address.
        start: u64,
        /// The first address after it.
        end: u64,
    },
    /// A file that is to be written to a process state has no addresses, or a name with a zero byte.
    #[error("the process state cannot have file {:?} at {:#x} to {:#x}", .0.name, .0.start, .0.end)]
    File(FileMapping),
}

/// Refuses a section of more than `max_bytes`.
pub(crate) fn check_len(section: &'static str, len: usize, max_bytes: u64) -> Result<(), SnapshotError> {
    let len_bytes = len as u64;
    if len_bytes > max_bytes { Err(SnapshotError::TooLarge { section, len_bytes, max_bytes }) } else { Ok(()) }
}

/// Reads a section from front to back. `what` names the part that is read, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionCursor<'a> {
    pub(crate) section: &'static str,
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> SectionCursor<'a> {
    /// Returns how many bytes are left.
    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(crate) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], SnapshotError> {
        let bytes = self.bytes[self.at..].get(..len).ok_or_else(|| self.truncated(what))?;
        self.at += len;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, SnapshotError> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().expect("four bytes")))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, SnapshotError> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().expect("eight bytes")))
    }

    /// Reads a number of seven bits per byte.
    pub(crate) fn varint(&mut self, what: &'static str) -> Result<u64, SnapshotError> {
        let (before, mut rest) = (self.at, &self.bytes[self.at..]);
        let number = varint::take(&mut rest);
        self.at = self.bytes.len() - rest.len();
        // Each number has exactly one encoding.
        let overlong = self.at - before > 1 && self.bytes[self.at - 1] == 0;
        match number {
            Ok(number) if !overlong => Ok(number),
            Ok(_) | Err(VarintError::TooLong) => Err(self.invalid(what)),
            Err(VarintError::Truncated) => Err(self.truncated(what)),
        }
    }

    pub(crate) fn text(&mut self, len: usize, what: &'static str) -> Result<&'a str, SnapshotError> {
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|_| self.invalid(what))
    }

    pub(crate) fn check_version(&self, version: u64) -> Result<(), SnapshotError> {
        let section = self.section;
        if version == u64::from(VERSION) { Ok(()) } else { Err(SnapshotError::Version { section, version }) }
    }

    /// Refuses bytes after the last part.
    pub(crate) fn check_end(&self) -> Result<(), SnapshotError> {
        if self.left() == 0 { Ok(()) } else { Err(self.invalid("end")) }
    }

    pub(crate) fn invalid(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Invalid { section: self.section, at: self.at, what }
    }

    fn truncated(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Truncated { section: self.section, at: self.bytes.len(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_may_be_as_long_as_the_limit() {
        assert_eq!(check_len("note", 0, 10), Ok(()));
        assert_eq!(check_len("note", 10, 10), Ok(()));
        let too_large = SnapshotError::TooLarge { section: "note", len_bytes: 11, max_bytes: 10 };
        assert_eq!(check_len("note", 11, 10), Err(too_large));
    }

    #[test]
    fn errors_say_where_a_part_ends() {
        let mut cursor = SectionCursor { section: "note", bytes: &[1, 0, 0, 0, 0xff, 0xff], at: 0 };
        assert_eq!((cursor.u32("number"), cursor.left()), (Ok(1), 2));
        assert!(matches!(cursor.check_end(), Err(SnapshotError::Invalid { at: 4, what: "end", .. })));
        assert!(matches!(cursor.u64("number"), Err(SnapshotError::Truncated { at: 6, what: "number", .. })));
        assert!(matches!(cursor.text(2, "name"), Err(SnapshotError::Invalid { at: 6, what: "name", .. })));
        assert_eq!(cursor.check_end(), Ok(()));
    }
}
