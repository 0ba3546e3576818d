//! Decodes LZ4 blocks of pages: the fast loop, which stays clear of both ends of block and page.
//!
//! Whatever the fast path refuses, [`simple`] decodes again, to name the error.
#![allow(unsafe_code)]

mod copy;
mod cursor;
mod error;
mod finish;
mod lanes;
mod lanes_x86;
mod simple;
#[cfg(test)]
mod tests;

pub use error::DecodeError;
pub use simple::decode_simple;

use super::format::{FIELD_MAX, MATCH_END_LIMIT, MIN_MATCH};
use crate::cpu::Token;
use crate::page::{PAGE_SIZE, Page};
use copy::{LONG_SLACK, copy_in, copy_long, copy_match};
use cursor::Cursor;
use finish::{finish, read_length};
use lanes::{LANE, Lanes};

/// The fast loop starts a sequence here at the latest. Its short sequences make at most 14 + 16
/// bytes, so that they end before [`MATCH_END_LIMIT`] and no wide store passes the page.
const FAST_START_LIMIT: usize = MATCH_END_LIMIT - 14 - LANE;

/// Input bytes that the fast loop wants after a token: 14 literals, the offset and the next token.
const FAST_INPUT: usize = 14 + 2 + 1;

/// Input that long literals keep after their end: the copy reads less than two lanes past it, and
/// the offset and the next token follow.
const LONG_INPUT: usize = 2 * LANE + 3;

/// Decodes `block`, which must be exactly one page, into `page`; after an error the page holds a mix of the
/// block's bytes and what it held before.
pub(super) fn decode_page(token: Token, block: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let decoded = match token {
        Token::Scalar(scalar) => decode_with(scalar, block, page),
        #[cfg(target_arch = "x86_64")]
        Token::Avx2(avx2) => lanes_x86::decode_avx2(avx2, block, page),
    };
    match decoded {
        Some(()) => Ok(()),
        // Errors are rare: the time goes into one precise account of them, not into the fast loop.
        None => {
            let refused = decode_simple(block, page);
            debug_assert!(refused.is_err(), "the fast decoder refused what its slow twin accepts");
            refused
        }
    }
}

/// The decoder, to be compiled once for each back end with its instructions enabled; `None` if the block is refused.
#[inline(always)]
fn decode_with<L: Lanes>(lanes: L, block: &[u8], page: &mut Page) -> Option<()> {
    // No page has a block as short: its match length bytes alone are 16.
    let limit = Cursor::before_end(block, FAST_INPUT)?;
    let (&first, rest) = block.split_first()?;
    let mut token = usize::from(first);
    let mut input = Cursor::at_start(rest);
    let mut made = 0; // bytes of the page
    while input.is_up_to(limit) && made <= FAST_START_LIMIT {
        let mut literals = token >> 4;
        let mut ahead = input;
        let mut start = made;
        if literals != FIELD_MAX {
            // SAFETY: the loop condition leaves 17 bytes of input and 35 of the page.
            unsafe { copy_in(lanes, ahead, 0, page, start) };
        } else {
            let mut rest = ahead.rest(block)?;
            literals += read_length(&mut rest)?;
            if literals + LONG_INPUT > rest.len() || start + literals + LONG_SLACK > PAGE_SIZE {
                break;
            }
            ahead = Cursor::at_start(rest);
            let mut done = 0;
            while done < literals {
                // SAFETY: `done < literals`, and the test above keeps two lanes after the literals.
                unsafe { copy_in(lanes, ahead, done, page, start + done) };
                // SAFETY: as above.
                unsafe { copy_in(lanes, ahead, done + LANE, page, start + done + LANE) };
                done += 2 * LANE;
            }
        }
        start += literals;
        // The chain from token to token bounds the speed, so the next one is read at once, from
        // where it stands unless length bytes come before it.
        // SAFETY: 14 literals at most and 3 bytes are the loop condition's 17; long literals keep `LONG_INPUT`.
        let (offset, mut next) = unsafe { ahead.take_offset_and_token(literals) };
        if offset.wrapping_sub(1) >= start {
            return None;
        }
        let mut length = (token & 15) + MIN_MATCH;
        if length <= LANE {
            // SAFETY: `0 < offset <= start`, and `start` is a lane or more before the end of the page:
            // at most 14 after `FAST_START_LIMIT`, or `LONG_SLACK` before the end.
            unsafe { copy_match(lanes, page, start, offset) };
        } else {
            if length == FIELD_MAX + MIN_MATCH {
                // What was read as a token is the first length byte.
                let mut rest = ahead.rest(block)?;
                length += next;
                if next == usize::from(u8::MAX) {
                    length += read_length(&mut rest)?;
                }
                let (&token, rest) = rest.split_first()?;
                (next, ahead) = (usize::from(token), Cursor::at_start(rest));
            }
            if start + length + LONG_SLACK > PAGE_SIZE {
                break;
            }
            // SAFETY: `0 < offset <= start`, and the test above keeps `LONG_SLACK` after the match.
            unsafe { copy_long(lanes, page, start, offset, length) };
        }
        token = next;
        input = ahead;
        made = start + length;
    }
    let token_at = block.len() - input.rest(block)?.len() - 1;
    finish(lanes, block, token_at, page, made)
}
