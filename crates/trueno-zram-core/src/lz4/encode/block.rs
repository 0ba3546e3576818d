//! Writes the sequences of an LZ4 block.

use super::super::format::{FIELD_MAX, LENGTH_BYTE_MAX, MIN_MATCH};
use super::compare::BLOCK;
use super::padded::Padded;
use super::smaller;
use crate::page::{PAGE_SIZE, Page};

/// Bytes that [`BlockWriter::push_short`] stores: a token and 16 literals. The offset after at most 14 literals is among them.
const SHORT_WINDOW: usize = 1 + 16;

/// Bytes that [`BlockWriter::push_usual`] stores: a token, a length byte, literals, an offset, a length byte.
const USUAL_WINDOW: usize = 1 + 1 + BLOCK + 2 + 1;

/// A sequence: the literals from `literals_start` to `match_start`, then a match up to `match_end`.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    pub(super) literals_start: usize,
    pub(super) match_start: usize,
    pub(super) match_end: usize,
    pub(super) offset: u16,
}

/// The LZ4 block written so far. A block that does not fit into the page ends as `None`.
///
/// If the lengths of a sequence are small, every store is made whether it is needed or not, and `len` advances past those
/// that are: a branch on a length would be mispredicted too often. Those methods return `false`, and change nothing that
/// matters, where the output has no room for all stores. [`push`](Self::push) needs no more room than the sequence.
pub(super) struct BlockWriter<'a> {
    output: &'a mut Page,
    /// More than a page, once the block does not fit.
    len: usize,
}

impl<'a> BlockWriter<'a> {
    pub(super) fn new(output: &'a mut Page) -> Self {
        Self { output, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Lends the block by value, for a function that returns its new length. Behind a reference, the length would stay in
    /// memory.
    #[inline(always)]
    pub(super) fn lend(&mut self) -> BlockWriter<'_> {
        BlockWriter { output: self.output, len: self.len }
    }

    /// Sets the length that the block has been given while it was lent.
    #[inline(always)]
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len;
    }

    /// Appends a match without literals, with a length that fits into the token.
    #[inline(always)]
    pub(super) fn push_adjacent(&mut self, beyond_min: usize, offset: u16) -> bool {
        let Some(window) = self.window::<3>() else { return false };
        let [low, high] = offset.to_le_bytes();
        *window = [low_byte(beyond_min), low, high];
        self.len += 3;
        true
    }

    /// Appends the first `count` literals and a match, with lengths that fit into the token.
    #[inline(always)]
    pub(super) fn push_short(&mut self, literals: &[u8; 16], count: usize, beyond_min: usize, offset: u16) -> bool {
        let Some(window) = self.window::<SHORT_WINDOW>() else { return false };
        window[0] = low_byte(count << 4 | beyond_min);
        window[1..].copy_from_slice(literals);
        let at = 1 + count;
        window[at..at + 2].copy_from_slice(&offset.to_le_bytes());
        self.len += at + 2;
        true
    }

    /// Appends the first `count` literals and a match, with a length that needs one length byte at most.
    #[inline(always)]
    pub(super) fn push_usual(&mut self, literals: &[u8; BLOCK], count: usize, beyond_min: usize, offset: u16) -> bool {
        let Some(window) = self.window::<USUAL_WINDOW>() else { return false };
        window[0] = low_byte(smaller(count, FIELD_MAX) << 4 | smaller(beyond_min, FIELD_MAX));
        window[1] = low_byte(count.wrapping_sub(FIELD_MAX));
        let at = 1 + usize::from(count >= FIELD_MAX);
        window[at..at + BLOCK].copy_from_slice(literals);
        let at = at + count;
        window[at..at + 2].copy_from_slice(&offset.to_le_bytes());
        window[at + 2] = low_byte(beyond_min.wrapping_sub(FIELD_MAX));
        self.len += at + 2 + usize::from(beyond_min >= FIELD_MAX);
        true
    }

    /// Appends any sequence.
    pub(super) fn push(&mut self, page: &Padded, sequence: Sequence) {
        let Sequence { literals_start, match_start, match_end, offset } = sequence;
        let count = match_start - literals_start;
        let beyond_min = match_end - match_start - MIN_MATCH;
        let usual = count <= BLOCK && beyond_min < FIELD_MAX + LENGTH_BYTE_MAX;
        if usual && self.push_usual(page.chunk(literals_start), count, beyond_min, offset) {
            return;
        }
        self.append(&[low_byte(count.min(FIELD_MAX) << 4 | beyond_min.min(FIELD_MAX))]);
        self.append_length(count);
        self.append(page.range(literals_start, match_start));
        self.append(&offset.to_le_bytes());
        self.append_length(beyond_min);
    }

    /// Ends the block with the literals from `start` to the end of the page. Returns `None` if it is not smaller than
    /// the page.
    pub(super) fn finish(mut self, page: &Padded, start: usize) -> Option<usize> {
        let literals = page.range(start, PAGE_SIZE);
        self.append(&[low_byte(literals.len().min(FIELD_MAX) << 4)]);
        self.append_length(literals.len());
        self.append(literals);
        (self.len < PAGE_SIZE).then_some(self.len)
    }

    /// Returns the next `N` bytes of the output.
    #[inline(always)]
    fn window<const N: usize>(&mut self) -> Option<&mut [u8; N]> {
        // Not `get_mut`: it would compare the length twice.
        if self.len > PAGE_SIZE - N {
            return None;
        }
        self.output[self.len..].first_chunk_mut()
    }

    /// Appends the length bytes of a token field, if any.
    fn append_length(&mut self, length: usize) {
        let Some(mut rest) = length.checked_sub(FIELD_MAX) else { return };
        while rest >= LENGTH_BYTE_MAX {
            self.append(&[u8::MAX]);
            rest -= LENGTH_BYTE_MAX;
        }
        self.append(&[low_byte(rest)]);
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Some(room) = self.output.get_mut(self.len..).and_then(|rest| rest.get_mut(..bytes.len())) {
            room.copy_from_slice(bytes);
        }
        self.len += bytes.len();
    }
}

/// Returns the low eight bits. A length byte is stored before it is known whether it is needed.
#[inline(always)]
fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}
