//! The groups of an archive, read and checked side by side: each 1,024 pages lie at a known place in the file.

use std::io::{Read, Seek};

use trueno_zram_core::{PAGE_SIZE, Page, PageData, PageStats};

use crate::block::Block;
use crate::blocks::group_end;
use crate::constant::zero_pages_of;
use crate::content::{ContentSpan, Stretch};
use crate::error::{Error, Result};
use crate::hash::{ContentHash, xxh32};
use crate::header::{Header, RAW_BLOCK};
use crate::index::{ENTRY_LEN, Footer, GROUP_PAGES, HEAD_LEN, pages_of};
use crate::index_builder::{IndexBuilder, Keeps};
use crate::reader::{IndexVerdict, ReadSummary};
use crate::sections::Sections;
use crate::seek::{ArchiveReader, read_at};
use crate::table::Table;

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
    header: Header,
    table: Table,
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
        Groups { footer: self.footer, header: self.header, table: self.table }
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

    /// Returns whether the content has a checksum, which [`finish`](Self::finish) compares.
    ///
    /// ```
    /// assert!(trueno_zram_archive::doc_archive(5000).into_groups().has_content_checksum());
    /// ```
    #[must_use]
    pub fn has_content_checksum(&self) -> bool {
        self.header.content_checksum
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
        let Self { footer, header, table } = self;
        let record = table.get(number).ok_or_else(|| Error::index("it has no such group"))?;
        let first_page = number * GROUP_PAGES as u64;
        let pages = (pages_of(footer.content_len) - first_page).min(GROUP_PAGES as u64);
        let other = || Error::index(format!("the blocks from page {first_page} on are not those that it describes"));
        group.start(first_page);
        let len = group_end(number, footer, header, table) - record.offset;
        // No block is longer than a page, with its size word and its checksum.
        let len = usize::try_from(len).ok().filter(|len| *len <= GROUP_PAGES * (PAGE_SIZE + 8)).ok_or_else(other)?;
        if group.window.len() < len {
            group.window.resize(len, 0);
        }
        read_at(file, record.offset, &mut group.window[..len])?;
        let mut builder = IndexBuilder::new(header, record.offset, Keeps::Checksums);
        let checksum_len = header.block_checksum_len();
        let (mut at, mut blocks) = (0, 0);
        while at < len {
            let size = group.window[at..len].first_chunk().ok_or_else(other)?;
            let size = u32::from_le_bytes(*size);
            let (raw, block_len) = (size & RAW_BLOCK != 0, (size & !RAW_BLOCK) as usize);
            let page = Some(first_page + builder.counts().pages());
            let (start, at_in_file) = (at + 4, record.offset + at as u64);
            let mut block = Block { at: at_in_file, start, len: block_len, raw, zero_pages: 0, page };
            if size == 0 || !block.may_be_page() || start + block_len + checksum_len > len {
                return Err(other());
            }
            let window = &group.window[..len];
            if !raw {
                block.zero_pages = zero_pages_of(block.bytes(window)).unwrap_or(0);
            }
            if header.block_checksums {
                block.verify(window)?;
            }
            if !builder.push(block.entry(window)) || builder.counts().pages() > pages {
                return Err(other());
            }
            group.add(block, footer.content_len)?;
            at = start + block_len + checksum_len;
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
        let Self { footer, header, .. } = self;
        let GroupTotals { groups, blocks, pages } = totals;
        let counts = PageStats { bytes_out: footer.pages.bytes_out, ..pages };
        if groups != footer.groups() || counts != footer.pages {
            return Err(Error::index("its footer does not describe the frame"));
        }
        let mut end = [0xff; 8];
        let end = &mut end[..usize::try_from(header.end_len()).expect("a few bytes")];
        read_at(file, footer.frame_len - header.end_len(), end)?;
        let (mark, checksum) = end.split_at(4);
        let hashed = hash.map(|hash| hash.digest().to_le_bytes());
        let is_hashed = !header.content_checksum || hashed.as_ref().is_some_and(|hashed| hashed == checksum);
        if mark != [0; 4] || !is_hashed {
            return Err(Error::index("the frame does not end where it says"));
        }
        Sections::verified(file, footer.sections_at(), footer.table_at(), footer.sections_checksum)?;
        Ok(ReadSummary {
            content_len: footer.content_len,
            input_len: footer.frame_len + footer.index_len(),
            frames: 1,
            content_checksums: u64::from(header.content_checksum),
            skippable_frames: 1,
            blocks,
            pages,
            index: IndexVerdict::Agrees,
        })
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
