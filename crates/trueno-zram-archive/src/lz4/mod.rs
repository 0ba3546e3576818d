//! LZ4: the header of a frame, blocks of constant pages, and the sequences of a block.

pub(crate) mod constant_pages;
pub(crate) mod header;
pub(crate) mod sequences;
