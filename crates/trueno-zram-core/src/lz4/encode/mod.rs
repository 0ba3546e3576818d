//! Encodes one page as an LZ4 block.
//!
//! The input is always exactly one page. So the encoder needs no window, no wide offsets and no check of the input
//! length. A sample of the page chooses one of three [strategies](strategy). Every instruction set gives the same bytes,
//! and the previous contents of a [`Scratch`] do not affect them.

mod block;
mod compare;
mod compare_x86;
mod padded;
#[cfg(test)]
mod reference;
mod search;
mod sketch;
mod strategy;
mod table;
#[cfg(test)]
mod tests;

use std::hint::select_unpredictable;

use crate::cpu::Token;
use crate::page::Page;
use padded::Padded;
use strategy::{Chosen, Heap, Records, Strategy, Text};
use table::MatchTable;

/// The encoder's working memory: the hash table, and the page with room for wide loads to overrun.
pub(super) struct Scratch {
    table: MatchTable,
    page: Padded,
}

impl Scratch {
    pub(super) fn boxed() -> Box<Self> {
        Box::new(Self { table: MatchTable::new(), page: Padded::new() })
    }
}

/// Encodes a page. Returns the block's length, or `None` if it would not be shorter than the page. The contents of `out`
/// past the block are unspecified.
pub(super) fn encode_page(token: Token, scratch: &mut Scratch, page: &Page, out: &mut Page) -> Option<usize> {
    let sketch = match token {
        Token::Scalar(scalar) => compare::load(scalar, &mut scratch.page, page),
        #[cfg(target_arch = "x86_64")]
        Token::Avx2(avx2) => compare_x86::load(avx2, &mut scratch.page, page),
    };
    match strategy::choose(sketch) {
        Chosen::Heap => encode_loaded::<Heap>(token, scratch, out),
        Chosen::Records => encode_loaded::<Records>(token, scratch, out),
        Chosen::Text => encode_loaded::<Text>(token, scratch, out),
    }
}

fn encode_loaded<S: Strategy>(token: Token, scratch: &mut Scratch, out: &mut Page) -> Option<usize> {
    match token {
        Token::Scalar(scalar) => compare::encode::<S>(scalar, scratch, out),
        #[cfg(target_arch = "x86_64")]
        Token::Avx2(avx2) => compare_x86::encode::<S>(avx2, scratch, out),
    }
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
