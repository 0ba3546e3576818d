//! Finds the matches of a page: a greedy search over one hash table that tries the previous offset first.
//!
//! Mispredicted branches dominate the time, about one per sequence. So everything that depends on data is arithmetic or
//! a select, and the loop that searches for the next match is as short as possible: a misprediction in it is known only
//! after two dependent loads. Tried and slower (C lz4 = 1): four positions at a time without a branch 0.85, two
//! interleaved pages 0.95, finding all matches first and writing them later 0.7.

use std::hint::select_unpredictable;

use super::super::format::{MATCH_END_LIMIT, MATCH_START_LIMIT, MIN_MATCH};
use super::block::{Block, Sequence};
use super::bytes::Bytes;
use super::compare::{BLOCK, Compare};
use super::table::Table;
use super::{low_u16, smaller};

/// Positions probed one by one after a match, before the step size grows.
const PLAIN_PROBES: usize = 128;

/// Logarithm of the number of probes per step size after that.
const PROBES_PER_STEP: u32 = 5;

/// Literals allowed before a repeat of the previous offset, as a mask of start positions.
const REPEAT_STARTS: u32 = 0b1111;

/// The last position from which a whole block may belong to a match.
const LAST_BLOCK_START: usize = MATCH_END_LIMIT - BLOCK;

/// Encodes the page. Returns `None` if the block would not be smaller.
///
/// `HASHED_BITS` is how many of the next bits are hashed. With more bits, fewer of the shortest matches are found; each
/// of those saves a byte and costs a misprediction. `TABLE_BITS` is the logarithm of the number of table entries.
/// `TAIL` is how many of the positions just before the last byte of a match enter the table.
#[inline(always)]
pub(super) fn encode<C: Compare, const HASHED_BITS: u32, const TABLE_BITS: u32, const TAIL: usize>(
    compare: C,
    table: &mut Table,
    bytes: Bytes<'_>,
    mut block: Block<'_>,
) -> Option<usize> {
    table.clear::<TABLE_BITS>();
    let mut insert = |at| table.insert::<HASHED_BITS, TABLE_BITS>(bytes, at);

    let mut literals_start = 0;
    let mut position = 1;
    // The end of a match whose last positions are not in the table yet. They are inserted when the next match is found:
    // inserting them at once makes the next lookups wait for the stores (2 % per position).
    let mut pending_end = MIN_MATCH;

    while let Some((mut match_start, candidate)) = find(bytes, &mut insert, position, literals_start) {
        for back in 0..TAIL {
            insert(pending_end - 2 - back);
        }
        let match_end = match_end(compare, bytes, match_start, candidate);
        let offset = match_start - candidate;
        if candidate >= 8 {
            // Extend the match backwards: long literal runs skip probes, and positions inside matches are not in the
            // table.
            let before = bytes.u64_at(match_start - 8) ^ bytes.u64_at(candidate - 8);
            match_start -= smaller(before.leading_zeros() as usize / 8, match_start - literals_start);
        }
        let offset_field = low_u16(offset);
        block.push(bytes, Sequence { literals_start, match_start, match_end, offset: offset_field });
        literals_start = match_end;
        if literals_start > MATCH_START_LIMIT {
            break;
        }
        insert(literals_start - 1);

        while let Some((match_start, match_end)) = repeat(compare, bytes, literals_start, offset) {
            block.push(bytes, Sequence { literals_start, match_start, match_end, offset: offset_field });
            insert(literals_start);
            insert(match_start);
            literals_start = match_end;
            if literals_start > MATCH_START_LIMIT {
                return block.finish(bytes, literals_start);
            }
            insert(literals_start - 2);
        }
        pending_end = literals_start;
        position = literals_start;
    }
    block.finish(bytes, literals_start)
}

/// Finds the next position that matches an earlier one in at least four bytes. Returns both positions.
#[inline(always)]
fn find(
    bytes: Bytes<'_>,
    insert: &mut impl FnMut(usize) -> usize,
    mut position: usize,
    literals_start: usize,
) -> Option<(usize, usize)> {
    let plain_end = (literals_start + PLAIN_PROBES).min(MATCH_START_LIMIT);
    while position <= plain_end {
        let candidate = insert(position);
        if bytes.u32_at(candidate) == bytes.u32_at(position) {
            return Some((position, candidate));
        }
        position += 1;
    }
    let mut probes = 2 << PROBES_PER_STEP;
    while position <= MATCH_START_LIMIT {
        let candidate = insert(position);
        if bytes.u32_at(candidate) == bytes.u32_at(position) {
            return Some((position, candidate));
        }
        position += probes >> PROBES_PER_STEP;
        probes += 1;
    }
    None
}

/// Returns the end of the match of `position` with `candidate`, which covers at least four bytes.
#[inline(always)]
fn match_end<C: Compare>(compare: C, bytes: Bytes<'_>, position: usize, candidate: usize) -> usize {
    let (position, candidate) = (position + MIN_MATCH, candidate + MIN_MATCH);
    if position > LAST_BLOCK_START {
        return end_near_limit(bytes, position, candidate);
    }
    // Two words and a select: half the latency of a vector compare, and enough for seven of eight matches.
    let first = bytes.u64_at(position) ^ bytes.u64_at(candidate);
    let second = bytes.u64_at(position + 8) ^ bytes.u64_at(candidate + 8);
    if first | second == 0 {
        return end_from(compare, bytes, position + 16, candidate + 16);
    }
    let bits = select_unpredictable(first == 0, second.trailing_zeros() + u64::BITS, first.trailing_zeros());
    position + bits as usize / 8
}

/// Finds a match at the previous offset, at least eight bytes long, that starts within the next four bytes.
#[inline(always)]
fn repeat<C: Compare>(compare: C, bytes: Bytes<'_>, position: usize, offset: usize) -> Option<(usize, usize)> {
    if position > LAST_BLOCK_START {
        return None;
    }
    let equal = compare.equal_mask(bytes.chunk(position), bytes.chunk(position - offset));
    let two = equal & equal >> 1;
    let four = two & two >> 2;
    let starts = four & four >> 4 & REPEAT_STARTS;
    if starts == 0 {
        return None;
    }
    let start = starts.trailing_zeros();
    let differing = !equal & u32::MAX << start;
    let end = if differing == 0 {
        end_from(compare, bytes, position + BLOCK, position + BLOCK - offset)
    } else {
        position + differing.trailing_zeros() as usize
    };
    Some((position + start as usize, end))
}

/// Returns the position at which the bytes from `position` on differ from those from `candidate` on, or must be
/// literals.
#[inline(always)]
fn end_from<C: Compare>(compare: C, bytes: Bytes<'_>, mut position: usize, mut candidate: usize) -> usize {
    while position <= LAST_BLOCK_START {
        let equal = compare.equal_mask(bytes.chunk(position), bytes.chunk(candidate));
        if equal != u32::MAX {
            return position + equal.trailing_ones() as usize;
        }
        position += BLOCK;
        candidate += BLOCK;
    }
    end_near_limit(bytes, position, candidate)
}

/// Like `end_from` for the last bytes of a page, one byte at a time.
#[cold]
#[inline(never)]
fn end_near_limit(bytes: Bytes<'_>, position: usize, candidate: usize) -> usize {
    let ahead = bytes.0.get(position..MATCH_END_LIMIT).unwrap_or_default();
    let behind = &bytes.0[candidate..];
    position + ahead.iter().zip(behind).take_while(|(a, b)| a == b).count()
}
