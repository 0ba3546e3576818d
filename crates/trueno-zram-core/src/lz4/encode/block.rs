//! Writes sequences of an LZ4 block into a padded buffer.

use super::super::format::{FIELD_MAX, LENGTH_BYTE_MAX, MIN_MATCH};
use super::bytes::Bytes;
use super::compare::BLOCK;
use super::smaller;
use crate::page::PAGE_SIZE;

/// Bytes in an output buffer: a page, the overhead before a page is abandoned as not shrinking (one length byte per 255
/// literals), and room for wide copies to overrun.
pub(super) const OUTPUT_CAPACITY: usize = PAGE_SIZE + PAGE_SIZE / LENGTH_BYTE_MAX + 3 * BLOCK;

/// The last position from which a whole block of bytes can be read.
const LAST_BLOCK: usize = PAGE_SIZE - BLOCK;

/// A sequence: the literals from `literals_start` to `match_start`, then a match up to `match_end`.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    pub(super) literals_start: usize,
    pub(super) match_start: usize,
    pub(super) match_end: usize,
    pub(super) offset: u16,
}

/// The LZ4 block written so far.
///
/// A sequence takes at most `literals / 255` bytes more than it covers: token and offset are 3 bytes, a match is 4 or
/// more, and a length byte stands for more bytes than itself. So `len` never exceeds what `OUTPUT_CAPACITY` provides.
pub(super) struct Block<'a> {
    output: &'a mut [u8; OUTPUT_CAPACITY],
    len: usize,
}

impl<'a> Block<'a> {
    pub(super) fn new(output: &'a mut [u8; OUTPUT_CAPACITY]) -> Self {
        Self { output, len: 0 }
    }

    /// Appends a sequence.
    ///
    /// Every store is made whether it is needed or not, and `len` advances past those that are. A branch on a length
    /// would be mispredicted too often.
    #[inline(always)]
    pub(super) fn push(&mut self, bytes: Bytes<'_>, sequence: Sequence) {
        let Sequence { literals_start, match_start, match_end, offset } = sequence;
        let literals = match_start - literals_start;
        let beyond_min = match_end - match_start - MIN_MATCH;
        let usual = literals <= BLOCK && literals_start <= LAST_BLOCK && beyond_min < FIELD_MAX + LENGTH_BYTE_MAX;
        if !usual {
            // By value: arguments taken by reference in the cold path would live in memory on the usual path too.
            self.len = push_unusual(self.output, self.len, bytes, literals_start, match_start, match_end, offset);
            return;
        }
        // One bounds check for all the stores.
        let window = self.output.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut::<{ 2 * BLOCK }>);
        let window = window.expect("a block never outgrows OUTPUT_CAPACITY");
        window[0] = low_byte(smaller(literals, FIELD_MAX) << 4 | smaller(beyond_min, FIELD_MAX));
        window[1] = low_byte(literals.wrapping_sub(FIELD_MAX));
        let at = 1 + usize::from(literals >= FIELD_MAX);
        window[at..at + BLOCK].copy_from_slice(bytes.chunk::<BLOCK>(literals_start));
        let at = at + literals;
        window[at..at + 2].copy_from_slice(&offset.to_le_bytes());
        window[at + 2] = low_byte(beyond_min.wrapping_sub(FIELD_MAX));
        self.len += at + 2 + usize::from(beyond_min >= FIELD_MAX);
    }

    /// Ends the block with the literals from `start` to the end of the page. Returns `None` if it is not smaller than
    /// the page.
    pub(super) fn finish(mut self, bytes: Bytes<'_>, start: usize) -> Option<usize> {
        let literals = &bytes.0[start..];
        let length_bytes = (literals.len() + LENGTH_BYTE_MAX - FIELD_MAX) / LENGTH_BYTE_MAX;
        if self.len + 1 + length_bytes + literals.len() >= PAGE_SIZE {
            return None;
        }
        self.append(&[low_byte(literals.len().min(FIELD_MAX) << 4)]);
        self.append_length(literals.len());
        self.append(literals);
        Some(self.len)
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
        self.output[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Returns the low eight bits. A length byte is stored before it is known whether it is needed.
#[inline(always)]
fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

/// Appends a sequence with many literals, a long match, or literals too close to the end of the page for a wide copy.
/// Returns the block's new length.
#[cold]
#[inline(never)]
fn push_unusual(
    output: &mut [u8; OUTPUT_CAPACITY],
    len: usize,
    bytes: Bytes<'_>,
    literals_start: usize,
    match_start: usize,
    match_end: usize,
    offset: u16,
) -> usize {
    let mut block = Block { output, len };
    let literals = &bytes.0[literals_start..match_start];
    let beyond_min = match_end - match_start - MIN_MATCH;
    block.append(&[low_byte(literals.len().min(FIELD_MAX) << 4 | beyond_min.min(FIELD_MAX))]);
    block.append_length(literals.len());
    block.append(literals);
    block.append(&offset.to_le_bytes());
    block.append_length(beyond_min);
    block.len
}
