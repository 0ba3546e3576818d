//! Page archives: standard LZ4 and Zstandard files of 4 KiB pages, with an index for random access.
//!
//! Every LZ4 tool decompresses an archive of the LZ4 format, every Zstandard tool one of the Zstandard format, and each
//! page can be read alone. Readers recognize the format by the content of the file, not by its name.
//!
//! - [`compress`] turns a stream of bytes into an archive; [`Archive`] reads its pages.
//! - [`ArchiveWriter`] writes an archive from batches that were compressed elsewhere, runs of zero pages, and a last page that
//!   may be shorter.
//! - [`FrameReader`] streams archives and all other .lz4 and .zst files.
//! - [`DeltaWriter`] stores only the pages in which an image differs from another archive; [`Delta`] reads them, and
//!   [`PageArchive`] is either of the two. `ArchiveOpener` of the crate `trueno-zram-io` finds the bases of deltas.
//! - [`Pages`] is the trait of all sources of pages: archives, deltas, plain files, and those of other crates.
//! - [`address_map`] and [`process_state`] are the sections of an archive that is a snapshot of a process.
//! - [`SalvageReader`] restores what is left of a damaged file.
//!
//! ```
//! use std::sync::Arc;
//! use trueno_zram_archive::{Archive, WriteOptions, compress};
//! let mut file = Vec::new();
//! compress(&b"some memory"[..], &mut file, &WriteOptions::default())?;
//! let archive = Archive::read_from(Arc::new(file))?.expect("it has an index"); // or Archive::open(path)
//! assert!(archive.read_page(0)?.starts_with(b"some memory"));
//! # Ok::<(), trueno_zram_archive::Error>(())
//! ```
//!
//! Pages are compressed and decoded on the CPU, unless the caller brings a codec: readers take any [`BatchCodec`], and the
//! writer takes any [`CompressedBatch`]. These and the other types of the codec crate that appear here are re-exported; its
//! errors are [`CodecError`].
//!
//! The format is specified in `docs/FORMAT.md` of the repository.
//!
//! # Untrusted input
//!
//! No input is trusted. Whatever the bytes, readers return content or an [`Error`] that says what is wrong and where. They
//! do not panic, do not loop, and do not allocate memory for lengths that are only claimed.
#![forbid(unsafe_code)]

pub mod address_map;
mod archive;
mod background_proof;
mod block;
mod delta;
mod error;
mod format;
mod hashes;
mod index;
mod lz4;
mod pages;
pub mod process_state;
mod read_at;
mod salvage;
mod snapshot_section;
mod stream;
mod varint;
mod write;
mod zstd;

pub use archive::group::{GroupBuffer, GroupRun};
pub use archive::{Archive, ArchiveInfo, CodecPages, GroupTotals, Verify};
pub use background_proof::{BackgroundProof, ProofEvent};
pub use delta::{
    ArchiveIdentity, BaseRecord, Delta, DeltaFile, DeltaPart, DeltaSummary, DeltaWriter, OriginCounts, PageArchive,
    PageOrigin, StoredPages, StoredPagesReader,
};
pub use error::{Error, Result};
pub use format::Format;
pub use hashes::content_hash::ContentHash;
pub use hashes::hash_check::HashCheck;
pub use hashes::page_finder::{PageFinder, PageHashes};
pub use hashes::page_hash::PageHash;
pub use index::blocks::{BlockPlace, Blocks};
pub use index::layout::GROUP_PAGES;
pub use index::sections::{Section, Sections};
pub use pages::{Image, Pages, PagesCursor, PlainPages, Visit};
pub use read_at::ReadAt;
pub use salvage::SalvageReader;
pub use salvage::damage::{Damage, DamageKind};
pub use snapshot_section::SnapshotError;
pub use stream::content::{ContentBatch, ContentSpan};
pub use stream::reader::{FrameReader, IndexVerdict, ReadSummary};
pub use trueno_zram_core::{
    Algorithm, BatchCodec, CodecStats, CompressedBatch, CpuBatchCompressor, Error as CodecError, PAGE_SIZE, Page,
    PageCodec, PageData, PageKind, PageStats, Progress,
};
pub use write::compress::compress;
pub use write::options::{WriteOptions, WriteSummary};
pub use write::page_blocks::{BlockShape, PageBlocks};
pub use write::writer::ArchiveWriter;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
