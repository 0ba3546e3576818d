//! The file of one delta of a chain, without its base: the map of its pages, and the pages that it stores.

use std::sync::Arc;

use trueno_zram_core::PAGE_SIZE;

use crate::archive::{Archive, Verify};
use crate::error::{Error, Result};
use crate::hashes::page_hash::PageHash;
use crate::index::layout::{GROUP_PAGES, pages_of};
use crate::pages::Pages;
use crate::read_at::{FileSpan, ReadAt, read_part};

use super::base_hashes::BaseHashes;
use super::identity::{ArchiveIdentity, IDENTITY_LEN, cut};
use super::layout::{BaseRecord, DeltaFooter, HEAD_LEN, Version};
use super::map::{Bounds, MapGroup, PageOrigin};
use super::map_table::MapTable;
use super::open::{read_footer, read_table};
use super::page_archive::PageArchive;
use super::reader::{Delta, Lowest};

/// The file of a delta, without its base: the map of its pages, and the pages that it stores.
///
/// A chain of deltas is opened file by file, from the top to a standard archive, and then put together from the bottom. So a
/// long chain takes no more of the stack than a short one. [`Delta::open`] opens a delta whose base is at hand.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{DeltaFile, DeltaWriter, PageArchive, Pages, WriteOptions, compress};
/// let mut base = Vec::new();
/// compress(&[7; 5000][..], &mut base, &WriteOptions::default())?;
/// let base = PageArchive::standard(Arc::new(base))?.expect("it has an index");
/// let delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?.finish(0)?.0;
///
/// let file = DeltaFile::open(Arc::new(delta))?.expect("a delta");
/// let record = file.base_record().expect("it has a base");
/// assert_eq!((record.identity, &record.path[..]), (base.identity(), &b"monday.lz4"[..]));
/// assert_eq!(file.on_base(base)?.len_bytes(), 0);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct DeltaFile {
    file: Arc<dyn ReadAt>,
    pub(super) footer: DeltaFooter,
    /// The record of its base, if it has one.
    pub(super) base: Option<BaseRecord>,
    table: MapTable,
    /// The archive of the pages that the delta stores.
    pub(super) stored: Archive,
}

impl DeltaFile {
    /// Opens the file of a delta; returns `None` if it is not one.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_archive::{Delta, DeltaPart, DeltaWriter, PageArchive, PageHash, Pages, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(Arc::new(bytes))?.expect("it has an index");
    /// # let mut writer = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// # let mut part = DeltaPart::new();
    /// # part.start(writer.block_shape());
    /// # part.push_base(3, PageHash::of(&[7; 4096]));
    /// # part.push_zeros(1);
    /// # writer.push(&mut part)?;
    /// # let file = Arc::new(writer.finish(2 * 4096)?.0);
    /// use trueno_zram_archive::DeltaFile;
    /// let file = DeltaFile::open(file)?.expect("it is a delta");
    /// assert_eq!(file.base_record().expect("it has a base").to_string(), "monday.lz4");
    /// assert!(DeltaFile::open(Arc::new(b"some other file".to_vec()))?.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Delta`] if it is damaged; [`Error::Read`].
    pub fn open(file: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        let Some(footer) = read_footer(&*file)? else { return Ok(None) };
        let (table, base) = read_table(&*file, &footer)?;
        let span = FileSpan::new(Arc::clone(&file), HEAD_LEN as u64, footer.stored_len);
        let stored =
            Archive::read_from(Arc::new(span)).map_err(|error| Error::delta(format!("its stored pages: {error}")))?;
        let stored = stored.ok_or_else(|| Error::delta("its stored pages have no index"))?;
        if !stored.len_bytes().is_multiple_of(PAGE_SIZE as u64) {
            return Err(Error::delta("its stored pages are not whole pages"));
        }
        if footer.version == Version::Two && table.named() != stored.page_count() {
            return Err(Error::delta("its table does not add up to its stored pages"));
        }
        Ok(Some(Self { file, footer, base, table, stored }))
    }

    /// Returns the record of its base; `None` if it has none.
    #[must_use]
    pub fn base_record(&self) -> Option<&BaseRecord> {
        self.base.as_ref()
    }

    /// Returns the identity of the delta.
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        ArchiveIdentity::of_delta(&self.footer)
    }

    /// Puts the delta on top of its base.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use trueno_zram_archive::{Delta, DeltaPart, DeltaWriter, PageArchive, PageHash, Pages, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(Arc::new(bytes))?.expect("it has an index");
    /// # let mut writer = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// # let mut part = DeltaPart::new();
    /// # part.start(writer.block_shape());
    /// # part.push_base(3, PageHash::of(&[7; 4096]));
    /// # part.push_zeros(1);
    /// # writer.push(&mut part)?;
    /// # let file = Arc::new(writer.finish(2 * 4096)?.0);
    /// use trueno_zram_archive::DeltaFile;
    /// let delta = DeltaFile::open(file)?.expect("it is a delta").on_base(base)?;
    /// assert_eq!((delta.page_count(), delta.depth()), (2, 1));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Base`] if the base is another archive than the one it was made from; [`Error::ChainTooLong`]; [`Error::Delta`] if it has
    /// no base; those of reading the page hashes of the base.
    pub fn on_base(self, base: PageArchive) -> Result<Delta> {
        let Some(record) = &self.base else { return Err(Error::delta("it has no base")) };
        let differs = |reason: &str| Err(Error::base(record, reason));
        if base.identity() != record.identity || base.page_count() != record.page_count {
            return differs("it is another archive than the one that the delta was made from");
        }
        Delta::check_depth(base.depth() + 1)?;
        let stated = record.hashes.map(|expected| Ok((expected, BaseHashes::of(&base)?))).transpose();
        let stated = stated.map_err(|error: Error| Error::base(record, error))?;
        if stated.as_ref().is_some_and(|(expected, found)| found.as_ref().is_none_or(|found| found.digest != *expected))
        {
            return differs("its page hashes are not those that the delta was made from");
        }
        let hashes = stated.and_then(|(_, found)| found?.list);
        let verify = base.verify();
        let (mut layers, lowest) = match base {
            PageArchive::Standard(archive) => (Vec::new(), Some(Lowest { archive: *archive, hashes })),
            PageArchive::Delta(delta) => (delta.layers, delta.lowest),
        };
        layers.insert(0, self);
        Ok(Delta { layers, lowest, verify }.with_verify(verify))
    }

    /// Returns a delta that has no base.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_archive::{DeltaFile, DeltaWriter, WriteOptions};
    /// let bytes = DeltaWriter::new(Vec::new(), None, WriteOptions::default())?.finish(0)?.0;
    /// let delta = DeltaFile::open(Arc::new(bytes))?.expect("a delta").without_base()?;
    /// assert_eq!((delta.base_record(), delta.depth()), (None, 1));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Base`] if it has one.
    pub fn without_base(self) -> Result<Delta> {
        match self.base {
            Some(base) => Err(Error::base(base, "it is needed, and was not opened")),
            None => Ok(Delta { layers: vec![self], lowest: None, verify: Verify::default() }),
        }
    }

    /// Returns the path of its base for messages.
    pub(super) fn base_name(&self) -> String {
        self.base.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    pub(super) fn page_count(&self) -> u64 {
        pages_of(self.footer.content_len)
    }

    /// Returns the origin of a page, and its hash unless the page is zero, or has that of a page of the base.
    pub(super) fn origin(&self, page: u64) -> Result<(PageOrigin, Option<PageHash>)> {
        let (group, within) = self.group_of(page)?;
        self.with_hash(group.find(within))
    }

    /// Adds the hash of a stored page that another group names first.
    fn with_hash(&self, found: (PageOrigin, Option<PageHash>)) -> Result<(PageOrigin, Option<PageHash>)> {
        let (PageOrigin::Stored(stored), None) = found else { return Ok(found) };
        let hash = self.group(self.table.naming(stored))?.new_hash(stored);
        Ok((found.0, Some(hash.ok_or_else(|| Error::delta(format!("stored page {stored} has no hash")))?)))
    }

    /// Returns the group of a page, and the number of the page in it.
    fn group_of(&self, page: u64) -> Result<(&MapGroup, u16)> {
        let pages = self.page_count();
        if page >= pages {
            return Err(Error::PageRange { start: page, end: page.saturating_add(1), pages });
        }
        let within = u16::try_from(page % GROUP_PAGES as u64).expect("less than a group");
        Ok((self.group(page / GROUP_PAGES as u64)?, within))
    }

    /// Returns the number of zero pages from a page on, up to the end of its group.
    pub(super) fn zero_run(&self, page: u64) -> Result<u64> {
        let (group, within) = self.group_of(page)?;
        Ok(group.zero_run(within).into())
    }

    /// Returns the origins and hashes of all pages, like [`origin`](Self::origin). Maps are not kept in memory, except those that others
    /// need.
    pub(super) fn origins(&self) -> impl Iterator<Item = Result<(PageOrigin, Option<PageHash>)>> {
        let groups = (0..self.footer.groups()).map(|number| {
            let group = self.read_group(number)?;
            group.pages().map(|found| self.with_hash(found)).collect::<Result<Vec<_>>>()
        });
        groups.flat_map(|group| match group {
            Ok(pages) => pages.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
    }

    /// Returns the digest of the hashes that it states: of its own, and by the record of the base also of those.
    pub(super) fn hashes_digest(&self) -> Result<[u8; IDENTITY_LEN]> {
        match self.footer.version {
            Version::Two => Ok(self.footer.digest),
            Version::One => {
                let mut hasher = blake3::Hasher::new();
                for number in 0..self.footer.groups() {
                    hasher.update(&self.read_map(number)?);
                }
                Ok(cut(&hasher.finalize()))
            }
        }
    }

    /// Returns the map of a group, and keeps it in memory.
    fn group(&self, number: u64) -> Result<&MapGroup> {
        let slot = &self.table.group(number)?.map;
        if let Some(group) = slot.get() {
            return Ok(group);
        }
        let group = self.read_group(number)?;
        Ok(slot.get_or_init(|| Box::new(group)))
    }

    fn read_group(&self, number: u64) -> Result<MapGroup> {
        let first_page = number * GROUP_PAGES as u64;
        let pages = (self.page_count() - first_page).min(GROUP_PAGES as u64);
        let pages = u16::try_from(pages).expect("at most a group");
        let bytes = self.read_map(number)?;
        let base_pages = self.base.as_ref().map_or(0, |base| base.page_count);
        let new_pages = self.table.new_pages(number);
        MapGroup::decode(
            &bytes,
            first_page,
            pages,
            Bounds { base_pages, stored_pages: self.stored.page_count(), new_pages },
        )
    }

    /// Reads the map of a group, and compares it with the table.
    fn read_map(&self, number: u64) -> Result<Vec<u8>> {
        let group = self.table.group(number)?;
        let mut bytes = vec![0; group.len_bytes as usize];
        read_part(&*self.file, group.at, &mut bytes, None, "the map of its pages")?;
        if !self.table.is_map(number, &bytes) {
            let first_page = number * GROUP_PAGES as u64;
            return Err(Error::delta(format!("the checksum of the map of pages {first_page} and on is wrong")));
        }
        Ok(bytes)
    }
}

impl std::fmt::Debug for DeltaFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeltaFile({} pages, base {:?})", self.page_count(), self.base.as_ref().map(ToString::to_string))
    }
}
