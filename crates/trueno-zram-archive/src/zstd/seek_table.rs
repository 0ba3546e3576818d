//! The seek table of Zstandard's seekable format (version 0.1.0): a skippable frame at the end of the file.
//!
//! It is written for other readers. This crate finds pages by its own index, which is smaller, and only compares the seek
//! table with the frames when it reads a stream.

use std::io::Read;

use xxhash_rust::xxh64::Xxh64;

use crate::error::Result;
use crate::lz4::header::SKIPPABLE_MAGIC;
use crate::stream::input::InputWindow;

/// Magic number of the skippable frame.
pub(crate) const SEEK_FRAME_MAGIC: u32 = SKIPPABLE_MAGIC + 14;
/// The last bytes of the file.
const SEEKABLE_MAGIC: u32 = 0x8f92_eab1;
/// The most frames that readers of the format take.
pub(crate) const MAX_FRAMES: u64 = 0x0800_0000;

pub(crate) const ENTRY_LEN: usize = 8;
pub(crate) const FOOTER_LEN: usize = 9;
/// Magic number and length of the skippable frame.
const HEAD_LEN: usize = 8;

// The descriptor: entries with checksums, and bits that must be zero. Frames here carry their checksum themselves.
const CHECKSUM_FLAG: u8 = 1 << 7;
const RESERVED: u8 = 0b0111_1100;

/// A frame in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeekEntry {
    pub(crate) compressed_len: u32,
    pub(crate) content_len: u32,
}

impl SeekEntry {
    /// Returns the entry of the index, which is a frame of the table without content.
    pub(crate) fn of_index(index_len: u64) -> Self {
        Self { compressed_len: u32::try_from(index_len).unwrap_or(u32::MAX), content_len: 0 }
    }

    pub(crate) fn encode(self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[..4].copy_from_slice(&self.compressed_len.to_le_bytes());
        bytes[4..].copy_from_slice(&self.content_len.to_le_bytes());
        bytes
    }
}

/// Returns the head of the skippable frame for this many frames, or `None` if the format does not allow as many.
pub(crate) fn head(frames: u64) -> Option<[u8; HEAD_LEN]> {
    if frames > MAX_FRAMES {
        return None;
    }
    let mut head = [0; HEAD_LEN];
    head[..4].copy_from_slice(&SEEK_FRAME_MAGIC.to_le_bytes());
    let len = u32::try_from(frames.checked_mul(ENTRY_LEN as u64)? + FOOTER_LEN as u64).ok()?;
    head[4..].copy_from_slice(&len.to_le_bytes());
    Some(head)
}

/// Returns the end of the table.
pub(crate) fn footer(frames: u32) -> [u8; FOOTER_LEN] {
    let mut footer = [0; FOOTER_LEN];
    footer[..4].copy_from_slice(&frames.to_le_bytes());
    footer[5..].copy_from_slice(&SEEKABLE_MAGIC.to_le_bytes());
    footer
}

/// Returns the length of the seek table whose footer these bytes are, head included; `None` if they are not a footer. The
/// head must be checked by the caller with [`is_head`].
pub(crate) fn len_by_footer(footer: [u8; FOOTER_LEN]) -> Option<u64> {
    let [a, b, c, d, descriptor, magic @ ..] = footer;
    let known = u32::from_le_bytes(magic) == SEEKABLE_MAGIC && descriptor & RESERVED == 0;
    let entry_len = ENTRY_LEN as u64 + if descriptor & CHECKSUM_FLAG == 0 { 0 } else { 4 };
    let frames = u64::from(u32::from_le_bytes([a, b, c, d]));
    known.then_some((HEAD_LEN + FOOTER_LEN) as u64 + frames * entry_len)
}

/// Returns `true` if `head` starts a skippable frame of this length in all.
pub(crate) fn is_head(head: [u8; HEAD_LEN], len: u64) -> bool {
    let [a, b, c, d, size @ ..] = head;
    u32::from_le_bytes([a, b, c, d]) == SEEK_FRAME_MAGIC && u64::from(u32::from_le_bytes(size)) + HEAD_LEN as u64 == len
}

/// The seek table that frames should have, as a hash: a stream keeps no entries.
#[derive(Clone)]
pub(crate) struct ExpectedTable {
    hash: Xxh64,
    frames: u64,
}

impl ExpectedTable {
    pub(crate) fn new() -> Self {
        Self { hash: Xxh64::new(0), frames: 0 }
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    pub(crate) fn push(&mut self, entry: SeekEntry) {
        self.hash.update(&entry.encode());
        self.frames += 1;
    }

    /// Reads the payload of the seek table, `payload_len` bytes, and returns `true` if it is this one.
    pub(crate) fn agrees<R: Read>(&self, input: &mut InputWindow<R>, payload_len: u64) -> Result<bool> {
        const WITHIN: &str = "the seek table";
        let expected_len = self.frames.checked_mul(ENTRY_LEN as u64).and_then(|len| len.checked_add(FOOTER_LEN as u64));
        let frames = u32::try_from(self.frames).ok().filter(|_| expected_len == Some(payload_len));
        let Some(frames) = frames else {
            input.skip(payload_len, WITHIN)?;
            return Ok(false);
        };
        let mut hash = Xxh64::new(0);
        input.drain(payload_len - FOOTER_LEN as u64, WITHIN, |bytes| hash.update(bytes))?;
        let found = input.require(FOOTER_LEN, WITHIN)? == footer(frames);
        input.consume(FOOTER_LEN);
        Ok(found && hash.digest() == self.hash.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_found_by_its_footer() {
        for frames in [0, 1, 1000, u32::try_from(MAX_FRAMES).expect("it fits")] {
            let len = (HEAD_LEN + FOOTER_LEN) as u64 + u64::from(frames) * ENTRY_LEN as u64;
            assert_eq!(len_by_footer(footer(frames)), Some(len));
            let head = head(u64::from(frames)).expect("not too many");
            assert!(is_head(head, len) && !is_head(head, len + 1));
        }
        assert_eq!(head(MAX_FRAMES + 1), None);
        let mut of_others = footer(10);
        of_others[4] = CHECKSUM_FLAG;
        assert_eq!(len_by_footer(of_others), Some(17 + 10 * 12), "entries with checksums");
        of_others[4] = 1 << 2;
        assert_eq!(len_by_footer(of_others), None, "a reserved bit");
        assert_eq!(len_by_footer([0; FOOTER_LEN]), None);
    }
}
