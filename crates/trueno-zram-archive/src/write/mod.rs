//! Writes archives: from a stream in one call, or block by block from pages that were compressed elsewhere.

pub(crate) mod assemble;
pub(crate) mod compress;
pub(crate) mod options;
pub(crate) mod page_blocks;
pub(crate) mod writer;
