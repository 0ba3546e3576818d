//! Pages from a seed. The same seed gives the same pages.

use trueno_page::{PAGE_SIZE, Page};

/// A small seeded generator (splitmix64), so that failures repeat.
#[derive(Clone, Debug)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// Starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random byte.
    pub fn byte(&mut self) -> u8 {
        self.next_u64().to_le_bytes()[7]
    }

    /// Returns a random number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        usize::try_from(self.next_u64() % bound).expect("smaller than a usize")
    }

    /// Returns an endless iterator of random numbers below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn numbers_below(mut self, bound: usize) -> impl Iterator<Item = usize> {
        std::iter::repeat_with(move || self.below(bound))
    }

    /// Returns a page like those in memory: heap words, text, records, runs, copies at random distances.
    pub fn page(&mut self) -> Page {
        let mut page = [0; PAGE_SIZE];
        let mut at = 0;
        while at < PAGE_SIZE {
            let longest = 2 << self.below(10);
            let len = (1 + self.below(longest)).min(PAGE_SIZE - at);
            let piece = at..at + len;
            match self.below(6) {
                0 => page[piece].fill_with(|| self.byte()),
                1 => page[piece].fill(self.byte()),
                2 => page[piece].fill_with(|| b'a' + self.byte() % 16),
                3 => self.heap_words(&mut page[piece]),
                _ if at > 0 => {
                    let distance = 1 + self.below(at);
                    for i in piece {
                        page[i] = page[i - distance];
                    }
                }
                _ => {}
            }
            at += len;
        }
        page
    }

    /// Words that look like pointers into one heap, and small numbers.
    fn heap_words(&mut self, bytes: &mut [u8]) {
        let heap = 0x7f00_0000_0000 + (self.next_u64() & 0xfff_f000);
        for word in bytes.chunks_mut(8) {
            let value = match self.below(3) {
                0 => 0,
                1 => self.next_u64() & 0xff,
                _ => heap + (self.next_u64() & 0xff8),
            };
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
    }

    /// Returns bytes that look like a block but mostly do not decode to a page: sequences whose lengths usually add up
    /// to a page, with some runs past the end, wrong offsets and stray bytes. They mislead decoders that guess.
    pub fn token_soup(&mut self) -> Vec<u8> {
        let (mut block, mut room) = (Vec::new(), PAGE_SIZE);
        for _ in 0..self.below(12) {
            if self.below(6) == 0 {
                // A run that the input does not have, in four bytes, as if a match followed it.
                let more = self.byte();
                block.extend([0xf0, more, self.byte() & 3, self.byte() & 3]);
                let counted = if self.below(4) == 0 { 0 } else { 15 + usize::from(more) + 4 };
                room = room.saturating_sub(counted);
            }
            let longest = if self.below(8) == 0 { 200 } else { 12 };
            let (literals, extra) = (self.below(longest), self.below(longest));
            if literals + extra + 40 > room {
                break;
            }
            let produced = PAGE_SIZE - room + literals;
            let offset = if self.below(20) == 0 { self.below(5000) } else { 1 + self.below(produced.max(1)) };
            self.push_sequence(&mut block, literals, Some((offset, extra)));
            room -= literals + extra + 4;
        }
        let last = self.below(160).min(room);
        let extra = (room - last).saturating_sub(4);
        let offset = 1 + self.below(40);
        self.push_sequence(&mut block, 0, Some((offset, extra)));
        self.push_sequence(&mut block, last, None);
        block
    }

    fn push_sequence(&mut self, block: &mut Vec<u8>, literals: usize, matched: Option<(usize, usize)>) {
        push_token(block, literals, matched.map_or(0, |(_, extra)| extra));
        block.extend((0..literals).map(|_| self.byte()));
        if let Some((offset, extra)) = matched {
            block.extend(&offset.to_le_bytes()[..2]);
            push_length(block, extra);
        }
    }

    /// Changes the block as faulty storage or an attacker would.
    pub fn corrupt(&mut self, block: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(block.len().max(1)).min(block.len());
            match self.below(5) {
                0 => block.truncate(at),
                1 => block.insert(at, self.byte()),
                2 if at < block.len() => block[at] = self.byte(),
                3 if at < block.len() => block[at] ^= 1 << self.below(8),
                _ if at < block.len() => drop(block.remove(at)),
                _ => {}
            }
        }
    }
}

/// A token and the length bytes of its literals.
fn push_token(block: &mut Vec<u8>, literals: usize, extra: usize) {
    let nibble = |length: usize| length.min(15).to_le_bytes()[0];
    block.push(nibble(literals) << 4 | nibble(extra));
    push_length(block, literals);
}

/// The bytes that continue a length of 15 or more.
fn push_length(block: &mut Vec<u8>, length: usize) {
    if let Some(more) = length.checked_sub(15) {
        block.resize(block.len() + more / 255, 255);
        block.push((more % 255).to_le_bytes()[0]);
    }
}
