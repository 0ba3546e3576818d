//! C lz4's frame library: frames of every kind to read, and an independent decoder.

use std::ptr::null;

use lz4_sys::{
    BlockChecksum, BlockMode, BlockSize, ContentChecksum, FrameType, LZ4F_compressBegin, LZ4F_compressBound,
    LZ4F_compressEnd, LZ4F_compressUpdate, LZ4F_createCompressionContext, LZ4F_createDecompressionContext,
    LZ4F_decompress, LZ4F_freeCompressionContext, LZ4F_freeDecompressionContext, LZ4F_isError, LZ4FCompressionContext,
    LZ4FDecompressionContext, LZ4FFrameInfo, LZ4FPreferences,
};

/// The version of the library's interface.
const LZ4F_VERSION: u32 = 100;

/// The settings of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSettings {
    /// 4 for blocks of 64 KiB, 5 for 256 KiB, 6 for 1 MiB, 7 for 4 MiB.
    pub block_size_id: u8,
    /// Blocks that refer to those before.
    pub linked: bool,
    /// A checksum after each block.
    pub block_checksums: bool,
    /// A checksum of all content.
    pub content_checksum: bool,
    /// The content's length in the header; the library takes 0 for unknown.
    pub content_size: bool,
    /// 0 for the fast encoder, 3 to 12 for the slow one.
    pub level: u32,
}

/// Returns every combination of settings, for the fast encoder.
#[must_use]
pub fn all_settings() -> Vec<FrameSettings> {
    let combination = |block_size_id: u8, bits: u8| FrameSettings {
        block_size_id,
        linked: bits & 1 != 0,
        block_checksums: bits & 2 != 0,
        content_checksum: bits & 4 != 0,
        content_size: bits & 8 != 0,
        level: 0,
    };
    (4..=7).flat_map(|id| (0..16).map(move |bits| combination(id, bits))).collect()
}

impl FrameSettings {
    fn preferences(self, content_len: usize) -> LZ4FPreferences {
        LZ4FPreferences {
            frame_info: LZ4FFrameInfo {
                block_size_id: match self.block_size_id {
                    5 => BlockSize::Max256KB,
                    6 => BlockSize::Max1MB,
                    7 => BlockSize::Max4MB,
                    _ => BlockSize::Max64KB,
                },
                block_mode: if self.linked { BlockMode::Linked } else { BlockMode::Independent },
                content_checksum_flag: match self.content_checksum {
                    true => ContentChecksum::ChecksumEnabled,
                    false => ContentChecksum::NoChecksum,
                },
                frame_type: FrameType::Frame,
                content_size: if self.content_size { content_len as u64 } else { 0 },
                dict_id: 0,
                block_checksum_flag: match self.block_checksums {
                    true => BlockChecksum::BlockChecksumEnabled,
                    false => BlockChecksum::NoBlockChecksum,
                },
            },
            compression_level: self.level,
            auto_flush: 0,
            favor_dec_speed: 0,
            reserved: [0; 3],
        }
    }
}

/// Compresses content to a frame with C lz4.
///
/// # Panics
/// If the library fails.
#[must_use]
pub fn compress(content: &[u8], settings: &FrameSettings) -> Vec<u8> {
    let preferences = settings.preferences(content.len());
    // SAFETY: the preferences are a valid structure that outlives the call.
    let bound = unsafe { LZ4F_compressBound(content.len(), &raw const preferences) };
    let mut frame = vec![0u8; bound + 64];
    let mut context = LZ4FCompressionContext(std::ptr::null_mut());
    // SAFETY: the library writes the new context to the place given.
    let created = unsafe { LZ4F_createCompressionContext(&mut context, LZ4F_VERSION) };
    let mut at = len_of(created);
    // SAFETY: the context was created above; destination and preferences are valid for the lengths given.
    let begun = unsafe { LZ4F_compressBegin(context, frame.as_mut_ptr(), frame.len(), &raw const preferences) };
    at += len_of(begun);
    let rest = &mut frame[at..];
    // SAFETY: the context is at work on a frame; source and destination have the lengths given, and do not overlap.
    let updated =
        unsafe { LZ4F_compressUpdate(context, rest.as_mut_ptr(), rest.len(), content.as_ptr(), content.len(), null()) };
    at += len_of(updated);
    let rest = &mut frame[at..];
    // SAFETY: as above.
    let ended = unsafe { LZ4F_compressEnd(context, rest.as_mut_ptr(), rest.len(), null()) };
    at += len_of(ended);
    // SAFETY: the context was created above and is not used again.
    unsafe { LZ4F_freeCompressionContext(context) };
    frame.truncate(at);
    frame
}

/// Decodes consecutive frames with C lz4. Returns `None` if it refuses any part or asks for more input.
///
/// # Panics
/// If the library cannot be set up.
#[must_use]
pub fn decompress(frames: &[u8]) -> Option<Vec<u8>> {
    decompress_up_to(frames, usize::MAX)
}

/// Like [`decompress`], but returns `None` for more than `limit` bytes.
///
/// # Panics
/// If the library cannot be set up.
#[must_use]
pub fn decompress_up_to(frames: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut context = LZ4FDecompressionContext(std::ptr::null_mut());
    // SAFETY: the library writes the new context to the place given.
    let created = unsafe { LZ4F_createDecompressionContext(&mut context, LZ4F_VERSION) };
    len_of(created);
    let decoded = decode_all(context, frames, limit);
    // SAFETY: the context was created above and is not used again.
    unsafe { LZ4F_freeDecompressionContext(context) };
    decoded
}

fn decode_all(context: LZ4FDecompressionContext, frames: &[u8], limit: usize) -> Option<Vec<u8>> {
    let (mut content, mut rest, mut missing) = (Vec::new(), frames, 0);
    let mut piece = vec![0u8; 256 << 10];
    loop {
        let (mut written, mut read) = (piece.len(), rest.len());
        // SAFETY: the context is valid; source and destination have the lengths given, and do not overlap.
        let code =
            unsafe { LZ4F_decompress(context, piece.as_mut_ptr(), &mut written, rest.as_ptr(), &mut read, null()) };
        // SAFETY: the function looks at the number alone.
        if unsafe { LZ4F_isError(code) } != 0 {
            return None;
        }
        missing = if read == 0 && written == 0 { missing } else { code };
        content.extend_from_slice(&piece[..written]);
        rest = &rest[read..];
        if content.len() > limit {
            return None;
        }
        if rest.is_empty() && written < piece.len() {
            return (missing == 0).then_some(content);
        }
        if read == 0 && written == 0 {
            return None;
        }
    }
}

/// Returns the result of a library call, which must not be an error.
fn len_of(code: usize) -> usize {
    // SAFETY: the function looks at the number alone.
    assert_eq!(unsafe { LZ4F_isError(code) }, 0, "the library does its work");
    code
}
