//! Frames that hold one page: their headers, and how they are recognised (RFC 8878, section 3.1.1).

use trueno_zram_core::{PAGE_SIZE, PageKind};

use crate::error::{Error, Result};
use crate::zstd::constant_pages::{word_of, zero_pages_of};

/// Magic number of a frame.
pub(crate) const ZSTD_MAGIC: u32 = 0xfd2f_b528;

/// The longest frame header, magic number included.
pub(crate) const MAX_HEADER_LEN: usize = 18;

const BLOCK_HEADER_LEN: usize = 3;
pub(crate) const CHECKSUM_LEN: usize = 4;

// The frame header descriptor.
pub(crate) const CHECKSUM_FLAG: u8 = 1 << 2;
const RESERVED: u8 = 1 << 3;
pub(crate) const SINGLE_SEGMENT: u8 = 1 << 5;
const CONTENT_SIZE_SHIFT: u32 = 6;
/// A content size of two bytes counts from here.
const TWO_BYTES_FROM: usize = 256;

// Types of blocks.
const RAW: u32 = 0;
pub(crate) const RLE: u32 = 1;
const COMPRESSED: u32 = 2;

/// The fields of a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Length with the magic number.
    pub(crate) len: usize,
    pub(crate) checksum: bool,
    pub(crate) dictionary: u32,
    pub(crate) content_size: Option<u64>,
}

impl FrameHeader {
    /// Parses the header of the frame at the start of `bytes`, magic number included; `at` is its position. Returns
    /// `None` if `bytes` ends too early.
    pub(crate) fn parse(bytes: &[u8], at: u64) -> Result<Option<Self>> {
        let Some(&[descriptor, ref rest @ ..]) = bytes.get(4..) else { return Ok(None) };
        if descriptor & RESERVED != 0 {
            return Err(Error::Header { at, what: "a reserved bit is set" });
        }
        let single_segment = descriptor & SINGLE_SEGMENT != 0;
        let window_len = usize::from(!single_segment);
        let dictionary_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size_len = match descriptor >> CONTENT_SIZE_SHIFT {
            0 => usize::from(single_segment),
            code => 1 << code,
        };
        let field = |start: usize, len: usize| {
            let bytes = rest.get(start..start + len)?;
            Some(bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte)))
        };
        let fields = (field(window_len, dictionary_len), field(window_len + dictionary_len, size_len));
        let (Some(dictionary), Some(size)) = fields else { return Ok(None) };
        let size = if size_len == 2 { size + TWO_BYTES_FROM as u64 } else { size };
        Ok(Some(Self {
            len: 5 + window_len + dictionary_len + size_len,
            checksum: descriptor & CHECKSUM_FLAG != 0,
            dictionary: u32::try_from(dictionary).expect("a number of at most four bytes"),
            content_size: (size_len > 0).then_some(size),
        }))
    }
}

/// Returns the header of a frame with one page, or with the last and shorter one: a single segment, and the content's size
/// in as few bytes as possible.
pub(crate) fn page_header(content_len: usize, checksum: bool) -> ([u8; 7], usize) {
    debug_assert!((1..=PAGE_SIZE).contains(&content_len));
    let mut header = [0; 7];
    header[..4].copy_from_slice(&ZSTD_MAGIC.to_le_bytes());
    let flags = SINGLE_SEGMENT | if checksum { CHECKSUM_FLAG } else { 0 };
    let [low, high, ..] = content_len.wrapping_sub(TWO_BYTES_FROM).to_le_bytes();
    if content_len < TWO_BYTES_FROM {
        header[4..6].copy_from_slice(&[flags, low]);
        (header, 6)
    } else {
        header[4..].copy_from_slice(&[flags | 1 << CONTENT_SIZE_SHIFT, low, high]);
        (header, 7)
    }
}

/// The fields of a block header.
pub(crate) struct BlockHeader {
    /// The block is the last one of its frame.
    pub(crate) last: bool,
    pub(crate) block_type: u32,
    pub(crate) size: usize,
}

impl BlockHeader {
    fn parse([a, b, c]: [u8; BLOCK_HEADER_LEN]) -> Self {
        let fields = u32::from_le_bytes([a, b, c, 0]);
        Self { last: fields & 1 != 0, block_type: fields >> 1 & 3, size: (fields >> 3) as usize }
    }

    pub(crate) fn encode(&self) -> [u8; BLOCK_HEADER_LEN] {
        let size = u32::try_from(self.size).expect("blocks have at most 128 KiB");
        let [a, b, c, _] = (size << 3 | self.block_type << 1 | u32::from(self.last)).to_le_bytes();
        [a, b, c]
    }
}

/// Returns the length of the checksum that ends a frame; 0 if it has none.
pub(crate) fn checksum_len(checksum: bool) -> usize {
    if checksum { CHECKSUM_LEN } else { 0 }
}

/// Returns the length of the frame with a raw block of this much content.
pub(crate) fn raw_frame_len(content_len: usize, checksum: bool) -> usize {
    let (_, header_len) = page_header(content_len, checksum);
    header_len + BLOCK_HEADER_LEN + content_len + checksum_len(checksum)
}

/// A frame such as an archive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageFrame {
    /// Its whole length.
    pub(crate) len: usize,
    /// The length of its content, as the header states it. A decoder refuses the frame if it holds anything else.
    pub(crate) content_len: usize,
    /// Its block is stored.
    pub(crate) raw: bool,
    /// Zero pages, if it is a run of these; else 0.
    pub(crate) zero_pages: usize,
    pub(crate) checksum: bool,
}

impl PageFrame {
    /// Returns the content of a frame with a raw block; `frame` is the whole frame.
    pub(crate) fn raw_content<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let end = self.len - checksum_len(self.checksum);
        &frame[end - self.content_len..end]
    }

    /// Returns the kind of its pages; `frame` is the whole frame.
    pub(crate) fn kind(&self, frame: &[u8]) -> PageKind {
        if self.zero_pages > 0 || word_of(frame).is_some() {
            PageKind::SameFilled
        } else if self.raw {
            PageKind::Raw
        } else {
            PageKind::Zstd
        }
    }

    /// Returns `true` if the frame is exactly one page.
    pub(crate) fn is_page(&self) -> bool {
        self.zero_pages == 0 && self.content_len == PAGE_SIZE
    }
}

/// The kind of frame that some bytes start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FramePeek {
    /// A frame such as an archive has.
    Page(PageFrame),
    /// At least this many bytes are needed to know.
    Incomplete { needed: usize },
    /// Something else.
    Other,
}

/// Recognises a frame by its start. Blocks are not decoded.
pub(crate) fn peek_frame(bytes: &[u8]) -> FramePeek {
    let incomplete = |needed| FramePeek::Incomplete { needed };
    let Some(magic) = bytes.first_chunk() else { return incomplete(4) };
    if u32::from_le_bytes(*magic) != ZSTD_MAGIC {
        return FramePeek::Other;
    }
    if bytes.len() < 5 {
        return incomplete(5);
    }
    if bytes[4] & SINGLE_SEGMENT == 0 {
        return zero_pages_of(bytes);
    }
    let header = match FrameHeader::parse(bytes, 0) {
        Ok(Some(header)) => header,
        Ok(None) => return incomplete(MAX_HEADER_LEN.min(bytes.len() + 1)),
        Err(_) => return FramePeek::Other,
    };
    let content_len = header.content_size.and_then(|size| usize::try_from(size).ok());
    let Some(content_len @ 1..=PAGE_SIZE) = content_len else { return FramePeek::Other };
    let (expected, expected_len) = page_header(content_len, header.checksum);
    if bytes[..header.len] != expected[..expected_len] {
        return FramePeek::Other;
    }
    let Some(block) = bytes.get(header.len..).and_then(<[u8]>::first_chunk::<BLOCK_HEADER_LEN>) else {
        return incomplete(header.len + BLOCK_HEADER_LEN);
    };
    let BlockHeader { last, block_type, size } = BlockHeader::parse(*block);
    let stored_len = if block_type == RLE { 1 } else { size };
    let len = header.len + BLOCK_HEADER_LEN + stored_len + checksum_len(header.checksum);
    let possible = match block_type {
        RAW | RLE => size == content_len,
        COMPRESSED => len < PAGE_SIZE,
        _ => false,
    };
    if !last || !possible {
        return FramePeek::Other;
    }
    if bytes.len() < len {
        return incomplete(len);
    }
    FramePeek::Page(PageFrame { len, content_len, raw: block_type == RAW, zero_pages: 0, checksum: header.checksum })
}

/// The only block of a frame that a codec has made. It becomes the block of an archive's frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleBlock<'a> {
    /// The block with its header.
    pub(crate) block: &'a [u8],
    pub(crate) checksum: Option<[u8; CHECKSUM_LEN]>,
}

/// Returns the block of a frame that has exactly one and holds `content_len` bytes, whatever its header says of that. What a
/// compressed block holds is not checked.
pub(crate) fn single_block(frame: &[u8], content_len: usize) -> Option<SingleBlock<'_>> {
    let magic = frame.first_chunk()?;
    let header = FrameHeader::parse(frame, 0).ok().flatten().filter(|header| header.dictionary == 0)?;
    if u32::from_le_bytes(*magic) != ZSTD_MAGIC {
        return None;
    }
    let rest = frame.get(header.len..)?;
    let (block, checksum) = if header.checksum {
        rest.split_last_chunk().map(|(block, checksum)| (block, Some(*checksum)))?
    } else {
        (rest, None)
    };
    let (header, body) = block.split_first_chunk()?;
    let BlockHeader { last, block_type, size } = BlockHeader::parse(*header);
    let whole = match block_type {
        RAW => size == content_len && body.len() == size,
        RLE => size == content_len && body.len() == 1,
        COMPRESSED => body.len() == size,
        _ => false,
    };
    (last && whole).then_some(SingleBlock { block, checksum })
}

/// Appends the frame of a page that a codec has compressed to `block`, which has its header.
pub(crate) fn put_packed(content_len: usize, block: &[u8], checksum: Option<[u8; CHECKSUM_LEN]>, out: &mut Vec<u8>) {
    let (header, header_len) = page_header(content_len, checksum.is_some());
    out.extend_from_slice(&header[..header_len]);
    out.extend_from_slice(block);
    out.extend(checksum.iter().flatten());
}

/// Appends a frame with a raw block.
pub(crate) fn put_raw(content: &[u8], checksum: Option<[u8; CHECKSUM_LEN]>, out: &mut Vec<u8>) {
    let (header, header_len) = page_header(content.len(), checksum.is_some());
    out.extend_from_slice(&header[..header_len]);
    out.extend(BlockHeader { last: true, block_type: RAW, size: content.len() }.encode());
    out.extend_from_slice(content);
    out.extend(checksum.iter().flatten());
}

/// Returns the length of the frame that [`put_packed`] writes.
pub(crate) fn packed_frame_len(content_len: usize, block_len: usize, checksum: bool) -> usize {
    page_header(content_len, checksum).1 + block_len + checksum_len(checksum)
}

/// Returns the checksum that a frame with this content has: the lower half of its XXH64.
pub(crate) fn content_checksum(content: &[u8]) -> [u8; CHECKSUM_LEN] {
    low_half(xxhash_rust::xxh64::xxh64(content, 0))
}

/// Returns the lower half of a hash, as it is stored.
pub(crate) fn low_half(hash: u64) -> [u8; CHECKSUM_LEN] {
    let [a, b, c, d, ..] = hash.to_le_bytes();
    [a, b, c, d]
}
