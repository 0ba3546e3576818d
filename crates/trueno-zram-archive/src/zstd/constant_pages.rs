//! Frames of constant pages: written from a template and recognised by it, without coding.

use std::sync::LazyLock;

use trueno_zram_core::{FILL_WORD_BYTES, PAGE_SIZE, fill_page};
use xxhash_rust::xxh64::Xxh64;

use crate::index::layout::GROUP_PAGES;
use crate::zstd::frame::{
    BlockHeader, CHECKSUM_FLAG, CHECKSUM_LEN, FramePeek, PageFrame, RLE, ZSTD_MAGIC, checksum_len, content_checksum,
    low_half, page_header,
};

/// The most content in a block.
const MAX_BLOCK_LEN: usize = 128 << 10;

/// The header of a run of zeros: a window of 128 KiB, which is all the memory that a decoder needs, and a content size of
/// four bytes.
const ZERO_HEADER_LEN: usize = 10;
const FOUR_BYTE_SIZE: u8 = 2 << 6;
const WINDOW_128_KIB: u8 = 7 << 3;
/// A block of one repeated byte: its header and the byte.
const RLE_BLOCK_LEN: usize = 4;

/// The checksums of 1 to 1,024 zero pages.
static ZERO_CHECKSUMS: LazyLock<Vec<[u8; CHECKSUM_LEN]>> = LazyLock::new(|| {
    let mut hash = Xxh64::new(0);
    let after_page = |_| {
        hash.update(&[0; PAGE_SIZE]);
        low_half(hash.digest())
    };
    (0..GROUP_PAGES).map(after_page).collect()
});

/// Returns the length of the frame of this many zero pages.
pub(crate) fn zero_frame_len(pages: usize, checksum: bool) -> usize {
    let blocks = (pages * PAGE_SIZE).div_ceil(MAX_BLOCK_LEN);
    ZERO_HEADER_LEN + blocks * RLE_BLOCK_LEN + checksum_len(checksum)
}

/// Appends the frame of this many zero pages, 1 to 1,024: blocks of one repeated byte.
pub(crate) fn put_zeros(pages: usize, checksum: bool, out: &mut Vec<u8>) {
    let content_len = pages * PAGE_SIZE;
    out.extend(ZSTD_MAGIC.to_le_bytes());
    out.extend([FOUR_BYTE_SIZE | if checksum { CHECKSUM_FLAG } else { 0 }, WINDOW_128_KIB]);
    out.extend(u32::try_from(content_len).expect("a run is short").to_le_bytes());
    let mut left = content_len;
    while left > 0 {
        let size = left.min(MAX_BLOCK_LEN);
        left -= size;
        out.extend(BlockHeader { last: left == 0, block_type: RLE, size }.encode());
        out.push(0);
    }
    if checksum {
        out.extend(ZERO_CHECKSUMS[pages - 1]);
    }
}

/// Recognises the frame of a run of zero pages at the start of `bytes`, which has a frame's magic number and descriptor.
pub(crate) fn zero_pages_of(bytes: &[u8]) -> FramePeek {
    let checksum = bytes[4] & CHECKSUM_FLAG != 0;
    if bytes[4] & !CHECKSUM_FLAG != FOUR_BYTE_SIZE {
        return FramePeek::Other;
    }
    let Some(size) = bytes.get(ZERO_HEADER_LEN - 4..).and_then(<[u8]>::first_chunk) else {
        return FramePeek::Incomplete { needed: ZERO_HEADER_LEN };
    };
    let content_len = u32::from_le_bytes(*size) as usize;
    let pages = content_len / PAGE_SIZE;
    if bytes[5] != WINDOW_128_KIB || !content_len.is_multiple_of(PAGE_SIZE) || !(1..=GROUP_PAGES).contains(&pages) {
        return FramePeek::Other;
    }
    let len = zero_frame_len(pages, checksum);
    let mut expected = Vec::with_capacity(len);
    put_zeros(pages, checksum, &mut expected);
    match bytes.get(..len) {
        Some(frame) if frame == expected => {
            FramePeek::Page(PageFrame { len, content_len, raw: false, zero_pages: pages, checksum })
        }
        None if expected.starts_with(bytes) => FramePeek::Incomplete { needed: len },
        _ => FramePeek::Other,
    }
}

/// The block of a page of one repeated word: eight literals, and one match of offset 8 for the rest.
///
/// Raw literals (header `40`); one sequence, with one symbol for each kind of code (`01 54`): literal length 8 (code 8),
/// offset 8 (code 3, extra bits 3), match length 4,088 (code 47, extra bits 2,037). The bits, from the last: a one, 3 in
/// three bits, 2,037 in eleven.
const WORD_BLOCK: [u8; 19] = *b"\x85\x00\x00\x40WWWWWWWW\x01\x54\x08\x03\x2f\xf5\x5f";
const WORD_AT: usize = 4;
const HEADER_LEN: usize = 7;

/// Returns the length of the frame of a repeated word.
pub(crate) fn word_frame_len(checksum: bool) -> usize {
    HEADER_LEN + WORD_BLOCK.len() + checksum_len(checksum)
}

/// Appends the frame of a page of one repeated word.
pub(crate) fn put_word(word: [u8; FILL_WORD_BYTES], checksum: bool, out: &mut Vec<u8>) {
    out.extend(page_header(PAGE_SIZE, checksum).0);
    out.extend(word_block(&word));
    if checksum {
        let mut page = [0; PAGE_SIZE];
        fill_page(&mut page, word);
        out.extend(content_checksum(&page));
    }
}

/// Returns the word that `frame` repeats if it is exactly the frame of one, its checksum included.
pub(crate) fn word_of(frame: &[u8]) -> Option<&[u8; FILL_WORD_BYTES]> {
    let checksum = frame.len() == word_frame_len(true);
    if !checksum && frame.len() != word_frame_len(false) {
        return None;
    }
    // The block first: the page is filled and hashed only if it is that of a word.
    let word = word_of_block(&frame[HEADER_LEN..][..WORD_BLOCK.len()])?;
    let mut expected = Vec::with_capacity(frame.len());
    put_word(*word, checksum, &mut expected);
    (expected == frame).then_some(word)
}

/// Returns the word that a block with its header repeats, if it is exactly that of [`put_word`].
pub(crate) fn word_of_block(block: &[u8]) -> Option<&[u8; FILL_WORD_BYTES]> {
    let word = block.get(WORD_AT..)?.first_chunk()?;
    (block == word_block(word)).then_some(word)
}

/// Returns the block of a page of one repeated word, with its header.
fn word_block(word: &[u8; FILL_WORD_BYTES]) -> [u8; WORD_BLOCK.len()] {
    let mut block = WORD_BLOCK;
    block[WORD_AT..][..FILL_WORD_BYTES].copy_from_slice(word);
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zstd::frame::peek_frame;

    #[test]
    fn libzstd_reads_all_templates() {
        for checksum in [false, true] {
            for pages in [1, 2, 15, 31, 32, 33, 64, 1000, 1023, 1024] {
                let mut frame = Vec::new();
                put_zeros(pages, checksum, &mut frame);
                assert_eq!(frame.len(), zero_frame_len(pages, checksum));
                assert_eq!(zstd::decode_all(&frame[..]).expect("a frame"), vec![0; pages * PAGE_SIZE]);
            }
            for word in [*b"deadbeef", [0; 8], [0xff; 8], [1, 2, 3, 4, 5, 6, 7, 8]] {
                let (mut frame, mut page) = (Vec::new(), [0; PAGE_SIZE]);
                put_word(word, checksum, &mut frame);
                fill_page(&mut page, word);
                assert_eq!(zstd::decode_all(&frame[..]).expect("a frame"), page);
                assert_eq!((word_of(&frame), frame.len()), (Some(&word), word_frame_len(checksum)));
            }
        }
    }

    #[test]
    fn templates_are_known_again_and_others_are_not() {
        for checksum in [false, true] {
            for pages in [1, 32, 33, 1024] {
                let mut frame = Vec::new();
                put_zeros(pages, checksum, &mut frame);
                let zeros = |bytes: &[u8]| matches!(peek_frame(bytes), FramePeek::Page(seen) if seen.zero_pages > 0);
                assert!(zeros(&frame));
                for at in 0..frame.len() {
                    assert!(
                        matches!(peek_frame(&frame[..at]), FramePeek::Incomplete { needed } if needed > at && needed <= frame.len())
                    );
                    let mut damaged = frame.clone();
                    damaged[at] ^= 1;
                    assert!(!zeros(&damaged), "{pages} pages, byte {at}");
                }
            }
            let mut frame = Vec::new();
            put_word(*b"pattern!", checksum, &mut frame);
            for at in 0..frame.len() {
                let mut damaged = frame.clone();
                damaged[at] ^= 1;
                // Without a checksum, another word is a word as well.
                let in_word = (11..19).contains(&at) && !checksum;
                assert_eq!(word_of(&damaged).is_some(), in_word, "byte {at}");
            }
        }
    }
}
