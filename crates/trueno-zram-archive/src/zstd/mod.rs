//! Zstandard: frames of pages, the seek table of the seekable format, and frames of other encoders through libzstd.

pub(crate) mod constant;
pub(crate) mod context;
pub(crate) mod foreign;
pub(crate) mod frame;
pub(crate) mod group;
pub(crate) mod seek_table;
