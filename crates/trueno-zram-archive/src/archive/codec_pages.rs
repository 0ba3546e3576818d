//! Pages of an archive that a codec of the caller decodes: a GPU's, for example.

use std::ops::Range;
use std::sync::Mutex;

use trueno_zram_core::{BatchCodec, Error as PageError, PAGE_SIZE, Page};

use super::consecutive_pages::page_index;
use super::{Archive, group_of};
use crate::archive::group::GroupBuffer;
use crate::error::{Error, Result};
use crate::index::layout::GROUP_PAGES;
use crate::pages::Pages;

/// The pages of an archive, decoded by a codec, a group at a time. Made by [`Archive::with_codec`].
///
/// The codec works for one thread at a time. Others that read meanwhile decode on the CPU: none of them waits, since the codec
/// may wait for a thread pool that they belong to.
///
/// ```
/// # use trueno_zram_archive::{Archive, WriteOptions, compress};
/// # let mut bytes = Vec::new();
/// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
/// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 pages
/// use trueno_zram_archive::{CpuBatchCompressor, Pages};
/// let (mut codec, mut pages) = (CpuBatchCompressor::default(), vec![[0; 4096]; 40]); // or a GPU's
/// let decoded = archive.with_codec(&mut codec);
/// decoded.read(0, &mut pages)?;
/// assert_eq!((pages[39], decoded.max_readers()), ([7; 4096], 1));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug)]
pub struct CodecPages<'a> {
    archive: &'a Archive,
    codec: Mutex<&'a mut dyn BatchCodec>,
}

impl Archive {
    /// Returns its pages as a source that decodes them with `codec`.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, Pages, WriteOptions, compress};
    /// use trueno_zram_archive::CpuBatchCompressor;
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let (mut codec, mut pages) = (CpuBatchCompressor::default(), [[0; 4096]; 10]); // or a GPU's
    /// archive.with_codec(&mut codec).read(20, &mut pages)?;
    /// assert_eq!(pages, [[7; 4096]; 10]);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn with_codec<'a>(&'a self, codec: &'a mut dyn BatchCodec) -> CodecPages<'a> {
        CodecPages { archive: self, codec: Mutex::new(codec) }
    }
}

impl CodecPages<'_> {
    /// Decodes pages of a group.
    fn decode(&self, group: &GroupBuffer, pages: &Range<u64>, out: &mut [Page]) -> Result<()> {
        let Ok(mut codec) = self.codec.try_lock() else {
            return self.archive.decode_run(group, pages.start, out);
        };
        let (mut data, mut whole, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (place, block) in group.blocks_of(pages)? {
            if place.zero || self.page_len(place.first_page) < PAGE_SIZE {
                others.push((place, block));
            } else {
                data.push(block.as_page(group.window()).ok_or_else(|| block.corrupt("it is not a page"))?);
                whole.push(block);
            }
        }
        // The codec fills the front of `out`; from the last one on, pages move to their places.
        if !data.is_empty() {
            codec.decompress_pages(&data, &mut out[..data.len()]).map_err(|error| match error {
                PageError::InPage { index, error } => {
                    whole.get(index).map_or(Error::Decoder(*error.clone()), |block| block.corrupt(error))
                }
                other => Error::Decoder(other),
            })?;
        }
        for (from, block) in whole.iter().enumerate().rev() {
            let to = page_index(block.page.unwrap_or_default() - pages.start);
            out.copy_within(from..=from, to);
        }
        others.into_iter().try_for_each(|(place, block)| self.archive.restore_block_of(group, place, block, pages, out))
    }
}

impl Pages for CodecPages<'_> {
    fn len_bytes(&self) -> u64 {
        self.archive.len_bytes()
    }

    /// Fails with [`Error::Decoder`] if the codec does.
    fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
        let end = first.saturating_add(out.len() as u64);
        self.archive.check_range(&(first..end))?;
        let (mut next, mut rest) = (first, out);
        while next < end {
            let part = next..end.min((group_of(next) + 1) * GROUP_PAGES as u64);
            let (now, after) = rest.split_at_mut(page_index(part.end - part.start));
            self.archive.with_group(group_of(next), |group| self.decode(group, &part, now))?;
            (next, rest) = (part.end, after);
        }
        Ok(())
    }

    fn is_zero(&self, page: u64) -> Result<bool> {
        self.archive.is_zero(page)
    }

    fn max_readers(&self) -> usize {
        1
    }
}
