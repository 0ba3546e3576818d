//! Parses a page into sequences, a window of 32 positions at a time.
//!
//! Every position has at most four candidates: one from the table, and the three repeated offsets. The best of them by
//! score stands for the position. From the left, a position whose candidate is good enough, and not clearly worse than
//! the next position's, becomes a sequence. After a sequence with another offset than the last, the repeated offsets
//! are compared anew for the rest of the window.

use super::Mode;
use super::bits::floor_log2;
use super::choices::{
    HASH_BITS, HASH_MULTIPLIER, KIND_MASK, KIND_TABLE, LAST_START, LAZY_MARGIN, MAX_BACKWARD, MIN_SCORE, OFFSET_BIT,
    POSITION_BITS, REPEAT_BONUS, REPEAT_BYTE, SCORE_SHIFT, SECOND_MULTIPLIER, TABLE_BASE, TABLE_BYTE, TABLE_CAP,
    WINDOW, hash_bits,
};
use super::format::{FIRST_OFFSETS, MIN_MATCH, REPEATED_OFFSETS};
use trueno_page::{PAGE_SIZE, Page};

const WINDOW_LEN: usize = WINDOW as usize;

/// Literals, then a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) literals: usize,
    pub(super) length: usize,
    /// The format's offset value: 1 to 3 for a repeated offset, otherwise the offset plus 3.
    pub(super) offset_value: usize,
}

/// The score of a match, with its offset in the low bits; 0 means no candidate.
type Candidate = usize;

fn candidate(score: usize, offset: usize) -> Candidate {
    score << SCORE_SHIFT | (offset + REPEATED_OFFSETS as usize)
}

pub(super) fn parse(page: &Page, mode: Mode) -> Vec<Sequence> {
    let mut parser = Parser {
        page,
        mode,
        table: [0; 1 << HASH_BITS],
        offsets: FIRST_OFFSETS.map(|offset| offset as usize),
        anchor: 0,
        sequences: Vec::new(),
    };
    let mut start = 0;
    while start <= LAST_START as usize {
        let by_table = parser.look_up_window(start);
        parser.choose(start, &by_table);
        start = parser.anchor.max(start + WINDOW_LEN);
    }
    parser.sequences
}

struct Parser<'a> {
    page: &'a Page,
    mode: Mode,
    /// Entries of a position and, above it, some bits of the hash. In the ratio mode, the second half is for eight
    /// bytes.
    table: [u16; 1 << HASH_BITS],
    /// The repeated offsets, the last used first.
    offsets: [usize; 3],
    /// The end of the last match.
    anchor: usize,
    sequences: Vec<Sequence>,
}

impl Parser<'_> {
    /// Returns the four bytes at a position, if they lie in the page.
    fn word(&self, at: usize) -> Option<u32> {
        self.page.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// Returns how many bytes at `at` equal those `offset` before; at most `cap`.
    fn match_len(&self, at: usize, offset: usize, cap: usize) -> usize {
        (at..PAGE_SIZE).take(cap).take_while(|&i| self.page[i] == self.page[i - offset]).count()
    }

    /// Returns the candidates from the table for each position of the window. All positions of the window's first half
    /// enter the table before those of the second half look into it.
    fn look_up_window(&mut self, start: usize) -> [Candidate; WINDOW_LEN] {
        let mut found = [0; WINDOW_LEN];
        let by_eight: [Candidate; WINDOW_LEN] = match self.mode {
            Mode::Fast => [0; WINDOW_LEN],
            Mode::Ratio => self.look_up_eight_bytes(start),
        };
        for half in [0..WINDOW_LEN / 2, WINDOW_LEN / 2..WINDOW_LEN] {
            for t in half.clone() {
                found[t] = self.look_up(start + t);
            }
            for at in half.map(|t| start + t) {
                if let Some(word) = self.word(at) {
                    let (slot, tag) = self.slot_and_tag(word);
                    self.table[slot] = entry(tag, at);
                }
            }
        }
        std::array::from_fn(|t| found[t].max(by_eight[t]))
    }

    /// Returns the candidates by eight bytes for each position of the window; then all of them enter the table.
    fn look_up_eight_bytes(&mut self, start: usize) -> [Candidate; WINDOW_LEN] {
        let table_bits = hash_bits(self.mode);
        let hash = |parser: &Self, at: usize| {
            let (first, second) = (parser.word(at)?, parser.word(at + 4)?);
            let product = first.wrapping_mul(HASH_MULTIPLIER).wrapping_add(second.wrapping_mul(SECOND_MULTIPLIER));
            let (slot, tag) = split_hash(product, table_bits);
            Some((slot + (1 << table_bits), tag))
        };
        let found = std::array::from_fn(|t| {
            let at = start + t;
            let Some((slot, tag)) = hash(self, at) else { return 0 };
            let (source, source_tag) = split_entry(self.table[slot]);
            let fits = at + TABLE_CAP as usize <= PAGE_SIZE;
            if source_tag != tag || source >= at || !fits || self.page[source..source + 8] != self.page[at..at + 8] {
                return 0;
            }
            self.table_candidate(at, at - source)
        });
        for at in start..start + WINDOW_LEN {
            if let Some((slot, tag)) = hash(self, at) {
                self.table[slot] = entry(tag, at);
            }
        }
        found
    }

    /// Returns the candidate of a match that the table has found. Close to the page's end only four bytes count.
    fn table_candidate(&self, at: usize, offset: usize) -> Candidate {
        let cap = TABLE_CAP as usize;
        let length = if at + cap <= PAGE_SIZE { self.match_len(at, offset, cap) } else { 4 };
        let score = TABLE_BYTE as usize * length + TABLE_BASE as usize - OFFSET_BIT as usize * floor_log2(offset);
        candidate(score, offset)
    }

    /// Returns the table slot of a word, and the bits of its hash that go into the entry.
    fn slot_and_tag(&self, word: u32) -> (usize, usize) {
        split_hash(word.wrapping_mul(HASH_MULTIPLIER), hash_bits(self.mode))
    }

    /// Returns the candidate of one position: the position before if four bytes are equal, else the table's.
    fn look_up(&self, at: usize) -> Candidate {
        let Some(word) = self.word(at).filter(|_| at > 0) else { return 0 };
        let (slot, tag) = self.slot_and_tag(word);
        let (found, found_tag) = split_entry(self.table[slot]);
        let source = if word == word.rotate_right(8) {
            at - 1
        } else if found_tag == tag {
            found
        } else {
            return 0;
        };
        if self.word(source) != Some(word) {
            return 0;
        }
        self.table_candidate(at, at - source)
    }

    /// Returns, for each position of the window, the candidate of the repeated offset at `rank`.
    fn repeated(&self, start: usize, rank: usize, offset: usize) -> [Candidate; WINDOW_LEN] {
        std::array::from_fn(|t| {
            let at = start + t;
            let length = if at >= offset { self.match_len(at, offset, WINDOW_LEN) } else { 0 };
            candidate(REPEAT_BYTE as usize * length + REPEAT_BONUS[rank] as usize, offset)
        })
    }

    /// Makes sequences from the candidates of a window.
    fn choose(&mut self, start: usize, by_table: &[Candidate; WINDOW_LEN]) {
        // The first window has no use for offsets that no match had.
        let mut searched = [start > 0; 3];
        loop {
            let repeated: [_; 3] = std::array::from_fn(|rank| match searched[rank] {
                true => self.repeated(start, rank, self.offsets[rank]),
                false => [0; WINDOW_LEN],
            });
            let best: [Candidate; WINDOW_LEN] =
                std::array::from_fn(|t| repeated.iter().map(|by| by[t]).fold(by_table[t], usize::max));
            let good = |t: usize| {
                let next = best.get(t + 1).copied().unwrap_or(0);
                best[t] >= (MIN_SCORE as usize) << SCORE_SHIFT
                    && next <= best[t] + ((LAZY_MARGIN as usize) << SCORE_SHIFT)
            };
            let from = self.anchor.saturating_sub(start);
            let Some(t) = (from..WINDOW_LEN).find(|t| good(*t)) else { return };
            let kind = best[t] >> SCORE_SHIFT & KIND_MASK as usize;
            let at = start + t;
            if kind == KIND_TABLE as usize {
                let offset = (best[t] & ((1 << SCORE_SHIFT) - 1)) - REPEATED_OFFSETS as usize;
                self.push_new(at, offset);
                searched = [true, searched[0], searched[1]];
            } else {
                self.push_repeated(at, kind);
                searched[..=kind].rotate_right(1);
            }
        }
    }

    /// A match with a new offset, extended backward.
    fn push_new(&mut self, at: usize, offset: usize) {
        let reach = (at - self.anchor).min(at - offset).min(MAX_BACKWARD as usize);
        let back = (1..=reach).take_while(|&b| self.page[at - b] == self.page[at - b - offset]).count();
        self.push(at - back, offset, offset + REPEATED_OFFSETS as usize);
        self.offsets = [offset, self.offsets[0], self.offsets[1]];
    }

    /// A match with the repeated offset of that rank. Directly after a match the format counts the ranks from the
    /// second.
    fn push_repeated(&mut self, at: usize, rank: usize) {
        let after_literals = at > self.anchor;
        debug_assert!(after_literals || rank > 0, "the last match would have been longer");
        self.push(at, self.offsets[rank], rank + usize::from(after_literals));
        self.offsets[..=rank].rotate_right(1);
    }

    fn push(&mut self, at: usize, offset: usize, offset_value: usize) {
        let (literals, length) = (at - self.anchor, self.match_len(at, offset, PAGE_SIZE));
        debug_assert!(length >= MIN_MATCH as usize);
        self.sequences.push(Sequence { literals, length, offset_value });
        self.anchor = at + length;
    }
}

/// Splits a hash into the slot, its highest bits, and the tag, some of its lowest.
fn split_hash(product: u32, slot_bits: u32) -> (usize, usize) {
    (product as usize >> (32 - slot_bits), product as usize >> POSITION_BITS & 15)
}

/// A table entry.
fn entry(tag: usize, at: usize) -> u16 {
    u16::try_from(tag << POSITION_BITS | at).expect("4 and 12 bits")
}

/// Splits a table entry into the position and the tag.
fn split_entry(entry: u16) -> (usize, usize) {
    let entry = usize::from(entry);
    (entry & ((1 << POSITION_BITS) - 1), entry >> POSITION_BITS)
}
