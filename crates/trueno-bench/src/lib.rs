//! Engines, rivals and everything that measures them.
//!
//! `trueno-zram bench` and the binary `trueno-bench` are thin layers over this crate:
//!
//! - [`Corpus`]: real pages; same-filled ones are counted and left out.
//! - [`Engine`]: anything measured. It compresses a batch of pages, keeps the result and restores it.
//! - [`mod@bench`]: CPU engines and the GPU side by side, from one thread to all.
//! - [`pages`]: codecs alone, one page at a time in the cache.
//! - [`kernels`]: GPU kernels on pages in device memory, beside nvCOMP.
//! - [`pipeline`]: batches from host memory through the GPU and back, beside the bus and C lz4.
//! - [`files`]: plain writers of a new file, and the library's batches, to compare the tool with.
//! - [`Document`]: what a run found, as JSON, as text ([`table`]) and as an HTML page ([`html`]).
//!
//! Two features are on by default and off in the released tool: `rivals` links C lz4, lz4_flex and Zstandard, and `device`
//! adds [`kernels`], [`pipeline`] and nvCOMP.

#![deny(unsafe_code)]

pub mod bench;
#[cfg(feature = "rivals")]
#[allow(unreachable_pub, reason = "trueno-test-pages has this file, too")]
mod c_lz4;
mod corpora;
mod document;
#[cfg(all(feature = "rivals", feature = "device"))]
#[allow(dead_code, unreachable_pub, reason = "trueno-test-pages has this file, too")]
mod edge;
mod engine;
mod engines;
mod error;
pub mod files;
pub mod generate;
pub mod html;
#[cfg(feature = "device")]
pub mod kernels;
mod machine;
mod measure;
pub mod pages;
#[cfg(feature = "device")]
pub mod pipeline;
mod quantity;
mod series;
pub mod table;
pub mod timing;

pub use corpora::{Corpus, load, mix};
pub use document::{Document, RunSettings};
pub use engine::{Engine, verify};
pub use engines::zram::remove_leftovers;
pub use engines::{Gpu, Rivals};
pub use error::{Error, Result};
pub use measure::Observer;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
