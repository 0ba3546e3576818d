//! The pages to measure with.

use std::path::{Path, PathBuf};

use trueno_test_pages::oracle;
use trueno_zram_core::{PAGE_SIZE, Page, same_filled};

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
    files.iter().map(|file| load_file(file)).collect()
}

fn load_file(file: &Path) -> Result<Corpus, String> {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let (all, rest) = bytes.as_chunks::<PAGE_SIZE>();
    if !rest.is_empty() {
        return Err(format!("{}: {} bytes are no whole pages", file.display(), bytes.len()));
    }
    let pages: Vec<Page> = all.iter().filter(|page| same_filled(page).is_none()).copied().collect();
    if pages.is_empty() {
        return Err(format!("{} has no pages but same-filled ones", file.display()));
    }
    let c_lz4_blocks = pages.iter().map(c_lz4_block).collect();
    let name = file.file_stem().map_or_else(|| "?".into(), |stem| stem.to_string_lossy().into_owned());
    Ok(Corpus { name, same_filled: all.len() - pages.len(), pages, c_lz4_blocks })
}

fn c_lz4_block(page: &Page) -> Vec<u8> {
    let block = oracle::c_lz4_compress(page);
    if block.len() < PAGE_SIZE { block } else { page.to_vec() }
}
