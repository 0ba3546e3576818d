//! Real pages of real programs.

use crate::{PAGE_SIZE, Page};

/// Pages of one origin.
#[derive(Clone, Copy, Debug)]
pub struct Corpus {
    /// The file's name without its extension.
    pub name: &'static str,
    /// The pages, in the file's order.
    pub pages: &'static [Page],
}

macro_rules! corpora {
    ($($name:literal),* $(,)?) => {
        /// All corpora, in the order of their names.
        pub const ALL: &[Corpus] = &[$(Corpus {
            name: $name,
            pages: whole_pages(include_bytes!(concat!("../corpus/", $name, ".bin"))),
        }),*];
    };
}

corpora!("chromium", "jvm-javac", "python-pandas", "redis", "rustc", "vm-guest-a");

const fn whole_pages(bytes: &'static [u8]) -> &'static [Page] {
    let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
    assert!(rest.is_empty(), "a corpus file is whole pages");
    pages
}

/// The pages of all corpora.
pub fn all_pages() -> impl Iterator<Item = &'static Page> + Clone {
    ALL.iter().flat_map(|corpus| corpus.pages)
}

/// Pages of all kinds: a quarter are zeros. All others differ from each other, so that a page in the wrong place is
/// noticed.
pub fn numbered_pages(count: usize) -> Vec<Page> {
    let corpus: Vec<&Page> = all_pages().take(64).collect();
    let numbered = |number: usize| {
        let word = (number as u64).to_le_bytes();
        match number % 8 {
            0 | 1 => [0; PAGE_SIZE],
            2 => std::array::from_fn(|at| word[at % word.len()]),
            _ => {
                let mut page = *corpus[number % corpus.len()];
                page[..word.len()].copy_from_slice(&word);
                page
            }
        }
    };
    (0..count).map(numbered).collect()
}
