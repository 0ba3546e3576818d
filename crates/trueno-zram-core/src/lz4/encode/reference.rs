//! The encoder's slow twin: the same choices in plain code, byte by byte.
//!
//! It shares the format's and the search's constants with the encoder, and nothing else.

use super::super::format::{FIELD_MAX, LENGTH_BYTE_MAX, MATCH_END_LIMIT, MATCH_START_LIMIT, MIN_MATCH};
use super::search::{COMPARED, FIRST_PROBES_PER_STEP, NEAR_END, PLAIN_PROBES, PROBES_PER_STEP};
use super::strategy::{Chosen, Repeat};
use crate::page::{PAGE_SIZE, Page};

/// Encodes a page. Returns `None` if the block would not be shorter than the page.
pub(super) fn encode(page: &Page) -> Option<Vec<u8>> {
    let (hashed_bits, repeat) = match choose(page) {
        Chosen::Heap => (48, Repeat::Take),
        Chosen::Records => (34, Repeat::Ignore),
        Chosen::Text => (35, Repeat::Compare),
    };
    let mut encoder =
        ReferenceEncoder { page, hashed_bits, table: vec![0; 4096], block: Vec::new(), literals_start: 0, offset: 1 };
    encoder.search(repeat);
    encoder.finish()
}

/// Chooses the strategy by 32 of every 128 bytes.
pub(super) fn choose(page: &Page) -> Chosen {
    let samples: Vec<&[u8]> = page.chunks(128).map(|group| &group[..32]).collect();
    let words = samples.iter().flat_map(|sample| sample.chunks(8));
    let small_words = words.filter(|word| word[6] == 0 && word[7] == 0).count();
    let has_records = samples.chunks(8).any(|part| {
        let zeros = |at: usize| part.iter().filter(|sample| sample[at] == 0).count();
        let places = |wanted: fn(usize) -> bool| (0..32).filter(|&at| wanted(zeros(at))).count();
        places(|zeros| zeros == 8) >= 4
            && places(|zeros| zeros == 0) >= 4
            && places(|zeros| (1..8).contains(&zeros)) <= 8
    });
    match (small_words, has_records) {
        (80.., _) | (48.., false) => Chosen::Heap,
        (_, true) => Chosen::Records,
        (_, false) => Chosen::Text,
    }
}

struct ReferenceEncoder<'a> {
    page: &'a Page,
    hashed_bits: u32,
    table: Vec<usize>,
    block: Vec<u8>,
    literals_start: usize,
    /// The offset of the last match.
    offset: usize,
}

impl ReferenceEncoder<'_> {
    fn search(&mut self, repeat: Repeat) {
        let mut from = 1;
        while let Some((position, candidate)) = self.find(from) {
            if position > MATCH_START_LIMIT {
                return;
            }
            let back = self.equal_before(position, candidate);
            self.take(position - back, candidate - back);
            while self.literals_start <= NEAR_END {
                self.insert(self.literals_start - 2);
                if !self.take_adjacent() && !self.take_repeat(repeat) {
                    break;
                }
            }
            from = self.literals_start + usize::from(self.literals_start <= NEAR_END);
        }
    }

    fn find(&mut self, from: usize) -> Option<(usize, usize)> {
        let mut position = from;
        // Groups of eight, so that the steps grow after a whole group.
        while position < PAGE_SIZE {
            for position in position..position + 8 {
                let candidate = self.insert(position);
                if self.equal_bytes(position, candidate) >= MIN_MATCH {
                    return Some((position, candidate));
                }
            }
            position += 8;
            if position - self.literals_start >= PLAIN_PROBES {
                break;
            }
        }
        let probes_per_step = 1 << if self.literals_start == 0 { FIRST_PROBES_PER_STEP } else { PROBES_PER_STEP };
        for step in 2.. {
            for _ in 0..probes_per_step {
                if position > MATCH_START_LIMIT {
                    return None;
                }
                let candidate = self.insert(position);
                if self.equal_bytes(position, candidate) >= MIN_MATCH {
                    return Some((position, candidate));
                }
                position += step;
            }
        }
        None
    }

    fn take_adjacent(&mut self) -> bool {
        let position = self.literals_start;
        let candidate = self.insert(position);
        let found = self.equal_bytes(position, candidate) >= MIN_MATCH;
        if found {
            self.take(position, candidate);
        }
        found
    }

    fn take_repeat(&mut self, repeat: Repeat) -> bool {
        let repeats = |at: usize| self.byte(at) == self.byte(at - self.offset);
        let start = self.literals_start;
        if repeat == Repeat::Ignore || !(start + 2..start + 9).all(repeats) {
            return false;
        }
        let position = if repeats(start + 1) { start + 1 } else { start + 2 };
        let mut candidate = position - self.offset;
        let other = self.insert(position);
        let length = |candidate| self.equal_bytes(position, candidate).min(COMPARED);
        if repeat == Repeat::Compare && length(other) > length(candidate) {
            candidate = other;
        }
        self.take(position, candidate);
        true
    }

    /// Returns how many literals before a match are equal, up to eight.
    fn equal_before(&self, position: usize, candidate: usize) -> usize {
        let limit = 8.min(position - self.literals_start).min(candidate);
        (1..=limit).take_while(|n| self.page[position - n] == self.page[candidate - n]).count()
    }

    fn take(&mut self, position: usize, candidate: usize) {
        let match_end = (position + self.equal_bytes(position, candidate)).min(MATCH_END_LIMIT);
        let beyond_min = match_end - position - MIN_MATCH;
        self.offset = position - candidate;
        self.push_literals(self.literals_start, position, beyond_min.min(FIELD_MAX));
        self.block.extend(u16::try_from(self.offset).expect("offsets are shorter than a page").to_le_bytes());
        self.push_length(beyond_min);
        self.literals_start = match_end;
    }

    fn finish(mut self) -> Option<Vec<u8>> {
        self.push_literals(self.literals_start, PAGE_SIZE, 0);
        (self.block.len() < PAGE_SIZE).then_some(self.block)
    }

    fn push_literals(&mut self, start: usize, end: usize, match_field: usize) {
        let count = end - start;
        self.block.push(u8::try_from(count.min(FIELD_MAX) << 4 | match_field).expect("two fields of four bits"));
        self.push_length(count);
        self.block.extend(&self.page[start..end]);
    }

    fn push_length(&mut self, length: usize) {
        if length >= FIELD_MAX {
            let rest = length - FIELD_MAX;
            self.block.extend(vec![u8::MAX; rest / LENGTH_BYTE_MAX]);
            self.block.push(u8::try_from(rest % LENGTH_BYTE_MAX).expect("less than a full length byte"));
        }
    }

    /// Returns how many bytes from `position` on equal those from `candidate` on.
    fn equal_bytes(&self, position: usize, candidate: usize) -> usize {
        // Behind the page are zeros. A match of them alone starts too near to the end to be taken.
        (0..PAGE_SIZE + 64).take_while(|n| self.byte(position + n) == self.byte(candidate + n)).count()
    }

    /// Returns the byte at `at`. Zeros follow the page.
    fn byte(&self, at: usize) -> u8 {
        self.page.get(at).copied().unwrap_or(0)
    }

    /// Enters a position into the table. Returns the previous one of the same hash, or zero.
    fn insert(&mut self, at: usize) -> usize {
        let word = (0..8).map(|n| u64::from(self.byte(at + n)) << (8 * n)).sum::<u64>();
        let hashed = word << (64 - self.hashed_bits);
        let hash = hashed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        std::mem::replace(&mut self.table[usize::try_from(hash).expect("twelve bits")], at)
    }
}
