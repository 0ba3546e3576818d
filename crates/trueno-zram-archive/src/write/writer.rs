//! Writes a page archive: the pages block by block, then the index.

use std::io::Write;
use std::ops::Range;

use rayon::prelude::*;
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page, PageStats};

use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::hashes::content_hash::ContentHash;
use crate::hashes::hash_list::{self, HashList};
use crate::index::builder::{BuiltIndex, IndexBuilder, Retention};
use crate::index::entry::PageEntry;
use crate::index::layout::pages_of;
use crate::index::sections;
use crate::lz4::header::Lz4Header;
use crate::write::options::{WriteOptions, WriteSummary};
use crate::write::page_blocks::{BlockShape, PageBlocks};
use crate::zstd::seek_table::{self, SeekEntry};

/// Pages that one thread assembles at a time, at least.
const CHUNK_PAGES: usize = 64;

/// Bytes of the seek table written with one call.
const SEEK_BYTES_AT_ONCE: usize = 64 << 10;

/// Zero pages written with one call: 1 MiB of blocks at most. Runs of either format end at multiples of it.
const ZEROS_AT_ONCE: u64 = 60 << 10;

/// Writes a page archive: a standard LZ4 or Zstandard file with an index.
///
/// The caller compresses the pages with any codec and hashes the content on any thread; the writer assembles blocks. It
/// keeps two bytes per page for the index, and none for long runs of zeros.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentHash, CpuBatchCompressor, PAGE_SIZE, WriteOptions};
///
/// let pages = vec![std::array::from_fn::<u8, PAGE_SIZE, _>(|i| (i / 64) as u8); 100];
/// let mut compressor = CpuBatchCompressor::default();
/// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
/// let mut hash = ContentHash::new();
///
/// hash.update(pages.as_flattened());
/// archive.write_batch(&compressor.compress(&pages)?)?;
/// hash.update_zeros(1 << 20);
/// archive.write_zero_pages((1 << 20) / 4096)?;
/// hash.update(b"the rest");
/// archive.write_tail(b"the rest")?;
///
/// let (bytes, summary) = archive.finish(Some(hash))?;
/// assert_eq!((summary.pages.lz4, summary.pages.zero, summary.pages.raw), (100, 256, 1));
/// assert!(bytes.starts_with(&[0x04, 0x22, 0x4d, 0x18]), "any LZ4 tool reads it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ArchiveWriter<W: Write> {
    out: W,
    layout: Layout,
    announced_len: Option<u64>,
    index: IndexBuilder,
    sections: Vec<u8>,
    written: u64,
    content_len: u64,
    has_tail: bool,
    /// The blocks of a batch; kept between batches.
    parts: Vec<PageBlocks>,
    /// The hashes of all pages, if the archive is to have them.
    hashes: Option<HashList>,
}

impl<W: Write> ArchiveWriter<W> {
    /// Starts an archive and writes the header of an LZ4 frame.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// assert_eq!(archive.written(), 7);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::MissingFeature`] for [`Format::Zstd`] in a build without the feature `zstd`.
    pub fn new(out: W, options: WriteOptions) -> Result<Self> {
        let WriteOptions { format, content_len, block_checksums, content_checksum, page_hashes } = options;
        format.check_supported()?;
        let (layout, bytes) = match format {
            Format::Lz4 => {
                let header = Lz4Header::archive(content_len, block_checksums, content_checksum);
                (Layout::Lz4(header), header.encode())
            }
            Format::Zstd => (Layout::Zstd { checksums: block_checksums }, Vec::new()),
        };
        let mut writer = Self {
            out,
            layout,
            announced_len: content_len,
            index: IndexBuilder::new(layout, bytes.len() as u64, Retention::Entries),
            sections: Vec::new(),
            written: 0,
            content_len: 0,
            has_tail: false,
            parts: Vec::new(),
            hashes: page_hashes.then(HashList::default),
        };
        writer.write(&bytes)?;
        Ok(writer)
    }

    /// Writes the pages of a batch. Blocks and their checksums are assembled on the rayon pool that it is called in.
    /// Consecutive zero pages share blocks.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, CpuBatchCompressor, PAGE_SIZE, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// archive.write_batch(&CpuBatchCompressor::default().compress(&[[7; PAGE_SIZE]; 10])?)?;
    /// assert_eq!(archive.pages().same_filled, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A Zstandard archive with block checksums needs the content of every page. Without it, compressed pages are decoded:
    /// [`write_batch_of`](Self::write_batch_of) is faster.
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Misuse`] for pages of the other format, Zstandard frames of several blocks, more content
    /// than announced, and pages after a tail; [`Error::Decoder`] for a Zstandard frame that is not one page.
    pub fn write_batch(&mut self, batch: &CompressedBatch) -> Result<()> {
        self.write_pages(batch, None)
    }

    /// Like [`write_batch`](Self::write_batch), with the pages that the batch was compressed from.
    ///
    /// ```
    /// use trueno_zram_archive::{Algorithm, ArchiveWriter, CpuBatchCompressor, Format, PAGE_SIZE, WriteOptions};
    /// let pages = vec![std::array::from_fn::<u8, PAGE_SIZE, _>(|i| (i / 64) as u8); 100];
    /// let mut compressor = CpuBatchCompressor::new(Algorithm::Zstd { level: 3 })?;
    /// let options = WriteOptions::default().with_format(Format::Zstd);
    /// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
    /// archive.write_batch_of(&compressor.compress(&pages)?, &pages)?;
    /// let (bytes, summary) = archive.finish(None)?;
    /// assert_eq!(summary.pages.zstd, 100);
    /// assert!(bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]), "any Zstandard tool reads it");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Like [`write_batch`](Self::write_batch), and [`Error::Misuse`] for another number of pages than the batch has.
    pub fn write_batch_of(&mut self, batch: &CompressedBatch, pages: &[Page]) -> Result<()> {
        if pages.len() != batch.len() {
            let (pages, len) = (pages.len(), batch.len());
            return Err(Error::Misuse(format!("{pages} pages were given with a batch of {len}")));
        }
        self.write_pages(batch, Some(pages))
    }

    fn write_pages(&mut self, batch: &CompressedBatch, plain: Option<&[Page]>) -> Result<()> {
        self.check_room(batch.len() as u64 * PAGE_SIZE as u64)?;
        let (first_page, shape) = (self.index.next_page(), self.block_shape());
        let ranges = chunks(first_page, batch.len(), self.layout.format().run_pages().max(CHUNK_PAGES));
        let mut parts = std::mem::take(&mut self.parts);
        parts.resize_with(parts.len().max(ranges.len()), PageBlocks::new);
        let assemble = |(pages, blocks): (&Range<usize>, &mut PageBlocks)| {
            blocks.start(first_page + pages.start as u64, shape);
            for number in pages.clone() {
                let page = batch.get(number).expect("the batch has this page");
                match plain {
                    Some(plain) => blocks.push_of(page, &plain[number])?,
                    None => blocks.push(page)?,
                }
            }
            if let Some(plain) = plain {
                blocks.hash_pages(&plain[pages.clone()]);
            }
            blocks.finish();
            Ok(())
        };
        let assembled = if ranges.len() <= 1 {
            ranges.iter().zip(&mut parts).try_for_each(assemble)
        } else {
            ranges.par_iter().zip(&mut parts).try_for_each(assemble)
        };
        let written =
            assembled.and_then(|()| parts[..ranges.len()].iter().try_for_each(|blocks| self.write_blocks(blocks)));
        self.parts = parts;
        written
    }

    /// Returns the layout of the archive's blocks, for [`PageBlocks::start`].
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// let mut blocks = trueno_zram_archive::PageBlocks::new(); // on any thread
    /// blocks.start(0, archive.block_shape());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn block_shape(&self) -> BlockShape {
        BlockShape::new(self.layout, self.hashes.is_some())
    }

    /// Writes blocks that were assembled elsewhere. They start with the next page.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, PageBlocks, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// let mut blocks = PageBlocks::new();
    /// blocks.start(0, archive.block_shape());
    /// blocks.push_zeros(1000)?;
    /// blocks.finish();
    /// archive.write_blocks(&blocks)?;
    /// assert_eq!(archive.pages().zero, 1000);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`], and the errors of [`place_blocks`](Self::place_blocks).
    pub fn write_blocks(&mut self, blocks: &PageBlocks) -> Result<()> {
        self.place_blocks(blocks)?;
        self.out.write_all(blocks.bytes()).map_err(Error::Write)
    }

    /// Adds blocks that the caller writes, at the position that this returns. They start with the next page. The writer's own
    /// output must continue after them: see [`get_mut`](Self::get_mut).
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, PageBlocks, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// let mut blocks = PageBlocks::new();
    /// blocks.start(0, archive.block_shape());
    /// blocks.push_tail(b"ten bytes.")?;
    /// assert_eq!(archive.place_blocks(&blocks)?, 7);
    /// archive.get_mut().extend_from_slice(blocks.bytes());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Misuse`] for blocks that start with another page, are not [finished](PageBlocks::finish) or have another
    /// shape, for more content than announced, and for pages after a tail.
    pub fn place_blocks(&mut self, blocks: &PageBlocks) -> Result<u64> {
        let (next_page, first_page) = (self.index.next_page(), blocks.first_page());
        if first_page != next_page && blocks.content_len() > 0 {
            return Err(Error::Misuse(format!("blocks of page {first_page} on come before page {next_page}")));
        }
        let Some(entries) = blocks.entries() else {
            return Err(Error::Misuse("the blocks are not finished".to_owned()));
        };
        self.check_room(blocks.content_len())?;
        if let Some(hashes) = &mut self.hashes {
            let pages = pages_of(blocks.content_len());
            let hashed = blocks.hashes().filter(|hashed| hashed.page_count() == pages);
            hashes.append(hashed.ok_or_else(|| Error::Misuse("the pages of the blocks were not hashed".to_owned()))?);
            if !hashes.fits_section() {
                return Err(Error::Misuse(
                    "there are too many pages to keep a hash of each: more than 2^26".to_owned(),
                ));
            }
        }
        let (start, mut left) = (self.written, blocks.content_len());
        let mut push = |entry: &PageEntry| {
            let len = left.min(entry.pages() * PAGE_SIZE as u64);
            left -= len;
            self.index.push(*entry, len)
        };
        if !entries.iter().all(&mut push) || self.index.at() - start != blocks.bytes().len() as u64 {
            return Err(Error::Misuse("the blocks do not have this archive's shape".to_owned()));
        }
        self.content_len += blocks.content_len();
        self.has_tail |= blocks.has_tail();
        self.written += blocks.bytes().len() as u64;
        Ok(start)
    }

    /// Returns the output. What is written to it must be what [`place_blocks`](Self::place_blocks) has placed.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// assert_eq!(archive.get_mut().len(), 7);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Writes this many zero pages, at the speed of the output: 17 bytes per page for LZ4, one per 7 pages for Zstandard.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// archive.write_zero_pages(1 << 18)?; // a hole of 1 GiB
    /// assert!(archive.written() < 5_000_000);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`write_batch`](Self::write_batch).
    pub fn write_zero_pages(&mut self, pages: u64) -> Result<()> {
        let len = pages.checked_mul(PAGE_SIZE as u64);
        self.check_room(
            len.ok_or_else(|| Error::Misuse(format!("{pages} zero pages are more than a file can hold")))?,
        )?;
        let mut left = pages;
        while left > 0 {
            let next_page = self.index.next_page();
            // Up to a multiple of `ZEROS_AT_ONCE`, so that runs end at the same pages as in one piece.
            let now = left.min(ZEROS_AT_ONCE - next_page % ZEROS_AT_ONCE);
            self.write_part(|blocks| blocks.push_zeros(now))?;
            left -= now;
        }
        Ok(())
    }

    /// Writes the last, shorter page of up to 4095 bytes. An empty one is ignored.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// archive.write_tail(&[])?;
    /// archive.write_tail(b"less than a page")?;
    /// assert!(archive.write_tail(b"another end").is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`write_batch`](Self::write_batch), and [`Error::Misuse`] for a page or more.
    pub fn write_tail(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_part(|blocks| blocks.push_tail(bytes))
    }

    /// Assembles blocks on the calling thread, and writes them.
    fn write_part(&mut self, assemble: impl FnOnce(&mut PageBlocks) -> Result<()>) -> Result<()> {
        let mut blocks = self.parts.pop().unwrap_or_default();
        blocks.start(self.index.next_page(), self.block_shape());
        assemble(&mut blocks)?;
        blocks.finish();
        let written = self.write_blocks(&blocks);
        self.parts.push(blocks);
        written
    }

    /// Adds a named section to the index, such as an address map. Readers that do not know it ignore it.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// archive.add_section("address-map", b"7f0000000000 rw-p [heap]")?;
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Misuse`] for a name that is empty, longer than 255 bytes or in use, and for more than 1 GiB in total.
    pub fn add_section(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        sections::append(&mut self.sections, name, bytes)
    }

    /// Returns the number of bytes written so far.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let options = WriteOptions::default().with_content_len(0);
    /// assert_eq!(ArchiveWriter::new(Vec::new(), options)?.written(), 15);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of pages so far, by kind.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// archive.write_zero_pages(3)?;
    /// assert_eq!(archive.pages().zero, 3);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn pages(&self) -> PageStats {
        self.index.counts()
    }

    /// Ends the frame, writes the index, flushes, and returns the output. `hash` is the hash of all content: required if
    /// the options ask for a content checksum, ignored otherwise.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, ContentHash, WriteOptions};
    /// let options = WriteOptions::default().with_content_checksum(true);
    /// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
    /// archive.write_tail(b"never hashed")?;
    /// assert!(archive.finish(Some(ContentHash::new())).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Misuse`] for content that does not have the announced or hashed length, and for sections
    /// of an archive that is too large for an index.
    pub fn finish(mut self, hash: Option<ContentHash>) -> Result<(W, WriteSummary)> {
        let content_len = self.content_len;
        if let Some(announced) = self.announced_len.filter(|announced| *announced != content_len) {
            return Err(other_len(announced, content_len));
        }
        if let Some(hashes) = self.hashes.take() {
            self.add_section(hash_list::SECTION, &hashes.encode())?;
        }
        if let Layout::Lz4(header) = self.layout {
            self.end_lz4_frame(&header, hash)?;
        }
        let spare = IndexBuilder::new(self.layout, 0, Retention::Checksums);
        let index = std::mem::replace(&mut self.index, spare).finish();
        let encoded = index.encode(content_len, self.written, &self.sections);
        if encoded.is_none() && !self.sections.is_empty() {
            // Pages can be read without an index, sections cannot.
            return Err(Error::Misuse("the index would be longer than 4 GiB; sections need an index".to_owned()));
        }
        let encoded = encoded.unwrap_or_default();
        let index_at = self.written;
        self.write(&encoded)?;
        if self.layout.format() == Format::Zstd {
            self.write_seek_table(&index, encoded.len())?;
        }
        self.out.flush().map_err(Error::Write)?;
        let index_len = if encoded.is_empty() { 0 } else { self.written - index_at };
        let summary = WriteSummary { pages: index.counts, content_len, archive_len: self.written, index_len };
        Ok((self.out, summary))
    }

    fn end_lz4_frame(&mut self, header: &Lz4Header, hash: Option<ContentHash>) -> Result<()> {
        let content_len = self.content_len;
        let mut end = 0u32.to_le_bytes().to_vec();
        if header.content_checksum {
            let hash = hash.ok_or_else(|| Error::Misuse("the hash of the content is missing".to_owned()))?;
            if hash.len_bytes() != content_len {
                let hashed = hash.len_bytes();
                return Err(Error::Misuse(format!("{hashed} bytes were hashed, but {content_len} written")));
            }
            end.extend(hash.digest().to_le_bytes());
        }
        self.write(&end)
    }

    /// Writes the seek table, unless the archive has more frames than readers of it take.
    fn write_seek_table(&mut self, index: &BuiltIndex, index_len: usize) -> Result<()> {
        let index_entry = (index_len > 0).then(|| SeekEntry::of_index(index_len as u64));
        let frames = index.seek_table.as_ref().map_or(0, |table| table.frames()) + u64::from(index_entry.is_some());
        let Some((head, frames)) = seek_table::head(frames).zip(u32::try_from(frames).ok()) else { return Ok(()) };
        let mut bytes = head.to_vec();
        for entry in index.seek_entries(self.content_len).chain(index_entry) {
            bytes.extend(entry.encode());
            if bytes.len() >= SEEK_BYTES_AT_ONCE {
                self.write(&bytes)?;
                bytes.clear();
            }
        }
        bytes.extend(seek_table::footer(frames));
        self.write(&bytes)
    }

    /// Checks that this much more content may follow.
    fn check_room(&self, len: u64) -> Result<()> {
        if self.has_tail && len > 0 {
            return Err(Error::Misuse("nothing can follow a page that is shorter".to_owned()));
        }
        let content_len = self.content_len.saturating_add(len);
        match self.announced_len {
            Some(announced) if announced < content_len => Err(other_len(announced, content_len)),
            _ => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(Error::Write)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

impl<W: Write> std::fmt::Debug for ArchiveWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArchiveWriter({} bytes of content in {} so far)", self.content_len, self.written)
    }
}

fn other_len(announced: u64, written: u64) -> Error {
    Error::Misuse(format!("{announced} bytes of content were announced, but {written} written"))
}

/// Divides the pages of a batch into parts that end at multiples of `chunk` in the archive, where runs of zeros end anyway.
fn chunks(first_page: u64, pages: usize, chunk: usize) -> Vec<Range<usize>> {
    let into_chunk = usize::try_from(first_page % chunk as u64).expect("less than a chunk");
    let mut start = 0;
    let mut ranges = Vec::with_capacity(pages / chunk + 2);
    while start < pages {
        let end = pages.min((into_chunk + start) / chunk * chunk + chunk - into_chunk);
        ranges.push(start..end);
        start = end;
    }
    ranges
}
