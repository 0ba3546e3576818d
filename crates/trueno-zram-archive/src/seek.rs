//! Random access to the pages of an archive by its index.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use trueno_zram_core::{BatchCodec, PageStats};

use crate::blocks::{Blocks, GroupIndex};
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::group::{GroupBlocks, StreamReach};
use crate::header::{ARCHIVE_MAX_BLOCK, FRAME_MAGIC, Header};
use crate::index::{FOOTER_LEN, Footer, HEAD_LEN, INDEX_FRAME_MAGIC, INDEX_MAGIC, pages_of};
use crate::range::PageRangeReader;
use crate::sections::{Section, Sections};
use crate::table::Table;
use crate::zstd::seek_table;

/// Bytes of the frame that are checked before a page to prove its position, by default.
pub(crate) const WALK_LIMIT: u64 = 16 << 20;

/// An archive opened by its index.
///
/// # What is guaranteed
///
/// The index says where to look, and is never believed on its own. Before a page is returned, all blocks of its group
/// (1,024 pages) are read and compared with the index: their positions, lengths and forms, and the number of pages in
/// each. The same is done for all groups before it, up to the [walk limit](Self::walk_limit): by default, 16 MiB of
/// the file. Within the limit, a page is exactly what a [`FrameReader`](crate::FrameReader) returns at that position,
/// or an error, whatever the file contains.
///
/// Beyond the limit, the position of the page's group is taken from the index. No reader that leaves parts of a file
/// unread can prove it: the unread part may hold more or fewer pages than the index says. What holds at any distance is
/// this: if a `FrameReader` accepts the file and finds that [the index agrees](crate::IndexVerdict::Agrees), every
/// page by the index is the same page. Set the limit to `u64::MAX` to have the position of every page proven, at the
/// cost of reading the file once.
///
/// ```
/// use std::io::Cursor;
/// use trueno_zram_archive::{ArchiveReader, ArchiveWriter, ContentBatch, ContentSpan, WriteOptions};
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE};
///
/// let pages: Vec<[u8; PAGE_SIZE]> = (0..1000).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
/// let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_batch(&CpuBatchCompressor::default().compress(&pages)?)?;
/// let (bytes, _) = archive.finish(None)?;
///
/// let mut archive = ArchiveReader::open(Cursor::new(bytes))?.expect("it has an index");
/// let mut batch = ContentBatch::new();
/// archive.read_pages(777..778)?.read_batch(&mut batch)?;
/// assert_eq!(batch.spans().next(), Some(ContentSpan::Data(&pages[777])));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ArchiveReader<F: Read + Seek> {
    pub(crate) file: F,
    pub(crate) footer: Footer,
    pub(crate) layout: Layout,
    /// Length of the seek table behind the index; 0 if there is none.
    pub(crate) seek_table_len: u64,
    pub(crate) table: Table,
    /// The group read last.
    pub(crate) group: GroupBlocks,
    /// Groups from the start whose blocks were compared with the index.
    proven_groups: u64,
    walk_limit: u64,
}

impl<F: Read + Seek> ArchiveReader<F> {
    /// Opens an archive of either format; returns `None` if the file has no index at its end. Reads the first header, the
    /// footer and the table of groups: 6 KiB for 2 GiB of pages.
    ///
    /// ```
    /// let other = std::io::Cursor::new(b"some other file");
    /// assert!(trueno_zram_archive::ArchiveReader::open(other)?.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] if the index is damaged, of an unknown version, or does not describe the whole file;
    /// [`Error::Read`]. The file may still be readable as a stream.
    pub fn open(mut file: F) -> Result<Option<Self>> {
        let Some(end) = read_footer(&mut file)? else { return Ok(None) };
        let (layout, start) = match end.footer.format {
            Format::Lz4 => read_header(&mut file)?,
            Format::Zstd => (Layout::Zstd { checksums: end.footer.frame_checksums }, 0),
        };
        Self::with_layout(file, end, layout, start).map(Some)
    }

    /// Opens an archive with this layout, whose first block is at `start`.
    pub(crate) fn with_layout(mut file: F, end: ArchiveEnd, layout: Layout, start: u64) -> Result<Self> {
        let ArchiveEnd { footer, seek_table_len } = end;
        if layout.content_size().is_some_and(|size| size != footer.content_len) {
            return Err(Error::index("its content does not have the length that the frame's header announces"));
        }
        let table = Table::read(&mut file, &footer, &layout, start)?;
        let (group, proven_groups, walk_limit) = (GroupBlocks::default(), 0, WALK_LIMIT);
        Ok(Self { file, footer, layout, seek_table_len, table, group, proven_groups, walk_limit })
    }

    /// Sets how many bytes of the frame may be read before a page to prove its position: 16 MiB by default. See
    /// [what is guaranteed](Self#what-is-guaranteed).
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// let archive = archive.walk_limit(u64::MAX);
    /// # drop(archive);
    /// ```
    #[must_use]
    pub fn walk_limit(mut self, bytes: u64) -> Self {
        self.walk_limit = bytes;
        self
    }

    /// Returns the length of the content in bytes.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(3 * 4096 + 5);
    /// assert_eq!(archive.content_len(), 3 * 4096 + 5);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        self.footer.content_len
    }

    /// Returns the number of pages, a shorter last one included.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(3 * 4096 + 5);
    /// assert_eq!(archive.page_count(), 4);
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        pages_of(self.footer.content_len)
    }

    /// Returns the number of pages of each form. `bytes_out` is the length of their blocks, with size words and
    /// checksums.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(3 * 4096 + 5);
    /// assert_eq!((archive.pages().zero, archive.pages().raw), (3, 1));
    /// ```
    #[must_use]
    pub fn pages(&self) -> PageStats {
        let header_len = self.table.get(0).map_or(self.footer.frame_len, |first| first.offset);
        let bytes_out = self.footer.frame_len.saturating_sub(header_len + self.layout.end_len());
        PageStats { bytes_out, ..self.footer.pages }
    }

    /// Returns the length of the file in bytes.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(archive.archive_len() < 200);
    /// ```
    #[must_use]
    pub fn archive_len(&self) -> u64 {
        self.footer.frame_len + self.index_len()
    }

    /// Returns the format of the archive.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert_eq!(archive.format(), trueno_zram_archive::Format::Lz4);
    /// ```
    #[must_use]
    pub fn format(&self) -> Format {
        self.footer.format
    }

    /// Returns the length of the index in bytes, with its sections and the seek table behind it.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(archive.index_len() < archive.archive_len());
    /// ```
    #[must_use]
    pub fn index_len(&self) -> u64 {
        self.footer.index_len() + self.seek_table_len
    }

    /// Returns whether blocks have checksums.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(archive.has_block_checksums());
    /// ```
    #[must_use]
    pub fn has_block_checksums(&self) -> bool {
        self.layout.block_checksums()
    }

    /// Returns whether the content has a checksum, which only reading all of it can check.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(4096);
    /// assert!(archive.has_content_checksum());
    /// ```
    #[must_use]
    pub fn has_content_checksum(&self) -> bool {
        self.layout.content_checksum()
    }

    /// Returns the blocks that hold the pages of a range, in order: from the block of its first page to that of its
    /// last. This is what the index says; the blocks themselves are not read.
    ///
    /// Entries are read group by group, so memory does not grow with the range.
    ///
    /// ```
    /// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
    /// let blocks: Vec<_> = archive.blocks(20..40)?.collect::<Result<_, _>>()?;
    /// assert_eq!((blocks[0].first_page, blocks[0].pages), (16, 16)); // zeros, in blocks of 16 pages
    /// assert_eq!((blocks[1].first_page, blocks[1].pages), (32, 8));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`]. The iterator returns [`Error::Index`] for damaged entries, and [`Error::Read`].
    pub fn blocks(&mut self, pages: Range<u64>) -> Result<Blocks<'_, F>> {
        self.check_range(&pages)?;
        Ok(Blocks::new(self, pages))
    }

    /// Reads and decodes the pages of a range, batch by batch, on the rayon pool that it is called in.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, ContentSpan};
    /// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
    /// let mut batch = ContentBatch::new();
    /// let mut pages = archive.read_pages(20..30)?;
    /// while pages.read_batch(&mut batch)? {
    ///     assert_eq!(batch.spans().collect::<Vec<_>>(), [ContentSpan::Zeros(10 * 4096)]);
    /// }
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`].
    pub fn read_pages<'a, 'c>(&'a mut self, pages: Range<u64>) -> Result<PageRangeReader<'a, 'c, F>> {
        self.check_range(&pages)?;
        Ok(PageRangeReader::new(self, None, pages))
    }

    /// Like [`read_pages`](Self::read_pages), with pages decoded by `codec`.
    ///
    /// ```
    /// use trueno_zram_archive::ContentBatch;
    /// use trueno_zram_core::CpuBatchCompressor;
    /// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
    /// let mut compressor = CpuBatchCompressor::default();
    /// let mut pages = archive.read_pages_with(20..30, &mut compressor)?;
    /// assert!(pages.read_batch(&mut ContentBatch::new())?);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`].
    pub fn read_pages_with<'a, 'c>(
        &'a mut self,
        pages: Range<u64>,
        codec: &'c mut dyn BatchCodec,
    ) -> Result<PageRangeReader<'a, 'c, F>> {
        self.check_range(&pages)?;
        Ok(PageRangeReader::new(self, Some(codec), pages))
    }

    /// Returns the sections of the index, in order, after checking their checksum.
    ///
    /// ```
    /// # let mut archive = trueno_zram_archive::doc_archive(4096);
    /// assert_eq!(archive.sections()?.count(), 1);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] if they are damaged, [`Error::Read`].
    pub fn sections(&mut self) -> Result<Sections<'_, F>> {
        let (start, end) = (self.footer.sections_at(), self.footer.table_at());
        Sections::verified(&mut self.file, start, end, self.footer.sections_checksum)
    }

    /// Reads a section by its name, if it has at most `max_bytes`. Its length is checked before memory is allocated.
    ///
    /// ```
    /// # let mut archive = trueno_zram_archive::doc_archive(4096);
    /// assert_eq!(archive.section("note", 1 << 20)?.as_deref(), Some(&b"made for the documentation"[..]));
    /// assert_eq!(archive.section("other", 1 << 20)?, None);
    /// assert!(archive.section("note", 10).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SectionTooLarge`], [`Error::Index`] if the sections are damaged, [`Error::Read`].
    pub fn section(&mut self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let mut sections = self.sections()?;
        while let Some(section) = sections.next() {
            let section = section?;
            if section.name != name {
                continue;
            }
            if section.len_bytes > max_bytes {
                let Section { name, len_bytes, .. } = section;
                return Err(Error::SectionTooLarge { name, len_bytes, max_bytes });
            }
            return sections.read(&section).map(Some);
        }
        Ok(None)
    }

    fn check_range(&self, pages: &Range<u64>) -> Result<()> {
        if pages.start <= pages.end && pages.end <= self.page_count() {
            return Ok(());
        }
        Err(Error::PageRange { start: pages.start, end: pages.end, pages: self.page_count() })
    }

    /// Reads a group and compares it with the index, after the groups before it as far as the limit allows.
    pub(crate) fn prove_group(&mut self, number: u64) -> Result<()> {
        let target = self.table.get(number).ok_or_else(|| Error::index("it has no such group"))?.offset;
        while self.proven_groups < number {
            let next = self.table.get(self.proven_groups).map_or(0, |group| group.offset);
            if target.saturating_sub(next) > self.walk_limit {
                break;
            }
            self.read_group(self.proven_groups)?;
            // A stream ends with an error at a block that it refuses. No page after it can be another one than the
            // stream's, so the walk is over.
            self.proven_groups = if self.group.is_refused() { u64::MAX } else { self.proven_groups + 1 };
        }
        self.read_group(number)
    }

    fn read_group(&mut self, number: u64) -> Result<()> {
        let stream = if self.proven_groups == u64::MAX { StreamReach::EndsBefore } else { StreamReach::Reaches };
        let Self { file, footer, layout, table, group, .. } = self;
        group.read(file, number, GroupIndex { footer, layout, table }, stream)
    }
}

impl<F: Read + Seek> std::fmt::Debug for ArchiveReader<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArchiveReader({} pages in {} bytes)", self.page_count(), self.archive_len())
    }
}

pub(crate) fn read_at<F: Read + Seek>(file: &mut F, at: u64, bytes: &mut [u8]) -> Result<()> {
    let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(bytes));
    read.map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => Error::Truncated { at, page: None, within: "a part that the index describes" },
        _ => Error::Read { at, source },
    })
}

/// What the end of a file says of the archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArchiveEnd {
    pub(crate) footer: Footer,
    /// Length of the seek table behind the index; 0 if there is none.
    seek_table_len: u64,
}

/// Returns the footer of the index at the file's end; `None` if the file has no index.
pub(crate) fn read_footer<F: Read + Seek>(file: &mut F) -> Result<Option<ArchiveEnd>> {
    let len = file.seek(SeekFrom::End(0)).map_err(|source| Error::Read { at: 0, source })?;
    let seek_table_len = seek_table_len(file, len)?;
    let index_end = len - seek_table_len;
    let Some(footer_at) = index_end.checked_sub(FOOTER_LEN as u64) else { return Ok(None) };
    let mut footer = [0; FOOTER_LEN];
    read_at(file, footer_at, &mut footer)?;
    let Some(footer) = Footer::decode(&footer)? else { return Ok(None) };
    let whole = index_end.checked_sub(footer.index_len()) == Some(footer.frame_len);
    if !whole || footer.format == Format::Lz4 && seek_table_len > 0 {
        return Err(Error::index("it does not describe the whole file"));
    }
    let mut head = [0; HEAD_LEN];
    read_at(file, footer.frame_len, &mut head)?;
    let mut expected = INDEX_FRAME_MAGIC.to_le_bytes().to_vec();
    let payload_len = u32::try_from(footer.index_len() - 8).map_err(|_| Error::index("it is too long"))?;
    expected.extend(payload_len.to_le_bytes());
    expected.extend(INDEX_MAGIC);
    if head[..] != expected[..] {
        return Err(Error::index("it does not start where its footer says"));
    }
    Ok(Some(ArchiveEnd { footer, seek_table_len }))
}

/// Returns the header of the frame at the file's start, and its length.
fn read_header<F: Read + Seek>(file: &mut F) -> Result<(Layout, u64)> {
    let mut start = [0; 5];
    read_at(file, 0, &mut start)?;
    let mut rest = vec![0; Header::len_after(start[4])];
    read_at(file, 5, &mut rest)?;
    rest.insert(0, start[4]);
    if start[..4] != FRAME_MAGIC.to_le_bytes() {
        return Err(Error::index("the file does not start with a frame"));
    }
    let header = Header::parse(&rest, 0)?;
    if !header.independent || header.max_block != ARCHIVE_MAX_BLOCK {
        return Err(Error::index("the frame is not that of a page archive"));
    }
    Ok((Layout::Lz4(header), 4 + rest.len() as u64))
}

/// Returns the length of the seek table at the end of a file of `len` bytes; 0 if there is none.
fn seek_table_len<F: Read + Seek>(file: &mut F, len: u64) -> Result<u64> {
    let Some(footer_at) = len.checked_sub(seek_table::FOOTER_LEN as u64) else { return Ok(0) };
    let mut footer = [0; seek_table::FOOTER_LEN];
    read_at(file, footer_at, &mut footer)?;
    let found = seek_table::len_by_footer(footer).and_then(|found| Some((found, len.checked_sub(found)?)));
    let Some((found, head_at)) = found else { return Ok(0) };
    let mut head = [0; 8];
    read_at(file, head_at, &mut head)?;
    Ok(if seek_table::is_head(head, found) { found } else { 0 })
}
