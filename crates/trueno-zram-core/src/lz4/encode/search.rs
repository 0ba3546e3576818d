//! Finds the matches of a page: a greedy search over one hash table that knows the previous offset.
//!
//! Mispredicted branches take about 40 % of the time, and the dependent loads of a probe (hash, table, candidate) most of
//! the rest. So most of what follows a hit is arithmetic or a select. A match that follows another at once has a path of
//! its own, without literals to copy and without a search backwards. Eight probes share one check of bounds. What is rare is
//! out of line and leaves the registers to the rest.
//!
//! Tried and slower (C lz4 = 1): four positions at a time without a branch 0.85, two interleaved pages 0.95, finding
//! all matches first and writing them later 0.7. Against this search: choosing by the next position too 0.92, and a
//! closure around vector compares, which keeps them from being inlined, 0.8.

use std::hint::select_unpredictable;

use super::super::format::{FIELD_MAX, MATCH_END_LIMIT, MATCH_START_LIMIT, MIN_MATCH};
use super::block::{BlockWriter, Sequence};
use super::compare::{BLOCK, Compare};
use super::padded::Padded;
use super::strategy::{Repeat, Strategy};
use super::table::MatchTable;
use super::{Scratch, low_u16};
use crate::page::{PAGE_SIZE, Page};

/// Probes that share one check of bounds.
const PROBES: usize = 8;

/// The last position that is probed. Groups of probes start inside the page and may end behind it.
pub(super) const LAST_PROBE: usize = PAGE_SIZE - 1 + PROBES - 1;

/// Positions probed one by one after a match, before the step size grows.
pub(super) const PLAIN_PROBES: usize = 128;

/// Logarithm of the number of probes per step size after that, and before a page's first match.
pub(super) const PROBES_PER_STEP: u32 = 5;
pub(super) const FIRST_PROBES_PER_STEP: u32 = 4;

/// Matches that end behind this are cut to the limits of the format.
pub(super) const NEAR_END: usize = MATCH_START_LIMIT - MIN_MATCH;

/// Bytes that are compared in line. Longer matches are measured out of line.
pub(super) const COMPARED: usize = 2 * BLOCK;

/// The search over one page.
pub(super) struct Search<'a, C> {
    compare: C,
    page: &'a Padded,
    table: &'a mut MatchTable,
    block: BlockWriter<'a>,
}

/// A position and an earlier one with the same four bytes.
#[derive(Clone, Copy)]
pub(super) struct Match {
    position: usize,
    candidate: usize,
}

impl Match {
    fn offset(self) -> usize {
        self.position - self.candidate
    }
}

/// The start of the next sequence, and the offset of the previous one.
#[derive(Clone, Copy)]
struct SequenceStart {
    literals_start: usize,
    offset: usize,
}

/// The result of [`append`].
pub(super) struct Appended {
    block_len: usize,
    match_end: usize,
}

impl<'a, C: Compare> Search<'a, C> {
    #[inline(always)]
    pub(super) fn new(compare: C, scratch: &'a mut Scratch, out: &'a mut Page) -> Self {
        let Scratch { table, page } = scratch;
        Self { compare, page, table, block: BlockWriter::new(out) }
    }

    /// Encodes the loaded page. Returns the block's length, or `None` if it would not be shorter than the page.
    #[inline(always)]
    pub(super) fn encode<S: Strategy>(mut self) -> Option<usize> {
        self.table.clear();
        let mut place = SequenceStart { literals_start: 0, offset: 1 };
        let mut from = 1;
        while let Some(found) = self.find::<S>(from, place.literals_start) {
            let Some(next) = self.take(place.literals_start, found) else { break };
            place = next;
            from = loop {
                if place.literals_start > NEAR_END {
                    break place.literals_start;
                }
                self.insert::<S>(place.literals_start - 2);
                if let Some(next) = self.take_adjacent::<S>(place.literals_start) {
                    place = next;
                } else if let Some(next) = self.take_repeat::<S>(place) {
                    place = next;
                } else {
                    break place.literals_start + 1;
                }
            };
        }
        self.block.finish(self.page, place.literals_start)
    }

    /// Finds the next match from `from` on. It may lie behind the last position at which a match may start.
    #[inline(always)]
    fn find<S: Strategy>(&mut self, from: usize, literals_start: usize) -> Option<Match> {
        let mut first = from;
        while first < PAGE_SIZE {
            let words = self.page.chunk::<{ PROBES + 7 }>(first);
            for ahead in 0..PROBES {
                let (position, word) = (first + ahead, self.compare.opaque(word(words, ahead)));
                let candidate = self.table.insert(position, word, S::HASHED_BITS);
                if self.page.u32_at(candidate) == low_u32(word) {
                    return Some(Match { position, candidate });
                }
            }
            first += PROBES;
            if first - literals_start >= PLAIN_PROBES {
                return self.find_sparsely::<S>(first, literals_start);
            }
        }
        None
    }

    /// Like `find`, with steps that grow.
    #[inline(always)]
    fn find_sparsely<S: Strategy>(&mut self, from: usize, literals_start: usize) -> Option<Match> {
        let probes_per_step = if literals_start == 0 { FIRST_PROBES_PER_STEP } else { PROBES_PER_STEP };
        let (mut position, mut probes) = (from, 2 << probes_per_step);
        while position <= MATCH_START_LIMIT {
            if let Some(found) = self.probe::<S>(position) {
                return Some(found);
            }
            position += probes >> probes_per_step;
            probes += 1;
        }
        None
    }

    /// Takes a match, and what is equal before it. Returns `None` if the match starts too near to the end.
    #[inline(always)]
    fn take(&mut self, literals_start: usize, found: Match) -> Option<SequenceStart> {
        let Match { position, candidate } = found;
        let short = self.measure_short(found);
        let measured = if short.is_some() { short } else { self.measure(found) };
        // Long literal runs skip probes, and positions inside matches are not in the table.
        let back = self.page.equal_before(position, candidate, position - literals_start);
        if let Some(beyond_min) = measured {
            let match_end = position + MIN_MATCH + beyond_min;
            let (literals, beyond_min) = (position - back - literals_start, beyond_min + back);
            let offset = low_u16(found.offset());
            let pushed = match_end <= NEAR_END
                && if literals < FIELD_MAX && beyond_min < FIELD_MAX {
                    self.block.push_short(self.page.chunk(literals_start), literals, beyond_min, offset)
                } else {
                    literals <= BLOCK
                        && self.block.push_usual(self.page.chunk(literals_start), literals, beyond_min, offset)
                };
            if pushed {
                return Some(SequenceStart { literals_start: match_end, offset: found.offset() });
            }
        }
        if position > MATCH_START_LIMIT {
            return None;
        }
        Some(self.take_any(literals_start, Match { position: position - back, candidate: candidate - back }))
    }

    /// Takes a match that starts where the previous one ended.
    #[inline(always)]
    fn take_adjacent<S: Strategy>(&mut self, position: usize) -> Option<SequenceStart> {
        let found = self.probe::<S>(position)?;
        let offset = found.offset();
        if let Some(beyond_min) = self.measure_short(found) {
            let match_end = position + MIN_MATCH + beyond_min;
            if match_end <= NEAR_END && self.block.push_adjacent(beyond_min, low_u16(offset)) {
                return Some(SequenceStart { literals_start: match_end, offset });
            }
        } else if let Some(beyond_min) = self.measure(found) {
            let match_end = position + MIN_MATCH + beyond_min;
            if match_end <= NEAR_END && self.block.push_usual(self.page.chunk(position), 0, beyond_min, low_u16(offset))
            {
                return Some(SequenceStart { literals_start: match_end, offset });
            }
        }
        Some(self.take_any(position, found))
    }

    /// Takes a match at the previous offset, at least seven bytes long, after one or two literals.
    #[inline(always)]
    fn take_repeat<S: Strategy>(&mut self, place: SequenceStart) -> Option<SequenceStart> {
        let SequenceStart { literals_start, offset } = place;
        if S::REPEAT == Repeat::Ignore {
            return None;
        }
        let ahead = self.page.chunk::<{ 2 + 8 }>(literals_start);
        let behind = self.page.chunk::<{ 2 + 8 }>(literals_start - offset);
        // The seven bytes after two literals, in one word.
        if self.compare.opaque(word(ahead, 2) ^ word(behind, 2)) << 8 != 0 {
            return None;
        }
        let literals = 2 - usize::from(ahead[1] == behind[1]);
        let position = literals_start + literals;
        let mut candidate = position - offset;
        let mut length = self.equal_bytes(position, candidate);
        let other = self.insert::<S>(position).1;
        if S::REPEAT == Repeat::Compare {
            let other_length = self.equal_bytes(position, other);
            let longer = other_length > length;
            length = select_unpredictable(longer, other_length, length);
            candidate = select_unpredictable(longer, other, candidate);
        }
        let found = Match { position, candidate };
        let (match_end, beyond_min, offset) = (position + length, length - MIN_MATCH, low_u16(found.offset()));
        if match_end <= NEAR_END
            && length < COMPARED
            && self.block.push_usual(self.page.chunk(literals_start), literals, beyond_min, offset)
        {
            return Some(SequenceStart { literals_start: match_end, offset: found.offset() });
        }
        Some(self.take_any(literals_start, found))
    }

    /// Takes a match of any length after any number of literals.
    #[inline(always)]
    fn take_any(&mut self, literals_start: usize, found: Match) -> SequenceStart {
        let appended = self.compare.append(self.block.lend(), self.page, literals_start, found);
        self.block.set_len(appended.block_len);
        SequenceStart { literals_start: appended.match_end, offset: found.offset() }
    }

    /// Returns how many bytes beyond four a match covers, if the token has room for them.
    ///
    /// Two words and a select have half the latency of a vector compare, and are enough for six of seven matches.
    #[inline(always)]
    fn measure_short(&self, found: Match) -> Option<usize> {
        const SECOND: usize = FIELD_MAX - 8;
        let ahead = self.page.chunk::<FIELD_MAX>(found.position + MIN_MATCH);
        let behind = self.page.chunk::<FIELD_MAX>(found.candidate + MIN_MATCH);
        let first = self.compare.opaque(word(ahead, 0) ^ word(behind, 0));
        let second = word(ahead, SECOND) ^ word(behind, SECOND);
        if first | second == 0 {
            return None;
        }
        let second = second.trailing_zeros() as usize + 8 * SECOND;
        Some(select_unpredictable(first == 0, second, first.trailing_zeros() as usize) / 8)
    }

    /// Returns how many bytes beyond four a match covers, if they are fewer than [`COMPARED`].
    #[inline(always)]
    fn measure(&self, found: Match) -> Option<usize> {
        let beyond_min = self.equal_bytes(found.position + MIN_MATCH, found.candidate + MIN_MATCH);
        (beyond_min < COMPARED).then_some(beyond_min)
    }

    /// Returns how many bytes from `position` on equal those from `candidate` on, up to [`COMPARED`].
    #[inline(always)]
    fn equal_bytes(&self, position: usize, candidate: usize) -> usize {
        let low = self.compare.equal_mask(self.page.chunk(position), self.page.chunk(candidate));
        let high = self.compare.equal_mask(self.page.chunk(position + BLOCK), self.page.chunk(candidate + BLOCK));
        (u64::from(high) << u32::BITS | u64::from(low)).trailing_ones() as usize
    }

    /// Enters a position into the table. Returns the match with the previous one of the same hash, if it is one.
    #[inline(always)]
    fn probe<S: Strategy>(&mut self, position: usize) -> Option<Match> {
        let (word, candidate) = self.insert::<S>(position);
        (self.page.u32_at(candidate) == low_u32(word)).then_some(Match { position, candidate })
    }

    /// Enters a position into the table. Returns its word and the previous position of the same hash.
    #[inline(always)]
    fn insert<S: Strategy>(&mut self, at: usize) -> (u64, usize) {
        let word = self.page.u64_at(at);
        (word, self.table.insert(at, word, S::HASHED_BITS))
    }
}

/// Appends the literals from `literals_start` on and a match, of any lengths.
#[inline(always)]
pub(super) fn append(
    compare: impl Compare,
    mut block: BlockWriter<'_>,
    page: &Padded,
    literals_start: usize,
    found: Match,
) -> Appended {
    let Match { position, candidate } = found;
    let mut match_end = position + MIN_MATCH;
    for (ahead, behind) in page.blocks_from(match_end).iter().zip(page.blocks_from(candidate + MIN_MATCH)) {
        let equal = compare.equal_mask(ahead, behind);
        if equal != u32::MAX {
            match_end += equal.trailing_ones() as usize;
            break;
        }
        match_end += BLOCK;
    }
    let match_end = match_end.min(MATCH_END_LIMIT);
    block.push(page, Sequence { literals_start, match_start: position, match_end, offset: low_u16(found.offset()) });
    Appended { block_len: block.len(), match_end }
}

/// Returns the word at `at`.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the word is inside the bytes"))
}

/// Returns the low 32 bits.
#[inline(always)]
fn low_u32(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
