//! Pages and blocks to check with: real, at the boundaries of the format, and generated. They are the same every time.

use trueno_zram_core::{CompressedBatch, IndexEntry, PAGE_SIZE, Page, PageKind};

/// Pages, and how many blocks to damage.
pub(super) struct SampleSet {
    pub(super) pages: Vec<Page>,
    pub(super) damaged_blocks: usize,
}

impl SampleSet {
    /// Every page of the built-in corpus, pages at the boundaries of the format, and generated ones.
    pub(super) fn large() -> Self {
        let corpora = trueno_bench::load(&[], usize::MAX).expect("the built-in corpus has pages");
        let mut random = Random::new(7);
        let mut pages: Vec<Page> = corpora.into_iter().flat_map(|corpus| corpus.pages).collect();
        pages.extend(edges(&mut random));
        pages.extend((0..500).map(|_| random.page()));
        Self { pages, damaged_blocks: 20_000 }
    }

    /// A sample of those, for slow codecs.
    pub(super) fn small() -> Self {
        Self { pages: Self::large().pages.into_iter().step_by(3).collect(), damaged_blocks: 2000 }
    }

    /// Blocks that lz4_flex makes of the pages that shrink, and those pages.
    pub(super) fn foreign_blocks(&self) -> (Vec<Vec<u8>>, Vec<Page>) {
        let blocks = self.pages.iter().map(|page| (lz4_flex::block::compress(page), *page));
        blocks.filter(|(block, _)| block.len() < PAGE_SIZE).unzip()
    }

    /// Blocks that storage or an attacker has changed.
    pub(super) fn damaged(&self) -> Vec<Vec<u8>> {
        let (sound, _) = self.foreign_blocks();
        let mut random = Random::new(23);
        let mut damaged: Vec<Vec<u8>> = sound.iter().cycle().take(self.damaged_blocks).cloned().collect();
        damaged.iter_mut().for_each(|block| random.damage(block));
        damaged.retain(|block| (1..PAGE_SIZE).contains(&block.len()));
        damaged
    }
}

/// A batch of LZ4 blocks.
pub(super) fn batch_of(blocks: &[Vec<u8>]) -> CompressedBatch {
    let mut offset = 0;
    let mut index = Vec::with_capacity(blocks.len());
    for block in blocks {
        let len_bytes = u16::try_from(block.len()).expect("a block is shorter than its page");
        index.push(IndexEntry { offset, len_bytes, kind: PageKind::Lz4 });
        offset += u64::from(len_bytes);
    }
    CompressedBatch::from_parts(blocks.concat(), index).expect("the index was made for these blocks")
}

/// Same-filled pages, zero pages with one byte changed, and random pages with a match or a run that ends near the page's end.
fn edges(random: &mut Random) -> Vec<Page> {
    let mut pages = vec![[0; PAGE_SIZE], [0xff; PAGE_SIZE]];
    pages.extend((1..=64).map(|period| std::array::from_fn(|i| (i % period * 37).to_le_bytes()[0])));
    for at in (0..64).chain((64..PAGE_SIZE - 64).step_by(61)).chain(PAGE_SIZE - 64..PAGE_SIZE) {
        pages.push(std::array::from_fn(|i| u8::from(i == at)));
    }
    for (len, before_end) in (4..=24).flat_map(|len| (0..20).map(move |before_end| (len, before_end))) {
        let mut page: Page = std::array::from_fn(|_| random.byte());
        page.copy_within(500..500 + len, PAGE_SIZE - before_end - len);
        pages.push(page);
    }
    for len in (1..=40).chain([254, 255, 256, 269, 270, 271, 525, 1000, 4090]) {
        let mut page: Page = std::array::from_fn(|_| random.byte());
        page[3..3 + len].fill(0xaa);
        pages.push(page);
    }
    pages
}

/// Random numbers from a seed (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }

    /// A page of random bytes, runs, text, small words and copies.
    fn page(&mut self) -> Page {
        let mut page = [0; PAGE_SIZE];
        let mut at = 0;
        while at < PAGE_SIZE {
            let longest = 2 << self.below(10);
            let end = PAGE_SIZE.min(at + 1 + self.below(longest));
            match self.below(6) {
                0 => page[at..end].fill_with(|| self.byte()),
                1 => page[at..end].fill(self.byte()),
                2 => page[at..end].fill_with(|| b'a' + self.byte() % 16),
                3 => page[at..end].chunks_mut(8).for_each(|word| word[0] = self.byte()),
                _ => {
                    let distance = 1 + self.below(at + 1);
                    (at..end).for_each(|i| page[i] = i.checked_sub(distance).map_or(0, |from| page[from]));
                }
            }
            at = end;
        }
        page
    }

    /// Changes a block: cuts it, or inserts, overwrites, flips or removes something.
    fn damage(&mut self, block: &mut Vec<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_blocks_are_of_both_kinds() {
        let damaged = SampleSet::small().damaged();
        let mut page = [0; PAGE_SIZE];
        let good =
            damaged.iter().filter(|block| trueno_zram_core::lz4::decode_simple(block, &mut page).is_ok()).count();
        assert!(good > 20 && damaged.len() - good > 200, "{good} of {} still are pages", damaged.len());
    }
}
