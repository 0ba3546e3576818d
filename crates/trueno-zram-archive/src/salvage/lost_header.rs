//! Recovers the fields of a damaged LZ4 frame header from the index, or from the blocks after it.

use super::readable;
use crate::block::Block;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::index::blocks::GroupIndex;
use crate::index::layout::IndexFooter;
use crate::index::table::GroupTable;
use crate::lz4::header::{
    FRAME_MAGIC, LEGACY_MAGIC, Lz4Header, MAX_BLOCK_LEN, RAW_BLOCK_FLAG, SKIPPABLE_MAGIC, block_size,
};
use crate::read_at::{ReadAt, file_len, read_at};
use crate::stream::parallel::decode_extra;
use crate::zstd::frame::ZSTD_MAGIC;

/// Length of a header with its magic number, without a content size and with one.
const SHORT_LEN: usize = 7;
const LONG_LEN: usize = 15;
/// Length of the longest header, which names a dictionary besides.
const MAX_LEN: usize = 19;

/// Returns the header of an archive and its length, as the index implies them; `None` if the index fits no header.
pub(crate) fn by_index(file: &dyn ReadAt, footer: &IndexFooter) -> Result<Option<(Lz4Header, u64)>> {
    if footer.format != Format::Lz4 {
        // The index of the Zstandard format says all that is needed.
        return Ok(None);
    }
    let mut best = None;
    for (content_size, header_len) in [(None, SHORT_LEN), (Some(footer.content_len), LONG_LEN)] {
        for (block_checksums, content_checksum) in [(true, true), (true, false), (false, true), (false, false)] {
            let header = Lz4Header::archive(content_size, block_checksums, content_checksum);
            let layout = Layout::Lz4(header);
            let table = GroupTable::read(file, footer, &layout, header_len as u64);
            let Some(table) = readable(table)? else { continue };
            let fits = (last_fitting_group(file, footer, &layout, &table)?, has_end_mark(file, footer, &header)?);
            if best.is_none_or(|(so_far, _)| fits > so_far) {
                best = Some((fits, (header, header_len as u64)));
            }
        }
    }
    Ok(best.map(|(_, found)| found))
}

/// Returns the number of the last group whose blocks fill their space. Every group of more than one block shows whether
/// blocks have checksums; the last one shows whether the content has, too.
fn last_fitting_group(
    file: &dyn ReadAt,
    footer: &IndexFooter,
    layout: &Layout,
    table: &GroupTable,
) -> Result<Option<u64>> {
    let index = GroupIndex { file, footer, layout, table };
    for number in (0..footer.groups()).rev() {
        if readable(index.places(number))?.is_some() {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Returns `true` if the end mark is where the header puts it. After a single block, the content's checksum takes as much space as
/// the block's would, and only the end mark tells them apart.
fn has_end_mark(file: &dyn ReadAt, footer: &IndexFooter, header: &Lz4Header) -> Result<bool> {
    let mut mark = [0; 4];
    read_at(file, footer.frame_len - header.end_len(), &mut mark)?;
    Ok(mark == [0; 4])
}

/// Returns bytes to read in place of the damaged header at the start of a file; `None` if no header makes the first block
/// a valid one.
///
/// A block without a checksum is believed only after an intact magic number: the file may not be LZ4 at all.
pub(crate) fn by_blocks(file: &dyn ReadAt) -> Result<Option<Vec<u8>>> {
    // The header, and the first block with its size word and its checksum.
    let start = read_start(file, LONG_LEN + 4 + MAX_BLOCK_LEN + 4)?;
    if start.len() <= SHORT_LEN {
        return Ok(None);
    }
    let has_magic = start[..4] == FRAME_MAGIC.to_le_bytes();
    for block_checksums in [true, false] {
        for header_len in [SHORT_LEN, LONG_LEN] {
            if !block_checksums && !has_magic {
                continue;
            }
            if let Some(max_block_len) = first_block(&start, header_len, block_checksums) {
                return Ok(Some(replacement(&start, header_len, block_checksums, max_block_len)));
            }
        }
    }
    Ok(None)
}

/// Returns `true` if a file starts neither with a valid header nor with a frame that has none.
pub(crate) fn is_damaged(file: &dyn ReadAt) -> Result<bool> {
    let start = read_start(file, MAX_LEN)?;
    let Some((magic, header)) = start.split_first_chunk() else { return Ok(false) };
    let magic = u32::from_le_bytes(*magic);
    if magic == ZSTD_MAGIC || magic == LEGACY_MAGIC || magic & !15 == SKIPPABLE_MAGIC {
        return Ok(false);
    }
    let Some(flags) = header.first() else { return Ok(false) };
    let header = &header[..header.len().min(1 + Lz4Header::len_after(*flags))];
    Ok(magic != FRAME_MAGIC || matches!(Lz4Header::parse(header, 0), Err(Error::Header { .. })))
}

fn read_start(file: &dyn ReadAt, max_bytes: usize) -> Result<Vec<u8>> {
    let len = usize::try_from(file_len(file)?).unwrap_or(usize::MAX).min(max_bytes);
    let mut start = vec![0; len];
    read_at(file, 0, &mut start)?;
    Ok(start)
}

/// Returns the block size that the first block needs, if there is a valid block at `at`.
fn first_block(start: &[u8], at: usize, block_checksums: bool) -> Option<usize> {
    let word = u32::from_le_bytes(*start.get(at..)?.first_chunk()?);
    let (len, raw) = ((word & !RAW_BLOCK_FLAG) as usize, word & RAW_BLOCK_FLAG != 0);
    let checksum_len = if block_checksums { 4 } else { 0 };
    if len == 0 || len > MAX_BLOCK_LEN || at + 4 + len + checksum_len > start.len() {
        return None;
    }
    let block = Block::lz4(at as u64, at + 4, len, raw);
    if block_checksums && block.verify(start).is_err() {
        return None;
    }
    // The size that the header claims, if that is a valid one and the block agrees.
    let sizes = start[5];
    let claimed = block_size(sizes >> 4).filter(|_| sizes & 15 == 0).unwrap_or(MAX_BLOCK_LEN);
    let fits = |max: &usize| len <= *max && decode_extra(&block, start, &[], *max, &mut Vec::new()).is_ok();
    [claimed, MAX_BLOCK_LEN].into_iter().find(fits)
}

/// Returns bytes as long as the damaged header, which a reader takes for a header with these fields.
fn replacement(start: &[u8], header_len: usize, block_checksums: bool, max_block_len: usize) -> Vec<u8> {
    // Blocks that are independent can be read as linked ones. The content size is not certain.
    let header = |content_checksum| {
        let archive = Lz4Header::archive(None, block_checksums, content_checksum);
        Lz4Header { independent: false, max_block_len, ..archive }
    };
    // An end without a checksum is rare, so it is believed only if the flags fit what was found.
    let flags = start[4] & !(1 << 5);
    let with_size = if header_len == LONG_LEN { 1 << 3 } else { 0 };
    let unchecked = header(false).encode();
    let content_checksum = flags != unchecked[4] | with_size;
    // A skippable frame without content takes the place of the content size, so that positions stay what they are.
    let mut bytes = if header_len == LONG_LEN { SKIPPABLE_MAGIC.to_le_bytes().to_vec() } else { Vec::new() };
    bytes.resize(header_len - SHORT_LEN, 0);
    bytes.extend(header(content_checksum).encode());
    bytes
}
