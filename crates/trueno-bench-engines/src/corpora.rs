//! What is measured: the committed corpus, or files of the user's own.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use trueno_zram_core::{PAGE_SIZE, Page, same_filled};

use crate::error::{Error, Result};

/// Pages read from a file at a time.
const READ_PAGES: usize = 256;

/// The pages of one origin, those that are same-filled counted and left out.
///
/// ```
/// let corpora = trueno_bench_engines::load(&[], usize::MAX)?;
/// assert!(corpora.iter().any(|corpus| corpus.name == "rustc" && corpus.same_filled > 0));
/// # Ok::<(), trueno_bench_engines::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The file's name without its ending.
    pub name: String,
    /// The pages that are measured, none of them same-filled.
    pub pages: Vec<Page>,
    /// Whole pages of the origin, all counted.
    pub pages_in_all: usize,
    /// Same-filled pages of the origin.
    pub same_filled: usize,
    /// Bytes behind the last whole page, left out.
    pub tail_bytes: usize,
}

impl Corpus {
    fn committed(corpus: &trueno_test_pages::corpus::Corpus, at_most: usize) -> Self {
        let differing: Vec<&Page> = corpus.pages.iter().filter(|page| same_filled(page).is_none()).collect();
        Self {
            name: corpus.name.to_owned(),
            pages: spread(differing.len(), at_most).map(|i| *differing[i]).collect(),
            pages_in_all: corpus.pages.len(),
            same_filled: corpus.pages.len() - differing.len(),
            tail_bytes: 0,
        }
    }

    /// Reads a file twice, so that a large one is never held whole: to count, and to take its pages.
    fn read(path: &Path, at_most: usize) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("is no regular file, and must be read twice"));
        }
        let mut differing = Vec::new();
        let (mut pages_in_all, mut tail_bytes) = (0, 0);
        let mut buffer = vec![0; READ_PAGES * PAGE_SIZE];
        while tail_bytes == 0 {
            let len_bytes = read_up_to(&mut file, &mut buffer)?;
            if len_bytes == 0 {
                break;
            }
            let (pages, tail) = buffer[..len_bytes].as_chunks::<PAGE_SIZE>();
            let numbers = (pages_in_all..).zip(pages).filter(|(_, page)| same_filled(page).is_none());
            differing.extend(numbers.map(|(number, _)| number as u64));
            pages_in_all += pages.len();
            tail_bytes = tail.len();
        }
        let mut pages = Vec::new();
        for i in spread(differing.len(), at_most) {
            let mut page = [0; PAGE_SIZE];
            file.read_exact_at(&mut page, differing[i] * PAGE_SIZE as u64)?;
            pages.push(page);
        }
        let name = path.file_stem().map_or_else(|| "?".into(), |stem| stem.to_string_lossy().into_owned());
        Ok(Self { name, pages, pages_in_all, same_filled: pages_in_all - differing.len(), tail_bytes })
    }

    /// Bytes of the pages that are measured.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.pages.len() * PAGE_SIZE
    }

    /// As many whole copies of the pages as `at_most` pages hold, but one at least.
    ///
    /// ```
    /// let corpus = &trueno_bench_engines::load(&[], 100)?[0];
    /// assert_eq!((corpus.copies(10).len(), corpus.copies(250).len()), (100, 200));
    /// # Ok::<(), trueno_bench_engines::Error>(())
    /// ```
    #[must_use]
    pub fn copies(&self, at_most: usize) -> Vec<Page> {
        self.pages.repeat((at_most / self.pages.len().max(1)).max(1))
    }
}

/// The named files, or the committed corpus where none is named. Where a file has more than `at_most` pages that are not
/// same-filled, that many are taken, evenly spread.
///
/// # Errors
/// A file that cannot be read or has nothing to measure, or two of one name.
pub fn load(files: &[PathBuf], at_most: usize) -> Result<Vec<Corpus>> {
    let corpora: Vec<Corpus> = if files.is_empty() {
        trueno_test_pages::corpus::ALL.iter().map(|corpus| Corpus::committed(corpus, at_most)).collect()
    } else {
        let read = |file: &PathBuf| Corpus::read(file, at_most).map_err(Error::io(file.display()));
        files.iter().map(read).collect::<Result<_>>()?
    };
    let mut names: Vec<&str> = corpora.iter().map(|corpus| corpus.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twins) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::SameName { name: twins[0].to_owned() });
    }
    match corpora.iter().find(|corpus| corpus.pages.is_empty()) {
        Some(empty) => Err(Error::NoPages { name: empty.name.clone() }),
        None => Ok(corpora),
    }
}

/// Numbers below `count`, all or `at_most` of them, evenly spread.
fn spread(count: usize, at_most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(at_most);
    (0..taken).map(move |i| i * count / taken)
}

/// Fills the buffer, but for the end of the file.
fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_the_whole() {
        assert_eq!(spread(10, 4).collect::<Vec<_>>(), [0, 2, 5, 7]);
        assert_eq!(spread(3, 9).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(spread(0, 9).count(), 0);
    }

    #[test]
    fn files_are_counted_and_sampled() {
        let path = std::env::temp_dir().join(format!("bench-corpus-{}.bin", std::process::id()));
        let mut bytes = vec![7u8; 2 * PAGE_SIZE]; // two same-filled pages
        for n in 0..600u16 {
            bytes.extend((0..PAGE_SIZE).map(|i| n.to_le_bytes()[i % 2] ^ if i == 0 { 1 } else { 0 }));
        }
        bytes.extend([1, 2, 3]);
        std::fs::write(&path, &bytes).unwrap();
        let whole = Corpus::read(&path, usize::MAX).unwrap();
        let part = Corpus::read(&path, 6).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((whole.pages_in_all, whole.same_filled, whole.tail_bytes, whole.pages.len()), (602, 2, 3, 600));
        assert_eq!(whole.pages.as_flattened(), &bytes[2 * PAGE_SIZE..602 * PAGE_SIZE]);
        assert_eq!((part.same_filled, part.pages.len()), (2, 6));
        assert_eq!(part.pages[1], whole.pages[100]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!(matches!(load(&["/nowhere/at/all".into()], 1), Err(Error::Io { .. })));
        let directory = std::env::temp_dir();
        assert!(load(&[directory], 1).unwrap_err().to_string().contains("no regular file"));
    }
}
