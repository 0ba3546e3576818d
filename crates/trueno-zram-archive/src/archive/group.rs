//! One group of an archive in memory: its blocks, compared with the index.

use std::ops::Range;

use trueno_zram_core::{PAGE_SIZE, Page, PageData, PageKind};

use crate::block::{Block, Fit};
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::index::blocks::{BlockPlace, GroupIndex};
use crate::index::layout::page_len;
use crate::lz4::header::{ARCHIVE_MAX_BLOCK_LEN, RAW_BLOCK_FLAG};
use crate::lz4::sequences::decoded_len;
use crate::read_at::read_at;
use crate::stream::content::ContentSpan;
use crate::stream::decoder::CpuPages;
use crate::zstd::frame_check::stream_refuses_frame;

/// The parts of a group that are compared with the index when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckDepth {
    /// Headers, and how many bytes each block decodes to.
    Contents,
    /// Headers. The caller restores all pages, which shows the rest.
    Headers,
}

/// The reach of a stream that reads the archive from its start, as seen from a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamReach {
    /// The stream comes to the group's first block.
    Reaches,
    /// The stream ends with an error before the group.
    EndsBefore,
}

/// The blocks of a group in memory, not decoded yet: up to 1,024 pages in 4 MiB. Reuse it: its memory is kept.
///
/// [`Archive::read_group`](crate::Archive::read_group) fills it.
///
/// ```
/// # use trueno_zram_archive::{Archive, ContentSpan, GroupBuffer, GroupRun, WriteOptions, compress};
/// # let content = [&[0; 4096][..], &[7; 2 * 4096], b"tail"].concat();
/// # let mut bytes = Vec::new();
/// # compress(&content[..], &mut bytes, &WriteOptions::default())?;
/// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
/// let mut group = GroupBuffer::new();
/// archive.read_group(0, &mut group)?; // a zero page, two others, and four bytes
/// assert_eq!((group.content_start(), group.content_len(), group.data_pages()), (0, 3 * 4096 + 4, 2));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct GroupBuffer {
    /// The group in memory, if its contents were compared with the index.
    number: Option<u64>,
    places: Vec<BlockPlace>,
    blocks: Vec<Block>,
    /// For each block: it is the one that the index describes.
    fits: Vec<bool>,
    window: Vec<u8>,
    refused: bool,
    /// Blocks may have checksums.
    checksummed: bool,
    content_len: u64,
    /// The content of a shorter last page.
    tail: Vec<u8>,
}

/// A part of a group's content, before its pages are restored.
///
/// ```
/// # use trueno_zram_archive::{Archive, ContentSpan, GroupBuffer, GroupRun, WriteOptions, compress};
/// # let content = [&[0; 4096][..], &[7; 2 * 4096], b"tail"].concat();
/// # let mut bytes = Vec::new();
/// # compress(&content[..], &mut bytes, &WriteOptions::default())?;
/// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
/// let mut group = GroupBuffer::new();
/// archive.read_group(0, &mut group)?; // a zero page, two others, and four bytes
/// assert!(group.runs().eq([GroupRun::Zeros(4096), GroupRun::Pages(2), GroupRun::Tail(b"tail")]));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupRun<'a> {
    /// This many zero bytes: whole pages.
    Zeros(u64),
    /// This many of the pages to restore, in their order.
    Pages(usize),
    /// The content's last bytes, less than a page.
    Tail(&'a [u8]),
}

impl GroupBuffer {
    /// Creates an empty one.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::GroupBuffer::new().content_len(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the offset of its content in bytes.
    #[must_use]
    pub fn content_start(&self) -> u64 {
        self.places.first().map_or(0, |place| place.first_page * PAGE_SIZE as u64)
    }

    /// Returns the length of its content in bytes.
    #[must_use]
    pub fn content_len(&self) -> u64 {
        let end = self.places.last().map_or(0, |place| (place.first_page + place.pages) * PAGE_SIZE as u64);
        end.min(self.content_len) - self.content_start()
    }

    /// Returns the number of pages to restore: those that are neither zero nor a shorter last one.
    #[must_use]
    pub fn data_pages(&self) -> usize {
        self.places.iter().filter(|place| self.is_data(place)).count()
    }

    /// Returns the pages to restore, in order.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, ContentSpan, GroupBuffer, GroupRun, WriteOptions, compress};
    /// # let content = [&[0; 4096][..], &[7; 2 * 4096], b"tail"].concat();
    /// # let mut bytes = Vec::new();
    /// # compress(&content[..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut group = GroupBuffer::new();
    /// archive.read_group(0, &mut group)?; // a zero page, two others, and four bytes
    /// let (mut codec, mut page) = (trueno_zram_archive::PageCodec::default(), [0; 4096]);
    /// for compressed in group.pages() {
    ///     codec.decompress(compressed, &mut page).map_err(trueno_zram_archive::Error::Decoder)?;
    ///     assert_eq!(page, [7; 4096]);
    /// }
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn pages(&self) -> impl Iterator<Item = PageData<'_>> {
        let data = self.places.iter().zip(&self.blocks).filter(|(place, _)| self.is_data(place));
        data.map(|(_, block)| block.as_page(&self.window).expect("the block was checked when it was read"))
    }

    /// Returns the runs of the content, in order.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, ContentSpan, GroupBuffer, GroupRun, WriteOptions, compress};
    /// # let content = [&[0; 4096][..], &[7; 2 * 4096], b"tail"].concat();
    /// # let mut bytes = Vec::new();
    /// # compress(&content[..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut group = GroupBuffer::new();
    /// archive.read_group(0, &mut group)?; // a zero page, two others, and four bytes
    /// assert!(group.runs().eq([GroupRun::Zeros(4096), GroupRun::Pages(2), GroupRun::Tail(b"tail")]));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn runs(&self) -> impl Iterator<Item = GroupRun<'_>> {
        let mut places = self.places.iter().peekable();
        std::iter::from_fn(move || {
            let first = places.next()?;
            if !first.zero && !self.is_data(first) {
                return Some(GroupRun::Tail(&self.tail));
            }
            let mut pages = first.pages;
            while let Some(more) = places.next_if(|next| next.zero == first.zero && (next.zero || self.is_data(next))) {
                pages += more.pages;
            }
            Some(match first.zero {
                true => GroupRun::Zeros(pages * PAGE_SIZE as u64),
                false => GroupRun::Pages(usize::try_from(pages).expect("a group is small")),
            })
        })
    }

    /// Returns the content, with the pages that were restored from [`pages`](Self::pages).
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, ContentSpan, GroupBuffer, GroupRun, WriteOptions, compress};
    /// # let content = [&[0; 4096][..], &[7; 2 * 4096], b"tail"].concat();
    /// # let mut bytes = Vec::new();
    /// # compress(&content[..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut group = GroupBuffer::new();
    /// archive.read_group(0, &mut group)?; // a zero page, two others, and four bytes
    /// let restored = [[7; 4096]; 2]; // from `group.pages()`
    /// let mut spans = group.spans(&restored);
    /// assert_eq!(spans.next(), Some(ContentSpan::Zeros(4096)));
    /// assert_eq!(spans.next(), Some(ContentSpan::Data(restored.as_flattened())));
    /// assert_eq!(spans.next(), Some(ContentSpan::Data(b"tail")));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there are fewer pages than [`data_pages`](Self::data_pages).
    pub fn spans<'a>(&'a self, restored: &'a [Page]) -> impl Iterator<Item = ContentSpan<'a>> {
        let mut rest = restored;
        self.runs().map(move |run| match run {
            GroupRun::Zeros(len_bytes) => ContentSpan::Zeros(len_bytes),
            GroupRun::Tail(bytes) => ContentSpan::Data(bytes),
            GroupRun::Pages(count) => {
                let (pages, after) = rest.split_at(count);
                rest = after;
                ContentSpan::Data(pages.as_flattened())
            }
        })
    }

    /// Returns `true` if a block holds a whole page that is not zero.
    fn is_data(&self, place: &BlockPlace) -> bool {
        !place.zero && page_len(self.content_len, place.first_page) == PAGE_SIZE
    }

    /// Reads a group, unless it is in memory already, and compares every block with the index.
    ///
    /// A block that is not what the index says is an error, unless a stream never gets past it, because it is damaged:
    /// then it affects only reads of its pages.
    pub(crate) fn read(&mut self, number: u64, index: GroupIndex<'_>, stream: StreamReach) -> Result<()> {
        if self.number == Some(number) {
            return Ok(());
        }
        self.read_to(CheckDepth::Contents, number, index, stream)?;
        self.number = Some(number);
        Ok(())
    }

    /// Reads a group, and compares its blocks with the index to this depth.
    pub(crate) fn read_to(
        &mut self,
        depth: CheckDepth,
        number: u64,
        index: GroupIndex<'_>,
        stream: StreamReach,
    ) -> Result<()> {
        self.number = None;
        self.places = index.places(number)?;
        let GroupIndex { file, footer, layout, .. } = index;
        let overhead = layout.overhead() as u64;
        let (Some(first), Some(last)) = (self.places.first(), self.places.last()) else {
            return Err(Error::index("a group has no blocks"));
        };
        let (start, end) = (first.offset, last.offset + overhead + u64::from(last.len_bytes));
        // Up to 1,024 blocks of at most a page: the entries allow no more.
        let len = usize::try_from(end - start).map_err(|_| Error::index("a group is too long"))?;
        self.window.resize(len, 0);
        read_at(file, start, &mut self.window)?;
        // A stream of the frame must end after these blocks, too: else it has pages that the index does not describe.
        // Zstandard frames are followed by the index.
        if number + 1 == footer.groups() && layout.format() == Format::Lz4 {
            let mut end_mark = [0xff; 4];
            read_at(file, end, &mut end_mark)?;
            if end_mark != [0; 4] || end + layout.end_len() != footer.frame_len {
                return Err(Error::index("the frame does not end where it says"));
            }
        }
        let (window, decoder) = (&self.window[..], (depth == CheckDepth::Contents).then(CpuPages::new));
        let check = |place: &BlockPlace| {
            let (block, fit) = Block::described(place, layout, start, window, footer.content_len);
            let fits = fit == Fit::Matches
                && decoder.as_ref().is_none_or(|decoder| decodes(&block, place, index, window, decoder));
            (block, fits)
        };
        // On this thread alone: a worker of a pool that waits for others may start work that waits for this group.
        (self.blocks, self.fits) = self.places.iter().map(check).unzip();
        (self.checksummed, self.content_len) = (layout.block_checksums(), footer.content_len);
        let other = self.fits.iter().position(|fits| !fits);
        self.refused = other.is_some_and(|other| self.stream_refuses(other, layout));
        match other {
            Some(other) if stream == StreamReach::Reaches && !self.refused => Err(self.blocks[other].not_described()),
            _ => Ok(()),
        }
    }

    /// Returns `true` if a stream that reads the group's blocks in order ends with an error at this block or before it. All
    /// blocks before it are where the index says.
    fn stream_refuses(&self, block: usize, layout: &Layout) -> bool {
        if layout.format() == Format::Zstd {
            return stream_refuses_frame(&self.blocks[..=block], &self.window);
        }
        let start = self.blocks[block].start;
        let size = u32::from_le_bytes(self.window[start - 4..start].try_into().expect("four bytes")) & !RAW_BLOCK_FLAG;
        if size as usize > ARCHIVE_MAX_BLOCK_LEN {
            return true;
        }
        // The checksum of a block with another length lies elsewhere.
        let whole = if size == self.places[block].len_bytes { block + 1 } else { block };
        layout.block_checksums() && self.blocks[..whole].iter().any(|block| block.verify(&self.window).is_err())
    }

    /// Returns all blocks if every one is what the index says, and the checksums of zero pages are right. Those of other
    /// pages are compared when a page is read; zero pages are not read again.
    pub(crate) fn intact_places(&self) -> Option<&[BlockPlace]> {
        let mut zeros = self.blocks.iter().filter(|block| self.checksummed && block.zero_pages > 0);
        let intact = self.fits.iter().all(|fits| *fits) && zeros.all(|block| block.verify(&self.window).is_ok());
        intact.then_some(&self.places[..])
    }

    /// Returns `true` if a stream ends with an error in this group.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    pub(crate) fn window(&self) -> &[u8] {
        &self.window
    }

    /// Returns the memory for the blocks of some pages. The group in it is lost.
    pub(crate) fn window_mut(&mut self, len: usize) -> &mut [u8] {
        self.number = None;
        self.window.resize(len, 0);
        &mut self.window
    }

    /// Returns the blocks of the pages that are wanted, from the block of the first to that of the last.
    ///
    /// # Errors
    /// [`Error::BlockChecksum`] or [`Error::Index`] for the first of them that is damaged or not what the index says.
    pub(crate) fn blocks_of(&self, pages: &Range<u64>) -> Result<impl Iterator<Item = (&BlockPlace, &Block)>> {
        let start = self.places.partition_point(|place| place.first_page + place.pages <= pages.start);
        let end = self.places.partition_point(|place| place.first_page < pages.end);
        let blocks = &self.blocks[start..end];
        if self.checksummed {
            blocks.iter().try_for_each(|block| block.verify(&self.window))?;
        }
        match blocks.iter().zip(&self.fits[start..end]).find(|(_, fits)| !**fits) {
            Some((block, _)) => Err(block.not_described()),
            None => Ok(self.places[start..end].iter().zip(blocks)),
        }
    }

    /// Decodes a shorter last page, if the group has one, so that only whole pages are left to restore.
    pub(crate) fn decode_tail(&mut self) -> Result<()> {
        let (Some(place), Some(block)) = (self.places.last(), self.blocks.last()) else { return Ok(()) };
        let len = page_len(self.content_len, place.first_page);
        if place.zero || len == PAGE_SIZE {
            return Ok(());
        }
        self.tail.resize(PAGE_SIZE, 0);
        block.decode_tail(&self.window, len, &mut self.tail)?;
        self.tail.truncate(len);
        Ok(())
    }
}

/// Returns `true` if a block decodes to as many bytes as its page has. Zstandard frames state their length.
fn decodes(block: &Block, place: &BlockPlace, index: GroupIndex<'_>, window: &[u8], decoder: &CpuPages) -> bool {
    if place.kind != PageKind::Lz4 {
        return true;
    }
    // Restoring a page is faster than adding up the lengths of its sequences with all checks.
    let bytes = block.bytes(window);
    let page = PageData::new(PageKind::Lz4, bytes);
    let is_page = page.is_ok_and(|page| decoder.decode_one(page, &mut [0; PAGE_SIZE], &mut None).is_ok());
    let found = if is_page { Some(PAGE_SIZE) } else { decoded_len(bytes) };
    found == Some(page_len(index.footer.content_len, place.first_page))
}
