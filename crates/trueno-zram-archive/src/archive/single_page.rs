//! Single pages, each read and decoded by itself.

use trueno_zram_core::{PAGE_SIZE, Page};

use super::Archive;
use crate::block::{Block, Fit};
use crate::error::Result;
use crate::index::blocks::BlockPlace;
use crate::index::layout::page_len;
use crate::read_at::read_part;

/// The longest block in a file: a raw page with the headers and the checksum of either format.
const MAX_STORED_LEN: usize = PAGE_SIZE + 16;

/// Room for a block, from the start of a cache line: the kernel copies to it faster.
#[repr(align(64))]
struct StoredBlock([u8; MAX_STORED_LEN]);

impl Archive {
    /// Reads a page. A shorter last page is filled up with zeros.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 pages
    /// assert_eq!(archive.read_page(7)?, [7; 4096]);
    /// assert!(archive.read_page(40).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`]; [`Error::Index`] if the group is not what the index says; [`Error::BlockChecksum`] and
    /// [`Error::Block`] if the page is damaged; [`Error::Disproven`] if the proof of its group has failed; [`Error::Read`].
    ///
    /// [`Error::PageRange`]: crate::Error::PageRange
    /// [`Error::Index`]: crate::Error::Index
    /// [`Error::BlockChecksum`]: crate::Error::BlockChecksum
    /// [`Error::Block`]: crate::Error::Block
    /// [`Error::Disproven`]: crate::Error::Disproven
    /// [`Error::Read`]: crate::Error::Read
    pub fn read_page(&self, page: u64) -> Result<Page> {
        let mut out = [0; PAGE_SIZE];
        self.read_one(page, &mut out)?;
        Ok(out)
    }

    /// Reads a page by its number.
    pub(super) fn read_one(&self, page: u64, out: &mut Page) -> Result<()> {
        let number = self.group_with(page)?;
        match self.locate(number)? {
            Some(group) => self.read_located(group.locate(page, &self.layout), out),
            None => self.with_group(number, |group| self.decode_part(group, page..page + 1, std::slice::from_mut(out))),
        }
    }

    /// Reads a page where the index says it is. The other blocks of its group are not compared with the index, so it may be
    /// another page than a stream has there: the caller compares it with its hash. Takes two short reads of the file.
    pub(crate) fn read_unproven(&self, page: u64, out: &mut Page) -> Result<()> {
        let number = self.group_with(page)?;
        if let Some(group) = self.slot(number).and_then(|slot| slot.get()) {
            return self.read_located(group.locate(page, &self.layout), out);
        }
        let group = self.index().resident(number)?;
        self.read_located(group.locate(page, &self.layout), out)
    }

    /// Reads a page from its block; a page without one is zero.
    pub(super) fn read_located(&self, place: Option<BlockPlace>, out: &mut Page) -> Result<()> {
        let Some(place) = place else {
            out.fill(0);
            return Ok(());
        };
        let len = self.layout.overhead() + place.len_bytes as usize;
        let mut bytes = StoredBlock([0; MAX_STORED_LEN]);
        read_part(&*self.file, place.offset, &mut bytes.0[..len], Some(place.first_page), "a block")?;
        self.restore_block(&place, &bytes.0[..len], out)
    }

    /// Restores a page from its block. The group was compared with the index, but the file may have changed since.
    pub(super) fn restore_block(&self, place: &BlockPlace, bytes: &[u8], out: &mut Page) -> Result<()> {
        let (block, fit) = Block::described(place, &self.layout, place.offset, bytes, self.footer.content_len);
        if fit == Fit::HeaderDiffers {
            return Err(block.not_described());
        }
        if self.layout.block_checksums() {
            block.verify(bytes)?;
        }
        self.decode(&block, bytes, out)
    }

    /// Decodes the block of a page. The bytes after a shorter last page are set to zero.
    pub(super) fn decode(&self, block: &Block, window: &[u8], out: &mut Page) -> Result<()> {
        let len = page_len(self.footer.content_len, block.page.unwrap_or_default());
        if len < PAGE_SIZE {
            return block.decode_tail(window, len, out);
        }
        let data = block.as_page(window).ok_or_else(|| block.corrupt("it is not a page"))?;
        self.decoder.decode_one(data, out, &mut None).map_err(|error| block.corrupt(error))
    }
}
