//! Pages and blocks to check with: real, at the boundaries of the format, and generated. They are the same every time.

use trueno_bench::edge_pages;
use trueno_bench::generate::Generator;
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
        let mut random = Generator::new(7);
        let mut pages: Vec<Page> = corpora.into_iter().flat_map(|corpus| corpus.pages).collect();
        pages.extend(edge_pages::all().into_iter().map(|edge| *edge.page));
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
        let mut random = Generator::new(23);
        let mut damaged: Vec<Vec<u8>> = sound.iter().cycle().take(self.damaged_blocks).cloned().collect();
        damaged.iter_mut().for_each(|block| random.corrupt(block));
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
