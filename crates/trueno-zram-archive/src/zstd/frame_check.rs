//! Compares the Zstandard frames of a group with the index.

use trueno_zram_core::{PAGE_SIZE, PageKind};

use crate::block::Block;
use crate::error::Error;
use crate::format::Format;
use crate::index::blocks::BlockPlace;
use crate::lz4::header::SKIPPABLE_MAGIC;
use crate::zstd::frame::ZSTD_MAGIC;

/// Compares a frame with its description in the index. Returns `true` with the block if they agree: then every decoder that
/// reads the file from its start finds this frame here, and refuses it or gets as much content as the index says.
pub(crate) fn check_frame(
    place: &BlockPlace,
    window_at: u64,
    window: &[u8],
    content_len: u64,
    checksums: bool,
) -> (Block, bool) {
    let start = usize::try_from(place.offset - window_at).expect("within the window");
    let (len, raw) = (place.len_bytes as usize, place.kind == PageKind::Raw);
    let page = Some(place.first_page);
    let mut block =
        Block { format: Format::Zstd, at: place.offset, start, len, raw, zero_pages: 0, page, part_of_page: false };
    let Some(frame) = block.page_frame(window).filter(|frame| frame.checksum == checksums) else {
        return (block, false);
    };
    block.zero_pages = frame.zero_pages;
    let left = content_len - place.first_page * PAGE_SIZE as u64;
    let wanted = if place.zero { place.pages * PAGE_SIZE as u64 } else { left.min(PAGE_SIZE as u64) };
    let same_form = frame.kind(block.bytes(window)) == place.kind && place.zero == (frame.zero_pages > 0);
    (block, same_form && frame.content_len as u64 == wanted && wanted <= left)
}

/// Returns `true` if a stream that reads these frames in order ends with an error at the last of them or before it. All
/// but the last are where the index says.
pub(crate) fn stream_refuses_frame(blocks: &[Block], window: &[u8]) -> bool {
    let mut content = vec![0; PAGE_SIZE];
    let mut refuses = |block: &Block| {
        // Only a frame of the length that the index says lies in the window for certain.
        let frame = block.page_frame(window).filter(|frame| frame.zero_pages == 0);
        frame.is_some() && matches!(block.decode(window, &[], &mut content), Err(Error::Block { .. }))
    };
    if blocks.iter().any(&mut refuses) {
        return true;
    }
    let magic = blocks.last().and_then(|block| window.get(block.start..)?.first_chunk());
    let magic = magic.map(|magic| u32::from_le_bytes(*magic));
    // Bytes that start neither a frame nor a skippable one end a stream.
    magic.is_some_and(|magic| magic != ZSTD_MAGIC && magic & !15 != SKIPPABLE_MAGIC)
}
