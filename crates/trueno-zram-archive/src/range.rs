//! Reads and decodes a range of an archive's pages.

use std::io::{Read, Seek};
use std::ops::Range;

use trueno_zram_core::{Error as PageError, PAGE_SIZE};

use crate::block::Block;
use crate::constant::zero_pages_of;
use crate::content::{ContentBatch, Stretch};
use crate::decoder::PageDecoder;
use crate::error::{Error, Result};
use crate::header::RAW_BLOCK;
use crate::index::GROUP_PAGES;
use crate::lots::verify;
use crate::seek::{ArchiveReader, BlockKind, BlockPlace, read_at};

/// Reads a range of pages, batch by batch.
///
/// ```
/// use trueno_zram_archive::{ContentBatch, CpuPageDecoder};
/// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
/// let (mut decoder, mut batch) = (CpuPageDecoder::new(), ContentBatch::new());
/// let mut nothing = archive.read_pages(7..7, &mut decoder)?;
/// assert!(!nothing.read_batch(&mut batch)?);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct PageRangeReader<'a, F: Read + Seek, D: PageDecoder> {
    archive: &'a mut ArchiveReader<F>,
    decoder: &'a mut D,
    /// What is left.
    pages: Range<u64>,
    window: Vec<u8>,
}

impl<'a, F: Read + Seek, D: PageDecoder> PageRangeReader<'a, F, D> {
    /// For a range that the archive has.
    pub(crate) fn new(archive: &'a mut ArchiveReader<F>, decoder: &'a mut D, pages: Range<u64>) -> Self {
        Self { archive, decoder, pages, window: Vec::new() }
    }
}

impl<F: Read + Seek, D: PageDecoder> PageRangeReader<'_, F, D> {
    /// Decodes the next pages, up to 1,024; `false` when the range is done.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, CpuPageDecoder};
    /// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
    /// let (mut decoder, mut batch) = (CpuPageDecoder::new(), ContentBatch::new());
    /// let mut pages = archive.read_pages(0..40, &mut decoder)?;
    /// assert!(pages.read_batch(&mut batch)?);
    /// assert_eq!(batch.len_bytes(), 40 * 4096);
    /// assert!(!pages.read_batch(&mut batch)?);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Block`] or [`Error::BlockChecksum`] for one that does not decode, [`Error::Index`] if a block is not what the
    /// index says, [`Error::Read`].
    pub fn read_batch(&mut self, out: &mut ContentBatch) -> Result<bool> {
        out.start(0);
        if self.pages.is_empty() {
            return Ok(false);
        }
        let group_end = (self.pages.start / GROUP_PAGES as u64 + 1) * GROUP_PAGES as u64;
        let pages = self.pages.start..self.pages.end.min(group_end);
        let places = self.archive.locate(pages.clone())?;
        let blocks = self.read_blocks(&places)?;
        let window = &self.window[..];
        let is_tail = |place: &BlockPlace| (place.first_page + 1) * PAGE_SIZE as u64 > self.archive.content_len();
        let whole = |(place, block): &(&BlockPlace, &Block)| block.zero_pages == 0 && !is_tail(place);
        let (whole, data): (Vec<&Block>, Vec<_>) = places
            .iter()
            .zip(&blocks)
            .filter(whole)
            .map(|(_, block)| {
                block.as_page(window).map(|page| (block, page)).ok_or_else(|| block.corrupt("it is no page"))
            })
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        out.start(data.len());
        if !data.is_empty() {
            let decoded = self.decoder.decode(&data, &mut out.main[..data.len()]);
            decoded.map_err(|error| match error {
                PageError::InPage { index, error } => {
                    whole.get(index).map_or(Error::Decoder(*error.clone()), |block| block.corrupt(error))
                }
                other => Error::Decoder(other),
            })?;
        }
        let mut slot = 0;
        for (place, block) in places.iter().zip(&blocks) {
            let stretch = if block.zero_pages > 0 {
                let start = place.first_page.max(pages.start);
                let end = (place.first_page + place.pages).min(pages.end);
                Stretch::Zeros((end - start) * PAGE_SIZE as u64)
            } else if is_tail(place) {
                let tail = self.archive.content_len() - place.first_page * PAGE_SIZE as u64;
                out.extra.resize(PAGE_SIZE, 0);
                let len = block.decode(window, &[], &mut out.extra)?;
                if len as u64 != tail {
                    return Err(block.corrupt(format!("it holds {len} bytes of the last page's {tail}")));
                }
                Stretch::Extra { start: 0, len }
            } else {
                slot += 1;
                Stretch::Main { start: (slot - 1) * PAGE_SIZE, len: PAGE_SIZE }
            };
            out.push(stretch);
        }
        self.pages.start = pages.end;
        Ok(true)
    }

    /// Reads blocks that follow each other, and holds them to the index and to their checksums.
    fn read_blocks(&mut self, places: &[BlockPlace]) -> Result<Vec<Block>> {
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return Ok(Vec::new()) };
        let header = &self.archive.header;
        let overhead = 4 + header.block_checksum_len() as u64;
        let len = last.offset + overhead + u64::from(last.len_bytes) - first.offset;
        // A group's blocks, each of at most a page: `locate` has summed them up.
        let len = usize::try_from(len).map_err(|_| Error::index("a group is too long"))?;
        self.window.resize(len, 0);
        read_at(&mut self.archive.file, first.offset, &mut self.window)?;
        let window = &self.window[..];
        let blocks = places
            .iter()
            .map(|place| {
                let size_at = usize::try_from(place.offset - first.offset).expect("within the window");
                let (start, len) = (size_at + 4, place.len_bytes as usize);
                let size = u32::from_le_bytes(window[size_at..start].try_into().expect("four bytes"));
                let raw = place.kind == BlockKind::Raw;
                let mut block = Block { at: place.offset, start, len, raw, zero_pages: 0 };
                let other =
                    || Error::index(format!("byte {}: the block there is not the one it tells of", place.offset));
                if size != place.len_bytes | if raw { RAW_BLOCK } else { 0 } {
                    return Err(other());
                }
                if place.kind == BlockKind::Zeros {
                    block.zero_pages = zero_pages_of(block.bytes(window)).unwrap_or(0);
                    if block.zero_pages as u64 != place.pages {
                        return Err(other());
                    }
                }
                Ok(block)
            })
            .collect::<Result<Vec<_>>>()?;
        verify(&blocks, window, header.block_checksums)?;
        Ok(blocks)
    }
}

impl<F: Read + Seek, D: PageDecoder> std::fmt::Debug for PageRangeReader<'_, F, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageRangeReader({:?} left)", self.pages)
    }
}
