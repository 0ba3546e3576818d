//! Encodes one page as an LZ4 block.
//!
//! The encoder knows that its input is exactly one page, so it needs no window, no wide offsets and no check of the input's length,
//! and it chooses one of two searches by a look at the page. Every back end writes the same bytes, and nothing a
//! [`Scratch`] held before changes them.

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

/// Working memory of the encoder: the hash table, and the block with room for wide stores to overrun.
pub(super) struct Scratch {
    table: Table,
    output: [u8; OUTPUT_CAPACITY],
}

impl Scratch {
    pub(super) fn boxed() -> Box<Self> {
        Box::new(Self { table: Table::new(), output: [0; OUTPUT_CAPACITY] })
    }
}

/// The page's block, or `None` if it would not be shorter than the page.
pub(super) fn encode_page<'s>(token: Token, scratch: &'s mut Scratch, page: &Page) -> Option<&'s [u8]> {
    let len_bytes = match token {
        Token::Scalar(scalar) => encode_with(scalar, scratch, page),
        #[cfg(target_arch = "x86_64")]
        Token::Avx2(avx2) => compare_x86::encode_avx2(avx2, scratch, page),
    }?;
    scratch.output.get(..len_bytes)
}

/// The encoder, to be compiled once for each back end with its instructions enabled; the block's length.
#[inline(always)]
fn encode_with<C: Compare>(compare: C, scratch: &mut Scratch, page: &Page) -> Option<usize> {
    let Scratch { table, output } = scratch;
    let (bytes, block) = (Bytes(page), Block::new(output));
    if is_mostly_words(page) {
        // Short matches between words are mostly part of longer ones: without them it is faster and often smaller.
        // (6 bytes hashed: the same speed, 0.997 instead of 0.998 of C lz4's ratio on Redis.)
        search::encode::<C, 44, 12, 1>(compare, table, bytes, block)
    } else {
        // A half-byte over four finds one in sixteen of the four-byte matches: 0.997 of C lz4's ratio on machine code, where
        // five bytes give 0.993 at the same speed, and four 1.008 at 0.8 of it.
        search::encode::<C, 36, 13, 2>(compare, table, bytes, block)
    }
}

/// Whether at least half of the 64-bit words looked at (one in four) have their upper 16 bits clear.
#[inline(always)]
fn is_mostly_words(page: &Page) -> bool {
    const GROUP: usize = 128;
    const LOOKED_AT: usize = PAGE_SIZE / GROUP * 4;
    let small: usize = page
        .as_chunks::<GROUP>()
        .0
        .iter()
        .flat_map(|group| group[..32].as_chunks::<8>().0)
        .map(|word| usize::from(u64::from_le_bytes(*word) >> 48 == 0))
        .sum();
    small >= LOOKED_AT / 2
}

/// The smaller of two numbers by a select: `min` becomes a branch, and on lengths that is a misprediction.
#[inline(always)]
fn smaller(a: usize, b: usize) -> usize {
    select_unpredictable(a < b, a, b)
}

/// The low 16 bits, where the value is known to have no others.
#[inline(always)]
fn low_u16(value: usize) -> u16 {
    debug_assert!(u16::try_from(value).is_ok());
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}
