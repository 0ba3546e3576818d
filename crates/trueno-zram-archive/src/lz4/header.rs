//! The header of an LZ4 frame ("LZ4 frame format description", version 1.6).

use crate::error::{Error, Result};
use crate::hashes::content_hash::xxh32;

/// Magic number of a frame.
pub(crate) const FRAME_MAGIC: u32 = 0x184d_2204;
/// Magic number of a frame of the legacy format, which has neither header nor checksums.
pub(crate) const LEGACY_MAGIC: u32 = 0x184c_2102;
/// The first of the 16 magic numbers of skippable frames.
pub(crate) const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
/// Magic number and length of a skippable frame.
pub(crate) const SKIPPABLE_HEAD_LEN: u64 = 8;

/// The most content in a block of the legacy format.
pub(crate) const LEGACY_BLOCK_LEN: usize = 8 << 20;
/// The longest block of the legacy format; a size word above this is the next frame's magic number.
pub(crate) const LEGACY_BLOCK_BOUND: usize = LEGACY_BLOCK_LEN + LEGACY_BLOCK_LEN / 255 + 16;

/// The high bit of a block's size word: the block is stored, not compressed.
pub(crate) const RAW_BLOCK_FLAG: u32 = 1 << 31;

/// The block size of archives: see [`RUN_PAGES`](crate::lz4::constant_pages::RUN_PAGES).
pub(crate) const ARCHIVE_MAX_BLOCK_LEN: usize = 64 << 10;

/// The largest block size that a header can announce.
pub(crate) const MAX_BLOCK_LEN: usize = 4 << 20;

const VERSION: u8 = 0b0100_0000;
const INDEPENDENT: u8 = 1 << 5;
const BLOCK_CHECKSUMS: u8 = 1 << 4;
const CONTENT_SIZE: u8 = 1 << 3;
const CONTENT_CHECKSUM: u8 = 1 << 2;
const RESERVED: u8 = 1 << 1;
const DICTIONARY: u8 = 1;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lz4Header {
    pub(crate) independent: bool,
    pub(crate) block_checksums: bool,
    pub(crate) content_checksum: bool,
    pub(crate) content_size: Option<u64>,
    pub(crate) max_block_len: usize,
}

impl Lz4Header {
    /// Returns the header of an archive.
    pub(crate) fn archive(content_size: Option<u64>, block_checksums: bool, content_checksum: bool) -> Self {
        let max_block_len = ARCHIVE_MAX_BLOCK_LEN;
        Self { independent: true, block_checksums, content_checksum, content_size, max_block_len }
    }

    /// Returns the number of bytes after magic number and flags, as the flags announce it.
    pub(crate) fn len_after(flags: u8) -> usize {
        let size = if flags & CONTENT_SIZE == 0 { 0 } else { 8 };
        let dictionary = if flags & DICTIONARY == 0 { 0 } else { 4 };
        1 + size + dictionary + 1
    }

    /// Length of the checksum after each block.
    pub(crate) fn block_checksum_len(&self) -> usize {
        if self.block_checksums { 4 } else { 0 }
    }

    /// Number of bytes after the last block: the end mark and the content's checksum.
    pub(crate) fn end_len(&self) -> u64 {
        if self.content_checksum { 8 } else { 4 }
    }

    /// Returns the header of the LZ4 frame, with its magic number.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let size_number = (4..7).find(|number| block_size(*number) == Some(self.max_block_len)).unwrap_or(7);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = VERSION
            | flag(self.independent, INDEPENDENT)
            | flag(self.block_checksums, BLOCK_CHECKSUMS)
            | flag(self.content_size.is_some(), CONTENT_SIZE)
            | flag(self.content_checksum, CONTENT_CHECKSUM);
        let mut bytes = FRAME_MAGIC.to_le_bytes().to_vec();
        bytes.extend([flags, size_number << 4]);
        bytes.extend(self.content_size.iter().flat_map(|size| size.to_le_bytes()));
        bytes.push(checksum(&bytes[4..]));
        bytes
    }

    /// Parses a header: its bytes after the magic number, as many as the flags announce. `at` is the frame's position.
    pub(crate) fn parse(bytes: &[u8], at: u64) -> Result<Self> {
        let bad = |what| Error::Header { at, what };
        let cut = bad("it is cut short");
        let Some((&stored, described)) = bytes.split_last() else { return Err(cut) };
        let &[flags, sizes, ref rest @ ..] = described else { return Err(cut) };
        if described.len() != Self::len_after(flags) {
            return Err(cut);
        }
        // The checksum first: a damaged header is not a newer format.
        if checksum(described) != stored {
            return Err(bad("its checksum is wrong"));
        }
        if flags & 0b1100_0000 != VERSION {
            return Err(bad("its version is not 1"));
        }
        if flags & RESERVED != 0 || sizes & 0b1000_1111 != 0 {
            return Err(bad("a reserved bit is set"));
        }
        let max_block_len = block_size(sizes >> 4).ok_or_else(|| bad("its block size is not defined"))?;
        let content_size =
            (flags & CONTENT_SIZE != 0).then(|| rest.first_chunk().map(|size| u64::from_le_bytes(*size)));
        if flags & DICTIONARY != 0 {
            let id = rest.last_chunk().map_or(0, |id| u32::from_le_bytes(*id));
            return Err(Error::Dictionary { at, id });
        }
        Ok(Self {
            independent: flags & INDEPENDENT != 0,
            block_checksums: flags & BLOCK_CHECKSUMS != 0,
            content_checksum: flags & CONTENT_CHECKSUM != 0,
            content_size: content_size.flatten(),
            max_block_len,
        })
    }
}

/// Returns the block size that a number in a header stands for: 64 KiB is number 4, and each one up to 7 is four times the one
/// before.
pub(crate) fn block_size(number: u8) -> Option<usize> {
    (4..=7).contains(&number).then(|| ARCHIVE_MAX_BLOCK_LEN << (2 * (number - 4)))
}

/// Returns the second byte of the descriptor's hash.
fn checksum(descriptor: &[u8]) -> u8 {
    xxh32(descriptor).to_le_bytes()[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_legacy_block_is_that_of_c_lz4() {
        // LZ4_compressBound(8 MiB).
        assert_eq!(LEGACY_BLOCK_BOUND, 8_421_520);
    }

    #[test]
    fn every_header_reads_back() {
        for content_size in [None, Some(0), Some(u64::MAX)] {
            for bits in 0..4 {
                let archive = Lz4Header::archive(content_size, bits & 1 != 0, bits & 2 != 0);
                for max_block_len in [64 << 10, 256 << 10, 1 << 20, MAX_BLOCK_LEN] {
                    let header = Lz4Header { max_block_len, ..archive };
                    let bytes = header.encode();
                    assert_eq!(bytes.len(), 5 + Lz4Header::len_after(bytes[4]));
                    assert_eq!(Lz4Header::parse(&bytes[4..], 0).expect("ours"), header);
                }
            }
        }
    }

    #[test]
    fn every_damaged_byte_is_refused() {
        let bytes = Lz4Header::archive(Some(123_456), true, true).encode();
        for at in 4..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(Lz4Header::parse(&damaged[4..], 0).is_err(), "byte {at}, bit {bit}");
            }
        }
    }
}
