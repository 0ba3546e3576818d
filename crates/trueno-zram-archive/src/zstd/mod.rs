//! Zstandard: frames of pages, the seek table of the seekable format, and frames of other encoders through libzstd.

pub(crate) mod constant_pages;
pub(crate) mod frame;
pub(crate) mod frame_check;
#[cfg_attr(not(feature = "zstd"), path = "libzstd_absent.rs")]
pub(crate) mod libzstd;
pub(crate) mod seek_table;
