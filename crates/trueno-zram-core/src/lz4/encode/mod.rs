//! Encodes one page as an LZ4 block.
//!
//! The input is always exactly one page. So the encoder needs no window, no wide offsets and no check of the input
//! length. It chooses one of two searches by inspecting the page. Every instruction set gives the same bytes, and the
//! previous contents of a [`Scratch`] do not affect them.

mod block;
mod bytes;
mod compare;
mod compare_x86;
mod search;
mod table;
#[cfg(test)]
mod tests;

use std::hint::select_unpredictable;

use crate::cpu::Token;
use crate::page::{PAGE_SIZE, Page};
use block::{Block, OUTPUT_CAPACITY};
use bytes::Bytes;
use compare::Compare;
use table::Table;

/// The encoder's working memory: the hash table, and the block with room for wide stores to overrun.
pub(super) struct Scratch {
    table: Table,
    output: [u8; OUTPUT_CAPACITY],
}

impl Scratch {
    pub(super) fn boxed() -> Box<Self> {
        Box::new(Self { table: Table::new(), output: [0; OUTPUT_CAPACITY] })
    }
}

/// Returns the page's block, or `None` if it would not be shorter than the page.
pub(super) fn encode_page<'s>(token: Token, scratch: &'s mut Scratch, page: &Page) -> Option<&'s [u8]> {
    let len_bytes = match token {
        Token::Scalar(scalar) => encode_with(scalar, scratch, page),
        #[cfg(target_arch = "x86_64")]
        Token::Avx2(avx2) => compare_x86::encode_avx2(avx2, scratch, page),
    }?;
    scratch.output.get(..len_bytes)
}

/// Encodes a page and returns the block's length. Compiled once per instruction set with its instructions enabled.
#[inline(always)]
fn encode_with<C: Compare>(compare: C, scratch: &mut Scratch, page: &Page) -> Option<usize> {
    let Scratch { table, output } = scratch;
    let (bytes, block) = (Bytes(page), Block::new(output));
    if is_mostly_words(page) {
        // Short matches between words are mostly parts of longer ones. Ignoring them is faster and often gives a
        // smaller block. (Hashing 6 bytes: the same speed, 0.997 instead of 0.998 of C lz4's ratio on Redis.)
        search::encode::<C, 44, 12, 1>(compare, table, bytes, block)
    } else {
        // Hashing half a byte more than four finds one in sixteen of the four-byte matches: 0.997 of C lz4's ratio on
        // machine code. Five bytes give 0.993 at the same speed; four bytes give 1.008 at 0.8 of the speed.
        search::encode::<C, 36, 13, 2>(compare, table, bytes, block)
    }
}

/// Returns `true` if at least half of the sampled 64-bit words (one in four) have their upper 16 bits clear.
#[inline(always)]
fn is_mostly_words(page: &Page) -> bool {
    const GROUP: usize = 128;
    const SAMPLED_WORDS: usize = PAGE_SIZE / GROUP * 4;
    let small: usize = page
        .as_chunks::<GROUP>()
        .0
        .iter()
        .flat_map(|group| group[..32].as_chunks::<8>().0)
        .map(|word| usize::from(u64::from_le_bytes(*word) >> 48 == 0))
        .sum();
    small >= SAMPLED_WORDS / 2
}

/// Returns the smaller number with a select. `min` compiles to a branch, which is mispredicted on lengths.
#[inline(always)]
fn smaller(a: usize, b: usize) -> usize {
    select_unpredictable(a < b, a, b)
}

/// Returns the low 16 bits of a value that is known to have no others.
#[inline(always)]
fn low_u16(value: usize) -> u16 {
    debug_assert!(u16::try_from(value).is_ok());
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}
