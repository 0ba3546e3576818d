//! Reads the pages of a delta: from itself, or from the files of the chain beneath it.

use std::sync::Arc;

use trueno_zram_core::Page;

use crate::archive::{Archive, Verify};
use crate::error::{Error, Result};
use crate::hashes::hash_list::HashList;
use crate::hashes::page_hash::PageHash;
use crate::pages::Pages;
use crate::read_at::ReadAt;

use super::chain_location::FoundPage;
use super::file::DeltaFile;
use super::identity::ArchiveIdentity;
use super::layout::{BaseRecord, HEAD_MAGIC};
use super::map::{OriginCounts, PageOrigin};
use super::page_archive::PageArchive;

/// A delta with its base, if it has one, read by page number, by many threads at once.
///
/// Every page is compared with its hash before it is returned. So a base that was changed, and a delta that names the wrong
/// pages, are errors and never other bytes. Opening reads the table of groups, and the page hashes of a standard archive if the
/// delta relies on them; the first read in a group of 1,024 pages reads its map. Both stay in memory: 16 bytes per hash.
///
/// The deltas of a chain lie in a list, and a page is looked up in one after the other until its file is found. A long chain
/// takes no more of the stack than a short one.
///
/// [`PageArchive`] is an archive or a delta. [`DeltaWriter`](crate::DeltaWriter) shows how one is made.
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
/// use trueno_zram_archive::PageOrigin;
/// let delta = Delta::open(file, |_| Ok(base))?.expect("it is a delta"); // of a page of its base, and a zero page
/// let mut pages = [[0xff; 4096]; 2];
/// delta.read(0, &mut pages)?;
/// assert_eq!(pages, [[7; 4096], [0; 4096]]);
/// assert_eq!(delta.origin(0)?.0, PageOrigin::Base(3));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct Delta {
    /// The deltas of the chain: first the delta itself, then its base, and so on.
    pub(super) layers: Vec<DeltaFile>,
    /// The standard archive beneath all of them; `None` if the last one has no base.
    pub(super) lowest: Option<Lowest>,
    pub(super) verify: Verify,
}

/// The standard archive beneath a chain of deltas.
pub(super) struct Lowest {
    pub(super) archive: Archive,
    /// Its page hashes, if the delta above relies on them.
    pub(super) hashes: Option<HashList>,
}

impl Delta {
    /// The longest chain of deltas. A page of the lowest archive is looked up in all of them. No reader takes more, and
    /// [`PageArchive::record`] refuses to make more.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::Delta::MAX_DEPTH, 32);
    /// ```
    pub const MAX_DEPTH: usize = 32;

    /// Opens a delta; returns `None` if the file is not one. `find_base` returns the archive that the delta needs, if it has a base.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_archive::{Delta, Error};
    /// assert!(Delta::open(Arc::new(b"some other file".to_vec()), |_| Err(Error::NoIndex))?.is_none());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Delta`] if it is damaged; [`Error::Base`] if the base is another archive than the one it was made from;
    /// [`Error::ChainTooLong`]; the errors of `find_base`; [`Error::Read`].
    pub fn open(
        file: Arc<dyn ReadAt>,
        find_base: impl FnOnce(&BaseRecord) -> Result<PageArchive>,
    ) -> Result<Option<Self>> {
        let Some(own) = DeltaFile::open(file)? else { return Ok(None) };
        match own.base_record() {
            Some(record) => {
                let base = find_base(record)?;
                own.on_base(base)
            }
            None => own.without_base(),
        }
        .map(Some)
    }

    /// Sets how much of the archives of the chain is proven before a page is returned.
    ///
    /// With [`Verify::Touched`], a page is found by the entries of its group and compared with its hash. Nothing is left to prove.
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
    /// use trueno_zram_archive::Verify;
    /// let delta = Delta::open(file, |_| Ok(base))?.expect("it is a delta").with_verify(Verify::Touched);
    /// delta.read(0, &mut [[0; 4096]])?;
    /// assert!(!delta.is_proof_due());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn with_verify(mut self, verify: Verify) -> Self {
        // The archives themselves prove before they return pages: those that the caller reads have no hashes.
        let of_archives = if verify == Verify::Touched { Verify::Group } else { verify };
        if let Some(lowest) = &mut self.lowest {
            lowest.archive.set_verify(of_archives);
        }
        for layer in &mut self.layers {
            layer.stored.set_verify(of_archives);
        }
        self.verify = verify;
        self
    }

    /// Refuses a chain of more deltas than are read.
    pub(super) fn check_depth(deltas: usize) -> Result<()> {
        let max_deltas = Self::MAX_DEPTH;
        if deltas > max_deltas { Err(Error::ChainTooLong { max_deltas }) } else { Ok(()) }
    }

    /// Returns `true` if a file that starts with these bytes is a delta.
    ///
    /// ```
    /// assert!(!trueno_zram_archive::Delta::is_delta(b"\x04\x22\x4d\x18"));
    /// ```
    #[must_use]
    pub fn is_delta(start: &[u8]) -> bool {
        start.starts_with(&HEAD_MAGIC)
    }

    /// Returns the delta itself, without the chain beneath it.
    pub(crate) fn own(&self) -> &DeltaFile {
        self.layers.first().expect("a delta has at least its own layer")
    }

    /// Returns the number of deltas on the way to a standard archive, or to a delta without a base.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Returns the record of its base; `None` if it has none.
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
    /// let delta = Delta::open(file, |_| Ok(base))?.expect("it is a delta");
    /// assert_eq!(delta.base_record().expect("it has a base").path, b"monday.lz4");
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn base_record(&self) -> Option<&BaseRecord> {
        self.own().base_record()
    }

    /// Returns its identity, by which deltas name their base.
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        self.own().identity()
    }

    /// Returns the archive of the pages that the delta itself stores. It has the sections of the delta, too.
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
    /// let delta = Delta::open(file, |_| Ok(base))?.expect("it is a delta");
    /// assert_eq!(delta.stored().info().page_count, 0); // its base has all of its pages
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn stored(&self) -> &Archive {
        &self.own().stored
    }

    /// Returns the number of pages by origin, as the footer states it.
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
    /// let delta = Delta::open(file, |_| Ok(base))?.expect("it is a delta");
    /// let counts = delta.origin_counts();
    /// assert_eq!((counts.zero, counts.base, counts.stored), (1, 1, 0));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn origin_counts(&self) -> OriginCounts {
        self.own().footer.counts
    }

    /// Returns the origin of a page, and its hash unless the page is zero.
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
    /// use trueno_zram_archive::PageOrigin;
    /// let delta = Delta::open(file, |_| Ok(base))?.expect("it is a delta");
    /// assert_eq!(delta.origin(0)?, (PageOrigin::Base(3), Some(PageHash::of(&[7; 4096]))));
    /// assert_eq!(delta.origin(1)?, (PageOrigin::Zero, None));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PageRange`]; [`Error::Delta`] if the map is damaged; [`Error::Read`].
    pub fn origin(&self, page: u64) -> Result<(PageOrigin, Option<PageHash>)> {
        let FoundPage { origin, hash, .. } = self.find(page)?;
        Ok((origin, hash))
    }

    /// Returns the hashes of all pages.
    pub(crate) fn hashes(&self) -> Result<HashList> {
        let mut list = HashList::default();
        for (page, found) in (0..).zip(self.own().origins()) {
            match found? {
                (PageOrigin::Zero, _) => list.push_zeros(1),
                (_, Some(hash)) => list.push(hash),
                (origin, None) => list.push(self.follow(page, origin, None)?.hash.expect("it is not zero")),
            }
        }
        Ok(list)
    }

    /// Reads a page, and compares it with its hash.
    fn read_one(&self, page: u64, out: &mut Page) -> Result<()> {
        let FoundPage { origin, location, hash } = self.find(page)?;
        self.read_run(page, location, location, std::slice::from_mut(out))?;
        if hash.is_some_and(|hash| PageHash::of(out) != hash) {
            return Err(self.hash_mismatch(page, origin));
        }
        out[self.page_len(page)..].fill(0);
        Ok(())
    }

    fn hash_mismatch(&self, page: u64, origin: PageOrigin) -> Error {
        let origin = match origin {
            PageOrigin::Base(number) => format!("page {number} of base {}", self.own().base_name()),
            PageOrigin::Stored(number) => format!("stored page {number}"),
            PageOrigin::Zero => "a zero page".to_owned(),
        };
        Error::PageHash { page, origin }
    }
}

impl Pages for Delta {
    fn len_bytes(&self) -> u64 {
        self.own().footer.content_len
    }

    /// The hashes of many pages are computed faster than those of single pages.
    fn read(&self, first: u64, out: &mut [Page]) -> Result<()> {
        if let [page] = out {
            return self.read_one(first, page);
        }
        let expected = (first..).take(out.len()).map(|page| self.find(page)).collect::<Result<Vec<_>>>()?;
        self.read_runs(first, &expected, out)?;
        // Zero pages have no hashes.
        let mut hashes = Vec::with_capacity(out.len());
        let found = out.iter().zip(&expected).filter(|(_, expected)| expected.hash.is_some()).map(|(page, _)| page);
        PageHash::of_pages(found, &mut hashes);
        let hashed = (first..).zip(&expected).filter_map(|(page, found)| Some((page, found.origin, found.hash?)));
        let mut pages = hashed.zip(&hashes);
        if let Some(((page, origin, _), _)) = pages.find(|((_, _, expected), hash)| expected != *hash) {
            return Err(self.hash_mismatch(page, origin));
        }
        if let Some((last, before)) = out.split_last_mut() {
            last[self.page_len(first + before.len() as u64)..].fill(0);
        }
        Ok(())
    }

    fn is_zero(&self, page: u64) -> Result<bool> {
        Ok(self.own().origin(page)?.0 == PageOrigin::Zero)
    }

    /// Asks the map, and the archive that the page is in.
    fn is_located(&self, page: u64) -> bool {
        self.find(page).is_ok_and(|found| self.is_located_at(found.location))
    }

    /// Counts up to the end of a group of 1,024 pages: what follows may be zero, too.
    fn zero_run(&self, page: u64) -> Result<u64> {
        self.own().zero_run(page)
    }
}

impl std::fmt::Debug for Delta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Delta({} pages, base {:?})", self.page_count(), self.base_record().map(ToString::to_string))
    }
}
