//! Writes a page archive: the pages block by block, then the index.

use std::io::Write;

use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page, PageStats};

use crate::assemble::{Planned, assemble, is_zero};
use crate::entry::PageEntry;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::hash::ContentHash;
use crate::header::Header;
use crate::index_builder::{BuiltIndex, IndexBuilder, Keeps};
use crate::sections;
use crate::summary::{Summary, WriteOptions};
use crate::zstd::seek_table::{self, SeekEntry};

/// The longest run of zeros in LZ4 frames with block checksums and without a content checksum. In such frames, a block of
/// 64 KiB makes lz4 1.9.4 read four bytes too many, and it does not find the frame that follows. One page less avoids it.
const SAFE_RUN_PAGES: u64 = 15;

/// Bytes of the seek table written with one call.
const SEEK_BYTES_AT_ONCE: usize = 64 << 10;

/// Bytes of zero runs written with one call.
const ZEROS_AT_ONCE: usize = 1 << 20;

/// Writes a page archive: a standard LZ4 or Zstandard file with an index.
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
    layout: Layout,
    announced_len: Option<u64>,
    index: IndexBuilder,
    sections: Vec<u8>,
    written: u64,
    content_len: u64,
    has_tail: bool,
    /// The blocks of a batch; kept between batches.
    buffer: Vec<u8>,
    blocks: Vec<Planned>,
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
    /// [`Error::Write`].
    pub fn new(out: W, options: WriteOptions) -> Result<Self> {
        let WriteOptions { format, content_len, block_checksums, content_checksum } = options;
        let (layout, bytes) = match format {
            Format::Lz4 => {
                let header = Header::archive(content_len, block_checksums, content_checksum);
                (Layout::Lz4(header), header.encode())
            }
            Format::Zstd => (Layout::Zstd { checksums: block_checksums }, Vec::new()),
        };
        let mut writer = Self {
            out,
            layout,
            announced_len: content_len,
            index: IndexBuilder::new(layout, bytes.len() as u64, Keeps::Entries),
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
    /// use trueno_zram_archive::{ArchiveWriter, Format, WriteOptions};
    /// use trueno_zram_core::{Algorithm, CpuBatchCompressor, PAGE_SIZE};
    /// let pages = vec![std::array::from_fn::<u8, PAGE_SIZE, _>(|i| (i / 64) as u8); 100];
    /// let mut compressor = CpuBatchCompressor::new(Algorithm::Zstd { level: 3 })?;
    /// let options = WriteOptions { format: Format::Zstd, ..WriteOptions::default() };
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
        // Before anything is counted: a batch is written as a whole or not at all.
        let entries =
            batch.iter().map(|page| if is_zero(page) { Ok(None) } else { self.layout.entry_of(page).map(Some) });
        let entries: Vec<Option<PageEntry>> = entries.collect::<Result<_>>()?;
        self.announce(batch.len() as u64 * PAGE_SIZE as u64)?;
        self.plan(&entries);
        let total: usize = self.blocks.iter().map(|block| block.len).sum();
        if self.buffer.len() < total {
            self.buffer.resize(total, 0);
        }
        assemble(&self.layout, &self.blocks, batch, plain, &mut self.buffer[..total])?;
        let buffer = std::mem::take(&mut self.buffer);
        let done = self.write(&buffer[..total]);
        self.buffer = buffer;
        done
    }

    /// Divides a batch into blocks and adds them to the index. Zero pages have no entry of their own.
    fn plan(&mut self, entries: &[Option<PageEntry>]) {
        self.blocks.clear();
        let mut run = 0;
        for (number, entry) in entries.iter().enumerate() {
            let Some(entry) = *entry else {
                run += 1;
                if u64::from(run) == self.run_room() {
                    self.plan_zeros(&mut run, number);
                }
                continue;
            };
            self.plan_zeros(&mut run, number);
            self.enter(entry, PAGE_SIZE as u64);
            self.blocks.push(Planned { entry, page: number, len: self.layout.stored_len(entry) });
        }
        self.plan_zeros(&mut run, entries.len().saturating_sub(1));
    }

    /// Ends a run of zero pages, if there is one. `page` is any page of the batch.
    fn plan_zeros(&mut self, run: &mut u16, page: usize) {
        if *run > 0 {
            let entry = PageEntry::Zeros(*run);
            self.enter(entry, u64::from(*run) * PAGE_SIZE as u64);
            self.blocks.push(Planned { entry, page, len: self.layout.stored_len(entry) });
            *run = 0;
        }
    }

    /// Returns how many zero pages the next block can hold.
    fn run_room(&self) -> u64 {
        let unsafe_end =
            matches!(self.layout, Layout::Lz4(header) if header.block_checksums && !header.content_checksum);
        self.index.run_room().min(if unsafe_end { SAFE_RUN_PAGES } else { u64::MAX })
    }

    fn enter(&mut self, entry: PageEntry, content_len: u64) {
        let fits = self.index.push(entry, content_len);
        debug_assert!(fits, "runs of zeros were cut where they must end");
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
        self.announce(len.ok_or_else(|| Error::Misuse(format!("{pages} zero pages are more than a file can hold")))?)?;
        let mut left = pages;
        let mut bytes = std::mem::take(&mut self.buffer);
        let mut done = Ok(());
        while left > 0 && done.is_ok() {
            bytes.clear();
            while left > 0 && bytes.len() < ZEROS_AT_ONCE {
                let run = left.min(self.run_room());
                let run = u16::try_from(run).expect("a run is short");
                self.layout.put_zeros(run, &mut bytes);
                self.enter(PageEntry::Zeros(run), u64::from(run) * PAGE_SIZE as u64);
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
        let mut block = Vec::new();
        let entry = self.layout.put_tail(bytes, &mut block)?;
        self.enter(entry, bytes.len() as u64);
        self.write(&block)
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
        if let Some(announced) = self.announced_len.filter(|announced| *announced != content_len) {
            return Err(Error::Misuse(format!(
                "{announced} bytes of content were announced, but {content_len} written"
            )));
        }
        if let Layout::Lz4(header) = self.layout {
            self.end_lz4_frame(&header, hash)?;
        }
        let spare = IndexBuilder::new(self.layout, 0, Keeps::Checksums);
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
        let summary = Summary { pages: index.counts, content_len, archive_len: self.written, index_len };
        Ok((self.out, summary))
    }

    fn end_lz4_frame(&mut self, header: &Header, hash: Option<ContentHash>) -> Result<()> {
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
        let index_entry = u32::try_from(index_len).ok().filter(|len| *len > 0);
        let index_entry = index_entry.map(|compressed_len| SeekEntry { compressed_len, content_len: 0 });
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

    /// Counts content before it is written.
    fn announce(&mut self, len: u64) -> Result<()> {
        if self.has_tail && len > 0 {
            return Err(Error::Misuse("nothing can follow a page that is shorter".to_owned()));
        }
        let content_len = self.content_len.saturating_add(len);
        if let Some(announced) = self.announced_len.filter(|announced| *announced < content_len) {
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
