//! Finds the blocks of a group by their headers, without the index.

use trueno_zram_core::{PAGE_SIZE, PageKind};

use crate::block::Block;
use crate::format::Layout;
use crate::index::blocks::BlockPlace;
use crate::lz4::constant_pages::{damaged_zero_pages, zero_pages_of};
use crate::lz4::header::RAW_BLOCK_FLAG;
use crate::zstd::frame::{FramePeek, peek_frame};

/// Finds the blocks of a group whose entries are lost, one by one from its start. If the pages do not add up, only those
/// before the first damaged block are certain. Returns the position after the last one, too.
pub(super) fn walk(
    window: &[u8],
    window_at: u64,
    layout: &Layout,
    first_page: u64,
    group_pages: u64,
) -> (Vec<BlockPlace>, u64) {
    let (mut found, mut at, mut page, mut certain) = (Vec::new(), 0, first_page, None);
    while page < first_page + group_pages {
        let step = match layout {
            Layout::Lz4(_) => lz4_step(window, at, layout),
            Layout::Zstd { .. } => frame_step(window, at),
        };
        let Some(FoundBlock { pages, kind, zero, len, damaged }) = step else { break };
        if damaged && certain.is_none() {
            certain = Some(found.len());
        }
        let (offset, len_bytes) = (window_at + at as u64, u32::try_from(len).expect("a block is short"));
        found.push(BlockPlace { first_page: page, pages, kind, zero, offset, len_bytes });
        at += layout.overhead() + len;
        page += pages;
    }
    if page != first_page + group_pages || at != window.len() {
        found.truncate(certain.unwrap_or(found.len()));
    }
    (found, window_at + at as u64)
}

/// A block that was found without the index.
struct FoundBlock {
    pages: u64,
    kind: PageKind,
    zero: bool,
    /// Length as in [`BlockPlace`].
    len: usize,
    damaged: bool,
}

/// Finds a block by its size word.
fn lz4_step(window: &[u8], at: usize, layout: &Layout) -> Option<FoundBlock> {
    let size = u32::from_le_bytes(*window.get(at..)?.first_chunk()?);
    let (len, raw) = ((size & !RAW_BLOCK_FLAG) as usize, size & RAW_BLOCK_FLAG != 0);
    if len == 0 || len > PAGE_SIZE || at + layout.overhead() + len > window.len() {
        return None;
    }
    let block = Block::lz4(0, at + 4, len, raw);
    let bytes = block.bytes(window);
    let damaged = layout.block_checksums() && block.verify(window).is_err();
    let zeros =
        if raw { None } else { zero_pages_of(bytes).or_else(|| damaged.then(|| damaged_zero_pages(bytes)).flatten()) };
    let kind = match zeros {
        Some(_) => PageKind::SameFilled,
        None if raw => PageKind::Raw,
        None => PageKind::Lz4,
    };
    Some(FoundBlock { pages: zeros.unwrap_or(1) as u64, kind, zero: zeros.is_some(), len, damaged })
}

/// Finds a frame by its header.
fn frame_step(window: &[u8], at: usize) -> Option<FoundBlock> {
    let FramePeek::Page(frame) = peek_frame(window.get(at..)?) else { return None };
    let (pages, zero) = (frame.zero_pages.max(1) as u64, frame.zero_pages > 0);
    let kind = frame.kind(&window[at..at + frame.len]);
    Some(FoundBlock { pages, kind, zero, len: frame.len, damaged: false })
}
