//! An archive or a delta: readers need not know which.

use std::sync::Arc;

use trueno_zram_core::Page;

use crate::archive::{Archive, Verify};
use crate::error::Result;
use crate::pages::Pages;
use crate::read_at::ReadAt;

use super::base_hashes::BaseHashes;
use super::identity::ArchiveIdentity;
use super::layout::BaseRecord;
use super::reader::Delta;

/// An archive of either format, or a delta with the archives that it needs. Its [`Pages`] are read by many threads at once.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{PageArchive, Pages, WriteOptions, compress};
/// let mut bytes = Vec::new();
/// compress(&[7; 5000][..], &mut bytes, &WriteOptions::default())?;
/// let archive = PageArchive::standard(Arc::new(bytes))?.expect("it has an index");
/// let mut page = [[0xff; 4096]];
/// archive.read(1, &mut page)?;
/// assert_eq!((page[0][903], page[0][904], archive.depth()), (7, 0, 0));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug)]
pub enum PageArchive {
    /// A standard .lz4 or .zst file with an index.
    Standard(Box<Archive>),
    /// A delta.
    Delta(Box<Delta>),
}

impl PageArchive {
    /// Opens a standard archive; `None` if the file has no index at its end.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use trueno_zram_archive::{PageArchive, Pages, WriteOptions, compress};
    /// let mut bytes = Vec::new();
    /// compress(&[7; 5000][..], &mut bytes, &WriteOptions::default())?;
    /// assert_eq!(PageArchive::standard(Arc::new(bytes))?.map(|archive| archive.page_count()), Some(2));
    /// assert!(PageArchive::standard(Arc::new(b"some other file".to_vec()))?.is_none());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Archive::read_from`].
    pub fn standard(file: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        Ok(Archive::read_from(file)?.map(|archive| Self::Standard(Box::new(archive))))
    }

    /// Sets how much is proven before a page is returned. See [`Archive::with_verify`] and [`Delta::with_verify`].
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// use trueno_zram_archive::{Pages, Verify};
    /// let archive = archive.with_verify(Verify::Touched);
    /// archive.read(9, &mut [[0; 4096]])?;
    /// while archive.prove_next()? {} // in a thread of its own
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn with_verify(self, verify: Verify) -> Self {
        match self {
            Self::Standard(archive) => Self::Standard(Box::new(archive.with_verify(verify))),
            Self::Delta(delta) => Self::Delta(Box::new(delta.with_verify(verify))),
        }
    }

    /// Returns the delta, if it is one.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// match archive.as_delta().and_then(|delta| delta.base_record()) {
    ///     Some(base) => println!("needs {base}"),
    ///     None => println!("needs no other file"),
    /// }
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn as_delta(&self) -> Option<&Delta> {
        match self {
            Self::Standard(_) => None,
            Self::Delta(delta) => Some(delta),
        }
    }

    /// Returns the archive in the file itself: of all pages, or of those that a delta stores. It has the sections.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// assert_eq!(archive.stored().info().page_count, 100);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn stored(&self) -> &Archive {
        match self {
            Self::Standard(archive) => archive,
            Self::Delta(delta) => delta.stored(),
        }
    }

    pub(super) fn verify(&self) -> Verify {
        match self {
            Self::Standard(archive) => archive.verify(),
            Self::Delta(delta) => delta.verify,
        }
    }

    /// Returns the number of deltas on the way to a standard archive, or to a delta without a base: 0 for a standard archive itself.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.as_delta().map_or(0, Delta::depth)
    }

    /// Returns `true` if damage to any page would be noticed: every block has a checksum, or every page a hash.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// assert!(archive.notices_damage());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn notices_damage(&self) -> bool {
        self.as_delta().is_some() || self.stored().info().block_checksums
    }

    /// Returns its identity, by which deltas name their base.
    #[must_use]
    pub fn identity(&self) -> ArchiveIdentity {
        match self {
            Self::Standard(archive) => archive.identity(),
            Self::Delta(delta) => delta.identity(),
        }
    }

    /// Returns the record of this archive for a delta that is made from it.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let archive = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let base = archive.record(b"monday.lz4")?; // for `DeltaWriter::new`
    /// assert_eq!((base.identity, base.page_count), (archive.identity(), 100));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ChainTooLong`](crate::Error::ChainTooLong) if readers would refuse that delta; those of reading its page hashes.
    pub fn record(&self, path: &[u8]) -> Result<BaseRecord> {
        Delta::check_depth(self.depth() + 1)?;
        let hashes = BaseHashes::of(self)?.map(|hashes| hashes.digest);
        Ok(BaseRecord { identity: self.identity(), page_count: self.page_count(), hashes, path: path.to_vec() })
    }

    /// Reads a page where the index says it is, for a caller that compares it with its hash.
    pub(crate) fn read_unproven(&self, page: u64, out: &mut Page) -> Result<()> {
        match self {
            Self::Standard(archive) => archive.read_unproven(page, out),
            Self::Delta(delta) => delta.read_unproven(page, out),
        }
    }

    pub(crate) fn pages(&self) -> &dyn Pages {
        match self {
            Self::Standard(archive) => &**archive,
            Self::Delta(delta) => &**delta,
        }
    }
}
