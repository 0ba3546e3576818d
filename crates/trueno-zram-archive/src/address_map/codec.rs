//! Encodes an address map, and reads the numbers and texts of an encoded one.

use trueno_zram_core::PAGE_SIZE;

use super::{ADDRESS_LIMIT, AddressMap, Consistency, MAX_BYTES, PageState};
use crate::varint::{self, VarintError, put};

pub(super) const VERSION: u64 = 1;

/// The reason why an address map cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressMapError {
    /// It is of another version.
    #[error("unsupported address map version {0}; only version {VERSION} is supported")]
    Version(u64),
    /// It has more than [`MAX_BYTES`].
    #[error("the address map needs {0} bytes; at most {MAX_BYTES} are supported")]
    TooLarge(u64),
    /// It ends too early.
    #[error("the address map is truncated at byte {at}, in the {what}")]
    Truncated {
        /// The number of bytes that there are.
        at: usize,
        /// The part that is cut short.
        what: &'static str,
    },
    /// It is damaged.
    #[error("the address map has an invalid {what} before byte {at}")]
    Invalid {
        /// The position after the part.
        at: usize,
        /// The part that is wrong.
        what: &'static str,
    },
    /// It has more pages than its archive.
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
}

impl AddressMap {
    /// Encodes the map as the bytes of a section.
    ///
    /// # Errors
    /// [`AddressMapError::TooLarge`]; [`AddressMapError::Mapping`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, AddressMapError> {
        let mut out = Vec::new();
        put(VERSION, &mut out);
        put(self.pid.into(), &mut out);
        put(self.taken_unix_s, &mut out);
        put((self.consistency == Consistency::Stopped).into(), &mut out);
        put_text(&self.command, &mut out);
        put(self.mappings.len() as u64, &mut out);
        let mut end_before = 0;
        for mapping in &self.mappings {
            let (start, end) = (mapping.start, mapping.end());
            let gap = start.checked_sub(end_before).filter(|gap| gap.is_multiple_of(PAGE_SIZE as u64));
            let gap = gap.filter(|_| start < end && end <= ADDRESS_LIMIT);
            put(gap.ok_or(AddressMapError::Mapping { start, end })? / PAGE_SIZE as u64, &mut out);
            out.push(mapping.flags.0);
            put_text(&mapping.name, &mut out);
            put(mapping.runs.len() as u64, &mut out);
            mapping.runs.iter().for_each(|run| put(run.pages << 2 | state_code(run.state), &mut out));
            end_before = end;
        }
        if out.len() as u64 > MAX_BYTES { Err(AddressMapError::TooLarge(out.len() as u64)) } else { Ok(out) }
    }
}

fn state_code(state: PageState) -> u64 {
    match state {
        PageState::Untouched => 0,
        PageState::Stored => 1,
        PageState::Unreadable => 2,
    }
}

pub(super) fn state_of(code: u64) -> Option<PageState> {
    [PageState::Untouched, PageState::Stored, PageState::Unreadable]
        .into_iter()
        .find(|state| state_code(*state) == code)
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// Reads an encoded map from front to back.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapCursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> MapCursor<'a> {
    /// Returns how many bytes are left.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, AddressMapError> {
        let byte = self.bytes.get(self.at).ok_or(AddressMapError::Truncated { at: self.at, what })?;
        self.at += 1;
        Ok(*byte)
    }

    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, AddressMapError> {
        let (before, mut rest) = (self.at, &self.bytes[self.at..]);
        let number = varint::take(&mut rest);
        self.at = self.bytes.len() - rest.len();
        // Each number has exactly one encoding.
        let overlong = self.at - before > 1 && self.bytes[self.at - 1] == 0;
        match number {
            Ok(number) if !overlong => Ok(number),
            Ok(_) | Err(VarintError::TooLong) => Err(self.invalid(what)),
            Err(VarintError::Truncated) => Err(AddressMapError::Truncated { at: self.at, what }),
        }
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, AddressMapError> {
        let len = usize::try_from(self.number(what)?).map_err(|_| self.invalid(what))?;
        let rest = &self.bytes[self.at..];
        let text = rest.get(..len).ok_or(AddressMapError::Truncated { at: self.bytes.len(), what })?;
        let text = std::str::from_utf8(text).map_err(|_| self.invalid(what))?;
        self.at += len;
        Ok(text)
    }

    pub(super) fn invalid(&self, what: &'static str) -> AddressMapError {
        AddressMapError::Invalid { at: self.at, what }
    }
}
