//! One group of an archive in memory: its blocks, compared with what the index says of them.

use std::io::{Read, Seek};
use std::ops::Range;

use trueno_zram_core::{PAGE_SIZE, PageData, PageKind};

use crate::block::{Block, decoded_len};
use crate::blocks::{BlockPlace, GroupIndex};
use crate::constant::{word_of, zero_pages_of};
use crate::decoder::CpuPages;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::header::{ARCHIVE_MAX_BLOCK, RAW_BLOCK};
use crate::lots::verify;
use crate::seek::read_at;
use crate::zstd::group::{check_frame, stream_refuses_frame};

/// What is compared with the index when a group is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Headers, and how many bytes each block decodes to.
    Contents,
    /// Headers. The caller restores all pages, which shows the rest.
    Headers,
}

/// Whether a stream of the whole archive reads a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamReach {
    /// It does, unless one of the group's own blocks is damaged.
    Reaches,
    /// It ends with an error before the group.
    EndsBefore,
}

/// The blocks of a group: up to 1,024 pages in 4 MiB.
#[derive(Debug, Default)]
pub(crate) struct GroupBlocks {
    /// The group in memory.
    number: Option<u64>,
    places: Vec<BlockPlace>,
    blocks: Vec<Block>,
    /// Which blocks are what the index says.
    fits: Vec<bool>,
    window: Vec<u8>,
    refused: bool,
    /// Blocks may have checksums.
    checksummed: bool,
}

impl GroupBlocks {
    /// Reads a group, unless it is in memory already, and compares every block with the index.
    ///
    /// A block that is not what the index says is an error, unless a stream never gets past it, because it is damaged:
    /// then it affects only reads of its pages.
    pub(crate) fn read<F: Read + Seek>(
        &mut self,
        file: &mut F,
        number: u64,
        index: GroupIndex<'_>,
        stream: StreamReach,
    ) -> Result<()> {
        if self.number == Some(number) {
            return Ok(());
        }
        self.read_to(Depth::Contents, file, number, index, stream)?;
        self.number = Some(number);
        Ok(())
    }

    /// Reads a group, and compares its blocks with the index as deep as is asked for.
    pub(crate) fn read_to<F: Read + Seek>(
        &mut self,
        depth: Depth,
        file: &mut F,
        number: u64,
        index: GroupIndex<'_>,
        stream: StreamReach,
    ) -> Result<()> {
        self.number = None;
        self.places = index.places(file, number)?;
        let GroupIndex { footer, layout, .. } = index;
        let overhead = layout.overhead() as u64;
        let (Some(first), Some(last)) = (self.places.first(), self.places.last()) else {
            return Err(Error::index("a group has no blocks"));
        };
        let (start, end) = (first.offset, last.offset + overhead + u64::from(last.len_bytes));
        // Up to 1,024 blocks of at most a page: the entries allow no more.
        let len = usize::try_from(end - start).map_err(|_| Error::index("a group is too long"))?;
        self.window.resize(len, 0);
        read_at(file, start, &mut self.window)?;
        // A stream of the frame must end behind these blocks, too: else it has pages that the index does not know. Behind
        // Zstandard frames stands the index.
        if number + 1 == footer.groups() && layout.format() == Format::Lz4 {
            let mut end_mark = [0xff; 4];
            read_at(file, end, &mut end_mark)?;
            if end_mark != [0; 4] || end + layout.end_len() != footer.frame_len {
                return Err(Error::index("the frame does not end where it says"));
            }
        }
        let (window, decoder) = (&self.window[..], (depth == Depth::Contents).then(CpuPages::new));
        let check = |place: &BlockPlace| match layout {
            Layout::Lz4(_) => check_block(place, start, window, footer.content_len, decoder.as_ref()),
            Layout::Zstd { checksums } => check_frame(place, start, window, footer.content_len, *checksums),
        };
        // On this thread alone: a worker of a pool that waits for others may start work that waits for this group.
        (self.blocks, self.fits) = self.places.iter().map(check).unzip();
        let other = self.fits.iter().position(|fits| !fits);
        self.refused = other.is_some_and(|other| self.stream_refuses(other, layout));
        if let Some(other) = other
            && stream == StreamReach::Reaches
            && !self.refused
        {
            return Err(not_described(&self.blocks[other]));
        }
        self.checksummed = layout.block_checksums();
        Ok(())
    }

    /// Returns whether a stream that reads the group's blocks in order ends with an error at this block or before it. All
    /// blocks before it are where the index says.
    fn stream_refuses(&self, block: usize, layout: &Layout) -> bool {
        if layout.format() == Format::Zstd {
            return stream_refuses_frame(&self.blocks[..=block], &self.window);
        }
        let size = self.size_word(block);
        if (size & !RAW_BLOCK) as usize > ARCHIVE_MAX_BLOCK {
            return true;
        }
        // The checksum of a block with another length lies elsewhere.
        let whole = if self.is_size_of(block, size) { block + 1 } else { block };
        layout.block_checksums() && self.blocks[..whole].iter().any(|block| block.verify(&self.window).is_err())
    }

    fn size_word(&self, block: usize) -> u32 {
        let start = self.blocks[block].start;
        u32::from_le_bytes(self.window[start - 4..start].try_into().expect("four bytes"))
    }

    fn is_size_of(&self, block: usize, size: u32) -> bool {
        size & !RAW_BLOCK == self.places[block].len_bytes
    }

    /// Returns all blocks if every one is what the index says, and the checksums of zero pages are right. Those of other
    /// pages are compared when a page is read; zero pages are not read again.
    pub(crate) fn intact_places(&self) -> Option<&[BlockPlace]> {
        let zeros = self.blocks.iter().filter(|block| self.checksummed && block.zero_pages > 0);
        let intact =
            self.fits.iter().all(|fits| *fits) && zeros.into_iter().all(|block| block.verify(&self.window).is_ok());
        intact.then_some(&self.places[..])
    }

    /// Returns whether a stream ends with an error in this group.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    pub(crate) fn window(&self) -> &[u8] {
        &self.window
    }

    /// Returns the blocks of the pages that are wanted, from the block of the first to that of the last.
    ///
    /// # Errors
    /// [`Error::BlockChecksum`] or [`Error::Index`] for the first of them that is damaged or not what the index says.
    pub(crate) fn blocks_of(&self, pages: &Range<u64>) -> Result<(&[BlockPlace], &[Block])> {
        let start = self.places.partition_point(|place| place.first_page + place.pages <= pages.start);
        let end = self.places.partition_point(|place| place.first_page < pages.end);
        let blocks = &self.blocks[start..end];
        verify(blocks, &self.window, self.checksummed)?;
        match blocks.iter().zip(&self.fits[start..end]).find(|(_, fits)| !**fits) {
            Some((block, _)) => Err(not_described(block)),
            None => Ok((&self.places[start..end], blocks)),
        }
    }
}

fn not_described(block: &Block) -> Error {
    let (page, at) = (block.page.unwrap_or_default(), block.at);
    Error::index(format!("page {page} (byte {at}): the block there is not the one that it describes"))
}

/// Compares a block with its place. The flag says whether the block is what the index says. Without a decoder, the length
/// that it decodes to is not compared.
fn check_block(
    place: &BlockPlace,
    window_at: u64,
    window: &[u8],
    content_len: u64,
    decoder: Option<&CpuPages>,
) -> (Block, bool) {
    let size_at = usize::try_from(place.offset - window_at).expect("within the window");
    let (start, len) = (size_at + 4, place.len_bytes as usize);
    let size = u32::from_le_bytes(window[size_at..start].try_into().expect("four bytes"));
    let raw = place.kind == PageKind::Raw;
    let mut block = Block { page: Some(place.first_page), ..Block::lz4(place.offset, start, len, raw) };
    let bytes = block.bytes(window);
    let wanted = (content_len - place.first_page * PAGE_SIZE as u64).min(PAGE_SIZE as u64);
    let fits = if place.zero {
        block.zero_pages = zero_pages_of(bytes).unwrap_or(0);
        block.zero_pages as u64 == place.pages && (place.first_page + place.pages) * PAGE_SIZE as u64 <= content_len
    } else {
        let found = match place.kind {
            PageKind::Raw => Some(len),
            PageKind::SameFilled => word_of(bytes).map(|_| PAGE_SIZE),
            PageKind::Lz4 | PageKind::Zstd => match decoder {
                None => usize::try_from(wanted).ok(),
                // Restoring a page is faster than adding up the lengths of its sequences with all checks.
                Some(decoder) if is_page(bytes, decoder) => Some(PAGE_SIZE),
                Some(_) => decoded_len(bytes),
            },
        };
        found.is_some_and(|found| found as u64 == wanted)
    };
    (block, fits && size == place.len_bytes | if raw { RAW_BLOCK } else { 0 })
}

/// Returns whether a block decodes to exactly one page.
fn is_page(block: &[u8], decoder: &CpuPages) -> bool {
    let page = PageData::new(PageKind::Lz4, block);
    page.is_ok_and(|page| decoder.decode_one(page, &mut [0; PAGE_SIZE], &mut None).is_ok())
}
