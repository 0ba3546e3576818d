//! Compresses 4 KiB memory pages in batches, in standard LZ4 blocks or Zstandard frames, on the CPU or on a GPU.
//!
//! For systems that store and move large amounts of memory: virtual machine snapshots, process checkpoints, compressed
//! swap, far memory. Each page is compressed on its own, so any page can be restored on its own.
//!
//! # Overview
//!
//! One page at a time, with a context that allocates nothing after it is created:
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
//! # How pages are held
//!
//! A page that repeats one word is held as that word ([`PageKind::SameFilled`]). A page that shrinks is held as an LZ4
//! block or a Zstandard frame. Any other page is held unchanged ([`PageKind::Raw`]). No page takes more than
//! [`PAGE_SIZE`] bytes. Blocks and frames are standard: `LZ4_decompress_safe`, `ZSTD_decompress` and every other decoder
//! of these formats can read them.
//!
//! # Untrusted input
//!
//! Compressed data is not trusted. For any input a decoder returns either a page or an [`Error`] that says where and
//! why decoding failed. It does not panic and writes nothing but the page.

#![deny(unsafe_code)]

pub mod cpu;
#[cfg(feature = "gpu")]
#[cfg_attr(
    not(feature = "internals"),
    allow(dead_code, unreachable_pub, reason = "parts of it are used only by the project's tools")
)]
pub mod gpu;
pub mod lz4;

mod algorithm;
mod arena;
#[cfg(feature = "gpu")]
mod batch;
mod codec;
mod copies;
mod error;
mod page;
mod page_room;
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
pub use codec::{BatchCodec, CodecStats};
pub use cpu::{CpuBatchCompressor, PageCodec};
pub use error::{Error, Result};
pub use page::{CompressedPage, FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind, fill_page, is_zero, same_filled};
pub use page_room::PageRoom;
pub use progress::Progress;
pub use stats::PageStats;
pub use threads::{MAX_THREADS, build_pool, default_pool};
#[cfg(feature = "gpu")]
pub use threads::{default_gpu_pool, workers_beside_driver};

/// The optional Cargo features that this crate was built with.
///
/// ```
/// use trueno_zram_core::FEATURES;
/// assert_eq!(FEATURES.contains(&"gpu"), cfg!(feature = "gpu"));
/// ```
pub const FEATURES: &[&str] = &[
    #[cfg(feature = "gpu")]
    "gpu",
    #[cfg(feature = "zstd")]
    "zstd",
];

/// Runs the examples in the project's README as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
