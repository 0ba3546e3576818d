//! Writes a delta: the pages that the base does not have, then the map.

use std::io::Write;
use std::slice;

use trueno_zram_core::{PAGE_SIZE, PageStats};

use crate::error::{Error, Result};
use crate::index::layout::pages_of;
use crate::write::options::WriteOptions;
use crate::write::page_blocks::BlockShape;
use crate::write::writer::ArchiveWriter;

use super::identity::digest;
use super::layout::{BaseRecord, DeltaFooter, HEAD_LEN, MAX_CONTENT_LEN, head};
use super::map::{MapBuilder, OriginCounts, PageOrigin};
use super::part::{DeltaPart, PartRun};
use super::stored_pages::{StoredPages, StoredPagesWriter};

/// Writes a delta: an archive of the pages that another archive, its base, does not have. Without a base, it has all pages.
///
/// The caller finds out which pages the base has, with [`PageHashes`](crate::PageHashes), and compresses the others, on any
/// thread. Pages are stored once, however often they occur, and are the same bytes however they were divided into parts. The writer
/// keeps 21 to 27 bytes in memory per page that is stored. If the base states no page hashes, it also keeps 17 per page that is not
/// zero.
///
/// The delta has version 1 of the format if its base states no page hashes, and version 2 otherwise.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{
///     Delta, DeltaPart, DeltaWriter, PageArchive, PageCodec, PageHash, Pages, WriteOptions, compress,
/// };
///
/// let mut bytes = Vec::new();
/// compress(&[0; 100 * 4096][..], &mut bytes, &WriteOptions::default())?;
/// let base = PageArchive::standard(Arc::new(bytes))?.expect("it has an index");
/// let mut delta = DeltaWriter::new(Vec::new(), base.record(b"base.lz4")?, WriteOptions::default())?;
/// let (mut part, page, mut out) = (DeltaPart::new(), [7; 4096], [0; 4096]);
/// part.start(delta.block_shape());
/// part.push_zeros(99);
/// part.push_page(PageCodec::default().compress(&page, &mut out)?, &page, PageHash::of(&page))?;
/// delta.push(&mut part)?;
/// let (bytes, summary) = delta.finish(100 * 4096)?;
/// assert_eq!((summary.zero_pages, summary.stored_pages), (99, 1));
///
/// let delta = Delta::open(Arc::new(bytes), |_| Ok(base))?.expect("it is a delta");
/// let mut found = [[0; 4096]];
/// delta.read(99, &mut found)?;
/// assert_eq!((found[0], delta.origin_counts().zero), (page, 99));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeltaWriter<W: Write> {
    archive: ArchiveWriter<W>,
    /// Pages that are stored, by their hash.
    stored: StoredPagesWriter,
    map: MapBuilder,
    base: Option<BaseRecord>,
}

/// Totals of a delta that was written.
///
/// ```
/// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageArchive, WriteOptions, compress};
/// # let mut bytes = Vec::new();
/// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
/// # let base = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
/// let mut delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
/// let mut part = DeltaPart::new();
/// part.start(delta.block_shape());
/// part.push_zeros(5);
/// delta.push(&mut part)?;
/// let (bytes, summary) = delta.finish(5 * 4096 - 1)?;
/// assert_eq!((summary.zero_pages, summary.archive_len), (5, bytes.len() as u64));
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeltaSummary {
    /// Length of the content in bytes.
    pub content_len: u64,
    /// Length of the delta in bytes.
    pub archive_len: u64,
    /// Zero pages.
    pub zero_pages: u64,
    /// Pages that the base has.
    pub base_pages: u64,
    /// Pages that are stored.
    pub stored_pages: u64,
    /// Copies of stored pages, which take no more room.
    pub duplicate_pages: u64,
    /// `true` if the [memory for finding copies](DeltaWriter::with_table) was full: some copies may be stored again.
    pub is_table_full: bool,
    /// The stored pages, by kind. `bytes_out` is the length of their blocks.
    pub stored: PageStats,
}

impl<W: Write> DeltaWriter<W> {
    /// Starts a delta. It has no checksum of its whole content: every page has a hash.
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// assert_eq!(delta.finish(0)?.1.content_len, 0);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Misuse`] for a base without a path.
    pub fn new(mut out: W, base: impl Into<Option<BaseRecord>>, options: WriteOptions) -> Result<Self> {
        let base = base.into();
        base.as_ref().map(BaseRecord::encode).transpose()?;
        let version = BaseRecord::version_for(base.as_ref());
        out.write_all(&head(version)).map_err(Error::Write)?;
        let options = WriteOptions { content_len: None, content_checksum: false, page_hashes: false, ..options };
        let archive = ArchiveWriter::new(out, options)?;
        Ok(Self { archive, stored: StoredPagesWriter::new(0, u64::MAX), map: MapBuilder::new(version), base })
    }

    /// Prepares to find copies among this many stored pages, in at most `max_bytes` of memory.
    ///
    /// Without it, the memory grows with the number of pages. If it is full, pages that are new are not remembered any more: copies
    /// of them are stored again. Call it before pages are added and looked for.
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaWriter, WriteOptions};
    /// let delta = DeltaWriter::new(Vec::new(), None, WriteOptions::default())?.with_table(1000, 1 << 20);
    /// # drop(delta);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn with_table(mut self, expected_pages: u64, max_bytes: u64) -> Self {
        self.stored = StoredPagesWriter::new(expected_pages, max_bytes);
        self
    }

    /// Returns the pages that are stored so far, so that other threads need not compress copies of them.
    #[must_use]
    pub fn stored_pages(&self) -> StoredPages {
        self.stored.shared().clone()
    }

    /// Returns the layout of its blocks, for [`DeltaPart::start`].
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// let mut part = DeltaPart::new();
    /// part.start(delta.block_shape());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn block_shape(&self) -> BlockShape {
        self.archive.block_shape()
    }

    /// Returns the number of pages so far.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.map.pages()
    }

    /// Returns the number of bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.archive.written()
    }

    /// Adds the next pages. Copies of pages that are stored already are left out.
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// let mut part = DeltaPart::new(); // prepared by any thread
    /// part.start(delta.block_shape());
    /// part.push_zeros(5);
    /// delta.push(&mut part)?;
    /// assert_eq!(delta.page_count(), 5);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Misuse`] for pages that the base does not have, for blocks of another shape, and
    /// for more than 16 TiB of content.
    pub fn push(&mut self, part: &mut DeltaPart) -> Result<()> {
        self.place(part)?;
        self.archive.get_mut().write_all(part.block_bytes()).map_err(Error::Write)
    }

    /// Adds the next pages like [`push`](Self::push), and returns the position in the file at which the caller writes the
    /// [blocks](DeltaPart::block_bytes) of the part. The writer's own output must continue after them: see [`get_mut`](Self::get_mut).
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageCodec, PageHash, WriteOptions};
    /// let mut delta = DeltaWriter::new(Vec::new(), None, WriteOptions::default())?;
    /// let (mut part, page) = (DeltaPart::new(), [7; 4096]);
    /// part.start(delta.block_shape());
    /// part.push_page(PageCodec::default().compress(&page, &mut [0; 4096])?, &page, PageHash::of(&page))?;
    /// assert_eq!(delta.place(&mut part)?, 16 + 7); // behind the head of the delta and that of the frame
    /// delta.get_mut().extend_from_slice(part.block_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn place(&mut self, part: &mut DeltaPart) -> Result<u64> {
        let pages = self.map.pages().saturating_add(part.page_count());
        if pages > MAX_CONTENT_LEN / PAGE_SIZE as u64 {
            return Err(Error::Misuse("a delta has at most 16 TiB of content".to_owned()));
        }
        let first_new = self.stored.count();
        let mut is_new = Vec::new();
        for (run, hashes) in part.runs() {
            match run {
                PartRun::Zeros(pages) => self.map.push_zeros(pages),
                PartRun::Base { first, pages } => {
                    let base_pages = self.base.as_ref().map_or(0, |base| base.page_count);
                    if first.checked_add(pages).is_none_or(|end| end > base_pages) {
                        return Err(Error::Misuse(format!("the base has no page {}", first.max(base_pages))));
                    }
                    self.map.push_pages(PageOrigin::Base(first), hashes);
                }
                PartRun::Stored { first, pages } => {
                    if first.checked_add(pages).is_none_or(|end| end > first_new) {
                        return Err(Error::Misuse(format!("page {} is not stored", first.max(first_new))));
                    }
                    self.map.push_pages(PageOrigin::Stored(first), hashes);
                }
                PartRun::New { .. } => {
                    let (map, mut rest) = (&mut self.map, hashes.iter());
                    self.stored.find_or_add(hashes, |page, was_added| {
                        is_new.push(was_added);
                        let hash = rest.next().expect("one for each page");
                        map.push_pages(PageOrigin::Stored(page), slice::from_ref(hash));
                    });
                }
            }
        }
        let blocks = part.blocks_mut();
        blocks.finish();
        blocks.retain_pages(&is_new)?;
        blocks.renumber(first_new);
        Ok(HEAD_LEN as u64 + self.archive.place_blocks(blocks)?)
    }

    /// Returns the output, to move it past blocks that the caller has written.
    pub fn get_mut(&mut self) -> &mut W {
        self.archive.get_mut()
    }

    /// Adds a named section, such as an address map.
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// delta.add_section("note", b"kept with the pages")?;
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ArchiveWriter::add_section`].
    pub fn add_section(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.archive.add_section(name, bytes)
    }

    /// Writes the map, flushes, and returns the output. The last page may be longer than the content: the rest of it is zero.
    ///
    /// ```
    /// # use trueno_zram_archive::{DeltaPart, DeltaWriter, PageArchive, WriteOptions, compress};
    /// # let mut bytes = Vec::new();
    /// # compress(&[7; 8 * 4096][..], &mut bytes, &WriteOptions::default())?;
    /// # let base = PageArchive::standard(std::sync::Arc::new(bytes))?.expect("it has an index");
    /// let mut delta = DeltaWriter::new(Vec::new(), base.record(b"monday.lz4")?, WriteOptions::default())?;
    /// let mut part = DeltaPart::new();
    /// part.start(delta.block_shape());
    /// part.push_zeros(2);
    /// delta.push(&mut part)?;
    /// let (bytes, summary) = delta.finish(5000)?;
    /// assert_eq!((summary.content_len, summary.archive_len), (5000, bytes.len() as u64));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Misuse`] for content that does not have as many pages as were added, and if the stored
    /// pages are too many for an index.
    pub fn finish(self, content_len: u64) -> Result<(W, DeltaSummary)> {
        let Self { archive, stored, map, base } = self;
        let (pages, counts) = (map.pages(), map.counts());
        if pages_of(content_len) != pages {
            return Err(Error::Misuse(format!("{pages} pages were added for {content_len} bytes of content")));
        }
        let (mut out, summary) = archive.finish(None)?;
        if summary.index_len == 0 {
            return Err(Error::Misuse("the index of its stored pages would be longer than 4 GiB".to_owned()));
        }
        let put_hashes = |pages, bytes: &mut Vec<u8>| stored.put_hashes(pages, bytes);
        let (table, map_len) = map.finish(put_hashes, |group| out.write_all(group).map_err(Error::Write))?;
        let version = BaseRecord::version_for(base.as_ref());
        let base = base.map_or_else(|| Ok(Vec::new()), |base| base.encode())?;
        let footer = DeltaFooter {
            version,
            content_len,
            stored_len: summary.archive_len,
            map_len,
            counts,
            base_len: u32::try_from(base.len()).expect("a path is short"),
            digest: digest(&[&table, &base]),
        };
        let footer_bytes = footer.encode();
        for part in [&table[..], &base, &footer_bytes] {
            out.write_all(part).map_err(Error::Write)?;
        }
        out.flush().map_err(Error::Write)?;
        let OriginCounts { zero, base: base_pages, stored: stored_refs } = counts;
        let stored_pages = stored.count();
        let summary = DeltaSummary {
            content_len,
            archive_len: footer.table_at() + (table.len() + base.len() + footer_bytes.len()) as u64,
            zero_pages: zero,
            base_pages,
            stored_pages,
            duplicate_pages: stored_refs - stored_pages,
            is_table_full: stored.is_full(),
            stored: summary.pages,
        };
        Ok((out, summary))
    }
}
