//! `pages-N.img`, or an archive of it.

use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::{ArchiveOpener, Error as ArchiveError, PageArchive, ReadAt};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::Error;
use crate::image_dir::COMPRESSED_SUFFIXES;

/// The pages of a pagemap, read by many threads.
///
/// ```
/// use std::sync::Arc;
/// let pages = trueno_zram_criu::PagesFile::plain(Arc::new(vec![7; 8192]))?;
/// let mut page = [[0; 4096]];
/// pages.read(1, &mut page)?;
/// assert_eq!((page, pages.len_bytes()), ([[7; 4096]], 8192));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug)]
pub struct PagesFile(Source);

enum Source {
    Plain { file: Arc<dyn ReadAt>, len_bytes: u64 },
    Archive(PageArchive),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain { len_bytes, .. } => write!(f, "Plain({len_bytes} bytes)"),
            Self::Archive(archive) => archive.fmt(f),
        }
    }
}

impl PagesFile {
    /// Opens a file as what its name says: an archive, a delta with its bases, or plain pages.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Archive`], [`Error::NoIndex`], and [`Error::NoChecksums`].
    pub fn open(path: &Path, opener: &ArchiveOpener) -> Result<Self, Error> {
        if !is_archive_name(path) {
            let file = Error::open(path)?;
            return Self::plain(Arc::new(file)).map_err(Error::archive(path));
        }
        let archive = opener.open(path).map_err(|error| match error {
            ArchiveError::Read { source, .. } => Error::io(path)(source),
            error => Error::archive(path)(error),
        })?;
        let archive = archive.ok_or_else(|| Error::NoIndex { path: path.into() })?;
        if !archive.notices_damage() {
            return Err(Error::NoChecksums { path: path.into() });
        }
        Ok(Self(Source::Archive(archive)))
    }

    /// Takes pages that are not compressed.
    ///
    /// # Errors
    /// If the length cannot be found out.
    pub fn plain(file: Arc<dyn ReadAt>) -> Result<Self, ArchiveError> {
        let len_bytes = file.len_bytes().map_err(|source| ArchiveError::Read { at: 0, source })?;
        Ok(Self(Source::Plain { file, len_bytes }))
    }

    /// Takes an archive of pages; returns `None` if it has no index.
    ///
    /// # Errors
    /// Those of [`PageArchive::standard`].
    pub fn archive(file: Arc<dyn ReadAt>) -> Result<Option<Self>, ArchiveError> {
        Ok(PageArchive::standard(file)?.map(|archive| Self(Source::Archive(archive))))
    }

    /// Returns the length of the pages in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match &self.0 {
            Source::Plain { len_bytes, .. } => *len_bytes,
            Source::Archive(archive) => archive.content_len(),
        }
    }

    /// Returns whether a page can be read at once. If not, reading it takes about as long as reading all pages near it.
    pub(crate) fn is_located(&self, page: u64) -> bool {
        match &self.0 {
            Source::Plain { .. } => true,
            Source::Archive(archive) => archive.is_located(page),
        }
    }

    /// Reads the pages from `first` on.
    ///
    /// # Errors
    /// If a page is damaged, missing, or cannot be read. The contents of `out` are then unspecified.
    pub fn read(&self, first: u64, out: &mut [Page]) -> Result<(), ArchiveError> {
        let pages = self.len_bytes() / PAGE_SIZE as u64;
        let end = first.saturating_add(out.len() as u64);
        if end > pages {
            return Err(ArchiveError::PageRange { start: first, end, pages });
        }
        match &self.0 {
            Source::Plain { file, .. } => {
                let at = first * PAGE_SIZE as u64;
                let read = file.read_exact_at(out.as_flattened_mut(), at);
                read.map_err(|source| ArchiveError::Read { at, source })
            }
            Source::Archive(archive) => archive.read_pages(first, out),
        }
    }
}

/// For page faults, and the background fill.
#[cfg(target_os = "linux")]
impl trueno_zram_restore::PagesByNumber for PagesFile {
    fn len_bytes(&self) -> u64 {
        Self::len_bytes(self)
    }

    fn page(&self, number: u64, buffer: &mut Page) -> Result<Option<&Page>, ArchiveError> {
        self.read(number, std::slice::from_mut(buffer))?;
        Ok(None)
    }

    fn is_located(&self, number: u64) -> bool {
        Self::is_located(self, number)
    }

    fn visit(&self, pages: std::ops::Range<u64>, buffer: &mut [Page], visit: &mut trueno_zram_restore::Visit<'_>) {
        match &self.0 {
            Source::Archive(archive) => archive.visit(pages, buffer, visit),
            Source::Plain { .. } => {
                let mut next = pages.start;
                while next < pages.end && !buffer.is_empty() {
                    let count = buffer.len().min(usize::try_from(pages.end - next).unwrap_or(usize::MAX));
                    let out = &mut buffer[..count];
                    let portion = self.read(next, out).map(|()| &*out);
                    if visit(next, portion).is_break() {
                        return;
                    }
                    next += count as u64;
                }
            }
        }
    }
}

fn is_archive_name(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| COMPRESSED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)))
}
