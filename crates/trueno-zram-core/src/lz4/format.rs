//! Constants of the LZ4 block format, for a block that holds exactly one page.
//!
//! The names follow the format's specification: token, literals, match, end-of-block conditions.

use crate::page::PAGE_SIZE;

/// The length of the shortest match. The token stores the match length minus this.
pub(super) const MIN_MATCH: usize = 4;

/// End-of-block condition: the last five bytes are always literals.
const LAST_LITERALS: usize = 5;

/// End-of-block condition: the last match starts at least this many bytes before the end.
const MATCH_START_MARGIN: usize = 12;

/// The last position at which a match may start.
pub(super) const MATCH_START_LIMIT: usize = PAGE_SIZE - MATCH_START_MARGIN;

/// The position at which every match must have ended.
pub(super) const MATCH_END_LIMIT: usize = PAGE_SIZE - LAST_LITERALS;

/// A token field with this value continues in length bytes.
pub(super) const FIELD_MAX: usize = 15;

/// A length byte with this value is followed by another.
pub(super) const LENGTH_BYTE_MAX: usize = 255;
