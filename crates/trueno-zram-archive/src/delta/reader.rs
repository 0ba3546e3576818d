//! Reads the pages of a delta: from itself, or from its base.

use std::sync::{Arc, OnceLock};

use trueno_zram_core::{PAGE_SIZE, Page};

use crate::error::{Error, Result};
use crate::format::Format;
use crate::hash::xxh32;
use crate::hash_list::HashList;
use crate::index::{GROUP_PAGES, page_len, pages_of};
use crate::page_hash::PageHash;
use crate::read_at::{ReadAt, Span};
use crate::shared::SharedReader;

use super::archive::PageArchive;
use super::identity::ArchiveIdentity;
use super::layout::{BaseRecord, Footer, GroupRecord, HEAD_LEN, HEAD_MAGIC};
use super::map::{Bounds, MapGroup, OriginCounts, PageOrigin};
use super::open::{read, read_base, read_footer, read_records};

/// A delta with its base, read by page number, by many threads at once.
///
/// Every page is compared with its hash before it is returned. So a base that was changed, and a delta that names the wrong
/// pages, are errors and never other bytes. Opening reads the table of groups; the first read in a group of 1,024 pages
/// reads its map, which then stays in memory: 16 bytes per page that is not zero.
///
/// [`PageArchive`] opens archives and deltas alike.
pub struct DeltaReader {
    file: Arc<dyn ReadAt>,
    footer: Footer,
    base_record: BaseRecord,
    /// Where the map of each group is.
    records: Vec<(u64, GroupRecord)>,
    groups: Vec<OnceLock<Box<MapGroup>>>,
    stored: SharedReader<Span>,
    base: Box<PageArchive>,
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
    /// [`Error::Delta`] if it is damaged; [`Error::Base`] if the base is another archive than the one it was made from; the
    /// errors of `find_base`; [`Error::Read`].
    pub fn open(
        file: Arc<dyn ReadAt>,
        find_base: impl FnOnce(&BaseRecord) -> Result<PageArchive>,
    ) -> Result<Option<Self>> {
        let Some(footer) = read_footer(&*file)? else { return Ok(None) };
        let records = read_records(&*file, &footer)?;
        let base_record = read_base(&*file, &footer, &records)?;
        let span = Span::new(Arc::clone(&file), HEAD_LEN as u64, footer.stored_len);
        let stored = SharedReader::open(span).map_err(|error| Error::delta(format!("its stored pages: {error}")))?;
        let stored = stored.ok_or_else(|| Error::delta("its stored pages have no index"))?;
        if !stored.content_len().is_multiple_of(PAGE_SIZE as u64) {
            return Err(Error::delta("its stored pages are not whole pages"));
        }
        let base = Box::new(find_base(&base_record)?);
        if base.identity() != base_record.identity || base.page_count() != base_record.page_count {
            return Err(Error::base(base_record, "it is another archive than the one that the delta was made from"));
        }
        let groups = records.iter().map(|_| OnceLock::new()).collect();
        Ok(Some(Self { file, footer, base_record, records, groups, stored, base }))
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
        self.stored.format()
    }

    /// Returns the length of the content in bytes.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.content_len(), 100 * 4096);
    /// ```
    #[must_use]
    pub fn content_len(&self) -> u64 {
        self.footer.content_len
    }

    /// Returns the number of pages, a shorter last one included.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.page_count(), 100);
    /// ```
    #[must_use]
    pub fn page_count(&self) -> u64 {
        pages_of(self.footer.content_len)
    }

    /// Returns the archive that it was made from.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.base().page_count(), 1);
    /// ```
    #[must_use]
    pub fn base(&self) -> &PageArchive {
        &self.base
    }

    /// Returns what the delta says about its base.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.base_record().path, b"base.lz4");
    /// ```
    #[must_use]
    pub fn base_record(&self) -> &BaseRecord {
        &self.base_record
    }

    /// Returns what tells it from other archives.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_ne!(delta.identity(), delta.base().identity());
    /// ```
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        ArchiveIdentity::of_delta(&self.footer)
    }

    /// Returns the archive of the pages that the delta stores.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!(delta.stored().page_count(), 1);
    /// ```
    #[must_use]
    pub fn stored(&self) -> &SharedReader<Span> {
        &self.stored
    }

    /// Returns the number of pages by where they come from, as the footer states it.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert_eq!((delta.origin_counts().zero, delta.origin_counts().stored), (99, 1));
    /// ```
    #[must_use]
    pub fn origin_counts(&self) -> OriginCounts {
        self.footer.counts
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
        self.stored.section(name, max_bytes)
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
        let pages = self.page_count();
        if page >= pages {
            return Err(Error::PageRange { start: page, end: page.saturating_add(1), pages });
        }
        let within = u16::try_from(page % GROUP_PAGES as u64).expect("less than a group");
        Ok(self.group(page / GROUP_PAGES as u64)?.find(within))
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

    /// Returns whether reading a page takes no other pages.
    pub(crate) fn is_located(&self, page: u64) -> bool {
        match self.origin(page) {
            Ok((PageOrigin::Base(page), _)) => self.base.is_located(page),
            Ok((PageOrigin::Stored(page), _)) => self.stored.is_located(page),
            Ok((PageOrigin::Zero, _)) => true,
            Err(_) => false,
        }
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
        self.read_from(page, origin, std::array::from_mut(out))?;
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

    /// Reads pages without comparing them with their hashes: the delta that asks for them has its own.
    pub(crate) fn read_unverified(&self, first: u64, out: &mut [Page]) -> Result<()> {
        let origins = (first..).take(out.len()).map(|page| self.origin(page)).collect::<Result<Vec<_>>>()?;
        self.read_runs(first, &origins, out)?;
        if let Some((last, before)) = out.split_last_mut() {
            self.cut_tail(first + before.len() as u64, last);
        }
        Ok(())
    }

    /// Returns the memory that the map takes now, in bytes.
    ///
    /// ```
    /// # let delta = trueno_zram_archive::doc_delta();
    /// assert!(delta.map_memory_bytes() < 1000);
    /// ```
    #[must_use]
    pub fn map_memory_bytes(&self) -> usize {
        let touched: usize = self.groups.iter().filter_map(OnceLock::get).map(|group| group.memory_bytes()).sum();
        size_of_val(&self.records[..]) + size_of_val(&self.groups[..]) + touched
    }

    /// Returns the hashes of all pages. Maps are not kept in memory.
    pub(crate) fn hashes(&self) -> Result<HashList> {
        let mut list = HashList::default();
        for number in 0..self.footer.groups() {
            self.read_group(number)?.pages().for_each(|(_, hash)| match hash {
                Some(hash) => list.push(hash),
                None => list.push_zeros(1),
            });
        }
        Ok(list)
    }

    /// Reads the pages from `first` on from where they come from. Those that follow each other there are read together.
    fn read_runs(&self, first: u64, origins: &[(PageOrigin, Option<PageHash>)], out: &mut [Page]) -> Result<()> {
        let (mut rest, mut page) = (out, first);
        for run in origins.chunk_by(|(one, _), (next, _)| next.follows(*one)) {
            let (pages, after) = rest.split_at_mut(run.len());
            self.read_from(page, run[0].0, pages)?;
            (rest, page) = (after, page + run.len() as u64);
        }
        Ok(())
    }

    /// Reads the pages from `first` on, which follow each other where they come from. Errors name the pages of the delta.
    fn read_from(&self, first: u64, origin: PageOrigin, out: &mut [Page]) -> Result<()> {
        let count = out.len() as u64;
        // The number in the delta of what is page `found` where it comes from, if the error says that.
        let number = |found: Option<u64>, start: u64| match found {
            None => (count == 1).then_some(first),
            Some(found) => found.checked_sub(start).filter(|within| *within < count).map(|within| first + within),
        };
        match origin {
            PageOrigin::Zero => {
                out.as_flattened_mut().fill(0);
                Ok(())
            }
            PageOrigin::Stored(start) => read_standard(&self.stored, start, out).map_err(|error| {
                let page = number(error.page(), start);
                error.within(HEAD_LEN as u64, page)
            }),
            PageOrigin::Base(start) => self.base.read_unverified(start, out).map_err(|error| {
                let page = number(error.page(), start);
                match error {
                    // Of a base further down.
                    Error::Base { base, reason, .. } => Error::Base { base, reason, page },
                    error => Error::Base { base: self.base_record.to_string(), reason: error.to_string(), page },
                }
            }),
        }
    }

    /// Sets what lies behind the content to zero. Returns the length of the content.
    fn cut_tail(&self, page: u64, out: &mut Page) -> usize {
        let len = page_len(self.content_len(), page);
        out[len..].fill(0);
        len
    }

    fn other_page(&self, page: u64, origin: PageOrigin) -> Error {
        let origin = match origin {
            PageOrigin::Base(number) => format!("page {number} of base {}", self.base_record),
            PageOrigin::Stored(number) => format!("stored page {number}"),
            PageOrigin::Zero => "a zero page".to_owned(),
        };
        Error::PageHash { page, origin }
    }

    fn group(&self, number: u64) -> Result<&MapGroup> {
        let slot = usize::try_from(number).ok().and_then(|number| self.groups.get(number));
        let slot = slot.ok_or_else(|| Error::delta("it has no such group"))?;
        if let Some(group) = slot.get() {
            return Ok(group);
        }
        let group = self.read_group(number)?;
        Ok(slot.get_or_init(|| Box::new(group)))
    }

    fn read_group(&self, number: u64) -> Result<MapGroup> {
        let record = usize::try_from(number).ok().and_then(|number| self.records.get(number));
        let (at, record) = record.ok_or_else(|| Error::delta("it has no such group"))?;
        let first_page = number * GROUP_PAGES as u64;
        let pages = (self.page_count() - first_page).min(GROUP_PAGES as u64);
        let pages = u16::try_from(pages).expect("at most a group");
        let mut bytes = vec![0; record.len_bytes as usize];
        read(&*self.file, &mut bytes, *at, "the map of its pages")?;
        if xxh32(&bytes) != record.checksum {
            return Err(Error::delta(format!("the checksum of the map of pages {first_page} and on is wrong")));
        }
        let bounds = Bounds { base_pages: self.base_record.page_count, stored_pages: self.stored.page_count() };
        MapGroup::decode(&bytes, first_page, pages, bounds)
    }
}

/// Reads pages of an archive. A single page is read without looking at the pages behind it.
pub(super) fn read_standard<F: ReadAt>(archive: &SharedReader<F>, first: u64, out: &mut [Page]) -> Result<()> {
    match out {
        [page] => archive.read_page_at(first, page).map(|_| ()),
        pages => archive.read_pages_at(first, pages),
    }
}

impl std::fmt::Debug for DeltaReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeltaReader({} pages, base {})", self.page_count(), self.base_record)
    }
}
