//! The file of one delta of a chain, without its base: the map of its pages, and the pages that it stores.

use std::sync::{Arc, OnceLock};

use trueno_zram_core::PAGE_SIZE;

use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::hashes::content_hash::xxh32;
use crate::hashes::hash_list::HashList;
use crate::hashes::page_hash::PageHash;
use crate::index::layout::{GROUP_PAGES, pages_of};
use crate::pages::Pages;
use crate::read_at::{FileSpan, ReadAt, read_part};

use super::identity::ArchiveIdentity;
use super::layout::{BaseRecord, DeltaFooter, HEAD_LEN, MapRecord};
use super::map::{Bounds, MapGroup, PageOrigin};
use super::open::{read_footer, read_table};
use super::page_archive::PageArchive;
use super::reader::Delta;

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
/// assert_eq!((file.base_record().identity, &file.base_record().path[..]), (base.identity(), &b"monday.lz4"[..]));
/// assert_eq!(file.on_base(base)?.len_bytes(), 0);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct DeltaFile {
    file: Arc<dyn ReadAt>,
    pub(super) footer: DeltaFooter,
    /// The record of its base.
    pub(super) base: BaseRecord,
    groups: Vec<GroupMap>,
    /// The archive of the pages that the delta stores.
    pub(super) stored: Archive,
}

/// The map of a group, which is read when it is needed.
struct GroupMap {
    /// Its position in the file.
    at: u64,
    record: MapRecord,
    map: OnceLock<Box<MapGroup>>,
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
    /// assert_eq!(file.base_record().to_string(), "monday.lz4");
    /// assert!(DeltaFile::open(Arc::new(b"some other file".to_vec()))?.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Delta`] if it is damaged; [`Error::Read`].
    pub fn open(file: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        let Some(footer) = read_footer(&*file)? else { return Ok(None) };
        let (records, base) = read_table(&*file, &footer)?;
        let span = FileSpan::new(Arc::clone(&file), HEAD_LEN as u64, footer.stored_len);
        let stored =
            Archive::read_from(Arc::new(span)).map_err(|error| Error::delta(format!("its stored pages: {error}")))?;
        let stored = stored.ok_or_else(|| Error::delta("its stored pages have no index"))?;
        if !stored.len_bytes().is_multiple_of(PAGE_SIZE as u64) {
            return Err(Error::delta("its stored pages are not whole pages"));
        }
        let groups = records.into_iter().map(|(at, record)| GroupMap { at, record, map: OnceLock::new() }).collect();
        Ok(Some(Self { file, footer, base, groups, stored }))
    }

    /// Returns the record of its base.
    #[must_use]
    pub fn base_record(&self) -> &BaseRecord {
        &self.base
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
    /// [`Error::Base`] if the base is another archive than the one it was made from; [`Error::ChainTooLong`].
    pub fn on_base(self, base: PageArchive) -> Result<Delta> {
        if base.identity() != self.base.identity || base.page_count() != self.base.page_count {
            return Err(Error::base(self.base, "it is another archive than the one that the delta was made from"));
        }
        Delta::check_depth(base.depth() + 1)?;
        let (mut layers, lowest, verify) = match base {
            PageArchive::Standard(archive) => {
                let verify = archive.verify();
                (Vec::new(), *archive, verify)
            }
            PageArchive::Delta(delta) => (delta.layers, delta.lowest, delta.verify),
        };
        layers.insert(0, self);
        Ok(Delta { layers, lowest, verify }.with_verify(verify))
    }

    pub(super) fn page_count(&self) -> u64 {
        pages_of(self.footer.content_len)
    }

    /// Returns the origin of a page, and its hash unless the page is zero.
    pub(super) fn origin(&self, page: u64) -> Result<(PageOrigin, Option<PageHash>)> {
        let (group, within) = self.group_of(page)?;
        Ok(group.find(within))
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

    /// Returns the map of a group, and keeps it in memory.
    fn group(&self, number: u64) -> Result<&MapGroup> {
        let slot = &self.slot(number)?.map;
        if let Some(group) = slot.get() {
            return Ok(group);
        }
        let group = self.read_group(number)?;
        Ok(slot.get_or_init(|| Box::new(group)))
    }

    fn slot(&self, number: u64) -> Result<&GroupMap> {
        let slot = usize::try_from(number).ok().and_then(|number| self.groups.get(number));
        slot.ok_or_else(|| Error::delta("it has no such group"))
    }

    fn read_group(&self, number: u64) -> Result<MapGroup> {
        let GroupMap { at, record, .. } = self.slot(number)?;
        let first_page = number * GROUP_PAGES as u64;
        let pages = (self.page_count() - first_page).min(GROUP_PAGES as u64);
        let pages = u16::try_from(pages).expect("at most a group");
        let mut bytes = vec![0; record.len_bytes as usize];
        read_part(&*self.file, *at, &mut bytes, None, "the map of its pages")?;
        if xxh32(&bytes) != record.checksum {
            return Err(Error::delta(format!("the checksum of the map of pages {first_page} and on is wrong")));
        }
        let bounds = Bounds { base_pages: self.base.page_count, stored_pages: self.stored.page_count() };
        MapGroup::decode(&bytes, first_page, pages, bounds)
    }
}

impl std::fmt::Debug for DeltaFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeltaFile({} pages, base {})", self.page_count(), self.base)
    }
}
