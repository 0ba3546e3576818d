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
//! `BatchCompressor` uses an NVIDIA GPU where that is faster, and the module `gpu` gives full control over one.
//!
//! # The form of compressed pages
//!
//! A page that repeats one 8-byte word is held as that word ([`PageKind::SameFilled`]). A page that shrinks is held as
//! an LZ4 block or a Zstandard frame. Any other page is held unchanged ([`PageKind::Raw`]). No page takes more than
//! [`PAGE_SIZE`] bytes. Blocks and frames are standard: `LZ4_decompress_safe`, `ZSTD_decompress` and every other
//! decoder of these formats can read them.
//!
//! # Untrusted input
//!
//! Compressed data is not trusted. For any input a decoder returns either a page or an [`Error`] with the position and
//! the reason of the failure. It does not panic and writes nothing but the page.
//!
//! # Features
//!
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `gpu` | yes | `BatchCompressor` and the module `gpu`. The driver is loaded at run time; building needs nothing of CUDA |
//! | `zstd` | yes | [`Algorithm::Zstd`], through the C library. Without it, Zstandard is an [`Error::Unsupported`] on GPUs, too |
//! | `internals` | no | `gpu::raw`, the driver layer, for the project's own tools and tests. It may change in any version |
//!
//! Without any of them, the crate compresses and restores LZ4 pages on the CPU.

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
mod aligned_pages;
mod arena;
#[cfg(feature = "gpu")]
mod batch;
mod codec;
mod error;
mod filled_vec;
mod page;
#[cfg(feature = "gpu")]
mod parallel_copy;
mod progress;
mod stats;
mod storage;
mod threads;

pub use algorithm::Algorithm;
pub use aligned_pages::AlignedPages;
pub use arena::{CompressedBatch, IndexEntry};
#[cfg(feature = "gpu")]
pub use batch::{BatchCompressor, Placement};
pub use codec::{BatchCodec, CodecStats};
pub use cpu::{CpuBatchCompressor, PageCodec};
pub use error::{Error, Result};
pub use page::{CompressedPage, FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind, fill_page, is_zero, same_filled};
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

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
