//! What is measured: the committed corpus, or files of the user's own.

use std::path::{Path, PathBuf};

use trueno_zram_core::{PAGE_SIZE, Page, same_filled};

/// The pages of one origin, those that are same-filled counted and left out.
pub(crate) struct Corpus {
    pub(crate) name: String,
    pub(crate) pages: Vec<Page>,
    pub(crate) same_filled: usize,
}

impl Corpus {
    fn new(name: String, pages: impl Iterator<Item = Page>) -> Self {
        let mut same_filled_pages = 0;
        let pages = pages.filter(|page| {
            let same = same_filled(page).is_some();
            same_filled_pages += usize::from(same);
            !same
        });
        Self { name, pages: pages.collect(), same_filled: same_filled_pages }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.pages.len() * PAGE_SIZE
    }
}

/// The named files, or the committed corpus.
pub(crate) fn load(files: &[PathBuf]) -> Result<Vec<Corpus>, String> {
    let corpora: Vec<Corpus> = if files.is_empty() {
        let committed = trueno_test_pages::corpus::ALL.iter();
        committed.map(|corpus| Corpus::new(corpus.name.to_owned(), corpus.pages.iter().copied())).collect()
    } else {
        files.iter().map(|file| load_file(file)).collect::<Result<_, _>>()?
    };
    let mut names: Vec<&str> = corpora.iter().map(|corpus| corpus.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twins) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two files are called {}", twins[0]));
    }
    match corpora.iter().find(|corpus| corpus.pages.is_empty()) {
        Some(empty) => Err(format!("{} has no pages but same-filled ones", empty.name)),
        None => Ok(corpora),
    }
}

fn load_file(file: &Path) -> Result<Corpus, String> {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
    if !rest.is_empty() {
        return Err(format!("{}: {} bytes are no whole pages", file.display(), bytes.len()));
    }
    let name = file.file_stem().map_or_else(|| "?".into(), |stem| stem.to_string_lossy().into_owned());
    Ok(Corpus::new(name, pages.iter().copied()))
}
