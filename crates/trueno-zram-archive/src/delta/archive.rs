//! An archive or a delta, read by page number: readers need not know which.

use std::sync::Arc;

use trueno_zram_core::Page;

use crate::error::Result;
use crate::format::Format;
use crate::read_at::ReadAt;
use crate::shared::{SharedReader, read_content_at};

use super::chain::ArchiveOpener;
use super::identity::ArchiveIdentity;
use super::layout::BaseRecord;
use super::reader::DeltaReader;

/// An archive of either format, or a delta with the archives that it needs. Its pages are read by number, by many threads at
/// once.
///
/// [`ArchiveOpener`](crate::ArchiveOpener) opens one by its path.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::PageArchive;
/// # let bytes = trueno_zram_archive::doc_page_archive_bytes(3 * 4096 + 5);
/// let archive = PageArchive::standard(Arc::new(bytes))?.expect("it has an index");
/// let mut page = [0xff; 4096];
/// assert_eq!(archive.read_page_at(3, &mut page)?, 5);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug)]
pub enum PageArchive {
    /// A standard .lz4 or .zst file with an index.
    Standard(Box<SharedReader<Arc<dyn ReadAt>>>),
    /// A delta.
    Delta(Box<DeltaReader>),
}

impl PageArchive {
    /// Opens a standard archive; `None` if the file has no index at its end.
    ///
    /// # Errors
    /// Those of [`SharedReader::open`].
    pub fn standard(file: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        Ok(SharedReader::open(file)?.map(|archive| Self::Standard(Box::new(archive))))
    }

    /// Returns the delta, if it is one.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(4096);
    /// assert!(archive.as_delta().is_none());
    /// ```
    #[must_use]
    pub fn as_delta(&self) -> Option<&DeltaReader> {
        match self {
            Self::Standard(_) => None,
            Self::Delta(delta) => Some(delta),
        }
    }

    /// Returns the format of the pages that the file stores.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(4096);
    /// assert_eq!(archive.format(), trueno_zram_archive::Format::Lz4);
    /// ```
    #[must_use]
    pub fn format(&self) -> Format {
        match self {
            Self::Standard(archive) => archive.format(),
            Self::Delta(delta) => delta.format(),
        }
    }

    /// Returns the length of the content in bytes.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(5000);
    /// assert_eq!(archive.content_len(), 5000);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        match self {
            Self::Standard(archive) => archive.content_len(),
            Self::Delta(delta) => delta.content_len(),
        }
    }

    /// Returns the number of pages, a shorter last one included.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(5000);
    /// assert_eq!(archive.page_count(), 2);
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        match self {
            Self::Standard(archive) => archive.page_count(),
            Self::Delta(delta) => delta.page_count(),
        }
    }

    /// Returns the number of deltas on the way to a standard archive: 0 for such an archive itself.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(5000);
    /// assert_eq!(archive.depth(), 0);
    /// ```
    #[must_use]
    pub fn depth(&self) -> usize {
        self.as_delta().map_or(0, DeltaReader::depth)
    }

    /// Returns whether damage to any page would be noticed: every block has a checksum, or every page a hash.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(5000);
    /// assert!(archive.notices_damage());
    /// ```
    #[must_use]
    pub fn notices_damage(&self) -> bool {
        match self {
            Self::Standard(archive) => archive.has_block_checksums(),
            Self::Delta(_) => true,
        }
    }

    /// Returns what tells it from other archives.
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        match self {
            Self::Standard(archive) => archive.identity(),
            Self::Delta(delta) => delta.identity(),
        }
    }

    /// Returns what a delta that is made from it says about it.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(5000);
    /// assert_eq!(archive.record(b"base.lz4")?.identity, archive.identity());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ChainTooLong`](crate::Error::ChainTooLong) if readers would refuse that delta.
    pub fn record(&self, path: &[u8]) -> Result<BaseRecord> {
        ArchiveOpener::check_depth(self.depth() + 1)?;
        Ok(BaseRecord { identity: self.identity(), page_count: self.page_count(), path: path.to_vec() })
    }

    /// Reads a named section, such as an address map; `None` if there is none.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(5000);
    /// assert_eq!(archive.section("address-map", 1 << 20)?, None);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ArchiveReader::section`](crate::ArchiveReader::section).
    pub fn section(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Standard(archive) => archive.section(name, max_bytes),
            Self::Delta(delta) => delta.section(name, max_bytes),
        }
    }

    /// Returns whether reading a page takes no other pages, as [`SharedReader::is_located`] says. Of a delta, the map and
    /// the archive that the page is in are asked.
    ///
    /// ```
    /// # let archive = trueno_zram_archive::doc_page_archive(5000);
    /// assert!(!archive.is_located(1));
    /// archive.read_page_at(0, &mut [0; 4096])?;
    /// assert!(archive.is_located(1));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn is_located(&self, page: u64) -> bool {
        match self {
            Self::Standard(archive) => archive.is_located(page),
            Self::Delta(delta) => delta.is_located(page),
        }
    }

    /// Returns whether a page is zero, without reading it.
    ///
    /// # Errors
    /// Like [`read_page_at`](Self::read_page_at).
    pub fn is_zero_page(&self, page: u64) -> Result<bool> {
        match self {
            Self::Standard(archive) => archive.is_zero_page(page),
            Self::Delta(delta) => delta.is_zero_page(page),
        }
    }

    /// Reads a page. Returns the length of its content: 4096, or less for the last page, of which the rest is zero.
    ///
    /// # Errors
    /// Those of [`SharedReader::read_page_at`] and [`DeltaReader::read_page_at`].
    pub fn read_page_at(&self, page: u64, out: &mut Page) -> Result<usize> {
        match self {
            Self::Standard(archive) => archive.read_page_at(page, out),
            Self::Delta(delta) => delta.read_page_at(page, out),
        }
    }

    /// Reads consecutive pages, from `first` on. A shorter last page is filled up with zeros.
    ///
    /// # Errors
    /// Like [`read_page_at`](Self::read_page_at).
    pub fn read_pages(&self, first: u64, out: &mut [Page]) -> Result<()> {
        match self {
            Self::Standard(archive) => archive.read_pages_at(first, out),
            Self::Delta(delta) => delta.read_pages(first, out),
        }
    }

    /// Reads content from the position `offset`. Returns how many bytes were read: fewer than asked for only at the end.
    ///
    /// # Errors
    /// Like [`read_page_at`](Self::read_page_at).
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        match self {
            Self::Standard(archive) => archive.read_at(offset, out),
            Self::Delta(delta) => {
                read_content_at(delta.content_len(), offset, out, |page, out| delta.read_page_at(page, out).map(|_| ()))
            }
        }
    }

    /// Reads a page where the index says it is, for a caller that compares it with its hash.
    pub(crate) fn read_unproven(&self, page: u64, out: &mut Page) -> Result<()> {
        match self {
            Self::Standard(archive) => archive.read_unproven(page, out),
            Self::Delta(delta) => delta.read_unproven(page, out),
        }
    }
}
