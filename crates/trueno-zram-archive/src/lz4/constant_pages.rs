//! Blocks of constant pages: written from a template and recognised by it, without coding.

use std::sync::LazyLock;

use trueno_zram_core::{FILL_WORD_BYTES, PAGE_SIZE};

use crate::hashes::content_hash::xxh32;

/// The most pages of zeros in one block: what the frame's block size of 64 KiB allows.
///
/// LZ4 codes zeros at one byte per 255 whatever the block's length. Blocks of 4 MiB would make a hole 5 % smaller
/// and cost every reader 64 times the memory.
pub(crate) const RUN_PAGES: usize = 16;

/// Length in bytes of the block of one repeated word.
pub(crate) const WORD_BLOCK_LEN: usize = 33;

/// Literals at the end of every block (end-of-block conditions of the LZ4 block format).
pub(crate) const LAST_LITERALS: usize = 5;

/// Length of the shortest match.
pub(crate) const MIN_MATCH: usize = 4;

/// Bytes of a block of zeros that may be damaged for it to be recognised still.
const MAX_DAMAGED_BYTES: usize = 16;

/// A block of zero pages.
pub(crate) struct ZeroBlock {
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: u32,
}

/// The blocks of 1 to [`RUN_PAGES`] zero pages.
static ZERO_BLOCKS: LazyLock<Vec<ZeroBlock>> = LazyLock::new(|| {
    let block = |pages: usize| {
        let bytes = periodic_block(&[0], pages * PAGE_SIZE);
        ZeroBlock { checksum: xxh32(&bytes), bytes }
    };
    (1..=RUN_PAGES).map(block).collect()
});

/// Returns the block of `pages` zero pages; `pages` is 1 to [`RUN_PAGES`].
pub(crate) fn zero_block(pages: usize) -> &'static ZeroBlock {
    &ZERO_BLOCKS[pages - 1]
}

/// Returns the number of zero pages in `block` if it is exactly a block of zero pages.
pub(crate) fn zero_pages_of(block: &[u8]) -> Option<usize> {
    // All of them start with one literal zero and a match of offset 1: most other blocks leave here.
    if !block.starts_with(&[0x1f, 0, 1, 0]) {
        return None;
    }
    ZERO_BLOCKS.iter().position(|zeros| zeros.bytes == block).map(|index| index + 1)
}

/// Returns the pages of the zero block that `block` probably was before it was damaged: of the same length, with at
/// most [`MAX_DAMAGED_BYTES`] other bytes.
pub(crate) fn damaged_zero_pages(block: &[u8]) -> Option<usize> {
    let near = |zeros: &ZeroBlock| {
        let damaged_bytes = zeros.bytes.iter().zip(block).filter(|(a, b)| a != b).count();
        zeros.bytes.len() == block.len() && damaged_bytes <= MAX_DAMAGED_BYTES
    };
    ZERO_BLOCKS.iter().position(near).map(|index| index + 1)
}

/// Returns the block of a page of one repeated word.
pub(crate) fn word_block(word: [u8; FILL_WORD_BYTES]) -> [u8; WORD_BLOCK_LEN] {
    let mut block = *WORD_TEMPLATE;
    block[1..9].copy_from_slice(&word);
    block[WORD_BLOCK_LEN - LAST_LITERALS..].copy_from_slice(&word[FILL_WORD_BYTES - LAST_LITERALS..]);
    block
}

/// Returns the word that `block` repeats if it is exactly [`word_block`] of it.
pub(crate) fn word_of(block: &[u8]) -> Option<[u8; FILL_WORD_BYTES]> {
    let block: &[u8; WORD_BLOCK_LEN] = block.try_into().ok()?;
    let word = *block[1..].first_chunk()?;
    (*block == word_block(word)).then_some(word)
}

static WORD_TEMPLATE: LazyLock<[u8; WORD_BLOCK_LEN]> = LazyLock::new(|| {
    let block = periodic_block(&[0; FILL_WORD_BYTES], PAGE_SIZE);
    block.try_into().expect("the block of a word has a fixed length")
});

/// Returns the LZ4 block of `pattern` repeated to `len` bytes: literals, one long match, the last literals.
fn periodic_block(pattern: &[u8], len: usize) -> Vec<u8> {
    let low = |n: usize| n.to_le_bytes()[0];
    let extra = len - pattern.len() - LAST_LITERALS - MIN_MATCH - 15;
    let mut block = vec![low(pattern.len()) << 4 | 15];
    block.extend(pattern);
    block.extend([low(pattern.len()), 0]);
    block.resize(block.len() + extra / 255, 255);
    block.push(low(extra % 255));
    block.push(low(LAST_LITERALS) << 4);
    block.extend((len - LAST_LITERALS..len).map(|at| pattern[at % pattern.len()]));
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use trueno_test_pages::oracle;
    use trueno_zram_core::{fill_page, lz4};

    #[test]
    fn foreign_decoders_read_both_templates() {
        for word in [*b"deadbeef", [0; 8], [0xff; 8], [1, 2, 3, 4, 5, 6, 7, 8]] {
            let mut page = [0; PAGE_SIZE];
            fill_page(&mut page, word);
            oracle::assert_decodes(&word_block(word), &page);
            let mut ours = [1; PAGE_SIZE];
            lz4::decode_simple(&word_block(word), &mut ours).expect("the strict decoder takes it");
            assert_eq!(ours, page);
        }
        for pages in 1..=RUN_PAGES {
            let zeros = lz4_flex::block::decompress(&zero_block(pages).bytes, pages * PAGE_SIZE).expect("a block");
            assert_eq!(zeros, vec![0; pages * PAGE_SIZE]);
        }
        oracle::assert_decodes(&zero_block(1).bytes, &[0; PAGE_SIZE]);
    }

    #[test]
    fn blocks_are_known_again_and_others_are_not() {
        for pages in 1..=RUN_PAGES {
            let block = &zero_block(pages).bytes;
            assert_eq!(zero_pages_of(block), Some(pages));
            for at in 0..block.len() {
                let mut damaged = block.clone();
                damaged[at] ^= 1;
                assert_eq!(zero_pages_of(&damaged), None, "{pages} pages, byte {at}");
            }
        }
        let block = word_block(*b"pattern!");
        assert_eq!(word_of(&block), Some(*b"pattern!"));
        for at in (0..WORD_BLOCK_LEN).filter(|at| !(1..4).contains(at)) {
            let mut damaged = block;
            damaged[at] ^= 1;
            assert_eq!(word_of(&damaged), None, "byte {at}"); // bytes 1 to 3 stand nowhere else
        }
        assert_eq!(word_of(&block[1..]), None);
    }
}
