//! An image directory: its pagemaps, and its files of pages, compressed or not.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trueno_zram_archive::{PageArchive, Pages, PlainPages};
use trueno_zram_io::ArchiveOpener;

use crate::error::Error;
use crate::pagemap::{Pagemap, ReadError};

/// The name of a pages file ends with this, or with one of the following.
const PLAIN_SUFFIX: &str = ".img";
/// Archives and deltas, in the order in which they are looked for.
const COMPRESSED_SUFFIXES: [&str; 3] = [".img.lz4", ".img.zst", ".img.tzd"];

/// A directory that `criu dump` wrote.
///
/// ```
/// use trueno_zram_criu::{DumpedMemory, ImageDir, Pagemap, PagemapEntry};
/// use trueno_zram_io::ArchiveOpener;
/// # let dir = tempfile::tempdir()?;
/// # let entries = vec![PagemapEntry { address: 0x7000, pages: 2, parent: false, lazy: true, present: true }];
/// # std::fs::write(dir.path().join("pagemap-42.img"), Pagemap { pages_id: 1, entries }.encode())?;
/// # std::fs::write(dir.path().join("pages-1.img"), [7; 8192])?;
/// let images = ImageDir::open(dir.path())?;
/// assert!(images.describes(1) && !images.describes(2));
/// let memory = DumpedMemory::open(&images, &ArchiveOpener::new())?;
/// assert_eq!(memory.len_bytes(), 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ImageDir {
    pub(crate) path: PathBuf,
    pub(crate) processes: Vec<PagemapFile>,
    pub(crate) shared: Vec<PagemapFile>,
}

/// The pagemap of a process, or of shared memory.
#[derive(Debug)]
pub(crate) struct PagemapFile {
    /// The number of the process, or of the shared memory.
    pub(crate) id: u64,
    pub(crate) path: PathBuf,
    pub(crate) pagemap: Pagemap,
}

/// The name of a file of pages.
///
/// ```
/// use trueno_zram_criu::PagesName;
/// assert_eq!(PagesName::parse("pages-3.img"), Some(PagesName { pages_id: 3, compressed: false }));
/// assert_eq!(PagesName::parse("pages-3.img.zst"), Some(PagesName { pages_id: 3, compressed: true }));
/// assert_eq!(PagesName::parse("pages-3.img.tzd"), Some(PagesName { pages_id: 3, compressed: true }));
/// assert_eq!(PagesName::parse("pages-03.img"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesName {
    /// N in `pages-N.img`.
    pub pages_id: u32,
    /// `true` for an archive or a delta.
    pub compressed: bool,
}

impl PagesName {
    /// Parses a file name. Returns `None` if it is not that of a pages file. The example of [`PagesName`] parses some.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("pages-")?;
        let compressed = COMPRESSED_SUFFIXES.iter().find_map(|suffix| rest.strip_suffix(suffix));
        let digits = compressed.or_else(|| rest.strip_suffix(PLAIN_SUFFIX))?;
        Some(Self { pages_id: parse_number(digits)?, compressed: compressed.is_some() })
    }
}

impl ImageDir {
    /// Reads the pagemaps of a directory. The example of [`ImageDir`] opens one.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Pagemap`]; [`Error::NoPagemaps`]; [`Error::SharedPages`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (mut processes, mut shared) = (Vec::new(), Vec::new());
        for name in names(path)? {
            let Some(digits) = name.strip_prefix("pagemap-").and_then(|rest| rest.strip_suffix(".img")) else {
                continue;
            };
            let (images, digits) = match digits.strip_prefix("shmem-") {
                Some(digits) => (&mut shared, digits),
                None => (&mut processes, digits),
            };
            let Some(id) = parse_number(digits) else { continue };
            let path = path.join(&name);
            if let Some(pagemap) = read_pagemap(&path)? {
                images.push(PagemapFile { id, path, pagemap });
            }
        }
        if processes.is_empty() {
            return Err(Error::NoPagemaps { path: path.into() });
        }
        let mut ids = BTreeSet::new();
        for image in processes.iter().chain(&shared) {
            let pages_id = image.pagemap.pages_id;
            if !ids.insert(pages_id) {
                return Err(Error::SharedPages { path: image.path.clone(), pages_id });
            }
        }
        Ok(Self { path: path.into(), processes, shared })
    }

    /// Keeps only the process whose pages are in `pages-N.img`, and shared memory.
    ///
    /// ```
    /// use trueno_zram_criu::ImageDir;
    /// # use trueno_zram_criu::{Pagemap, PagemapEntry};
    /// # let dir = tempfile::tempdir()?;
    /// # let entries = vec![PagemapEntry { address: 0x7000, pages: 2, parent: false, lazy: true, present: true }];
    /// # std::fs::write(dir.path().join("pagemap-42.img"), Pagemap { pages_id: 1, entries }.encode())?;
    /// let images = ImageDir::open(dir.path())?.only(1)?;
    /// assert!(images.describes(1));
    /// assert!(images.only(2).is_err(), "no pagemap names pages-2.img");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoPages`] if there is none.
    pub fn only(mut self, pages_id: u32) -> Result<Self, Error> {
        self.processes.retain(|process| process.pagemap.pages_id == pages_id);
        if self.processes.is_empty() {
            return Err(Error::NoPages { path: self.path, pages_id });
        }
        Ok(self)
    }

    /// Returns `true` if a pagemap describes the pages in `pages-N.img`: [`only`](Self::only) has an example.
    #[must_use]
    pub fn describes(&self, pages_id: u32) -> bool {
        self.processes.iter().chain(&self.shared).any(|image| image.pagemap.pages_id == pages_id)
    }

    /// Returns the pages files in a directory.
    ///
    /// ```
    /// use trueno_zram_criu::{ImageDir, PagesName};
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("pages-1.img.lz4");
    /// std::fs::write(&path, "an archive")?;
    /// std::fs::write(dir.path().join("core-42.img"), "registers")?;
    /// assert_eq!(ImageDir::pages_files(dir.path())?, [(PagesName { pages_id: 1, compressed: true }, path)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn pages_files(path: &Path) -> Result<Vec<(PagesName, PathBuf)>, Error> {
        let files = names(path)?.into_iter().filter_map(|name| Some((PagesName::parse(&name)?, path.join(&name))));
        Ok(files.collect())
    }

    /// Opens the pages of a pagemap: a plain file if there is one, else an archive, or a delta with its bases.
    pub(crate) fn open_pages(&self, file: &PagemapFile, opener: &ArchiveOpener) -> Result<Arc<dyn Pages>, Error> {
        let pages_id = file.pagemap.pages_id;
        let path = |suffix: &str| self.path.join(format!("pages-{pages_id}{suffix}"));
        let plain = path(PLAIN_SUFFIX);
        let pages = if plain.exists() {
            open_plain(&plain)?
        } else {
            let compressed = COMPRESSED_SUFFIXES.into_iter().map(path).find(|path| path.exists());
            let compressed = compressed.ok_or_else(|| Error::NoPages { path: file.path.clone(), pages_id })?;
            open_compressed(&compressed, opener)?
        };
        file.pagemap.check_pages(pages.len_bytes(), &file.path)?;
        Ok(pages)
    }
}

fn open_plain(path: &Path) -> Result<Arc<dyn Pages>, Error> {
    let file = Error::open(path)?;
    Ok(Arc::new(PlainPages::new(Arc::new(file)).map_err(Error::archive(path))?))
}

fn open_compressed(path: &Path, opener: &ArchiveOpener) -> Result<Arc<dyn Pages>, Error> {
    let archive = opener.open(path).map_err(Error::archive(path))?;
    let archive = archive.ok_or_else(|| Error::NoIndex { path: path.into() })?;
    if !archive.notices_damage() {
        return Err(Error::NoChecksums { path: path.into() });
    }
    Ok(match archive {
        PageArchive::Standard(archive) => Arc::new(*archive),
        PageArchive::Delta(delta) => Arc::new(*delta),
    })
}

/// Reads a pagemap; returns `None` for an empty file, as CRIU leaves it for a process without memory, such as a zombie.
fn read_pagemap(path: &Path) -> Result<Option<Pagemap>, Error> {
    let file = Error::open(path)?;
    if file.metadata().map_err(Error::io(path))?.len() == 0 {
        return Ok(None);
    }
    Pagemap::read(BufReader::new(file)).map(Some).map_err(|error| match error {
        ReadError::Io(source) => Error::io(path)(source),
        ReadError::Pagemap(problem) => Error::Pagemap { path: path.into(), problem },
    })
}

/// Returns the names in a directory, sorted. Names that are not Unicode are skipped: CRIU writes none.
pub(crate) fn names(path: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(Error::io(path))? {
        names.extend(entry.map_err(Error::io(path))?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Parses a number as CRIU writes it: without signs and leading zeros.
fn parse_number<T: std::str::FromStr + ToString>(digits: &str) -> Option<T> {
    digits.parse().ok().filter(|number: &T| number.to_string() == digits)
}
