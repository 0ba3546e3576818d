//! Blocks of consecutive pages, assembled away from the writer: on any thread, in any order.

use trueno_zram_core::{PAGE_SIZE, Page, PageData};

use crate::error::{Error, Result};
use crate::format::Layout;
use crate::hashes::hash_list::HashList;
use crate::index::entry::PageEntry;
use crate::lz4::header::Lz4Header;
use crate::write::assemble::is_zero_page;

/// The longest run of zeros in LZ4 frames with block checksums and without a content checksum. In such frames, a block of
/// 64 KiB makes lz4 1.9.4 read four bytes too many, and it does not find the frame that follows. One page less avoids it.
const SAFE_RUN_PAGES: usize = 15;

/// The layout of an archive's blocks. See [`ArchiveWriter::block_shape`](crate::ArchiveWriter::block_shape).
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, WriteOptions};
/// let shape = ArchiveWriter::new(Vec::new(), WriteOptions::default())?.block_shape();
/// # let _ = shape;
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    layout: Layout,
    /// The most zero pages in one block.
    max_zeros: usize,
    /// The archive has page hashes.
    page_hashes: bool,
}

impl BlockShape {
    pub(crate) fn new(layout: Layout, page_hashes: bool) -> Self {
        let run_pages = layout.format().run_pages();
        let misleads_lz4 = matches!(layout, Layout::Lz4(header) if header.block_checksums && !header.content_checksum);
        let max_zeros = if misleads_lz4 { SAFE_RUN_PAGES } else { run_pages };
        Self { layout, max_zeros, page_hashes }
    }
}

/// The blocks of consecutive pages, with their checksums, as they lie in the file.
///
/// Any thread can assemble them, for any pages, before or after those of other threads. The writer then takes them in
/// order: [`write_blocks`](crate::ArchiveWriter::write_blocks) writes them, and
/// [`place_blocks`](crate::ArchiveWriter::place_blocks) returns the position to write them at. Reuse it: its memory is kept.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, PAGE_SIZE, PageBlocks, PageCodec, WriteOptions};
///
/// let options = WriteOptions::default();
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// let shape = archive.block_shape();
/// let part = |first_page: u64, byte: u8| {
///     let (mut codec, mut blocks, mut out) = (PageCodec::default(), PageBlocks::new(), [0; PAGE_SIZE]);
///     blocks.start(first_page, shape);
///     for _ in 0..100 {
///         blocks.push(codec.compress(&[byte; PAGE_SIZE], &mut out)?)?;
///     }
///     Ok::<_, Box<dyn std::error::Error>>(blocks)
/// };
/// let (second, first) = (part(100, 2)?, part(0, 1)?);
/// archive.write_blocks(&first)?;
/// archive.write_blocks(&second)?;
/// assert_eq!(archive.finish(None)?.1.pages.same_filled, 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PageBlocks {
    first_page: u64,
    next_page: u64,
    shape: BlockShape,
    bytes: Vec<u8>,
    entries: Vec<PageEntry>,
    /// Zero pages at the end, which have no block yet.
    zeros: u16,
    tail_bytes: usize,
    /// The hashes of all pages, if the archive is to have them.
    hashes: Option<HashList>,
}

impl PageBlocks {
    /// Creates an empty one.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageBlocks::new().content_len(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        let layout = Layout::Lz4(Lz4Header::archive(None, true, true));
        Self::with_memory(0, BlockShape::new(layout, false), Vec::new(), Vec::new())
    }

    /// Starts anew with the page of this number.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::ArchiveWriter::new(Vec::new(), Default::default())?;
    /// let mut blocks = trueno_zram_archive::PageBlocks::new();
    /// blocks.start(1000, archive.block_shape());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn start(&mut self, first_page: u64, shape: BlockShape) {
        let (mut bytes, mut entries) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.entries));
        bytes.clear();
        entries.clear();
        *self = Self::with_memory(first_page, shape, bytes, entries);
    }

    fn with_memory(first_page: u64, shape: BlockShape, bytes: Vec<u8>, entries: Vec<PageEntry>) -> Self {
        let (next_page, hashes) = (first_page, shape.page_hashes.then(HashList::default));
        Self { first_page, next_page, shape, bytes, entries, zeros: 0, tail_bytes: 0, hashes }
    }

    /// Adds a compressed page. Consecutive zero pages share blocks.
    ///
    /// ```
    /// use trueno_zram_archive::{PageData, PageKind};
    /// let mut blocks = trueno_zram_archive::PageBlocks::new();
    /// blocks.push(PageData::new(PageKind::Raw, &[7; 4096])?)?;
    /// assert_eq!(blocks.content_len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A Zstandard archive with block checksums needs the content of every page. Without it, compressed pages are decoded:
    /// [`push_of`](Self::push_of) is faster.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a page of the other format, a Zstandard frame of several blocks, and a page after a tail;
    /// [`Error::Decoder`] for a Zstandard frame that is not one page.
    pub fn push(&mut self, page: PageData<'_>) -> Result<()> {
        self.push_page(page, None)
    }

    /// Like [`push`](Self::push), with the page that was compressed.
    ///
    /// ```
    /// use trueno_zram_archive::{PageData, PageKind};
    /// let (mut blocks, page) = (trueno_zram_archive::PageBlocks::new(), [7; 4096]);
    /// blocks.push_of(PageData::new(PageKind::Raw, &page)?, &page)?;
    /// assert_eq!(blocks.content_len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Like [`push`](Self::push).
    pub fn push_of(&mut self, page: PageData<'_>, plain: &Page) -> Result<()> {
        self.push_page(page, Some(plain))
    }

    fn push_page(&mut self, page: PageData<'_>, plain: Option<&Page>) -> Result<()> {
        self.check_open()?;
        if is_zero_page(page) {
            self.push_zero();
            return Ok(());
        }
        let entry = self.shape.layout.entry_of(page)?;
        self.end_run();
        self.shape.layout.put_page(entry, page, plain, &mut self.bytes)?;
        self.entries.push(entry);
        self.next_page += 1;
        Ok(())
    }

    /// Adds this many zero pages.
    ///
    /// ```
    /// let mut blocks = trueno_zram_archive::PageBlocks::new();
    /// blocks.push_zeros(1000)?;
    /// assert_eq!(blocks.content_len(), 4_096_000);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Misuse`] after a tail.
    pub fn push_zeros(&mut self, pages: u64) -> Result<()> {
        self.check_open()?;
        (0..pages).for_each(|_| self.push_zero());
        if let Some(hashes) = &mut self.hashes {
            hashes.push_zeros(pages);
        }
        Ok(())
    }

    /// Hashes the pages that were added one by one, if the archive is to have [page hashes](crate::WriteOptions::page_hashes).
    /// Many pages at a time are hashed faster than one. Call it before other pages, zeros or a tail are added.
    ///
    /// ```
    /// use trueno_zram_archive::{ArchiveWriter, PageBlocks, PageCodec, WriteOptions};
    /// let options = WriteOptions::default().with_page_hashes(true);
    /// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
    /// let (mut blocks, mut codec, pages) = (PageBlocks::new(), PageCodec::default(), [[7; 4096]; 10]);
    /// blocks.start(0, archive.block_shape());
    /// for page in &pages {
    ///     blocks.push_of(codec.compress(page, &mut [0; 4096])?, page)?;
    /// }
    /// blocks.hash_pages(&pages);
    /// blocks.finish();
    /// archive.write_blocks(&blocks)?;
    /// # archive.finish(None)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hash_pages(&mut self, pages: &[Page]) {
        if let Some(hashes) = &mut self.hashes {
            hashes.push_pages(pages);
        }
    }

    /// Adds the content's last, shorter page of up to 4095 bytes. An empty one is ignored.
    ///
    /// ```
    /// let mut blocks = trueno_zram_archive::PageBlocks::new();
    /// blocks.push_tail(b"less than a page")?;
    /// assert!(blocks.push_tail(b"another end").is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Misuse`] for a page or more, and for a second tail.
    pub fn push_tail(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.check_open()?;
        if bytes.len() >= PAGE_SIZE {
            return Err(Error::Misuse(format!("a tail is shorter than a page; this one has {} bytes", bytes.len())));
        }
        self.end_run();
        let entry = self.shape.layout.put_tail(bytes, &mut self.bytes)?;
        self.entries.push(entry);
        self.next_page += 1;
        self.tail_bytes = bytes.len();
        if let Some(hashes) = &mut self.hashes {
            let mut page = [0; PAGE_SIZE];
            page[..bytes.len()].copy_from_slice(bytes);
            hashes.push_pages(&[page]);
        }
        Ok(())
    }

    /// Ends the last run of zeros and returns the blocks as they lie in the file.
    ///
    /// ```
    /// let mut blocks = trueno_zram_archive::PageBlocks::new();
    /// blocks.push_zeros(15)?;
    /// assert!(blocks.finish().len() < 300);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn finish(&mut self) -> &[u8] {
        self.end_run();
        &self.bytes
    }

    /// Returns the length of the content in bytes.
    #[must_use]
    pub fn content_len(&self) -> u64 {
        let pages = self.next_page - self.first_page;
        let missing = if self.tail_bytes == 0 { 0 } else { PAGE_SIZE - self.tail_bytes };
        pages * PAGE_SIZE as u64 - missing as u64
    }

    /// Returns the blocks as they lie in the file, once they are [finished](Self::finish).
    ///
    /// ```
    /// let mut blocks = trueno_zram_archive::PageBlocks::new();
    /// blocks.push_tail(b"less than a page")?;
    /// blocks.finish();
    /// assert_eq!(blocks.bytes()[4..20], *b"less than a page"); // between its length and its checksum
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn first_page(&self) -> u64 {
        self.first_page
    }

    pub(crate) fn has_tail(&self) -> bool {
        self.tail_bytes > 0
    }

    /// Returns the entries in the index, or `None` before the blocks are finished.
    pub(crate) fn entries(&self) -> Option<&[PageEntry]> {
        (self.zeros == 0).then_some(&self.entries[..])
    }

    /// Returns the hashes of all pages, if the archive is to have them.
    pub(crate) fn hashes(&self) -> Option<&HashList> {
        self.hashes.as_ref()
    }

    /// Leaves out the pages that are not to be kept. The blocks are finished, and each holds one page.
    pub(crate) fn retain_pages(&mut self, keep: &[bool]) -> Result<()> {
        let each_one_page = self.entries.iter().all(|entry| entry.pages() == 1);
        if keep.len() != self.entries.len() || !each_one_page || self.has_tail() {
            return Err(Error::Misuse("pages of a delta are whole and not zero".to_owned()));
        }
        if keep.iter().all(|keep| *keep) {
            return Ok(());
        }
        let (mut from, mut to, mut kept) = (0, 0, keep.iter());
        let layout = self.shape.layout;
        self.entries.retain(|entry| {
            let len = layout.stored_len(*entry);
            let keep = kept.next().is_some_and(|keep| *keep);
            if keep {
                self.bytes.copy_within(from..from + len, to);
                to += len;
            }
            from += len;
            keep
        });
        self.bytes.truncate(to);
        self.next_page = self.first_page + self.entries.len() as u64;
        Ok(())
    }

    /// Gives finished blocks without zero pages another first page in the archive.
    pub(crate) fn renumber(&mut self, first_page: u64) {
        self.next_page = first_page + (self.next_page - self.first_page);
        self.first_page = first_page;
    }

    fn check_open(&self) -> Result<()> {
        if self.tail_bytes == 0 {
            return Ok(());
        }
        Err(Error::Misuse("nothing can follow a page that is shorter".to_owned()))
    }

    fn push_zero(&mut self) {
        self.zeros += 1;
        self.next_page += 1;
        let run_pages = self.shape.layout.format().run_pages() as u64;
        if usize::from(self.zeros) == self.shape.max_zeros || self.next_page.is_multiple_of(run_pages) {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        if self.zeros > 0 {
            self.shape.layout.put_zeros(self.zeros, &mut self.bytes);
            self.entries.push(PageEntry::Zeros(self.zeros));
            self.zeros = 0;
        }
    }
}

impl Default for PageBlocks {
    fn default() -> Self {
        Self::new()
    }
}
