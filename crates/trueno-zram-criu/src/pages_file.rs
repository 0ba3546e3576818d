//! `pages-N.img`, or an archive of it.

use std::path::Path;
use std::sync::Arc;

use trueno_zram_archive::{ArchiveReader, Error as ArchiveError, Format, ReadAt, SharedReader};
use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::Error;

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
    Archive(Box<SharedReader<Arc<dyn ReadAt>>>),
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
    /// Opens a file as what it is: an archive, or plain pages.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Archive`], [`Error::NoIndex`], and [`Error::NoChecksums`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = Error::open(path)?;
        if !is_archive_name(path) {
            return Self::plain(Arc::new(file)).map_err(Error::archive(path));
        }
        let no_index = || Error::NoIndex { path: path.into() };
        let checked = ArchiveReader::open(&file).map_err(Error::archive(path))?.ok_or_else(no_index)?;
        if !checked.has_block_checksums() {
            return Err(Error::NoChecksums { path: path.into() });
        }
        let file: Arc<dyn ReadAt> = Arc::new(file);
        Self::archive(file).map_err(Error::archive(path))?.ok_or_else(no_index)
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
    /// Those of [`SharedReader::open`].
    pub fn archive(file: Arc<dyn ReadAt>) -> Result<Option<Self>, ArchiveError> {
        Ok(SharedReader::open(file)?.map(|archive| Self(Source::Archive(Box::new(archive)))))
    }

    /// Returns the length of the pages in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match &self.0 {
            Source::Plain { len_bytes, .. } => *len_bytes,
            Source::Archive(archive) => archive.content_len(),
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
            Source::Archive(archive) => archive.read_pages_at(first, out),
        }
    }
}

fn is_archive_name(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    [Format::Lz4, Format::Zstd].iter().any(|format| extension == Some(format.extension()))
}
