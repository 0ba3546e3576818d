//! All groups of an archive, read in parallel and compared with the index to the last entry.

use trueno_zram_core::{PAGE_SIZE, PageStats};

use super::Archive;
use crate::archive::group::{CheckDepth, GroupBuffer, StreamReach};
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::hashes::content_hash::ContentHash;
use crate::index::builder::{IndexBuilder, Retention};
use crate::index::layout::GROUP_PAGES;
use crate::lz4::header::SKIPPABLE_HEAD_LEN;
use crate::read_at::{SequentialReader, read_at};
use crate::stream::input::InputWindow;
use crate::stream::reader::{IndexVerdict, ReadSummary};
use crate::zstd::seek_table::{ExpectedTable, SeekEntry};

/// Totals of the groups that were read. Add them up for [`Archive::finish`].
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

impl Archive {
    /// Reads a group of 1,024 pages, and compares its blocks with the index, to the last entry, and with their checksums.
    /// Pages are not decoded yet: one that cannot be decoded is an error as well.
    ///
    /// Groups can be read in any order, on many threads. If all of them and then [`finish`](Self::finish) report no error, a
    /// [`FrameReader`](crate::FrameReader) returns the same content and finds that [the index agrees](IndexVerdict::Agrees).
    /// If any of them reports one, only a `FrameReader` can tell what is wrong with the file, and whether its content is
    /// complete.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_archive::{
    ///     Archive, ContentSpan, GroupBuffer, GroupTotals, PAGE_SIZE, PageCodec, WriteOptions, compress,
    /// };
    ///
    /// let content: Vec<u8> = (0..3000 * 4096u32).map(|at| (at / 64 * (at >> 12)) as u8).collect();
    /// let mut bytes = Vec::new();
    /// compress(&content[..], &mut bytes, &WriteOptions::default())?;
    ///
    /// let archive = Archive::read_from(Arc::new(bytes))?.expect("it has an index");
    /// let (mut group, mut totals, mut codec) = (GroupBuffer::new(), GroupTotals::default(), PageCodec::default());
    /// let mut found = Vec::new();
    /// for number in 0..archive.info().group_count {
    ///     totals += archive.read_group(number, &mut group)?;
    ///     let mut restored = vec![[0; PAGE_SIZE]; group.data_pages()];
    ///     for (page, into) in group.pages().zip(&mut restored) {
    ///         codec.decompress(page, into).map_err(trueno_zram_archive::Error::Decoder)?;
    ///     }
    ///     for span in group.spans(&restored) {
    ///         match span {
    ///             ContentSpan::Data(bytes) => found.extend_from_slice(bytes),
    ///             ContentSpan::Zeros(len_bytes) => found.resize(found.len() + len_bytes as usize, 0),
    ///         }
    ///     }
    /// }
    /// assert_eq!(archive.finish(totals, None)?.content_len, 3000 * 4096);
    /// assert!(found == content);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] and others. The file has to be read as a stream then.
    pub fn read_group(&self, number: u64, group: &mut GroupBuffer) -> Result<GroupTotals> {
        let record = self.table.get(number).ok_or_else(|| Error::index("it has no such group"))?;
        let first_page = number * GROUP_PAGES as u64;
        let other = || Error::index(format!("the blocks from page {first_page} on are not those that it describes"));
        group.read_to(CheckDepth::Headers, number, self.index(), StreamReach::Reaches)?;
        let mut built = IndexBuilder::new(self.layout, record.offset, Retention::Checksums);
        let mut blocks = 0;
        for (place, block) in group.blocks_of(&(first_page..first_page + GROUP_PAGES as u64))? {
            let left = self.footer.content_len.saturating_sub(place.first_page * PAGE_SIZE as u64);
            let entry = block.entry(group.window());
            // The entry that a writer makes for this block: an index may only state that one.
            if !built.push(entry, left.min(entry.pages() * PAGE_SIZE as u64)) {
                return Err(other());
            }
            blocks += 1;
        }
        let built = built.finish();
        if built.groups[..] != [record] {
            return Err(other());
        }
        group.decode_tail()?;
        Ok(GroupTotals { groups: 1, blocks, pages: built.counts })
    }

    /// Compares the rest of the file with the index, once all groups were read and decoded. `hash` is the hash of all
    /// content: required if the archive has a [checksum](super::ArchiveInfo::content_checksum) of it, ignored otherwise.
    ///
    /// ```
    /// # use trueno_zram_archive::{Archive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = Archive::read_from(std::sync::Arc::new(bytes))?.expect("it has an index"); // of 40 pages
    /// use trueno_zram_archive::{GroupBuffer, GroupTotals, IndexVerdict};
    /// let (mut group, mut totals) = (GroupBuffer::new(), GroupTotals::default());
    /// for number in 0..archive.info().group_count {
    ///     totals += archive.read_group(number, &mut group)?; // and decode its pages
    /// }
    /// assert_eq!(archive.finish(totals, None)?.index, IndexVerdict::Agrees);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Index`] and others. The file has to be read as a stream then.
    pub fn finish(&self, totals: GroupTotals, hash: Option<&ContentHash>) -> Result<ReadSummary> {
        let Self { footer, layout, .. } = self;
        let GroupTotals { groups, blocks, pages } = totals;
        let counts = PageStats { bytes_out: footer.pages.bytes_out, ..pages };
        if groups != footer.groups() || counts != footer.pages {
            return Err(Error::index("its footer does not describe the frame"));
        }
        match layout {
            Layout::Lz4(_) => self.check_end(hash)?,
            Layout::Zstd { .. } => self.check_seek_table()?,
        }
        self.sections()?;
        Ok(ReadSummary {
            content_len: footer.content_len,
            input_len: footer.frame_len + footer.index_len() + self.seek_table_len,
            frames: if footer.format == Format::Lz4 { 1 } else { blocks },
            content_checksums: u64::from(layout.content_checksum()),
            skippable_frames: 1 + u64::from(self.seek_table_len > 0),
            blocks,
            pages,
            index: IndexVerdict::Agrees,
        })
    }

    /// Compares the end of an LZ4 frame: the mark, and the checksum of the content.
    fn check_end(&self, hash: Option<&ContentHash>) -> Result<()> {
        let mut end = [0xff; 8];
        let end = &mut end[..usize::try_from(self.layout.end_len()).expect("a few bytes")];
        read_at(&*self.file, self.footer.frame_len - self.layout.end_len(), end)?;
        let (mark, checksum) = end.split_at(4);
        let hashed = hash.map(|hash| hash.digest().to_le_bytes());
        let is_hashed = !self.layout.content_checksum() || hashed.as_ref().is_some_and(|hashed| hashed == checksum);
        if mark != [0; 4] || !is_hashed {
            return Err(Error::index("the frame does not end where it says"));
        }
        Ok(())
    }

    /// Compares the seek table of a Zstandard archive with the index, which all frames were compared with.
    fn check_seek_table(&self) -> Result<()> {
        let Self { footer, seek_table_len, .. } = self;
        let mut expected = ExpectedTable::new();
        for place in self.blocks(0..self.info().page_count)? {
            let place = place?;
            let left = footer.content_len - place.first_page * PAGE_SIZE as u64;
            let content_len = left.min(place.pages * PAGE_SIZE as u64);
            let content_len = u32::try_from(content_len).map_err(|_| Error::index("a frame is too long"))?;
            expected.push(SeekEntry { compressed_len: place.len_bytes, content_len });
        }
        expected.push(SeekEntry::of_index(footer.index_len()));
        let start = footer.frame_len + footer.index_len() + SKIPPABLE_HEAD_LEN;
        let payload_len = seek_table_len.checked_sub(SKIPPABLE_HEAD_LEN);
        let payload_len = payload_len.ok_or_else(|| Error::index("its seek table is missing"))?;
        let mut input = InputWindow::new(SequentialReader::new(&self.file, start..u64::MAX)?);
        if !expected.agrees(&mut input, payload_len)? {
            return Err(Error::index("its seek table does not describe the frames"));
        }
        Ok(())
    }
}
