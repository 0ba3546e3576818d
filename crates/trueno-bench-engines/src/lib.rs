//! What the benchmarks share: corpora, the rivals behind one face, and how times become figures.
//!
//! Used by `trueno-zram bench`, the bench `pages` of trueno-zram-core, and the kernel bench; never by the library.
//!
//! - [`Corpus`]: real pages, the same-filled ones counted and left out;
//! - [`PageEngine`]: one codec, one page at a time; [`BatchEngine`]: a batch of pages into one arena and back;
//! - [`Zram`] and [`nvcomp`]: rivals that live in the kernel and on the GPU;
//! - [`timing`]: medians, quotients of neighbouring timings, geometric means.

#![deny(unsafe_code)]

mod batch;
mod corpora;
mod error;
pub mod nvcomp;
mod page;
mod pooled;
pub mod timing;
mod zram;

pub use batch::{BatchEngine, Memcpy, TruenoCpu, verify};
pub use corpora::{Corpus, load};
pub use error::{Error, Result};
pub use page::{Block, CLz4, Flex, MemcpyPage, PageEngine, TruenoPage, Zstd};
pub use pooled::{Pool, Pooled};
pub use zram::Zram;
