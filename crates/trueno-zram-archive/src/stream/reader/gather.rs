//! Gathers the blocks of a batch from the input.

use std::io::Read;

use super::FrameReader;
use crate::block::Block;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::lz4::constant_pages::zero_pages_of;
use crate::lz4::header::{LEGACY_BLOCK_BOUND, RAW_BLOCK_FLAG};
use crate::stream::frame::{FrameShape, MAX_BATCH_BLOCKS};
use crate::stream::input::InputWindow;
use crate::zstd::frame::{FramePeek, peek_frame};

impl<R: Read> FrameReader<'_, R> {
    /// Gathers blocks of the frame, as many as a batch has.
    pub(super) fn gather(&mut self) -> Result<()> {
        self.input.release();
        let frame = self.frame.as_ref().expect("a frame is being read");
        let mut page = frame.next_page();
        let gathered = match frame.shape {
            FrameShape::PageFrames => self.gather_frames(&mut page),
            _ => self.gather_blocks(&mut page),
        };
        gathered.map_err(|error| error.in_page(page))
    }

    /// Gathers blocks of a frame; `page` is the number of the next page, if the frame is made of pages.
    fn gather_blocks(&mut self, page: &mut Option<u64>) -> Result<()> {
        let Self { input, pending, batch_bytes, .. } = self;
        let (frame, batch_bytes) = (self.frame.as_mut().expect("a frame is being read"), *batch_bytes);
        let (checksum_len, legacy) = (frame.header.block_checksum_len(), frame.shape == FrameShape::Legacy);
        let max_len = if legacy { LEGACY_BLOCK_BOUND } else { frame.header.max_block_len };
        let (mut room, mut zero_room) = frame.batch_blocks(batch_bytes, input.position());
        let start = input.window_pos();
        while room > 0 && zero_room > 0 && input.window_pos() - start <= frame.input_bound(batch_bytes) {
            let at = input.position();
            if legacy && !input.fill_to(1)? {
                frame.ended = true;
                return Ok(());
            }
            let word = input.require(4, "a block's size")?;
            let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
            let (raw, len) = if legacy { (false, word) } else { (word & RAW_BLOCK_FLAG != 0, word & !RAW_BLOCK_FLAG) };
            let len = len as usize;
            if legacy && len > max_len {
                // Not a block, but the magic number of the next frame.
                frame.ended = true;
                return Ok(());
            }
            if word == 0 && !legacy {
                input.consume(4);
                frame.ended = true;
                return Ok(());
            }
            if len > max_len {
                let (len_bytes, max_bytes) = (len as u64, max_len as u64);
                return Err(Error::BlockTooLarge { at, page: None, len_bytes, max_bytes });
            }
            input.require(4 + len + checksum_len, "a block")?;
            let mut block = Block { page: *page, ..Block::lz4(at, input.window_pos() + 4, len, raw) };
            if frame.shape == FrameShape::Pages && !raw {
                block.zero_pages = zero_pages_of(block.bytes(input.window())).unwrap_or(0);
            }
            *page = page.map(|page| page + block.zero_pages.max(1) as u64);
            if block.zero_pages > 0 {
                zero_room -= 1;
            } else {
                room -= 1;
            }
            // Most often the first block tells what the frame is made of.
            if frame.shape == FrameShape::Pages && frame.content_len == 0 && pending.is_empty() && !block.may_be_page()
            {
                (frame.shape, *page, block.page) = (FrameShape::Blocks, None, None);
                room = room.min(frame.batch_blocks(batch_bytes, at).0);
            }
            // Small blocks are decoded without slots, so they do not count.
            if frame.shape != FrameShape::Pages && block.is_small() && pending.len() < MAX_BATCH_BLOCKS {
                room += 1;
            }
            input.consume(4 + len + checksum_len);
            pending.push(block);
        }
        Ok(())
    }

    /// Gathers Zstandard frames such as an archive has; anything else ends them.
    fn gather_frames(&mut self, page: &mut Option<u64>) -> Result<()> {
        let Self { input, pending, batch_bytes, .. } = self;
        let (frame, batch_bytes) = (self.frame.as_mut().expect("a frame is being read"), *batch_bytes);
        let (mut room, mut zero_room) = frame.batch_blocks(batch_bytes, input.position());
        let first = input.window_pos();
        let mut only_parts = true;
        while room > 0 && zero_room > 0 && input.window_pos() - first <= frame.input_bound(batch_bytes) {
            let seen = match peek_next_frame(input)? {
                FramePeek::Page(seen) => seen,
                FramePeek::Incomplete { .. } if !input.available().is_empty() => {
                    return Err(Error::Truncated { at: input.end_position(), page: None, within: "a frame" });
                }
                FramePeek::Incomplete { .. } | FramePeek::Other => {
                    frame.ended = true;
                    return Ok(());
                }
            };
            if frame.index.as_ref().is_some_and(|index| index.layout() != (Layout::Zstd { checksums: seen.checksum })) {
                frame.index = None;
            }
            let part_of_page = seen.zero_pages == 0 && !seen.is_page();
            let (at, start) = (input.position(), input.window_pos());
            let (format, len, raw, zero_pages) = (Format::Zstd, seen.len, seen.raw, seen.zero_pages);
            pending.push(Block { format, at, start, len, raw, zero_pages, page: *page, part_of_page });
            *page = page.map(|page| page + zero_pages.max(1) as u64);
            only_parts &= part_of_page;
            if zero_pages > 0 {
                zero_room -= 1;
            } else if !only_parts || pending.len() >= MAX_BATCH_BLOCKS {
                // Less than a page at the start of a batch is decoded without a slot.
                room -= 1;
            }
            input.consume(seen.len);
        }
        Ok(())
    }
}

/// Looks at the start of the next Zstandard frame, with as many bytes as that takes and the input has.
pub(super) fn peek_next_frame<R: Read>(input: &mut InputWindow<R>) -> Result<FramePeek> {
    loop {
        match peek_frame(input.available()) {
            FramePeek::Incomplete { needed } if input.fill_to(needed)? => {}
            seen => return Ok(seen),
        }
    }
}
