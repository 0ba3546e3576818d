//! Encodes an address map, and reads the numbers and texts of an encoded one.

use trueno_zram_core::PAGE_SIZE;

use super::{AddressMap, Consistency, PageState};

pub(super) const VERSION: u64 = 1;

/// Larger sections are rejected before they are read: archives are untrusted, and a map is kept in memory. A process of
/// 256 GiB in which every second page is touched just fits.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// Why an address map cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressMapError {
    #[error("unsupported address map version {0}; only version {VERSION} is supported")]
    Version(u64),
    #[error("the address map needs {0} bytes; at most {MAX_BYTES} are supported")]
    TooLarge(u64),
    #[error("the address map is truncated at byte {at}, in the {what}")]
    Truncated { at: usize, what: &'static str },
    #[error("the address map has an invalid {what} before byte {at}")]
    Invalid { at: usize, what: &'static str },
    #[error("the address map places {claimed} pages in the archive, which has {pages}")]
    TooManyPages { claimed: u64, pages: u64 },
}

impl AddressMap {
    /// Encodes the map as the bytes of a section.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, AddressMapError> {
        let bytes = self.encode();
        if bytes.len() > MAX_BYTES { Err(AddressMapError::TooLarge(bytes.len() as u64)) } else { Ok(bytes) }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, VERSION);
        put(&mut out, self.pid.into());
        put(&mut out, self.taken_unix_s);
        put(&mut out, u64::from(self.consistency == Consistency::Stopped));
        put_text(&mut out, &self.command);
        put(&mut out, self.mappings.len() as u64);
        let mut end = 0;
        for mapping in &self.mappings {
            put(&mut out, (mapping.start - end) / PAGE_SIZE as u64);
            out.push(mapping.flags.0);
            put_text(&mut out, &mapping.name);
            put(&mut out, mapping.runs.len() as u64);
            for run in &mapping.runs {
                put(&mut out, run.pages << 2 | state_code(run.state));
            }
            end = mapping.end();
        }
        out
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

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads an encoded map from front to back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
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
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            if bits > u64::MAX >> shift {
                return Err(self.invalid(what));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                // Each number has exactly one encoding.
                let overlong = bits == 0 && shift > 0;
                return if overlong { Err(self.invalid(what)) } else { Ok(number) };
            }
        }
        Err(self.invalid(what))
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
