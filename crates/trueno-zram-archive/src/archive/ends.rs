//! The ends of an archive: the footer of its index, the seek table after it, and the header at its start.

use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::index::layout::{FOOTER_LEN, HEAD_LEN, INDEX_FRAME_MAGIC, INDEX_MAGIC, IndexFooter};
use crate::lz4::header::{ARCHIVE_MAX_BLOCK_LEN, FRAME_MAGIC, Lz4Header, SKIPPABLE_HEAD_LEN};
use crate::read_at::{ReadAt, file_len, read_at};
use crate::zstd::seek_table;

/// The footer of an archive, and the length of the seek table after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArchiveEnd {
    pub(crate) footer: IndexFooter,
    /// Length of the seek table after the index; 0 if there is none.
    pub(crate) seek_table_len: u64,
}

impl ArchiveEnd {
    /// Returns the layout of the archive, and the position of its first block.
    pub(super) fn layout(&self, file: &dyn ReadAt) -> Result<(Layout, u64)> {
        match self.footer.format {
            Format::Lz4 => read_header(file),
            Format::Zstd => {
                Format::Zstd.check_supported()?;
                Ok((Layout::Zstd { checksums: self.footer.frame_checksums }, 0))
            }
        }
    }
}

/// Returns the footer of the index at the file's end; `None` if the file has no index.
pub(crate) fn read_footer(file: &dyn ReadAt) -> Result<Option<ArchiveEnd>> {
    let len = file_len(file)?;
    let seek_table_len = seek_table_len(file, len)?;
    let index_end = len - seek_table_len;
    let Some(footer_at) = index_end.checked_sub(FOOTER_LEN as u64) else { return Ok(None) };
    let mut footer = [0; FOOTER_LEN];
    read_at(file, footer_at, &mut footer)?;
    let Some(footer) = IndexFooter::decode(&footer)? else { return Ok(None) };
    let whole = index_end.checked_sub(footer.index_len()) == Some(footer.frame_len);
    if !whole || footer.format == Format::Lz4 && seek_table_len > 0 {
        return Err(Error::index("it does not describe the whole file"));
    }
    let mut head = [0; HEAD_LEN];
    read_at(file, footer.frame_len, &mut head)?;
    let mut expected = INDEX_FRAME_MAGIC.to_le_bytes().to_vec();
    let payload_len =
        u32::try_from(footer.index_len() - SKIPPABLE_HEAD_LEN).map_err(|_| Error::index("it is too long"))?;
    expected.extend(payload_len.to_le_bytes());
    expected.extend(INDEX_MAGIC);
    if head[..] != expected[..] {
        return Err(Error::index("it does not start where its footer says"));
    }
    Ok(Some(ArchiveEnd { footer, seek_table_len }))
}

/// Returns the header of the frame at the file's start, and its length.
fn read_header(file: &dyn ReadAt) -> Result<(Layout, u64)> {
    let mut start = [0; 5];
    read_at(file, 0, &mut start)?;
    if start[..4] != FRAME_MAGIC.to_le_bytes() {
        return Err(Error::index("the file does not start with a frame"));
    }
    let mut bytes = vec![0; 1 + Lz4Header::len_after(start[4])];
    read_at(file, 4, &mut bytes)?;
    let header = Lz4Header::parse(&bytes, 0)?;
    if !header.independent || header.max_block_len != ARCHIVE_MAX_BLOCK_LEN {
        return Err(Error::index("the frame is not that of a page archive"));
    }
    Ok((Layout::Lz4(header), 4 + bytes.len() as u64))
}

/// Returns the length of the seek table at the end of a file of `len` bytes; 0 if there is none.
fn seek_table_len(file: &dyn ReadAt, len: u64) -> Result<u64> {
    let Some(footer_at) = len.checked_sub(seek_table::FOOTER_LEN as u64) else { return Ok(0) };
    let mut footer = [0; seek_table::FOOTER_LEN];
    read_at(file, footer_at, &mut footer)?;
    let found = seek_table::len_by_footer(footer).and_then(|found| Some((found, len.checked_sub(found)?)));
    let Some((found, head_at)) = found else { return Ok(0) };
    let mut head = [0; 8];
    read_at(file, head_at, &mut head)?;
    Ok(if seek_table::is_head(head, found) { found } else { 0 })
}
