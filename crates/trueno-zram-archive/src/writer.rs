//! Writes a page archive: the frame block by block, then its index.

use std::io::Write;

use rayon::prelude::*;
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, PageData, PageKind, PageStats};

use crate::constant::{WORD_BLOCK, word_block, word_of, zero_block, zero_pages_of};
use crate::entry::PageEntry;
use crate::error::{Error, Result};
use crate::hash::{ContentHash, xxh32};
use crate::header::{Header, RAW_BLOCK};
use crate::index_builder::{IndexBuilder, Keeps};
use crate::sections;
use crate::summary::{Summary, WriteOptions};

/// The longest run of zeros in frames with block checksums and without a content checksum. In such frames, a block of 64
/// KiB makes lz4 1.9.4 read four bytes too many, and it does not find the frame that follows. One page less avoids it.
const SAFE_RUN_PAGES: u64 = 15;

/// Blocks that one thread assembles at a time.
const CHUNK_BLOCKS: usize = 64;

/// Bytes of zero runs written with one call.
const ZEROS_AT_ONCE: usize = 1 << 20;

/// Writes a page archive: a standard LZ4 frame and its index.
///
/// The caller compresses the pages with any codec and hashes the content on any thread; the writer assembles blocks. It
/// keeps two bytes per page for the index, and none for long runs of zeros.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentHash, WriteOptions};
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
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
    header: Header,
    index: IndexBuilder,
    sections: Vec<u8>,
    written: u64,
    content_len: u64,
    has_tail: bool,
    /// The blocks of a batch; kept between batches.
    buffer: Vec<u8>,
    blocks: Vec<Block>,
}

/// A block to be written.
#[derive(Clone, Copy)]
struct Block {
    source: Source,
    /// Length with size word and checksum.
    len: usize,
}

#[derive(Clone, Copy)]
enum Source {
    /// This many zero pages.
    Zeros(u16),
    /// The page of the batch with this number.
    Page(usize),
}

impl<W: Write> ArchiveWriter<W> {
    /// Starts an archive and writes the frame's header.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// let archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// assert_eq!(archive.written(), 7);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn new(out: W, options: WriteOptions) -> Result<Self> {
        let header = Header::archive(options.content_len, options.block_checksums, options.content_checksum);
        let bytes = header.encode();
        let mut writer = Self {
            out,
            header,
            index: IndexBuilder::new(&header, bytes.len() as u64, Keeps::Entries),
            sections: Vec::new(),
            written: 0,
            content_len: 0,
            has_tail: false,
            buffer: Vec::new(),
            blocks: Vec::new(),
        };
        writer.write(&bytes)?;
        Ok(writer)
    }

    /// Writes the pages of a batch. Blocks and their checksums are assembled on the rayon pool that it is called in, and
    /// written with one call. Consecutive zero pages share blocks.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
    /// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// archive.write_batch(&CpuBatchCompressor::default().compress(&[[7; PAGE_SIZE]; 10])?)?;
    /// assert_eq!(archive.pages().same_filled, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Misuse`] for Zstandard pages, more content than announced, and pages after a tail.
    pub fn write_batch(&mut self, batch: &CompressedBatch) -> Result<()> {
        if batch.index().iter().any(|entry| entry.kind == PageKind::Zstd) {
            return Err(Error::Misuse("a page archive holds LZ4 pages, not Zstandard pages".to_owned()));
        }
        self.announce(batch.len() as u64 * PAGE_SIZE as u64)?;
        self.plan(batch);
        let total: usize = self.blocks.iter().map(|block| block.len).sum();
        if self.buffer.len() < total {
            self.buffer.resize(total, 0);
        }
        let checksummed = self.header.block_checksums;
        let mut rest = &mut self.buffer[..total];
        let parts: Vec<_> = self
            .blocks
            .chunks(CHUNK_BLOCKS)
            .map(|blocks| {
                let len = blocks.iter().map(|block| block.len).sum();
                let (place, after) = std::mem::take(&mut rest).split_at_mut(len);
                rest = after;
                (blocks, place)
            })
            .collect();
        let fill = |(blocks, place): (&[Block], &mut [u8])| {
            let mut rest = place;
            for block in blocks {
                let (place, after) = std::mem::take(&mut rest).split_at_mut(block.len);
                rest = after;
                block.put(batch, checksummed, place);
            }
        };
        if parts.len() == 1 {
            parts.into_iter().for_each(fill);
        } else {
            parts.into_par_iter().for_each(fill);
        }
        let buffer = std::mem::take(&mut self.buffer);
        let done = self.write(&buffer[..total]);
        self.buffer = buffer;
        done
    }

    /// Divides the batch into blocks and adds them to the index.
    fn plan(&mut self, batch: &CompressedBatch) {
        self.blocks.clear();
        let overhead = 4 + self.header.block_checksum_len();
        let mut run = 0;
        for (number, entry) in batch.index().iter().enumerate() {
            let page = batch.get(number).expect("the index has this page");
            if is_zero(page) {
                run += 1;
                if u64::from(run) == self.run_room() {
                    self.plan_zeros(&mut run);
                }
                continue;
            }
            self.plan_zeros(&mut run);
            let entry = match entry.kind {
                PageKind::SameFilled => PageEntry::Word,
                // Another encoder may have made the block of a repeated word that this crate makes.
                PageKind::Lz4 if usize::from(entry.len_bytes) == WORD_BLOCK && word_of(page.bytes()).is_some() => {
                    PageEntry::Word
                }
                PageKind::Lz4 => PageEntry::Lz4(entry.len_bytes),
                PageKind::Raw | PageKind::Zstd => PageEntry::Raw(entry.len_bytes),
            };
            let len = overhead + entry.block_len().expect("a block of its own");
            self.enter(entry);
            self.blocks.push(Block { source: Source::Page(number), len });
        }
        self.plan_zeros(&mut run);
    }

    /// Ends a run of zero pages, if there is one.
    fn plan_zeros(&mut self, run: &mut u16) {
        if *run > 0 {
            let len = 4 + self.header.block_checksum_len() + zero_block(usize::from(*run)).bytes.len();
            self.enter(PageEntry::Zeros(*run));
            self.blocks.push(Block { source: Source::Zeros(*run), len });
            *run = 0;
        }
    }

    /// Returns how many zero pages the next block can hold.
    fn run_room(&self) -> u64 {
        let header = &self.header;
        let most = if header.block_checksums && !header.content_checksum { SAFE_RUN_PAGES } else { u64::MAX };
        self.index.run_room().min(most)
    }

    fn enter(&mut self, entry: PageEntry) {
        let fits = self.index.push(entry);
        debug_assert!(fits, "runs of zeros were cut where they must end");
    }

    /// Writes this many zero pages: 17 bytes per page, at the speed of the output.
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
        self.announce(len.ok_or_else(|| Error::Misuse(format!("{pages} zero pages are more than a file can hold")))?)?;
        let mut left = pages;
        let mut bytes = std::mem::take(&mut self.buffer);
        let mut done = Ok(());
        while left > 0 && done.is_ok() {
            bytes.clear();
            while left > 0 && bytes.len() < ZEROS_AT_ONCE {
                let run = left.min(self.run_room());
                let run = u16::try_from(run).expect("a run is short");
                put_zeros(run, self.header.block_checksums, &mut bytes);
                self.enter(PageEntry::Zeros(run));
                left -= u64::from(run);
            }
            done = self.write(&bytes);
        }
        self.buffer = bytes;
        done
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
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() >= PAGE_SIZE {
            return Err(Error::Misuse(format!("a tail is shorter than a page; this one has {} bytes", bytes.len())));
        }
        self.announce(bytes.len() as u64)?;
        self.has_tail = true;
        let compressed = lz4_flex::block::compress(bytes);
        let (flag, block) = if compressed.len() < bytes.len() { (0, &compressed[..]) } else { (RAW_BLOCK, bytes) };
        let len = u16::try_from(block.len()).expect("shorter than a page");
        self.enter(if flag == 0 { PageEntry::Lz4(len) } else { PageEntry::Raw(len) });
        let mut out = Vec::with_capacity(block.len() + 8);
        out.extend((u32::from(len) | flag).to_le_bytes());
        out.extend_from_slice(block);
        if self.header.block_checksums {
            out.extend(xxh32(block).to_le_bytes());
        }
        self.write(&out)
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
    /// let options = WriteOptions { content_len: Some(0), ..WriteOptions::default() };
    /// assert_eq!(ArchiveWriter::new(Vec::new(), options)?.written(), 15);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of pages so far, by form.
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
    /// let mut archive = ArchiveWriter::new(Vec::new(), WriteOptions::default())?;
    /// archive.write_tail(b"never hashed")?;
    /// assert!(archive.finish(Some(ContentHash::new())).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Misuse`] for content that does not have the announced or hashed length, and for sections
    /// of an archive that is too large for an index.
    pub fn finish(mut self, hash: Option<ContentHash>) -> Result<(W, Summary)> {
        let content_len = self.content_len;
        if let Some(announced) = self.header.content_size.filter(|announced| *announced != content_len) {
            return Err(Error::Misuse(format!(
                "{announced} bytes of content were announced, but {content_len} written"
            )));
        }
        let mut end = 0u32.to_le_bytes().to_vec();
        if self.header.content_checksum {
            let hash = hash.ok_or_else(|| Error::Misuse("the hash of the content is missing".to_owned()))?;
            if hash.len_bytes() != content_len {
                let hashed = hash.len_bytes();
                return Err(Error::Misuse(format!("{hashed} bytes were hashed, but {content_len} written")));
            }
            end.extend(hash.digest().to_le_bytes());
        }
        self.write(&end)?;
        let keeps = Keeps::Checksums;
        let index = std::mem::replace(&mut self.index, IndexBuilder::new(&self.header, 0, keeps)).finish();
        let encoded = index.encode(content_len, self.written, &self.sections);
        if encoded.is_none() && !self.sections.is_empty() {
            // Pages can be read without an index, sections cannot.
            return Err(Error::Misuse("the index would be longer than 4 GiB; sections need an index".to_owned()));
        }
        let encoded = encoded.unwrap_or_default();
        self.write(&encoded)?;
        self.out.flush().map_err(Error::Write)?;
        let summary =
            Summary { pages: index.counts, content_len, archive_len: self.written, index_len: encoded.len() as u64 };
        Ok((self.out, summary))
    }

    /// Counts content before it is written.
    fn announce(&mut self, len: u64) -> Result<()> {
        if self.has_tail && len > 0 {
            return Err(Error::Misuse("nothing can follow a page that is shorter".to_owned()));
        }
        let content_len = self.content_len.saturating_add(len);
        if let Some(announced) = self.header.content_size.filter(|announced| *announced < content_len) {
            return Err(Error::Misuse(format!(
                "{announced} bytes of content were announced, but {content_len} written"
            )));
        }
        self.content_len = content_len;
        Ok(())
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

impl Block {
    /// Writes the block to `place`, which has its length.
    fn put(self, batch: &CompressedBatch, checksummed: bool, place: &mut [u8]) {
        let word;
        let (flag, bytes, checksum) = match self.source {
            Source::Zeros(pages) => {
                let zeros = zero_block(usize::from(pages));
                (0, &zeros.bytes[..], Some(zeros.checksum))
            }
            Source::Page(number) => {
                let page = batch.get(number).expect("the block was planned from this batch");
                match page.kind() {
                    PageKind::SameFilled => {
                        word = word_block(page.bytes().try_into().expect("such a page is held as its word"));
                        (0, &word[..], None)
                    }
                    PageKind::Lz4 => (0, page.bytes(), None),
                    PageKind::Raw | PageKind::Zstd => (RAW_BLOCK, page.bytes(), None),
                }
            }
        };
        let size = u32::try_from(bytes.len()).expect("a block is short") | flag;
        let (head, rest) = place.split_at_mut(4);
        let (body, tail) = rest.split_at_mut(bytes.len());
        head.copy_from_slice(&size.to_le_bytes());
        body.copy_from_slice(bytes);
        if checksummed {
            tail.copy_from_slice(&checksum.unwrap_or_else(|| xxh32(bytes)).to_le_bytes());
        }
    }
}

/// Appends the block of a run of zero pages.
fn put_zeros(pages: u16, checksummed: bool, out: &mut Vec<u8>) {
    let zeros = zero_block(usize::from(pages));
    out.extend(u32::try_from(zeros.bytes.len()).expect("a block is short").to_le_bytes());
    out.extend_from_slice(&zeros.bytes);
    if checksummed {
        out.extend(zeros.checksum.to_le_bytes());
    }
}

/// Returns whether a page is zero: as a word, or as the LZ4 block that readers recognise as a zero page.
fn is_zero(page: PageData<'_>) -> bool {
    match page.kind() {
        PageKind::SameFilled => page.bytes().iter().all(|byte| *byte == 0),
        PageKind::Lz4 => zero_pages_of(page.bytes()) == Some(1),
        PageKind::Raw | PageKind::Zstd => false,
    }
}
