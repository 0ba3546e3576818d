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
            pages: whole_pages(include_bytes!(concat!("../../../corpus/", $name, ".bin"))),
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
