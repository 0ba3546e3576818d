//! The numbers of the Zstandard format (RFC 8878), and those that follow from the page's size.

pub(super) use super::PAGE_BYTES;

/// `Magic_Number` of a frame, little-endian.
pub(super) const MAGIC: u32 = 0xfd2f_b528;

/// `Frame_Header_Descriptor`: single segment, content size in 2 bytes, no checksum, no dictionary.
pub(super) const FRAME_DESCRIPTOR: u32 = 0x60;

/// `Frame_Content_Size` in 2 bytes counts from here.
pub(super) const CONTENT_SIZE_BASE: u32 = 256;

/// Magic number, descriptor, content size and the header of the only block.
pub(super) const HEADERS_BYTES: u32 = 4 + 1 + 2 + 3;

/// Low bits of the block's header: the last block, of type `Compressed_Block`.
pub(super) const LAST_COMPRESSED_BLOCK: u32 = 1 | 2 << 1;

/// `Literals_Block_Type`.
pub(super) const LITERALS_RAW: u32 = 0;
pub(super) const LITERALS_RLE: u32 = 1;
pub(super) const LITERALS_COMPRESSED: u32 = 2;

/// Offset values up to here name a repeated offset; an offset itself counts from here.
pub(super) const REPEATED_OFFSETS: u32 = 3;

/// The repeated offsets before the first sequence.
pub(super) const FIRST_OFFSETS: [u32; 3] = [1, 4, 8];

/// The shortest match; match length values count from here.
pub(super) const MIN_MATCH: u32 = 3;

/// A Huffman code of literals is at most this long.
pub(super) const MAX_CODE_BITS: u32 = 11;

/// Header bytes of a tree description from here on say how many weights follow in 4 bits each.
pub(super) const DIRECT_WEIGHTS_BASE: u32 = 127;

/// The most weights that a direct description can hold.
pub(super) const MAX_DIRECT_WEIGHTS: u32 = 128;

/// The most bytes of a tree description with its header byte, which counts up to 127 bytes of coded weights.
pub(super) const MAX_TREE_BYTES: u32 = 128;

/// `Accuracy_Log` is stored less this.
pub(super) const MIN_ACCURACY_LOG: u32 = 5;

/// `Symbol_Compression_Modes` of a table.
pub(super) const MODE_PREDEFINED: u32 = 0;
pub(super) const MODE_RLE: u32 = 1;
pub(super) const MODE_FSE: u32 = 2;

/// The predefined distributions. -1 is a probability below 1, which has one state.
pub(super) const LITERAL_LENGTHS_DEFAULT: [i8; 36] =
    [4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1];
pub(super) const OFFSETS_DEFAULT: [i8; 29] =
    [1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1];
pub(super) const MATCH_LENGTHS_DEFAULT: [i8; 53] = [
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
];

/// Accuracy logs of the predefined tables.
pub(super) const LENGTHS_DEFAULT_LOG: u32 = 6;
pub(super) const OFFSETS_DEFAULT_LOG: u32 = 5;
