//! Measures page compression: the codecs, kernels and pipelines of trueno-zram beside C lz4, lz4_flex, Zstandard, nvCOMP and the
//! kernel's zram.
//!
//! All engines take turns on the same real pages, round after round, so that a noisy moment hits them alike. Every engine
//! must restore every page before it is timed. Same-filled pages are counted and left out.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use trueno_bench::{RunSettings, load, pages, table};
//!
//! // 20 pages of each program of the built-in corpus, through every codec on one thread.
//! let corpora = load(&[], 20)?;
//! let run = RunSettings { rounds: 1, pages: 32, threads: NonZeroUsize::MIN };
//! let document = pages::run(&corpora, run, &())?;
//! println!("{}", table::draw(&document));
//! # Ok::<(), trueno_bench::Error>(())
//! ```
//!
//! The command `trueno-zram bench` and the binary `trueno-bench` are thin layers over this crate. What is measured:
//!
//! - [`pages`]: codecs alone, one page at a time in the cache.
//! - [`mod@bench`]: whole batches on the CPU and the GPU side by side, from one thread to all.
//! - [`kernels`]: GPU kernels on pages in device memory, beside nvCOMP.
//! - [`pipeline`]: batches from host memory through the GPU and back, beside the bus and C lz4.
//! - [`files`]: plain writers of a new file, and the library's batches, to compare the tool with.
//!
//! A run takes pages of [`Corpus`], tells an [`Observer`] how it goes on, and returns a [`Document`], which is written as JSON, as
//! text ([`table`]) or as an HTML page ([`html`]). To measure something else, implement [`Engine`].
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
/// ```
/// let pages = trueno_bench::edge_pages::all();
/// assert!(pages.iter().any(|edge| edge.name == "run of 270 at 2000"));
/// ```
pub mod edge_pages;
mod engine;
mod engines;
mod error;
pub mod files;
/// ```
/// use trueno_bench::generate::Generator;
///
/// assert_eq!(Generator::new(7).page(), Generator::new(7).page());
/// ```
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
pub use machine::cpu_model;
pub use measure::Observer;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
