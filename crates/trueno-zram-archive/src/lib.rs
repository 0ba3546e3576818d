//! Page archives: standard LZ4 and Zstandard files of 4 KiB pages, with an index for random access.
//!
//! Every LZ4 tool decompresses an archive of the LZ4 format, every Zstandard tool one of the Zstandard format, and each
//! page can be read alone. Readers know the format by the file.
//!
//! - [`ArchiveWriter`] writes an archive from compressed batches, runs of zeros and a tail.
//! - [`ArchiveReader`] finds pages by the index and restores only those.
//! - [`SharedReader`] reads single pages from many threads, with the index in memory.
//! - [`FrameReader`] streams archives and all other .lz4 and .zst files.
//! - [`DeltaWriter`] stores only the pages in which an image differs from another archive; [`DeltaReader`] reads them, and
//!   [`PageArchive`] reads archives and deltas alike.
//! - [`SalvageReader`] restores what is left of a damaged file.
//!
//! Compressing pages is not part of this crate: the writer takes a
//! [`CompressedBatch`](trueno_zram_core::CompressedBatch), and the readers decode on the CPU or with a codec that the
//! caller lends.
//!
//! The format is specified in `docs/FORMAT.md` of the repository.
//!
//! # Untrusted input
//!
//! No input is trusted. Whatever the bytes, readers return content or an [`Error`] that says what is wrong and where. They
//! do not panic, do not loop, and do not allocate memory for lengths that are only claimed.
#![forbid(unsafe_code)]

mod assemble;
mod block;
mod blocks;
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
mod groups;
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
mod range;
mod read_at;
mod reader;
mod regular_file;
mod resident;
mod salvage;
mod sections;
mod seek;
mod shared;
mod summary;
mod table;
mod unchanged_file;
mod verify;
mod writer;
mod zstd;

pub use blocks::{BlockPlace, Blocks};
pub use content::{ContentBatch, ContentSpan};
pub use damage::{Damage, DamageKind};
pub use delta::{
    ArchiveChain, ArchiveIdentity, ArchiveOpener, BaseRecord, ChainFile, DeltaPart, DeltaReader, DeltaSummary,
    DeltaWriter, OriginCounts, PageArchive, PageOrigin,
};
pub use error::{Error, Result};
pub use format::Format;
pub use groups::{GroupTotals, Groups, PageGroup, PageRun};
pub use hash::ContentHash;
pub use hash_check::HashCheck;
pub use index::GROUP_PAGES;
pub use page_blocks::{BlockShape, PageBlocks};
pub use page_hash::PageHash;
pub use page_hashes::{PageFinder, PageHashes};
pub use range::PageRangeReader;
pub use read_at::{ReadAt, Span};
pub use reader::{FrameReader, IndexVerdict, ReadSummary};
pub use regular_file::{FileId, open_regular_file};
pub use salvage::SalvageReader;
pub use sections::{Section, Sections};
pub use seek::ArchiveReader;
pub use shared::{ContentCursor, SharedReader};
pub use summary::{Summary, WriteOptions};
pub use unchanged_file::FileChanged;
pub use writer::ArchiveWriter;

/// Returns a small archive of zeros with a section, for examples.
#[doc(hidden)]
#[must_use]
pub fn doc_archive(len_bytes: usize) -> ArchiveReader<std::io::Cursor<Vec<u8>>> {
    let bytes = doc_bytes(len_bytes);
    ArchiveReader::open(std::io::Cursor::new(bytes)).expect("just written").expect("with an index")
}

/// Returns the same archive as [`doc_archive`], for examples.
#[doc(hidden)]
#[must_use]
pub fn doc_shared_archive(len_bytes: usize) -> SharedReader<Vec<u8>> {
    SharedReader::open(doc_bytes(len_bytes)).expect("just written").expect("with an index")
}

/// Returns the same archive as [`doc_archive`], for examples.
#[doc(hidden)]
#[must_use]
pub fn doc_page_archive(len_bytes: usize) -> PageArchive {
    let bytes = std::sync::Arc::new(doc_bytes(len_bytes));
    PageArchive::standard(bytes).expect("just written").expect("with an index")
}

/// Returns a delta of 99 zero pages and a page that is stored, for examples.
#[doc(hidden)]
#[must_use]
pub fn doc_delta() -> DeltaReader {
    let write = |base: &PageArchive| {
        let mut delta = DeltaWriter::new(Vec::new(), base.record(b"base.lz4")?, WriteOptions::default())?;
        let (mut part, page) = (DeltaPart::new(), [7; trueno_zram_core::PAGE_SIZE]);
        part.start(delta.block_shape());
        part.push_zeros(99);
        let same_filled = trueno_zram_core::PageData::new(trueno_zram_core::PageKind::SameFilled, &[7; 8]);
        part.push_page(same_filled.map_err(Error::Decoder)?, &page, PageHash::of(&page))?;
        delta.push(&mut part)?;
        delta.finish(100 * trueno_zram_core::PAGE_SIZE as u64)
    };
    let base = doc_page_archive(4096);
    let bytes = write(&base).expect("vectors can be written to").0;
    DeltaReader::open(std::sync::Arc::new(bytes), |_| Ok(base)).expect("just written").expect("a delta")
}

/// Returns the bytes of the same archive as [`doc_archive`], for examples.
#[doc(hidden)]
#[must_use]
pub fn doc_page_archive_bytes(len_bytes: usize) -> Vec<u8> {
    doc_bytes(len_bytes)
}

fn doc_bytes(len_bytes: usize) -> Vec<u8> {
    let write = || {
        let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
        let mut hash = ContentHash::new();
        hash.update_zeros(len_bytes as u64);
        archive.write_zero_pages((len_bytes / trueno_zram_core::PAGE_SIZE) as u64)?;
        archive.write_tail(&vec![0; len_bytes % trueno_zram_core::PAGE_SIZE])?;
        archive.add_section("note", b"made for the documentation")?;
        archive.finish(Some(hash))
    };
    write().expect("vectors can be written to").0
}
