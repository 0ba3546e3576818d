//! Decodes LZ4 blocks of pages. The fast loop keeps its distance from the ends of the block and the page.
//!
//! [`decode_simple`] decodes again whatever the fast path rejects, to report the error.
#![allow(unsafe_code)]

mod block_end;
mod copy;
mod cursor;
mod error;
mod lanes;
mod lanes_x86;
mod reference;
#[cfg(test)]
mod tests;

pub use error::DecodeError;
pub use reference::decode_simple;

use super::format::{FIELD_MAX, MATCH_END_LIMIT, MIN_MATCH};
use crate::cpu::Token;
use crate::page::{PAGE_SIZE, Page};
use block_end::{finish, read_length};
use copy::{LONG_SLACK, copy_in, copy_long, copy_match};
use cursor::BlockCursor;
use lanes::{LANE, LaneOperations};

/// The last position of the page at which the fast loop starts a sequence. Its short sequences produce at most 14 + 16
/// bytes, so they end before [`MATCH_END_LIMIT`] and no wide store passes the end of the page.
const FAST_START_LIMIT: usize = MATCH_END_LIMIT - 14 - LANE;

/// Input bytes that the fast loop needs after a token: 14 literals, the offset, a length byte and the next token.
const FAST_INPUT: usize = 14 + 2 + 1 + 1;

/// Input bytes needed after the end of long literals: the copy reads less than two lanes past it, and the offset, a length
/// byte and the next token follow.
const LONG_INPUT: usize = 2 * LANE + 4;

/// Decodes `block`, which must decode to exactly one page, into `page`. After an error the page holds a mix of the
/// block's bytes and its previous contents.
pub(super) fn decode_page(token: Token, block: &[u8], page: &mut Page) -> Result<(), DecodeError> {
    let decoded = match token {
        Token::Scalar(scalar) => decode_with(scalar, block, page),
        #[cfg(target_arch = "x86_64")]
        Token::Avx2(avx2) => lanes_x86::decode_avx2(avx2, block, page),
    };
    match decoded {
        Some(()) => Ok(()),
        // Errors are rare, so the precise report is made here rather than in the fast loop.
        None => {
            let refused = decode_simple(block, page);
            debug_assert!(refused.is_err(), "the fast decoder rejected a block that the reference decoder accepts");
            refused
        }
    }
}

/// Decodes a block. Compiled once per instruction set with its instructions enabled. Returns `None` if the block is
/// rejected.
#[inline(always)]
fn decode_with<L: LaneOperations>(lanes: L, block: &[u8], page: &mut Page) -> Option<()> {
    // No block of a page is this short: its match length bytes alone are 16.
    let limit = BlockCursor::before_end(block, FAST_INPUT)?;
    let (&first, rest) = block.split_first()?;
    let mut token = usize::from(first);
    let mut input = BlockCursor::at_start(rest);
    let mut made = 0; // bytes of the page
    while input.is_up_to(limit) && made <= FAST_START_LIMIT {
        let mut literals = token >> 4;
        let mut ahead = input;
        let mut start = made;
        if literals != FIELD_MAX {
            // SAFETY: the loop condition guarantees 18 bytes of input and 35 of the page.
            unsafe { copy_in(lanes, ahead, 0, page, start) };
        } else {
            let mut rest = ahead.rest(block)?;
            literals += read_length(&mut rest)?;
            if literals + LONG_INPUT > rest.len() || start + literals + LONG_SLACK > PAGE_SIZE {
                break;
            }
            ahead = BlockCursor::at_start(rest);
            let mut done = 0;
            while done < literals {
                // SAFETY: `done < literals`, and the check above guarantees two lanes after the literals.
                unsafe { copy_in(lanes, ahead, done, page, start + done) };
                // SAFETY: as above.
                unsafe { copy_in(lanes, ahead, done + LANE, page, start + done + LANE) };
                done += 2 * LANE;
            }
        }
        start += literals;
        // The dependency chain from token to token limits the speed. So the next token is read at once, from its
        // position if no length bytes come before it.
        // SAFETY: at most 14 literals and 3 bytes are fewer than the 18 of the loop condition; long literals keep
        // `LONG_INPUT`.
        let (offset, mut next) = unsafe { ahead.take_offset_and_token(literals) };
        if offset.wrapping_sub(1) >= start {
            return None;
        }
        let mut length = (token & 15) + MIN_MATCH;
        if length <= LANE {
            // SAFETY: `0 < offset <= start`, and `start` is at least one lane before the end of the page: at most 14
            // past `FAST_START_LIMIT`, or `LONG_SLACK` before the end.
            unsafe { copy_match(lanes, page, start, offset) };
        } else {
            if length == FIELD_MAX + MIN_MATCH {
                // The byte read as a token is the first length byte, and mostly the only one.
                length += next;
                if next == usize::from(u8::MAX) {
                    let (more, rest) = more_length(ahead.rest(block)?)?;
                    length += more;
                    ahead = BlockCursor::at_start(rest);
                }
                // SAFETY: one more byte than `take_offset_and_token` needs is there, in both cases above.
                next = unsafe { ahead.take_token() };
            }
            if start + length + LONG_SLACK > PAGE_SIZE {
                break;
            }
            // SAFETY: `0 < offset <= start`, and the check above guarantees `LONG_SLACK` after the match.
            unsafe { copy_long(lanes, page, start, offset, length) };
        }
        token = next;
        input = ahead;
        made = start + length;
    }
    let token_at = block.len() - input.rest(block)?.len() - 1;
    finish(lanes, block, token_at, page, made)
}

/// Returns the sum of the length bytes at the start of `rest`, and what follows them, which is not empty.
#[cold]
fn more_length(mut rest: &[u8]) -> Option<(usize, &[u8])> {
    let length = read_length(&mut rest)?;
    (!rest.is_empty()).then_some((length, rest))
}
