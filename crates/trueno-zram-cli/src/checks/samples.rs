//! Pages and blocks to check with: real, on the format's boundaries, and generated. The same every time.

use trueno_test_pages::generate::Generator;
use trueno_test_pages::{corpus, edge, oracle};
use trueno_zram_core::{CompressedBatch, IndexEntry, PAGE_SIZE, Page, PageKind};

/// Pages, and how many blocks to damage.
pub(super) struct Set {
    pub(super) pages: Vec<Page>,
    pub(super) damaged_blocks: usize,
}

impl Set {
    /// Every committed page, every edge page, and generated ones.
    pub(super) fn large() -> Self {
        let mut generator = Generator::new(7);
        let generated = (0..500).map(|_| generator.page());
        let edges = edge::all().into_iter().map(|edge| *edge.page);
        Self { pages: corpus::all_pages().copied().chain(edges).chain(generated).collect(), damaged_blocks: 20_000 }
    }

    /// A sample of those, for what is slow.
    pub(super) fn small() -> Self {
        Self { pages: Self::large().pages.into_iter().step_by(3).collect(), damaged_blocks: 2000 }
    }

    /// C lz4's blocks of the pages that shrink, and those pages.
    pub(super) fn foreign_blocks(&self) -> (CompressedBatch, Vec<Page>) {
        let mut foreign = oracle::CLz4::new();
        let mut block = [0; oracle::BLOCK_BOUND];
        let (mut blocks, mut pages) = (Vec::new(), Vec::new());
        for page in &self.pages {
            let len_bytes = foreign.compress(page, &mut block);
            if len_bytes < PAGE_SIZE {
                blocks.push(block[..len_bytes].to_vec());
                pages.push(*page);
            }
        }
        (batch_of(&blocks), pages)
    }

    /// Blocks that storage or attackers have been at.
    pub(super) fn damaged(&self) -> CompressedBatch {
        let (sound, _) = self.foreign_blocks();
        let mut generator = Generator::new(23);
        let blocks: Vec<_> = sound
            .iter()
            .cycle_over(self.damaged_blocks)
            .map(|data| {
                if generator.below(4) == 0 {
                    return generator.token_soup();
                }
                let mut block = data.bytes().to_vec();
                generator.corrupt(&mut block);
                block
            })
            .filter(|block| (1..PAGE_SIZE).contains(&block.len()))
            .collect();
        batch_of(&blocks)
    }
}

/// Goes over items again until there were as many.
trait CycleOver: Iterator + Sized {
    fn cycle_over(self, count: usize) -> impl Iterator<Item = Self::Item>
    where
        Self::Item: Copy,
    {
        let items: Vec<_> = self.collect();
        (0..if items.is_empty() { 0 } else { count }).map(move |i| items[i % items.len()])
    }
}

impl<I: Iterator> CycleOver for I {}

/// A batch of LZ4 blocks.
fn batch_of(blocks: &[Vec<u8>]) -> CompressedBatch {
    let mut offset = 0;
    let mut index = Vec::with_capacity(blocks.len());
    for block in blocks {
        let len_bytes = u16::try_from(block.len()).expect("a block is shorter than its page");
        index.push(IndexEntry { offset, len_bytes, kind: PageKind::Lz4 });
        offset += u64::from(len_bytes);
    }
    CompressedBatch::from_parts(blocks.concat(), index).expect("the index was made for these blocks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_blocks_are_of_both_kinds() {
        let set = Set::small();
        let mut page = [0; PAGE_SIZE];
        let verdicts: Vec<bool> = set
            .damaged()
            .iter()
            .map(|data| trueno_zram_core::lz4::decode_simple(data.bytes(), &mut page).is_ok())
            .collect();
        let good = verdicts.iter().filter(|good| **good).count();
        assert!(good > 20 && verdicts.len() - good > 200, "{good} of {} still are pages", verdicts.len());
    }
}
