//! Page archives: standard LZ4 frames of 4 KiB blocks, with an index for random access.
//!
//! An archive is a file that every LZ4 tool decompresses, and of which each page can be read alone.
//!
//! - [`ArchiveWriter`] takes compressed batches, runs of zeros and a tail, and writes an archive;
//! - [`ArchiveReader`] finds pages by the index and restores those alone;
//! - [`FrameReader`] streams archives, and all other .lz4 files, whoever made them.
//!
//! Compressing pages and restoring them is the business of others: the writer takes a
//! [`CompressedBatch`](trueno_zram_core::CompressedBatch), the readers ask a [`PageDecoder`].
//!
//! # The format
//!
//! An LZ4 frame (version 1.6 of its description): independent blocks, block size 64 KiB, and, unless they are not wanted, the
//! content's length, a checksum after each block and one of the content. A block is
//!
//! - one page that shrinks, as an LZ4 block; a page of one repeated 8-byte word is such a block as well, of 33 bytes;
//! - one page that does not shrink, as it is;
//! - a run of up to 16 pages of zeros, as an LZ4 block of 26 to 267 bytes. A run ends where the page's number is a
//!   multiple of 16, so that any page's run can be found from its number;
//! - at the end, what is left of the content if it is not whole pages.
//!
//! Runs are why a hole costs its share of 1 : 241 in the file (LZ4 cannot do better than 1 : 255), and no time to code. Larger
//! blocks would gain 5 %, and cost every reader more memory.
//!
//! Behind it, the index as a skippable frame, which other tools pass over: two bytes a page, in groups of 1,024 pages with
//! a table, so that a page is found with three small reads; none for groups of zeros. It ends with a footer of fixed size,
//! found from the file's end. It may carry named sections; those that a reader does not know are ignored. Every part of it has a
//! checksum. An archive without its index is an LZ4 file like others.
//!
//! # What may come in
//!
//! No input is trusted. Whatever the bytes, readers give content or an [`Error`] that says what is wrong and where; they do not
//! panic, do not loop, and do not set memory aside for lengths that are only claimed.
#![forbid(unsafe_code)]

mod block;
mod constant;
mod content;
mod decoder;
mod entry;
mod error;
mod frame;
mod hash;
mod header;
mod index;
mod input;
mod lots;
mod range;
mod reader;
mod sections;
mod seek;
mod summary;
mod verify;
mod writer;

pub use content::{ContentBatch, Piece};
pub use decoder::{CpuPageDecoder, PageDecoder, gather};
pub use error::{Error, Result};
pub use hash::ContentHash;
pub use range::PageRangeReader;
pub use reader::{FrameReader, IndexVerdict, ReadSummary};
pub use seek::{ArchiveReader, BlockKind, BlockPlace};
pub use summary::{PageCounts, Summary, WriteOptions};
pub use writer::ArchiveWriter;

/// A small archive of zeros with a section, for examples.
#[doc(hidden)]
#[must_use]
pub fn doc_archive(len_bytes: usize) -> ArchiveReader<std::io::Cursor<Vec<u8>>> {
    let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
    let write = || {
        let mut archive = ArchiveWriter::new(Vec::new(), options)?;
        archive.write_zero_pages((len_bytes / trueno_zram_core::PAGE_SIZE) as u64)?;
        archive.write_tail(&vec![0; len_bytes % trueno_zram_core::PAGE_SIZE])?;
        archive.add_section("note", b"made for the documentation")?;
        archive.finish(None)
    };
    let (bytes, _) = write().expect("vectors can be written to");
    ArchiveReader::open(std::io::Cursor::new(bytes)).expect("just written").expect("with an index")
}
