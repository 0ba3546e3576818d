//! Decodes blocks on the calling thread: small ones, where handing work over costs more than doing it, and all blocks of
//! a salvaging reader.

use trueno_zram_core::PAGE_SIZE;

use crate::block::Block;
use crate::error::Result;
use crate::lz4::constant_pages::damaged_zero_pages;
use crate::salvage::damage::{Damage, DamageKind, record};
use crate::stream::content::{ContentBatch, ContentSpan, SpanRef};
use crate::stream::frame::{FrameShape, FrameState};
use crate::stream::parallel::decode_extra;

/// Content of a batch of small blocks.
pub(crate) const INLINE_BYTES: usize = 1 << 20;

/// The longest block that is decoded on the calling thread.
const SMALL_BLOCK_LEN: usize = 1 << 10;

/// A page frame of this many blocks or fewer is decoded on the calling thread.
const SMALL_FRAME_BLOCKS: usize = 8;

impl Block {
    /// Returns `true` if the block is decoded on the calling thread in frames that are not made of pages.
    pub(crate) fn is_small(&self) -> bool {
        self.len <= SMALL_BLOCK_LEN
    }
}

/// Returns `true` if the next blocks are decoded on the calling thread.
pub(crate) fn decodes_inline(pending: &[Block], frame: &FrameState) -> bool {
    match frame.shape {
        FrameShape::Pages => frame.ended && frame.content_len == 0 && pending.len() <= SMALL_FRAME_BLOCKS,
        // Frames that hold less than a page; of archives, that is the last one.
        FrameShape::PageFrames => pending.first().is_some_and(|block| block.part_of_page),
        FrameShape::Blocks | FrameShape::Linked | FrameShape::Legacy => pending.first().is_some_and(Block::is_small),
        FrameShape::Foreign => false,
    }
}

/// Decodes the blocks of a batch on the calling thread.
pub(crate) struct InlineDecoder<'a> {
    pub(crate) window: &'a [u8],
    pub(crate) blocks: &'a [Block],
    /// Takes damage, if the reader salvages.
    pub(crate) damage: Option<&'a mut Vec<Damage>>,
}

impl InlineDecoder<'_> {
    /// Appends the content of the blocks to `out`, as much as a batch has. Returns the number of blocks decoded.
    pub(crate) fn decode(mut self, frame: &mut FrameState, out: &mut ContentBatch) -> Result<usize> {
        let takes = |block: &Block| match frame.shape {
            FrameShape::Pages => true,
            FrameShape::PageFrames => block.part_of_page,
            _ => block.is_small(),
        };
        let all = self.blocks.iter().take_while(|block| self.damage.is_some() || takes(block)).count();
        if !frame.shape.is_pages() {
            frame.index = None;
        }
        let mut done = 0;
        for block in &self.blocks[..all] {
            if out.extra.len() >= INLINE_BYTES {
                break;
            }
            let span_ref = match decode_block(block, self.window, frame, out) {
                Ok(span_ref) => span_ref,
                Err(error) => {
                    let (Some(damage), Some(kind)) = (&mut self.damage, DamageKind::of(&error)) else {
                        return Err(error);
                    };
                    replace_by_zeros(block, self.window, frame, kind, damage)
                }
            };
            if self.damage.is_none() {
                frame.check_room(span_ref.len_bytes())?;
            }
            let span = span_ref.find(&[], &out.extra);
            if frame.header.content_checksum {
                frame.hash.update_span(span);
            }
            if let (FrameShape::Linked, ContentSpan::Data(bytes)) = (frame.shape, span) {
                frame.history.push(bytes);
            }
            frame.record_block(block.entry(self.window), span_ref.len_bytes());
            frame.content_len += span_ref.len_bytes();
            out.push(span_ref);
            done += 1;
        }
        Ok(done)
    }
}

fn decode_block(block: &Block, window: &[u8], frame: &FrameState, out: &mut ContentBatch) -> Result<SpanRef> {
    if frame.header.block_checksums {
        block.verify(window)?;
    }
    if frame.shape == FrameShape::Linked && frame.damaged {
        return Err(block.corrupt("it refers to content that was lost"));
    }
    if block.zero_pages > 0 {
        return Ok(SpanRef::Zeros((block.zero_pages * PAGE_SIZE) as u64));
    }
    let dictionary = if frame.shape == FrameShape::Linked { frame.history.bytes() } else { &[] };
    decode_extra(block, window, dictionary, frame.header.max_block_len, &mut out.extra)
}

/// Replaces a damaged block by zeros.
fn replace_by_zeros(
    block: &Block,
    window: &[u8],
    frame: &mut FrameState,
    kind: DamageKind,
    damage: &mut Vec<Damage>,
) -> SpanRef {
    let len_bytes = if frame.shape == FrameShape::PageFrames {
        block.page_frame(window).map_or(PAGE_SIZE, |frame| frame.content_len)
    } else if block.raw {
        block.len
    } else if frame.shape == FrameShape::Pages {
        damaged_zero_pages(block.bytes(window)).unwrap_or(1) * PAGE_SIZE
    } else {
        // All blocks but the last are full, in the frames of all encoders that do not flush.
        frame.header.max_block_len
    };
    let kind = if frame.shape == FrameShape::Linked && frame.damaged { DamageKind::LostReference } else { kind };
    let (start, len_bytes) = (frame.content_start + frame.content_len, frame.clip(len_bytes as u64));
    record(damage, block.at, start..start + len_bytes, kind);
    frame.damaged = true;
    SpanRef::Zeros(len_bytes)
}
