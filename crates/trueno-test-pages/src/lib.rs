//! Pages to test and measure with, and the foreign LZ4 libraries to check against.
//!
//! Tests, fuzz targets and benchmarks of all crates take their pages from here, so that a page which once broke
//! something is tried everywhere. Nothing here is part of the product, but that `trueno-zram bench` runs the rivals and the
//! corpus.
//!
//! - [`corpus`]: real pages, from `corpus/` at the workspace's root;
//! - [`edge`]: pages made to sit on the boundaries of the format;
//! - [`generate`]: pages without end, from a seed;
//! - [`oracle`]: C lz4 and lz4_flex;
//! - [`frames`]: C lz4's frames, to read and to compare with.

pub mod corpus;
pub mod edge;
pub mod frames;
pub mod generate;
pub mod oracle;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// One uncompressed page.
pub type Page = [u8; PAGE_SIZE];
