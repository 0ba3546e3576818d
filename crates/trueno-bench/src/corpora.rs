//! Pages to measure with: the built-in corpus, or files.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trueno_zram_archive::{ContentBatch, ContentSpan, FrameReader};
use trueno_zram_core::{PAGE_SIZE, Page, default_pool, same_filled};

use crate::error::{Error, Result};

/// Pages read from a file at a time.
const READ_PAGES: usize = 256;

/// The built-in corpus: the files in `corpus/` of this crate.
macro_rules! built_in {
    ($($name:literal),*) => { [$(($name, include_bytes!(concat!("../corpus/", $name, ".zst")).as_slice())),*] };
}
const BUILT_IN: [(&str, &[u8]); 6] = built_in!("cpython", "jvm", "nodejs", "postgresql", "redis", "rustc");

/// The fewest distinct pages that a CPU is measured on. A branch predictor learns a small corpus by heart, which makes codecs look
/// faster than they are, and not all of them alike.
#[cfg(test)]
const LEAST_DISTINCT_PAGES: usize = 2000;

/// The distance by which each further variant of a page is rotated. Variants keep the alignment of words and vectors, and there are
/// 256 of them.
const ROTATION: usize = 17 * 16;

/// Pages of one origin. Same-filled pages are counted and left out.
///
/// ```
/// let corpora = trueno_bench::load(&[], usize::MAX)?;
/// assert!(corpora.iter().all(|corpus| corpus.pages.len() >= 2000));
/// assert!(corpora.iter().any(|corpus| corpus.name == "rustc" && corpus.same_filled > 0));
/// # Ok::<(), trueno_bench::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The file's name without its extension.
    pub name: String,
    /// The pages that are measured, none of them same-filled.
    pub pages: Vec<Page>,
    /// Whole pages of the origin, including those left out.
    pub pages_in_all: usize,
    /// Same-filled pages of the origin.
    pub same_filled: usize,
    /// Bytes after the last whole page, which are left out.
    pub tail_bytes: usize,
}

impl Corpus {
    fn built_in(name: &str, compressed: &[u8], at_most: usize) -> Result<Self> {
        let failed = Error::engine("built-in corpus");
        let (mut reader, mut batch, mut bytes) = (FrameReader::new(compressed), ContentBatch::new(), Vec::new());
        while reader.read_batch(&mut batch).map_err(&failed)? {
            for span in batch.spans() {
                match span {
                    ContentSpan::Data(content) => bytes.extend_from_slice(content),
                    ContentSpan::Zeros(count) => (0..count).for_each(|_| bytes.push(0)),
                }
            }
        }
        let pages = bytes.as_chunks::<PAGE_SIZE>().0;
        let differing: Vec<&Page> = pages.iter().filter(|page| same_filled(page).is_none()).collect();
        Ok(Self {
            name: name.to_owned(),
            pages: spread(differing.len(), at_most).map(|i| *differing[i]).collect(),
            pages_in_all: pages.len(),
            same_filled: pages.len() - differing.len(),
            tail_bytes: 0,
        })
    }

    /// Reads a file twice, to count its pages and to take some of them, so that a large file is never held whole.
    fn read(path: &Path, at_most: usize) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
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

    /// Returns the number of pages that differ from each other.
    ///
    /// ```
    /// assert_eq!(trueno_bench::load(&[], 100)?[0].distinct_pages(), 100);
    /// # Ok::<(), trueno_bench::Error>(())
    /// ```
    #[must_use]
    pub fn distinct_pages(&self) -> usize {
        self.pages.iter().collect::<HashSet<_>>().len()
    }

    /// The number of variants of all pages that fit into `at_most` pages, but at least one.
    pub(crate) fn variants_in(&self, at_most: usize) -> usize {
        (at_most / self.pages.len().max(1)).max(1)
    }

    /// Returns the pages, and as many rotations of all of them as fit into `at_most` pages.
    pub(crate) fn with_variants(&self, at_most: usize) -> Result<Vec<Page>> {
        mix(std::slice::from_ref(self), self.variants_in(at_most) * self.pages.len())
    }
}

/// Returns a page with the same bytes in another order, and nearly the same matches: it is rotated. Variant 0 is the page itself.
fn variant(page: &Page, number: usize) -> Page {
    let mut page = *page;
    page.rotate_left(number * ROTATION % PAGE_SIZE);
    page
}

/// Loads the named files, or the built-in corpus if none is named. Of a file with more than `at_most` pages that are not
/// same-filled, that many are taken, evenly spread.
///
/// # Errors
/// A file that cannot be read or has nothing to measure, or two files of one name.
pub fn load(files: &[PathBuf], at_most: usize) -> Result<Vec<Corpus>> {
    if files.is_empty() {
        return BUILT_IN.par_iter().map(|(name, bytes)| Corpus::built_in(name, bytes, at_most)).collect();
    }
    let mut corpora: Vec<Corpus> = Vec::new();
    for file in files {
        let corpus = Corpus::read(file, at_most).map_err(Error::io(file.display()))?;
        let name = || file.display().to_string();
        match corpus {
            Corpus { pages_in_all: 0, tail_bytes, .. } => {
                return Err(Error::ShorterThanPage { name: name(), len_bytes: tail_bytes });
            }
            corpus if corpus.pages.is_empty() => return Err(Error::OnlySameFilled { name: name() }),
            corpus if corpora.iter().any(|other| other.name == corpus.name) => {
                return Err(Error::SameName { name: corpus.name });
            }
            corpus => corpora.push(corpus),
        }
    }
    Ok(corpora)
}

/// Returns `count` pages of all corpora in turn, so that every part of them is a mixture. If the corpora have fewer, further pages are
/// the same ones rotated, so that no page comes twice and their statistics stay.
///
/// # Errors
/// The threads that copy them cannot be started.
pub fn mix(corpora: &[Corpus], count: usize) -> Result<Vec<Page>> {
    let longest = corpora.iter().map(|corpus| corpus.pages.len()).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|i| corpora.iter().filter_map(move |corpus| corpus.pages.get(i)));
    let in_turn: Vec<&Page> = in_turn.collect();
    // Large mixtures are first touched by all cores.
    let mut pages = vec![[0; PAGE_SIZE]; count];
    let pool = default_pool().map_err(Error::engine("worker threads"))?;
    pool.install(|| {
        pages
            .par_iter_mut()
            .enumerate()
            .with_min_len(256)
            .for_each(|(i, page)| *page = variant(in_turn[i % in_turn.len()], i / in_turn.len()));
    });
    Ok(pages)
}

/// Returns `at_most` numbers below `count`, evenly spread, or all of them.
fn spread(count: usize, at_most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(at_most);
    (0..taken).map(move |i| i * count / taken)
}

/// Fills the buffer, unless the file ends.
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
    use trueno_zram_core::cpu::InstructionSet;

    use super::*;
    use crate::engines::codec::{BLOCK_BOUND, C_LZ4, MakeCodec, Trueno};

    #[test]
    fn a_sample_is_spread_over_the_whole() {
        assert_eq!(spread(10, 4).collect::<Vec<_>>(), [0, 2, 5, 7]);
        assert_eq!(spread(3, 9).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(spread(0, 9).count(), 0);
    }

    #[test]
    fn files_are_counted_and_sampled() {
        let path = temp_file("counted");
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
        assert!(load(&[std::env::temp_dir()], 1).unwrap_err().to_string().contains("not a regular file"));
        let path = temp_file("refused");
        for (bytes, words) in [(&b"a note"[..], "6 bytes, less than one page"), (&[7; 8192], "same-filled")] {
            std::fs::write(&path, bytes).unwrap();
            let error = load(std::slice::from_ref(&path), 1).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn mixtures_take_from_all_corpora_in_turn() {
        let corpora = load(&[], usize::MAX).unwrap();
        let mixed = mix(&corpora, 1000).unwrap();
        assert_eq!(mixed.len(), 1000);
        assert!(corpora.iter().zip(&mixed).all(|(corpus, page)| corpus.pages[0] == *page));
    }

    /// The batches of every command with the built-in corpus, at their default sizes.
    #[test]
    fn no_page_of_a_benchmark_comes_twice() {
        let corpora = load(&[], usize::MAX).unwrap();
        for corpus in &corpora {
            assert!(corpus.pages.len() >= LEAST_DISTINCT_PAGES, "{}", corpus.name);
            assert_eq!(corpus.distinct_pages(), corpus.pages.len(), "{}", corpus.name);
            assert_distinct(&mix(std::slice::from_ref(corpus), 65_536).unwrap());
        }
        assert_distinct(&mix(&corpora, 65_536).unwrap());
    }

    fn assert_distinct(pages: &[Page]) {
        assert_eq!(pages.iter().collect::<HashSet<_>>().len(), pages.len());
    }

    /// Rotated pages compress to what the pages themselves compress to, within one percent, with our encoder and C lz4's.
    #[test]
    fn variants_keep_the_ratio() {
        let ours: MakeCodec = || Ok(Box::new(Trueno::new(InstructionSet::detect())?));
        let encoders: Vec<MakeCodec> = [Some(ours), C_LZ4].into_iter().flatten().collect();
        for corpus in load(&[], usize::MAX).unwrap() {
            for make in &encoders {
                let mut codec = make().unwrap();
                let mut bytes = |number| {
                    let lens = corpus
                        .pages
                        .iter()
                        .map(|page| codec.encode_or_copy(&variant(page, number), &mut [0; BLOCK_BOUND]));
                    lens.sum::<usize>() as f64
                };
                let (plain, rotated) = (bytes(0), bytes(5));
                assert!((rotated / plain - 1.0).abs() < 0.01, "{}: {rotated} of {plain}", corpus.name);
            }
        }
    }

    fn temp_file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("bench-corpus-{name}-{}.bin", std::process::id()))
    }
}
