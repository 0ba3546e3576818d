//! Reads and decodes a range of an archive's pages.

use std::io::{Read, Seek};
use std::ops::Range;

use trueno_zram_core::{BatchCodec, Error as PageError, PAGE_SIZE};

use crate::block::Block;
use crate::blocks::BlockPlace;
use crate::content::{ContentBatch, Stretch};
use crate::decoder::Decoders;
use crate::error::{Error, Result};
use crate::index::GROUP_PAGES;
use crate::seek::ArchiveReader;

/// Reads a range of pages, batch by batch. See [`ArchiveReader::read_pages`].
///
/// ```
/// use trueno_zram_archive::ContentBatch;
/// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
/// let mut nothing = archive.read_pages(7..7)?;
/// assert!(!nothing.read_batch(&mut ContentBatch::new())?);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct PageRangeReader<'a, 'c, F: Read + Seek> {
    archive: &'a mut ArchiveReader<F>,
    decoders: Decoders<'c>,
    /// Pages not read yet.
    pages: Range<u64>,
}

impl<'a, 'c, F: Read + Seek> PageRangeReader<'a, 'c, F> {
    /// Reads a range that the archive has.
    pub(crate) fn new(
        archive: &'a mut ArchiveReader<F>,
        codec: Option<&'c mut dyn BatchCodec>,
        pages: Range<u64>,
    ) -> Self {
        Self { archive, decoders: Decoders::new(codec), pages }
    }

    /// Decodes the next pages, up to 1,024; returns `false` at the end of the range.
    ///
    /// ```
    /// use trueno_zram_archive::ContentBatch;
    /// # let mut archive = trueno_zram_archive::doc_archive(40 * 4096);
    /// let mut batch = ContentBatch::new();
    /// let mut pages = archive.read_pages(0..40)?;
    /// assert!(pages.read_batch(&mut batch)?);
    /// assert_eq!(batch.len_bytes(), 40 * 4096);
    /// assert!(!pages.read_batch(&mut batch)?);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] if a block is not what the index says, [`Error::Block`] or [`Error::BlockChecksum`] if a block
    /// of the range is corrupt, [`Error::Read`].
    pub fn read_batch(&mut self, out: &mut ContentBatch) -> Result<bool> {
        out.start(0);
        if self.pages.is_empty() {
            return Ok(false);
        }
        let number = self.pages.start / GROUP_PAGES as u64;
        let pages = self.pages.start..self.pages.end.min((number + 1) * GROUP_PAGES as u64);
        self.archive.prove_group(number)?;
        let content_len = self.archive.content_len();
        let (places, blocks) = self.archive.group.blocks_of(&pages)?;
        let window = self.archive.group.window();
        let is_tail = |place: &BlockPlace| (place.first_page + 1) * PAGE_SIZE as u64 > content_len;
        let (mut whole, mut data): (Vec<&Block>, Vec<_>) = (Vec::new(), Vec::new());
        for (_, block) in places.iter().zip(blocks).filter(|(place, _)| !place.zero && !is_tail(place)) {
            data.push(block.as_page(window).ok_or_else(|| block.corrupt("it is not a page"))?);
            whole.push(block);
        }
        out.start(data.len());
        if !data.is_empty() {
            let decoded = self.decoders.decode(&data, &mut out.main[..data.len()]);
            decoded.map_err(|error| match error {
                PageError::InPage { index, error } => {
                    whole.get(index).map_or(Error::Decoder(*error.clone()), |block| block.corrupt(error))
                }
                other => Error::Decoder(other),
            })?;
        }
        let mut slot = 0;
        for (place, block) in places.iter().zip(blocks) {
            let stretch = if place.zero {
                if block.zero_pages as u64 != place.pages {
                    return Err(block.corrupt("it is not a block of zeros"));
                }
                let start = place.first_page.max(pages.start);
                let end = (place.first_page + place.pages).min(pages.end);
                Stretch::Zeros((end - start) * PAGE_SIZE as u64)
            } else if is_tail(place) {
                let tail = content_len - place.first_page * PAGE_SIZE as u64;
                out.extra.resize(PAGE_SIZE, 0);
                let len = block.decode(window, &[], &mut out.extra)?;
                if len as u64 != tail {
                    return Err(block.corrupt(format!("it holds {len} bytes; the last page has {tail}")));
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
}

impl<F: Read + Seek> std::fmt::Debug for PageRangeReader<'_, '_, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageRangeReader({:?} left)", self.pages)
    }
}
