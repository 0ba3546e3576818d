//! Pages to test with, and other LZ4 libraries to check against.
//!
//! Tests and fuzz targets of all crates take their pages from here, so that a page that once broke something is tried
//! everywhere. The released tool does not link this crate; `trueno-bench` does with its feature `rivals`, for C lz4.
//!
//! - [`corpus`]: real pages, from `corpus/` at the root of the workspace;
//! - [`database`]: pages of b-tree indexes and tables, from a seed;
//! - [`edge`]: pages at the boundaries of the format;
//! - [`generate`]: any number of pages, from a seed;
//! - [`oracle`]: C lz4 and lz4_flex;
//! - [`frames`]: C lz4's frames, to read and to compare with.

pub mod corpus;
pub mod database;
pub mod edge;
pub mod frames;
pub mod generate;
pub mod oracle;

pub use trueno_page::{PAGE_SIZE, Page};
