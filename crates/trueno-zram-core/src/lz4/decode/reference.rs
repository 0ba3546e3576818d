//! The reference decoder: one byte at a time, and the only place that reports errors.
#![forbid(unsafe_code)]

use super::super::format::{FIELD_MAX, MATCH_END_LIMIT, MATCH_START_LIMIT, MIN_MATCH};
use super::error::DecodeError;
use crate::page::{PAGE_SIZE, Page};

/// Decodes `block` into `page` with the simplest possible code.
///
/// This is the reference for [`Codec::decode`](crate::lz4::Codec::decode): same result, same bytes, same error.
/// After an error the page holds a mix of the block's bytes and its previous contents.
///
/// ```
/// // One literal, a match of 4085 bytes at offset 1, ten literals.
/// let mut block = vec![0x1f, b'a', 1, 0];
/// block.extend([255; 15]);
/// block.extend([241, 0xa0]);
/// block.extend(*b"0123456789");
/// let mut page = [0; 4096];
/// trueno_zram_core::lz4::decode_simple(&block, &mut page)?;
/// assert_eq!(&page[4084..], b"aa0123456789");
/// # Ok::<(), trueno_zram_core::lz4::DecodeError>(())
/// ```
///
/// # Errors
///
/// A [`DecodeError`] if the block does not decode to exactly one page.
pub fn decode_simple(block: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let mut at = 0;
    let mut made = 0;
    loop {
        let &token = block.get(at).ok_or(DecodeError::TokenMissing { at, produced: made })?;
        at += 1;
        let needed = read_length(block, &mut at, token >> 4)?;
        let (left, room) = (block.len() - at, PAGE_SIZE - made);
        if needed > left {
            return Err(DecodeError::LiteralsPastInput { at, needed, left });
        }
        if needed > room {
            return Err(DecodeError::LiteralsPastPage { at, needed, room });
        }
        page[made..made + needed].copy_from_slice(&block[at..at + needed]);
        at += needed;
        made += needed;
        if at == block.len() {
            return if made == PAGE_SIZE { Ok(()) } else { Err(DecodeError::PageIncomplete { produced: made }) };
        }

        let offset_at = at;
        let &[low, high] = block[at..].first_chunk().ok_or(DecodeError::OffsetTruncated { at })?;
        let offset = usize::from(u16::from_le_bytes([low, high]));
        at += 2;
        if offset == 0 {
            return Err(DecodeError::OffsetZero { at: offset_at });
        }
        if offset > made {
            return Err(DecodeError::OffsetBeforePage { at: offset_at, offset, produced: made });
        }
        let needed = read_length(block, &mut at, token & 15)?.saturating_add(MIN_MATCH);
        let room = PAGE_SIZE - made;
        if needed > room {
            return Err(DecodeError::MatchPastPage { at: offset_at, needed, room });
        }
        if made > MATCH_START_LIMIT {
            return Err(DecodeError::MatchStartsLate { at: offset_at, start: made });
        }
        let end = made + needed;
        if end > MATCH_END_LIMIT {
            return Err(DecodeError::MatchEndsLate { at: offset_at, end });
        }
        // One byte at a time: a match may overlap its own output.
        for to in made..end {
            page[to] = page[to - offset];
        }
        made = end;
    }
}

/// Returns the length for a token field, including the length bytes at `at` if there are any.
fn read_length(block: &[u8], at: &mut usize, nibble: u8) -> Result<usize, DecodeError> {
    let mut length = usize::from(nibble);
    if length != FIELD_MAX {
        return Ok(length);
    }
    loop {
        let &byte = block.get(*at).ok_or(DecodeError::LengthTruncated { at: *at })?;
        *at += 1;
        length = length.saturating_add(usize::from(byte));
        if byte != u8::MAX {
            return Ok(length);
        }
    }
}
