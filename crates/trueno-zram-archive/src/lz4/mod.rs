//! LZ4: the header of a frame, and blocks of constant pages.

pub(crate) mod constant;
pub(crate) mod header;
