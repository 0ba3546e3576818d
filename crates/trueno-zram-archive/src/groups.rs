//! The groups of an archive, read and checked side by side: each 1,024 pages lie at a known place in the file.

use std::io::{Read, Seek, SeekFrom};

use trueno_zram_core::{PAGE_SIZE, Page, PageData, PageStats};

use crate::block::Block;
use crate::blocks::GroupIndex;
use crate::constant::zero_pages_of;
use crate::content::{ContentSpan, Stretch};
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::hash::{ContentHash, xxh32};
use crate::header::RAW_BLOCK;
use crate::index::{ENTRY_LEN, Footer, GROUP_PAGES, HEAD_LEN, pages_of};
use crate::index_builder::{IndexBuilder, Keeps};
use crate::input::Input;
use crate::reader::{IndexVerdict, ReadSummary};
use crate::sections::Sections;
use crate::seek::{ArchiveReader, read_at};
use crate::table::Table;
use crate::zstd::frame::{Seen, look};
use crate::zstd::seek_table::{ExpectedTable, SeekEntry};

/// The longest block: a raw page with what surrounds it in either format.
const MAX_BLOCK_LEN: usize = PAGE_SIZE + 16;

/// Magic number and length of a skippable frame.
const SKIPPABLE_HEAD_LEN: u64 = 8;

/// The groups of an archive, for many threads that restore all of it. Made by
/// [`ArchiveReader::into_groups`](crate::ArchiveReader::into_groups).
///
/// Every group that is read is compared with the index, to the last entry. If all groups and then
/// [`finish`](Self::finish) report no error, a [`FrameReader`](crate::FrameReader) returns the same content and finds
/// that [the index agrees](IndexVerdict::Agrees). If any of them reports one, only a `FrameReader` can tell what is wrong
/// with the file, and whether its content is complete.
///
/// ```
/// use std::io::Cursor;
/// use trueno_zram_archive::{ArchiveReader, ArchiveWriter, ContentSpan, GroupTotals, PageGroup, WriteOptions};
/// use trueno_zram_core::{CpuBatchCompressor, PAGE_SIZE, PageCodec};
///
/// let pages: Vec<[u8; PAGE_SIZE]> = (0..3000).map(|n| std::array::from_fn(|i| (i / 64 * n) as u8)).collect();
/// let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_batch(&CpuBatchCompressor::default().compress(&pages)?)?;
/// let (bytes, _) = archive.finish(None)?;
///
/// let groups = ArchiveReader::open(Cursor::new(&bytes))?.expect("it has an index").into_groups();
/// let (mut group, mut totals, mut codec) = (PageGroup::new(), GroupTotals::default(), PageCodec::default());
/// let mut content = Vec::new();
/// for number in 0..groups.count() {
///     totals += groups.read(&mut Cursor::new(&bytes), number, &mut group)?; // on any thread, in any order
///     let mut restored = vec![[0; PAGE_SIZE]; group.data_pages()];
///     for (page, into) in group.pages().zip(&mut restored) {
///         codec.decompress(page, into)?;
///     }
///     for span in group.spans(&restored) {
///         match span {
///             ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
///             ContentSpan::Zeros(len_bytes) => content.resize(content.len() + len_bytes as usize, 0),
///         }
///     }
/// }
/// assert_eq!(groups.finish(&mut Cursor::new(&bytes), totals, None)?.content_len, 3000 * 4096);
/// assert!(content == pages.as_flattened());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Groups {
    footer: Footer,
    layout: Layout,
    table: Table,
    /// Length of the seek table behind the index; 0 if there is none.
    seek_table_len: u64,
}

/// The pages of a group in memory, not restored yet. Reuse it: its memory is kept.
///
/// ```
/// assert_eq!(trueno_zram_archive::PageGroup::new().data_pages(), 0);
/// ```
#[derive(Debug, Default)]
pub struct PageGroup {
    window: Vec<u8>,
    /// Blocks of whole pages that are not zero.
    blocks: Vec<Block>,
    tail: Vec<u8>,
    stretches: Vec<Stretch>,
    content_start: u64,
}

/// A part of a group's content. See [`PageGroup::runs`].
///
/// ```
/// assert_ne!(trueno_zram_archive::PageRun::Pages(1), trueno_zram_archive::PageRun::Zeros(4096));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRun<'a> {
    /// This many zero bytes: whole pages.
    Zeros(u64),
    /// This many of the pages to restore, in their order.
    Pages(usize),
    /// The content's last bytes, less than a page.
    Tail(&'a [u8]),
}

/// What groups consist of. Add them up for [`Groups::finish`].
///
/// ```
/// use trueno_zram_archive::GroupTotals;
/// let mut totals = GroupTotals::default();
/// totals += GroupTotals::default();
/// assert_eq!(totals, GroupTotals::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTotals {
    groups: u64,
    blocks: u64,
    pages: PageStats,
}

impl std::ops::AddAssign for GroupTotals {
    fn add_assign(&mut self, more: Self) {
        self.groups += more.groups;
        self.blocks += more.blocks;
        self.pages.merge(more.pages);
    }
}

impl<F: Read + Seek> ArchiveReader<F> {
    /// Returns the archive's groups, to read all of it on many threads. The file is not needed: each thread has its own.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_archive(3000 * 4096);
    /// assert_eq!(archive.into_groups().count(), 3);
    /// ```
    #[must_use]
    pub fn into_groups(self) -> Groups {
        let Self { footer, layout, table, seek_table_len, .. } = self;
        Groups { footer, layout, table, seek_table_len }
    }
}

impl Groups {
    /// Returns the number of groups.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::doc_archive(4096).into_groups().count(), 1);
    /// ```
    #[must_use]
    pub fn count(&self) -> u64 {
        self.footer.groups()
    }

    /// Returns the length of the content in bytes.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::doc_archive(5000).into_groups().content_len(), 5000);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        self.footer.content_len
    }

    /// Returns the archive's format.
    ///
    /// ```
    /// use trueno_zram_archive::{Format, doc_archive};
    /// assert_eq!(doc_archive(5000).into_groups().format(), Format::Lz4);
    /// ```
    #[must_use]
    pub fn format(&self) -> Format {
        self.footer.format
    }

    /// Returns whether the content has a checksum, which [`finish`](Self::finish) compares.
    ///
    /// ```
    /// assert!(trueno_zram_archive::doc_archive(5000).into_groups().has_content_checksum());
    /// ```
    #[must_use]
    pub fn has_content_checksum(&self) -> bool {
        self.layout.content_checksum()
    }

    /// Reads a group and compares its blocks with the index and with their checksums. Pages are not restored yet: one that
    /// cannot be restored is an error as well.
    ///
    /// ```
    /// # use trueno_zram_archive::{ArchiveReader, ArchiveWriter, ContentHash, PageGroup, WriteOptions};
    /// # let (bytes, _) = ArchiveWriter::new(Vec::new(), WriteOptions::default())?.finish(Some(ContentHash::new()))?;
    /// let groups = ArchiveReader::open(std::io::Cursor::new(&bytes))?.expect("an index").into_groups();
    /// assert!(groups.read(&mut std::io::Cursor::new(&bytes), 7, &mut PageGroup::new()).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] and others. The file has to be read as a stream then.
    pub fn read<F: Read + Seek>(&self, file: &mut F, number: u64, group: &mut PageGroup) -> Result<GroupTotals> {
        let Self { footer, layout, table, .. } = self;
        let record = table.get(number).ok_or_else(|| Error::index("it has no such group"))?;
        let first_page = number * GROUP_PAGES as u64;
        let pages = (pages_of(footer.content_len) - first_page).min(GROUP_PAGES as u64);
        let other = || Error::index(format!("the blocks from page {first_page} on are not those that it describes"));
        group.start(first_page);
        let len = GroupIndex { footer, layout, table }.end(number) - record.offset;
        let len = usize::try_from(len).ok().filter(|len| *len <= GROUP_PAGES * MAX_BLOCK_LEN).ok_or_else(other)?;
        if group.window.len() < len {
            group.window.resize(len, 0);
        }
        read_at(file, record.offset, &mut group.window[..len])?;
        let mut builder = IndexBuilder::new(*layout, record.offset, Keeps::Checksums);
        let (mut at, mut blocks) = (0, 0);
        while at < len {
            let window = &group.window[..len];
            let page = first_page + builder.counts().pages();
            let (block, end) = block_at(layout, window, at, record.offset, page).ok_or_else(other)?;
            if layout.block_checksums() {
                block.verify(window)?;
            }
            let left = footer.content_len.saturating_sub(page * PAGE_SIZE as u64);
            let entry = block.entry(window);
            if !builder.push(entry, left.min(entry.pages() * PAGE_SIZE as u64)) || builder.counts().pages() > pages {
                return Err(other());
            }
            group.add(block, footer.content_len)?;
            at = end;
            blocks += 1;
        }
        if builder.counts().pages() != pages {
            return Err(other());
        }
        let built = builder.finish();
        if built.groups[..] != [record] {
            return Err(other());
        }
        if !record.all_zeros {
            let mut entries = [0; GROUP_PAGES * ENTRY_LEN];
            let entries = &mut entries[..usize::try_from(pages).expect("a group is small") * ENTRY_LEN];
            let skipped = HEAD_LEN as u64 + table.stored_before(number) * (GROUP_PAGES * ENTRY_LEN) as u64;
            read_at(file, footer.frame_len + skipped, entries)?;
            if xxh32(entries) != record.checksum {
                return Err(other());
            }
        }
        Ok(GroupTotals { groups: 1, blocks, pages: built.counts })
    }

    /// Compares what is left of the file with the index, once all groups were read and restored. `hash` is the hash of all
    /// content: required if the archive has a [checksum](Self::has_content_checksum) of it, ignored otherwise.
    ///
    /// # Errors
    /// [`Error::Index`] and others. The file has to be read as a stream then.
    pub fn finish<F: Read + Seek>(
        &self,
        file: &mut F,
        totals: GroupTotals,
        hash: Option<&ContentHash>,
    ) -> Result<ReadSummary> {
        let Self { footer, layout, .. } = self;
        let GroupTotals { groups, blocks, pages } = totals;
        let counts = PageStats { bytes_out: footer.pages.bytes_out, ..pages };
        if groups != footer.groups() || counts != footer.pages {
            return Err(Error::index("its footer does not describe the frame"));
        }
        match layout {
            Layout::Lz4(_) => self.check_end(file, hash)?,
            Layout::Zstd { .. } => self.check_seek_table(file)?,
        }
        Sections::verified(file, footer.sections_at(), footer.table_at(), footer.sections_checksum)?;
        Ok(ReadSummary {
            content_len: footer.content_len,
            input_len: footer.frame_len + footer.index_len() + self.seek_table_len,
            frames: if footer.format == Format::Lz4 { 1 } else { blocks },
            content_checksums: u64::from(self.has_content_checksum()),
            skippable_frames: 1 + u64::from(self.seek_table_len > 0),
            blocks,
            pages,
            index: IndexVerdict::Agrees,
        })
    }

    /// Compares the end of an LZ4 frame: the mark, and the checksum of the content.
    fn check_end<F: Read + Seek>(&self, file: &mut F, hash: Option<&ContentHash>) -> Result<()> {
        let mut end = [0xff; 8];
        let end = &mut end[..usize::try_from(self.layout.end_len()).expect("a few bytes")];
        read_at(file, self.footer.frame_len - self.layout.end_len(), end)?;
        let (mark, checksum) = end.split_at(4);
        let hashed = hash.map(|hash| hash.digest().to_le_bytes());
        let is_hashed = !self.has_content_checksum() || hashed.as_ref().is_some_and(|hashed| hashed == checksum);
        if mark != [0; 4] || !is_hashed {
            return Err(Error::index("the frame does not end where it says"));
        }
        Ok(())
    }

    /// Compares the seek table of a Zstandard archive with the index, which all frames were compared with.
    fn check_seek_table<F: Read + Seek>(&self, file: &mut F) -> Result<()> {
        let Self { footer, layout, table, seek_table_len } = self;
        let short = |len: u64| u32::try_from(len).map_err(|_| Error::index("a frame is too long"));
        let mut expected = ExpectedTable::new();
        for number in 0..footer.groups() {
            for place in (GroupIndex { footer, layout, table }).places(file, number)? {
                let left = footer.content_len - place.first_page * PAGE_SIZE as u64;
                let content_len = short(left.min(place.pages * PAGE_SIZE as u64))?;
                expected.push(SeekEntry { compressed_len: place.len_bytes, content_len });
            }
        }
        expected.push(SeekEntry { compressed_len: short(footer.index_len())?, content_len: 0 });
        let start = footer.frame_len + footer.index_len() + SKIPPABLE_HEAD_LEN;
        let payload_len = seek_table_len.checked_sub(SKIPPABLE_HEAD_LEN);
        let payload_len = payload_len.ok_or_else(|| Error::index("its seek table is missing"))?;
        file.seek(SeekFrom::Start(start)).map_err(|source| Error::Read { at: start, source })?;
        if !expected.agrees(&mut Input::new(file), payload_len)? {
            return Err(Error::index("its seek table does not describe the frames"));
        }
        Ok(())
    }
}

/// Returns the block at `at` in the window, which starts at `window_at` in the file, and the position after it. `None` if
/// an archive cannot have it.
fn block_at(layout: &Layout, window: &[u8], at: usize, window_at: u64, page: u64) -> Option<(Block, usize)> {
    let page = Some(page);
    let at_in_file = window_at + at as u64;
    match layout {
        Layout::Lz4(header) => {
            let size = u32::from_le_bytes(*window[at..].first_chunk()?);
            let (raw, len) = (size & RAW_BLOCK != 0, (size & !RAW_BLOCK) as usize);
            let mut block = Block { page, ..Block::lz4(at_in_file, at + 4, len, raw) };
            let end = at + 4 + len + header.block_checksum_len();
            if size == 0 || !block.may_be_page() || end > window.len() {
                return None;
            }
            if !raw {
                block.zero_pages = zero_pages_of(block.bytes(window)).unwrap_or(0);
            }
            Some((block, end))
        }
        Layout::Zstd { checksums } => {
            let Seen::Page(seen) = look(&window[at..]) else { return None };
            let (len, raw, zero_pages) = (seen.len, seen.raw, seen.zero_pages);
            let part_of_page = zero_pages == 0 && !seen.is_page();
            let block =
                Block { format: Format::Zstd, at: at_in_file, start: at, len, raw, zero_pages, page, part_of_page };
            (seen.checksum == *checksums).then_some((block, at + len))
        }
    }
}

impl PageGroup {
    /// Creates an empty one.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageGroup::new().content_start(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn start(&mut self, first_page: u64) {
        self.blocks.clear();
        self.tail.clear();
        self.stretches.clear();
        self.content_start = first_page * PAGE_SIZE as u64;
    }

    /// Adds a block to the content.
    fn add(&mut self, block: Block, content_len: u64) -> Result<()> {
        let page = block.page.expect("the block has a page");
        let left = content_len - page * PAGE_SIZE as u64;
        let stretch = if block.zero_pages > 0 {
            let len_bytes = (block.zero_pages * PAGE_SIZE) as u64;
            if len_bytes > left {
                return Err(block.corrupt("it is longer than the content"));
            }
            Stretch::Zeros(len_bytes)
        } else if left < PAGE_SIZE as u64 {
            self.tail.resize(PAGE_SIZE, 0);
            let len = block.decode(&self.window, &[], &mut self.tail)?;
            if len as u64 != left {
                return Err(block.corrupt(format!("it holds {len} bytes; the last page has {left}")));
            }
            Stretch::Extra { start: 0, len }
        } else {
            block.as_page(&self.window).ok_or_else(|| block.corrupt("it is not a page"))?;
            self.blocks.push(block);
            Stretch::Main { start: (self.blocks.len() - 1) * PAGE_SIZE, len: PAGE_SIZE }
        };
        match (self.stretches.last_mut(), stretch) {
            (Some(Stretch::Zeros(before)), Stretch::Zeros(more)) => *before += more,
            (Some(Stretch::Main { len, .. }), Stretch::Main { .. }) => *len += PAGE_SIZE,
            _ => self.stretches.push(stretch),
        }
        Ok(())
    }

    /// Returns where its content starts, in bytes.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageGroup::new().content_start(), 0);
    /// ```
    #[must_use]
    pub fn content_start(&self) -> u64 {
        self.content_start
    }

    /// Returns the length of its content in bytes.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageGroup::new().content_len(), 0);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.len_bytes()).sum()
    }

    /// Returns the number of pages to restore: those that are neither zero nor a shorter last one.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageGroup::new().data_pages(), 0);
    /// ```
    #[must_use]
    pub fn data_pages(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the pages to restore.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageGroup::new().pages().len(), 0);
    /// ```
    pub fn pages(&self) -> impl ExactSizeIterator<Item = PageData<'_>> {
        self.blocks.iter().map(|block| block.as_page(&self.window).expect("the block was checked when it was read"))
    }

    /// Returns what the content consists of, before its pages are restored.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageGroup::new().runs().count(), 0);
    /// ```
    pub fn runs(&self) -> impl Iterator<Item = PageRun<'_>> {
        self.stretches.iter().map(|stretch| match *stretch {
            Stretch::Zeros(len_bytes) => PageRun::Zeros(len_bytes),
            Stretch::Main { len, .. } => PageRun::Pages(len / PAGE_SIZE),
            Stretch::Extra { start, len } => PageRun::Tail(&self.tail[start..start + len]),
        })
    }

    /// Returns the content, given the pages that were restored from [`pages`](Self::pages).
    ///
    /// # Panics
    /// If there are fewer than [`data_pages`](Self::data_pages).
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageGroup::new().spans(&[]).count(), 0);
    /// ```
    pub fn spans<'a>(&'a self, restored: &'a [Page]) -> impl Iterator<Item = ContentSpan<'a>> {
        self.stretches.iter().map(|stretch| stretch.find(restored.as_flattened(), &self.tail))
    }
}
