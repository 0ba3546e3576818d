//! Compresses 4 KiB memory pages in batches, in standard LZ4 blocks.
//!
//! For those who hold much memory and move it: snapshots of virtual machines, checkpoints of processes, compressed
//! swap, far memory. Each page is compressed by itself, so each can be restored by itself.
//!
//! # A tour
//!
//! One page at a time, with a context that allocates nothing once made:
//!
//! ```
//! use trueno_zram_core::{Algorithm, PAGE_SIZE, PageCodec};
//!
//! let mut codec = PageCodec::new(Algorithm::Lz4)?;
//! let page: [u8; PAGE_SIZE] = std::array::from_fn(|i| (i / 64) as u8);
//! let (mut out, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
//! let compressed = codec.compress(&page, &mut out)?;
//! println!("{} in {} bytes", compressed.kind(), compressed.bytes().len());
//! codec.decompress(compressed, &mut back)?;
//! assert_eq!(back, page);
//! # Ok::<(), trueno_zram_core::Error>(())
//! ```
//!
//! Batches on all cores, into one arena with an index:
//!
//! ```
//! use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};
//!
//! let pages: Vec<[u8; PAGE_SIZE]> = (0..1000).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
//! let mut compressor = CpuBatchCompressor::new(Algorithm::Lz4)?;
//! let batch = compressor.compress(&pages)?;
//! println!("{:.1} : 1 on {} threads", batch.stats().ratio(), compressor.threads());
//! assert_eq!(compressor.decompress(&batch)?, pages);
//! # Ok::<(), trueno_zram_core::Error>(())
//! ```
//!
//! # How a page is held
//!
//! A page that is one word repeated is held as that word ([`PageKind::SameFilled`]); one that shrinks, as an LZ4 block
//! or a Zstandard frame; any other, as it is ([`PageKind::Raw`]). No page takes more than [`PAGE_SIZE`] bytes. The
//! blocks are standard: `LZ4_decompress_safe` and every other LZ4 decoder read them.
//!
//! # What may come in
//!
//! Compressed data is not trusted. Whatever bytes a decoder is given, it returns a page or an [`Error`] that says
//! where and why; it does not panic and touches nothing but the page.

#![deny(unsafe_code)]

pub mod cpu;
#[cfg(feature = "gpu")]
#[cfg_attr(
    not(feature = "internals"),
    allow(dead_code, unreachable_pub, reason = "parts of it serve the project's tools alone")
)]
pub mod gpu;
pub mod lz4;

mod algorithm;
mod arena;
#[cfg(feature = "gpu")]
mod batch;
mod codec;
mod error;
mod page;
#[cfg(feature = "gpu")]
mod parallel_copy;
mod progress;
mod stats;
mod storage;
mod threads;

pub use algorithm::Algorithm;
pub use arena::{CompressedBatch, IndexEntry};
#[cfg(feature = "gpu")]
pub use batch::{BatchCompressor, Placement};
pub use codec::BatchCodec;
pub use cpu::{CpuBatchCompressor, PageCodec};
pub use error::{Error, Result};
pub use page::{CompressedPage, FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind, fill_page, same_filled};
pub use progress::Progress;
pub use stats::PageStats;
pub use threads::{MAX_THREADS, build_pool, default_pool};
#[cfg(feature = "gpu")]
pub use threads::{default_gpu_pool, workers_beside_driver};

/// The examples of the project's README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
