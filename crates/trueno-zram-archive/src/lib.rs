//! Page archives: standard LZ4 and Zstandard files of 4 KiB pages, with an index for random access.
//!
//! Every LZ4 tool decompresses an archive of the LZ4 format, every Zstandard tool one of the Zstandard format, and each
//! page can be read alone. Readers know the format by the file.
//!
//! - [`compress`] turns a stream of bytes into an archive; [`Archive`] reads its pages.
//! - [`ArchiveWriter`] writes an archive from batches that were compressed elsewhere, runs of zeros and a tail.
//! - [`FrameReader`] streams archives and all other .lz4 and .zst files.
//! - [`DeltaWriter`] stores only the pages in which an image differs from another archive; [`Delta`] reads them, and
//!   [`PageArchive`] is either of the two. `ArchiveOpener` of the crate `trueno-zram-io` finds the bases of deltas.
//! - [`Pages`] is what all of them are to their readers, and what other sources can implement.
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
//! Pages are compressed and decoded on the CPU, unless the caller lends a codec: the writer takes any
//! [`CompressedBatch`](trueno_zram_core::CompressedBatch).
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
mod assemble;
mod block;
mod blocks;
mod compress;
mod constant;
mod content;
mod damage;
mod decoder;
mod delta;
mod entry;
mod error;
mod format;
mod frame;
mod group;
mod hash;
mod hash_check;
mod hash_list;
mod header;
mod history;
mod index;
mod index_builder;
mod inline;
mod input;
mod lost_header;
mod lots;
mod page_blocks;
mod page_hash;
mod page_hashes;
mod pages;
pub mod process_state;
mod read_at;
mod reader;
mod resident;
mod salvage;
mod sections;
mod summary;
mod table;
mod varint;
mod verify;
mod writer;
mod zstd;

pub use archive::{Archive, ArchiveInfo, CodecPages, GroupTotals, Verify};
pub use blocks::{BlockPlace, Blocks};
pub use compress::compress;
pub use content::{ContentBatch, ContentSpan};
pub use damage::{Damage, DamageKind};
pub use delta::{
    ArchiveIdentity, BaseRecord, Delta, DeltaFile, DeltaPart, DeltaSummary, DeltaWriter, OriginCounts, PageArchive,
    PageOrigin,
};
pub use error::{Error, Result};
pub use format::Format;
pub use group::{GroupBuffer, GroupRun};
pub use hash::ContentHash;
pub use hash_check::HashCheck;
pub use index::GROUP_PAGES;
pub use page_blocks::{BlockShape, PageBlocks};
pub use page_hash::PageHash;
pub use page_hashes::{PageFinder, PageHashes};
pub use pages::{Image, Pages, PagesCursor, PlainPages, Visit};
pub use read_at::{ReadAt, Span};
pub use reader::{FrameReader, IndexVerdict, ReadSummary};
pub use salvage::SalvageReader;
pub use sections::{Section, Sections};
pub use summary::{Summary, WriteOptions};
pub use writer::ArchiveWriter;
