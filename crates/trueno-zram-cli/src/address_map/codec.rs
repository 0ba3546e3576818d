//! The address map as bytes, and back: bytes are not trusted.

use trueno_zram_core::PAGE_SIZE;

use super::{AddressMap, Consistency, Flags, Mapping, PageState, Run};

const VERSION: u64 = 1;

/// The first address that a mapping cannot reach: what is above is the kernel's on every 64-bit system.
const ADDRESS_LIMIT: u64 = 1 << 63;

/// Larger sections and more mappings are refused: an archive is not trusted, and these take memory to read. A process of
/// 512 GiB in which every second page is touched just fits.
const MOST_BYTES: usize = 64 << 20;
const MOST_MAPPINGS: u64 = 4 << 20;

/// Why bytes are no address map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressMapError {
    #[error("the address map is of version {0}; this program knows version {VERSION}")]
    Version(u64),
    #[error("an address map of {0} bytes is too large: the memory is in too many pieces")]
    TooLarge(usize),
    #[error("the address map ends at its byte {at}, in the middle of {what}")]
    Truncated { at: usize, what: &'static str },
    #[error("the address map's {what} at its byte {at} makes no sense")]
    Invalid { at: usize, what: &'static str },
}

impl AddressMap {
    /// The section's bytes.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, AddressMapError> {
        let bytes = self.encode();
        if bytes.len() > MOST_BYTES || self.mappings.len() as u64 > MOST_MAPPINGS {
            return Err(AddressMapError::TooLarge(bytes.len()));
        }
        Ok(bytes)
    }

    fn encode(&self) -> Vec<u8> {
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

    /// Reads a section. The map is whole and in order, or this is an error.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, AddressMapError> {
        if bytes.len() > MOST_BYTES {
            return Err(AddressMapError::TooLarge(bytes.len()));
        }
        let mut bytes = Bytes { bytes, at: 0 };
        let version = bytes.number("version")?;
        if version != VERSION {
            return Err(AddressMapError::Version(version));
        }
        let pid = bytes.number("process number")?.try_into().map_err(|_| bytes.invalid("process number"))?;
        let taken_unix_s = bytes.number("time")?;
        let consistency = match bytes.number("consistency")? {
            0 => Consistency::Live,
            1 => Consistency::Stopped,
            _ => return Err(bytes.invalid("consistency")),
        };
        let command = bytes.text("command")?;
        let (mut mappings, mut end, mut first_page) = (Vec::new(), 0u64, 0u64);
        // Not reserved for: the number is not trusted, and each mapping takes bytes that must be there.
        let count = bytes.number("number of mappings")?;
        if count > MOST_MAPPINGS {
            return Err(bytes.invalid("number of mappings"));
        }
        for _ in 0..count {
            let gap = bytes.number("mapping's place")?.checked_mul(PAGE_SIZE as u64);
            let start = gap.and_then(|gap| end.checked_add(gap)).ok_or_else(|| bytes.invalid("mapping's place"))?;
            let flags = Flags(bytes.byte("mapping's flags")?);
            let name = bytes.text("mapping's name")?;
            let mut mapping = Mapping { start, flags, name, first_page, runs: Vec::new() };
            let mut pages_left = ADDRESS_LIMIT.saturating_sub(start) / PAGE_SIZE as u64;
            for _ in 0..bytes.number("number of runs")? {
                let number = bytes.number("run")?;
                let (pages, state) = (number >> 2, state_of(number & 3).ok_or_else(|| bytes.invalid("run"))?);
                pages_left = pages_left.checked_sub(pages).ok_or_else(|| bytes.invalid("run"))?;
                let follows_alike = mapping.runs.last().is_some_and(|last| last.state == state);
                if pages == 0 || follows_alike {
                    return Err(bytes.invalid("run"));
                }
                mapping.runs.push(Run { pages, state });
            }
            if mapping.runs.is_empty() {
                return Err(bytes.invalid("number of runs"));
            }
            (end, first_page) = (mapping.end(), first_page + mapping.pages(PageState::Stored));
            mappings.push(mapping);
        }
        if bytes.at != bytes.bytes.len() {
            return Err(bytes.invalid("end"));
        }
        Ok(Self { pid, command, taken_unix_s, consistency, mappings })
    }
}

fn state_code(state: PageState) -> u64 {
    match state {
        PageState::Untouched => 0,
        PageState::Stored => 1,
        PageState::Unreadable => 2,
    }
}

fn state_of(code: u64) -> Option<PageState> {
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

/// Bytes to read from, and how far they are read.
struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn byte(&mut self, what: &'static str) -> Result<u8, AddressMapError> {
        let byte = self.bytes.get(self.at).ok_or(AddressMapError::Truncated { at: self.at, what })?;
        self.at += 1;
        Ok(*byte)
    }

    fn number(&mut self, what: &'static str) -> Result<u64, AddressMapError> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            if bits > u64::MAX >> shift {
                return Err(self.invalid(what));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                // One way alone to write each number.
                let overlong = bits == 0 && shift > 0;
                return if overlong { Err(self.invalid(what)) } else { Ok(number) };
            }
        }
        Err(self.invalid(what))
    }

    fn text(&mut self, what: &'static str) -> Result<String, AddressMapError> {
        let len = usize::try_from(self.number(what)?).map_err(|_| self.invalid(what))?;
        let rest = &self.bytes[self.at..];
        let text = rest.get(..len).ok_or(AddressMapError::Truncated { at: self.bytes.len(), what })?;
        let text = std::str::from_utf8(text).map_err(|_| self.invalid(what))?.to_owned();
        self.at += len;
        Ok(text)
    }

    fn invalid(&self, what: &'static str) -> AddressMapError {
        AddressMapError::Invalid { at: self.at, what }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn a_map_comes_back() {
        let map = sample();
        assert_eq!(AddressMap::from_bytes(&map.to_bytes().unwrap()), Ok(map));
    }

    #[test]
    fn every_truncation_is_an_error_and_so_is_a_byte_more() {
        let bytes = sample().encode();
        for len in 0..bytes.len() {
            assert!(AddressMap::from_bytes(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
        assert!(matches!(
            AddressMap::from_bytes(&[&bytes[..], &[0]].concat()),
            Err(AddressMapError::Invalid { what: "end", .. })
        ));
    }

    #[test]
    fn damaged_bytes_give_an_error_or_a_map_that_holds_together() {
        let bytes = sample().encode();
        for at in 0..bytes.len() {
            for byte in 0..=255 {
                let mut damaged = bytes.clone();
                damaged[at] = byte;
                if let Ok(map) = AddressMap::from_bytes(&damaged) {
                    assert_eq!(map.encode(), damaged, "byte {at} as {byte:#x}: what was read is what was there");
                    assert!(map.mappings.iter().all(|mapping| mapping.end() <= ADDRESS_LIMIT));
                }
            }
        }
    }

    #[test]
    fn a_map_of_another_version_is_refused_by_its_number() {
        let mut bytes = sample().encode();
        bytes[0] = 2;
        assert_eq!(AddressMap::from_bytes(&bytes), Err(AddressMapError::Version(2)));
    }

    #[test]
    fn what_would_take_much_memory_is_refused_both_ways() {
        let too_large = vec![1; MOST_BYTES + 1];
        assert_eq!(AddressMap::from_bytes(&too_large), Err(AddressMapError::TooLarge(too_large.len())));
        let mut map = sample();
        let runs = [PageState::Stored, PageState::Untouched].map(|state| Run { pages: 1, state });
        map.mappings[2].runs = runs.into_iter().cycle().take(MOST_BYTES).collect();
        assert!(matches!(map.to_bytes(), Err(AddressMapError::TooLarge(_))));
    }

    #[test]
    fn numbers_too_long_for_64_bits_are_refused() {
        for bytes in [&[0x80; 11][..], &[0xff; 10], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]] {
            assert!(matches!(AddressMap::from_bytes(bytes), Err(AddressMapError::Invalid { what: "version", .. })));
        }
    }
}
