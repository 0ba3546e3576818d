//! Reads the pages of a delta: from itself, or from the files of the chain beneath it.

use std::sync::Arc;

use trueno_zram_core::Page;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::hash_list::HashList;
use crate::index::page_len;
use crate::page_hash::PageHash;
use crate::read_at::{ReadAt, Span};
use crate::shared::SharedReader;

use super::archive::PageArchive;
use super::chain::ArchiveOpener;
use super::identity::ArchiveIdentity;
use super::layer::DeltaLayer;
use super::layout::{BaseRecord, HEAD_MAGIC};
use super::map::{OriginCounts, PageOrigin};
use super::open::read_footer;

/// A delta with its base, read by page number, by many threads at once.
///
/// Every page is compared with its hash before it is returned. So a base that was changed, and a delta that names the wrong
/// pages, are errors and never other bytes. Opening reads the table of groups; the first read in a group of 1,024 pages
/// reads its map, which then stays in memory: 16 bytes per page that is not zero.
///
/// The deltas of a chain lie in a list, and a page is looked up in one after the other until its file is found. A long chain
/// takes no more of the stack than a short one.
///
/// [`PageArchive`] opens archives and deltas alike.
pub struct DeltaReader {
    /// The delta itself.
    pub(super) own: DeltaLayer,
    /// The deltas beneath it, its base first.
    pub(super) below: Vec<DeltaLayer>,
    /// The standard archive beneath all of them.
    pub(super) standard: Box<SharedReader<Arc<dyn ReadAt>>>,
}

impl DeltaReader {
    /// Opens a delta; returns `None` if the file is not one. `find_base` returns the archive that the delta needs.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_archive::{DeltaReader, doc_page_archive};
    /// let other = DeltaReader::open(Arc::new(b"some other file".to_vec()), |_| Ok(doc_page_archive(4096)))?;
    /// assert!(other.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Delta`] if it is damaged; [`Error::Base`] if the base is another archive than the one it was made from;
    /// [`Error::ChainTooLong`]; the errors of `find_base`; [`Error::Read`].
    pub fn open(
        file: Arc<dyn ReadAt>,
        find_base: impl FnOnce(&BaseRecord) -> Result<PageArchive>,
    ) -> Result<Option<Self>> {
        let Some(own) = DeltaLayer::open(file)? else { return Ok(None) };
        let base = find_base(&own.base)?;
        Self::on_base(base, own).map(Some)
    }

    /// Adds a delta to the chain of its base.
    pub(super) fn on_base(base: PageArchive, own: DeltaLayer) -> Result<Self> {
        if base.identity() != own.base.identity || base.page_count() != own.base.page_count {
            return Err(Error::base(own.base, "it is another archive than the one that the delta was made from"));
        }
        ArchiveOpener::check_depth(base.depth() + 1)?;
        Ok(match base {
            PageArchive::Standard(standard) => Self { own, below: Vec::new(), standard },
            PageArchive::Delta(delta) => {
                let Self { own: base, mut below, standard } = *delta;
                below.insert(0, base);
                Self { own, below, standard }
            }
        })
    }

    /// Returns whether a file starts like a delta.
    ///
    /// ```
    /// assert!(!trueno_zram_archive::DeltaReader::is_delta(b"some other file"));
    /// ```
    #[must_use]
    pub fn is_delta(start: &[u8]) -> bool {
        start.starts_with(&HEAD_MAGIC)
    }

    /// Returns the identity of a delta without opening its base; `None` if the file is not a delta.
    pub(crate) fn identity_of(file: &dyn ReadAt) -> Result<Option<ArchiveIdentity>> {
        Ok(read_footer(file)?.map(|footer| ArchiveIdentity::of_delta(&footer)))
    }

    /// Returns the format of the stored pages.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.format(), trueno_zram_archive::Format::Lz4);
    /// ```
    #[must_use]
    pub fn format(&self) -> Format {
        self.own.stored.format()
    }

    /// Returns the length of the content in bytes.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.content_len(), 100 * 4096);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        self.own.footer.content_len
    }

    /// Returns the number of pages, a shorter last one included.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.page_count(), 100);
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.own.page_count()
    }

    /// Returns the number of deltas in its chain: 1 if its base is a standard archive.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.depth(), 1);
    /// ```
    #[must_use]
    pub fn depth(&self) -> usize {
        1 + self.below.len()
    }

    /// Returns what the delta says about its base.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.base_record().path, b"base.lz4");
    /// ```
    #[must_use]
    pub fn base_record(&self) -> &BaseRecord {
        &self.own.base
    }

    /// Returns what tells it from other archives.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_ne!(delta.identity(), delta.base_record().identity);
    /// ```
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        ArchiveIdentity::of_delta(&self.own.footer)
    }

    /// Returns the archive of the pages that the delta stores.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.stored().page_count(), 1);
    /// ```
    #[must_use]
    pub fn stored(&self) -> &SharedReader<Span> {
        &self.own.stored
    }

    /// Returns the number of pages by where they come from, as the footer states it.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!((delta.origin_counts().zero, delta.origin_counts().stored), (99, 1));
    /// ```
    #[must_use]
    pub fn origin_counts(&self) -> OriginCounts {
        self.own.footer.counts
    }

    /// Reads a named section, such as an address map; `None` if there is none.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.section("address-map", 1 << 20)?, None);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ArchiveReader::section`](crate::ArchiveReader::section).
    pub fn section(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        self.own.stored.section(name, max_bytes)
    }

    /// Returns where a page comes from, and its hash unless it is zero.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// let (origin, hash) = delta.origin(99)?;
    /// assert_eq!((origin, hash.is_some()), (trueno_zram_archive::PageOrigin::Stored(0), true));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`]; [`Error::Delta`] if the map is damaged; [`Error::Read`].
    pub fn origin(&self, page: u64) -> Result<(PageOrigin, Option<PageHash>)> {
        self.own.origin(page)
    }

    /// Returns whether a page is zero, without reading it.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert!(delta.is_zero_page(5)? && !delta.is_zero_page(99)?);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`origin`](Self::origin).
    pub fn is_zero_page(&self, page: u64) -> Result<bool> {
        Ok(self.origin(page)?.0 == PageOrigin::Zero)
    }

    /// Returns the number of zero pages from `page` on, without reading them. It counts up to the end of a group of 1,024 pages:
    /// what follows may be zero, too.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!((delta.zero_run(5)?, delta.zero_run(99)?), (94, 0));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`origin`](Self::origin).
    pub fn zero_run(&self, page: u64) -> Result<u64> {
        self.own.zero_run(page)
    }

    /// Reads a page. Returns the length of its content: 4096, or less for the last page, of which the rest is zero.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// let mut page = [0; 4096];
    /// assert_eq!(delta.read_page_at(99, &mut page)?, 4096);
    /// assert_eq!(page, [7; 4096]);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`origin`](Self::origin); [`Error::PageHash`] if the page is not the one that was hashed; the errors of the
    /// archives.
    pub fn read_page_at(&self, page: u64, out: &mut Page) -> Result<usize> {
        let (origin, hash) = self.origin(page)?;
        let place = self.place(page, origin)?;
        self.read_run(page, place, place, std::array::from_mut(out))?;
        if hash.is_some_and(|hash| PageHash::of(out) != hash) {
            return Err(self.other_page(page, origin));
        }
        Ok(self.cut_tail(page, out))
    }

    /// Reads consecutive pages, from `first` on. A shorter last page is filled up with zeros. The hashes of many pages are
    /// computed faster than those of single pages.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// let mut pages = [[1; 4096]; 2];
    /// delta.read_pages(98, &mut pages)?;
    /// assert_eq!(pages, [[0; 4096], [7; 4096]]);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Like [`read_page_at`](Self::read_page_at).
    pub fn read_pages(&self, first: u64, out: &mut [Page]) -> Result<()> {
        let expected = (first..).take(out.len()).map(|page| self.origin(page)).collect::<Result<Vec<_>>>()?;
        self.read_runs(first, &expected, out)?;
        // Zero pages have no hashes.
        let mut hashes = Vec::with_capacity(out.len());
        let found = out.iter().zip(&expected).filter(|(_, (_, hash))| hash.is_some()).map(|(page, _)| page);
        PageHash::of_pages(found, &mut hashes);
        let hashed = (first..).zip(&expected).filter_map(|(page, (origin, hash))| Some((page, *origin, (*hash)?)));
        let mut pages = hashed.zip(&hashes);
        if let Some(((page, origin, _), _)) = pages.find(|((_, _, expected), hash)| expected != *hash) {
            return Err(self.other_page(page, origin));
        }
        if let Some((last, before)) = out.split_last_mut() {
            self.cut_tail(first + before.len() as u64, last);
        }
        Ok(())
    }

    /// Returns the memory that the maps of all deltas take now, in bytes.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert!(delta.map_memory_bytes() < 1000);
    /// ```
    #[must_use]
    pub fn map_memory_bytes(&self) -> usize {
        self.own.map_memory_bytes() + self.below.iter().map(DeltaLayer::map_memory_bytes).sum::<usize>()
    }

    /// Returns the hashes of all pages. Maps are not kept in memory.
    pub(crate) fn hashes(&self) -> Result<HashList> {
        self.own.hashes()
    }

    /// Sets what lies behind the content to zero. Returns the length of the content.
    fn cut_tail(&self, page: u64, out: &mut Page) -> usize {
        let len = page_len(self.content_len(), page);
        out[len..].fill(0);
        len
    }

    fn other_page(&self, page: u64, origin: PageOrigin) -> Error {
        let origin = match origin {
            PageOrigin::Base(number) => format!("page {number} of base {}", self.own.base),
            PageOrigin::Stored(number) => format!("stored page {number}"),
            PageOrigin::Zero => "a zero page".to_owned(),
        };
        Error::PageHash { page, origin }
    }
}

impl std::fmt::Debug for DeltaReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeltaReader({} pages, base {})", self.page_count(), self.own.base)
    }
}
