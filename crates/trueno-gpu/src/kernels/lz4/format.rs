//! The numbers of the LZ4 block format, and those that follow from the page's size.

pub(super) use crate::kernels::packed::PAGE_BYTES;

/// The longest block of a page: one literal run with its token and 17 length bytes, as some encoders make of noise.
pub(super) const MAX_BLOCK_BYTES: u32 = PAGE_BYTES + 18;

/// The shortest match; length fields count from here.
pub(super) const MIN_MATCH: u32 = 4;

/// The last match starts at least 12 bytes before the end of the block's data.
pub(super) const MATCH_START_LIMIT: u32 = PAGE_BYTES - 12;

/// The last 5 bytes are literals.
pub(super) const LAST_LITERALS: u32 = 5;

/// A match ends here at the latest.
pub(super) const MATCH_END_LIMIT: u32 = PAGE_BYTES - LAST_LITERALS;

/// The value of a length's nibble that says that more bytes follow.
pub(super) const RUN_MASK: u32 = 15;
