//! The pages to measure with.

use std::path::PathBuf;

use trueno_test_pages::oracle;
use trueno_zram_core::{PAGE_SIZE, Page};

/// The pages of one origin, those that are same-filled counted and left out.
pub(crate) struct Corpus {
    pub(crate) name: String,
    pub(crate) pages: Vec<Page>,
    pub(crate) same_filled: usize,
    /// What C lz4 makes of each page; the page itself where it does not shrink.
    pub(crate) c_lz4_blocks: Vec<Vec<u8>>,
}

impl Corpus {
    /// C lz4's ratio over the pages.
    pub(crate) fn c_lz4_ratio(&self) -> f64 {
        let held: usize = self.c_lz4_blocks.iter().map(Vec::len).sum();
        (self.pages.len() * PAGE_SIZE) as f64 / held as f64
    }

    /// The corpus over and over, `count` pages in all.
    pub(crate) fn repeated(&self, count: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count as usize * PAGE_SIZE);
        for page in self.pages.iter().cycle().take(count as usize) {
            bytes.extend_from_slice(page);
        }
        bytes
    }
}

pub(crate) fn load(files: &[PathBuf]) -> Result<Vec<Corpus>, String> {
    let corpora = trueno_bench_engines::load(files, usize::MAX)?.into_iter();
    Ok(corpora
        .map(|corpus| {
            let c_lz4_blocks = corpus.pages.iter().map(c_lz4_block).collect();
            Corpus { name: corpus.name, same_filled: corpus.same_filled, pages: corpus.pages, c_lz4_blocks }
        })
        .collect())
}

fn c_lz4_block(page: &Page) -> Vec<u8> {
    let block = oracle::c_lz4_compress(page);
    if block.len() < PAGE_SIZE { block } else { page.to_vec() }
}
