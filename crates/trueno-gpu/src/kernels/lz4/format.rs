//! Constants of the LZ4 block format, and those that follow from the page size.

pub(super) use crate::kernels::packed::PAGE_BYTES;

/// The longest block of a page: one literal run with its token and 17 length bytes, as some encoders write for noise.
pub(super) const MAX_BLOCK_BYTES: u32 = PAGE_BYTES + 18;

/// Length of the shortest match. Length fields count from here.
pub(super) const MIN_MATCH: u32 = 4;

/// Last position at which a match may start: 12 bytes before the end of the data.
pub(super) const MATCH_START_LIMIT: u32 = PAGE_BYTES - 12;

/// Number of literals at the end of a block.
pub(super) const LAST_LITERALS: u32 = 5;

/// Last position at which a match may end.
pub(super) const MATCH_END_LIMIT: u32 = PAGE_BYTES - LAST_LITERALS;

/// Value of a length nibble after which more length bytes follow.
pub(super) const RUN_MASK: u32 = 15;
