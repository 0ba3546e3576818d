//! Pages to test with, and other LZ4 libraries to check against.
//!
//! Tests and fuzz targets of all crates take their pages from here, so that a page that once broke something is tried
//! everywhere. Nothing that is published depends on this crate; it shares some files with `trueno-bench`.
//!
//! - [`corpus`]: real pages, from `corpus/`;
//! - [`database`]: pages of b-tree indexes and tables, from a seed;
//! - [`edge_pages`]: pages at the boundaries of the format;
//! - [`generate`]: any number of pages, from a seed;
//! - [`oracle`]: C lz4 and lz4_flex;
//! - [`frames`]: C lz4's frames, to read and to compare with.

#[path = "../../trueno-bench/src/c_lz4.rs"]
mod c_lz4;
pub mod corpus;
pub mod database;
#[path = "../../trueno-bench/src/edge_pages.rs"]
pub mod edge_pages;
pub mod frames;
#[path = "../../trueno-bench/src/generate.rs"]
pub mod generate;
pub mod oracle;

pub use trueno_page::{PAGE_SIZE, Page};
