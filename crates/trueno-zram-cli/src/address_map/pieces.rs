//! From a range of addresses to the archive's bytes.

use std::ops::Range;

use trueno_zram_core::PAGE_SIZE;

use super::{AddressMap, PageState};

/// A part of a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// These bytes of the archive's content.
    Stored(Range<u64>),
    /// That many zero bytes: anonymous memory that the process never touched.
    Zeros(u64),
}

/// Why a range of addresses cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error("address {0:#x} is in no range of the snapshot")]
    Unmapped(u64),
    #[error("the page at {0:#x} could not be read when the snapshot was taken")]
    Unreadable(u64),
    #[error("the page at {0:#x} is an unchanged page of {1}, and not in the snapshot")]
    FilePage(u64, String),
}

impl AddressMap {
    /// The bytes at `addresses`, in order: where they are in the archive's content, or that they are zeros.
    pub(crate) fn pieces(&self, addresses: Range<u64>) -> Result<Vec<Piece>, AddressError> {
        let mut pieces = Vec::new();
        let mut at = addresses.start;
        let from = self.mappings.partition_point(|mapping| mapping.end() <= at);
        for mapping in &self.mappings[from..] {
            if at >= addresses.end || mapping.start > at {
                break;
            }
            let (mut start, mut page) = (mapping.start, mapping.first_page);
            for run in &mapping.runs {
                let end = start + run.pages * PAGE_SIZE as u64;
                let part = at..end.min(addresses.end);
                if !part.is_empty() {
                    match run.state {
                        PageState::Stored => {
                            let first_byte = page * PAGE_SIZE as u64 + (part.start - start);
                            pieces.push(Piece::Stored(first_byte..first_byte + (part.end - part.start)));
                        }
                        PageState::Untouched if mapping.flags.is_anonymous() => {
                            pieces.push(Piece::Zeros(part.end - part.start));
                        }
                        PageState::Untouched => return Err(AddressError::FilePage(part.start, mapping.name.clone())),
                        PageState::Unreadable => return Err(AddressError::Unreadable(part.start)),
                    }
                    at = part.end;
                }
                if run.state == PageState::Stored {
                    page += run.pages;
                }
                start = end;
            }
        }
        if at < addresses.end { Err(AddressError::Unmapped(at)) } else { Ok(pieces) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    #[test]
    fn addresses_lead_to_the_pages_in_the_archive() {
        let map = sample();
        // See `sample`: 3 pages stored, 2 untouched, 1 stored from 0x10000 on; then 2 stored at once behind.
        assert_eq!(map.pieces(0x10000..0x10001), Ok(vec![Piece::Stored(0..1)]));
        assert_eq!(
            map.pieces(0x10000 + 2 * PAGE + 5..0x10000 + 8 * PAGE),
            Ok(vec![
                Piece::Stored(2 * PAGE + 5..3 * PAGE),
                Piece::Zeros(2 * PAGE),
                Piece::Stored(3 * PAGE..4 * PAGE),
                Piece::Stored(4 * PAGE..6 * PAGE),
            ])
        );
        assert_eq!(map.pieces(0x7000_0000..0x7000_0000), Ok(vec![]), "nothing asked, nothing given");
    }

    #[test]
    fn what_is_not_there_is_named_by_its_address() {
        let map = sample();
        assert_eq!(map.pieces(0..1), Err(AddressError::Unmapped(0)));
        let behind = 0x10000 + 8 * PAGE;
        assert_eq!(map.pieces(behind - 1..behind + 1), Err(AddressError::Unmapped(behind)));
        assert_eq!(map.pieces(0x7000_0000..0x7000_0000 + PAGE + 1), Err(AddressError::Unreadable(0x7000_0000 + PAGE)));
        let file_page = 0x7000_0000 + 2 * PAGE;
        assert_eq!(map.pieces(file_page..file_page + 1), Err(AddressError::FilePage(file_page, "/lib/x.so".into())));
    }
}
