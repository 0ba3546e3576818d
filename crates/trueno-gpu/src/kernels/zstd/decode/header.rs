//! Reads the headers of the frame and of its block (sections 3.1.1.1 and 3.1.1.2).

use super::format::{MAGIC, MIN_FRAME_BYTES};
use super::frame::Frame;
use crate::kernels::packed::PAGE_BYTES;
use crate::{Pred, Reg};

/// Block types.
pub(super) const RAW: u32 = 0;
pub(super) const RLE: u32 = 1;
pub(super) const COMPRESSED: u32 = 2;
const RESERVED: u32 = 3;

/// The fields of the frame header and of its block header. All of them are uniform if the lanes share the frame.
pub(super) struct FrameHeaders<'k> {
    pub(super) block_type: Reg<'k, u32>,
    pub(super) block_size: Reg<'k, u32>,
    /// Position of the block's content in the frame.
    pub(super) start: Reg<'k, u32>,
    pub(super) end: Reg<'k, u32>,
    pub(super) has_checksum: Pred<'k>,
    pub(super) checksum: Reg<'k, u32>,
}

impl<'k> Frame<'k> {
    /// Reads the headers of a frame with one block, which an empty raw block may follow.
    pub(super) fn read_header(self) -> FrameHeaders<'k> {
        let Self { k, len, lanes, .. } = self;
        k.section("headers");
        self.malformed_if(len.lt(MIN_FRAME_BYTES));
        self.unsupported_if(Self::load(self.words, lanes).ne(MAGIC));
        // The descriptor and the byte after it.
        let descriptor = Self::load(self.words.at(1), lanes);
        let single_segment = (descriptor & 0x20).ne(0);
        let content_log = descriptor.bfe(6u32, 2u32);
        let content_at = 6 - single_segment.to_u32();
        let has_content = content_log.ne(0);
        let block_at = content_at + has_content.select(1u32 << content_log, 0u32);
        self.malformed_if((block_at + 3).gt(len) | (descriptor & 0x08).ne(0));

        let content_low = self.window(content_at * 8, lanes);
        let content_high = self.window(content_at * 8 + 32, lanes);
        let content = content_log.eq(1).select((content_low & 0xffff) + 256, content_low);
        let is_page = content.eq(PAGE_BYTES) & (content_log.ne(3) | content_high.eq(0));
        let content_fits = (has_content & is_page) | !(has_content | single_segment);
        // From 4 KiB, the least that a block of a page needs, to 2 GiB, the most that the format allows.
        let window_fits = (descriptor.bfe(11u32, 5u32) - 2).lt(20) | single_segment;
        self.unsupported_if((descriptor & 0x03).ne(0) | !window_fits | !content_fits);

        let block = self.window(block_at * 8, lanes);
        let (is_last, block_type, block_size) = ((block & 1).ne(0), block.bfe(1u32, 2u32), block.bfe(3u32, 21u32));
        self.malformed_if(block_type.eq(RESERVED));
        self.unsupported_if(block_size.gt(PAGE_BYTES));
        let start = block_at + 3;
        let end = start + block_type.eq(RLE).select(1u32, block_size);
        let checksum_at = end + is_last.select(0u32, 3u32);
        let frame_end = checksum_at + (descriptor & 0x04);
        self.malformed_if(frame_end.gt(len));
        let next_block = self.window(end * 8, lanes) & 0xff_ffff;
        self.unsupported_if((!is_last & next_block.ne(1)) | frame_end.lt(len));
        FrameHeaders {
            block_type,
            block_size,
            start,
            end,
            has_checksum: (descriptor & 0x04).ne(0),
            checksum: self.window(checksum_at * 8, lanes),
        }
    }
}
