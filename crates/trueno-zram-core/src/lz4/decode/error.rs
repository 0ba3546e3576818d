//! The reasons for rejecting a block, with positions.
#![forbid(unsafe_code)]

use thiserror::Error;

/// The reason why a block does not decode to exactly one page.
///
/// `at` is a byte position in the block: that of the wrong token, length byte, first literal or offset. The same block
/// gives the same error with every instruction set.
///
/// ```
/// use trueno_zram_core::lz4::{DecodeError, decode_simple};
/// let error = decode_simple(&[0x10, b'a', 2, 0], &mut [0; 4096]);
/// assert_eq!(error, Err(DecodeError::OffsetBeforePage { at: 2, offset: 2, produced: 1 }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The block ends where a token is expected: it is empty, or it ends with a match.
    #[error("block ends at byte {at}, where a token is expected ({produced} bytes of the page decoded)")]
    TokenMissing {
        /// Position of the missing token: the block's length.
        at: usize,
        /// Bytes of the page decoded so far.
        produced: usize,
    },
    /// The block ends within the length bytes of a literal run or a match.
    #[error("block ends at byte {at}, within the length bytes of a sequence")]
    LengthTruncated {
        /// Position of the missing length byte: the block's length.
        at: usize,
    },
    /// A literal run is longer than the rest of the block.
    #[error("{needed} literals at byte {at}, but the block has {left} bytes left")]
    LiteralsPastInput {
        /// Position of the first literal.
        at: usize,
        /// Length of the literal run.
        needed: usize,
        /// Bytes from `at` to the end of the block.
        left: usize,
    },
    /// A literal run is longer than the rest of the page.
    #[error("{needed} literals at byte {at}, but the page has room for {room} bytes")]
    LiteralsPastPage {
        /// Position of the first literal.
        at: usize,
        /// Length of the literal run.
        needed: usize,
        /// Bytes of the page not decoded yet.
        room: usize,
    },
    /// The block ends within a match offset.
    #[error("block ends within the match offset at byte {at}")]
    OffsetTruncated {
        /// Position of the offset.
        at: usize,
    },
    /// A match offset of 0, which the format forbids.
    #[error("match offset 0 at byte {at}")]
    OffsetZero {
        /// Position of the offset.
        at: usize,
    },
    /// A match that starts before the page.
    #[error("match offset {offset} at byte {at} reaches before the page ({produced} bytes decoded)")]
    OffsetBeforePage {
        /// Position of the offset.
        at: usize,
        /// The offset.
        offset: usize,
        /// Bytes of the page decoded before the match.
        produced: usize,
    },
    /// A match is longer than the rest of the page.
    #[error("match of {needed} bytes with its offset at byte {at}, but the page has room for {room} bytes")]
    MatchPastPage {
        /// Position of the offset.
        at: usize,
        /// Length of the match.
        needed: usize,
        /// Bytes of the page not decoded yet.
        room: usize,
    },
    /// A match starts less than 12 bytes before the end of the page (end-of-block condition).
    #[error("match with its offset at byte {at} starts at byte {start} of the page, too late")]
    MatchStartsLate {
        /// Position of the offset.
        at: usize,
        /// Position in the page at which the match starts.
        start: usize,
    },
    /// A match ends less than 5 bytes before the end of the page (end-of-block condition).
    #[error("match with its offset at byte {at} ends at byte {end} of the page, too late")]
    MatchEndsLate {
        /// Position of the offset.
        at: usize,
        /// Position in the page at which the match ends.
        end: usize,
    },
    /// The block is well formed but decodes to less than a page.
    #[error("block decodes to {produced} bytes, less than a page")]
    PageIncomplete {
        /// Bytes of the page decoded.
        produced: usize,
    },
}
