//! Writes a delta: the pages that the base does not have, then the map.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;
use std::slice;

use trueno_zram_core::{PAGE_SIZE, PageStats};

use crate::error::{Error, Result};
use crate::hashes::page_hash::PageHash;
use crate::index::layout::pages_of;
use crate::write::options::WriteOptions;
use crate::write::page_blocks::BlockShape;
use crate::write::writer::ArchiveWriter;

use super::identity::digest;
use super::layout::{BaseRecord, DeltaFooter, MAX_CONTENT_LEN, head};
use super::map::{MapBuilder, OriginCounts, PageOrigin};
use super::part::{DeltaPart, PartRun};

/// Writes a delta: an archive of the pages that another archive, its base, does not have.
///
/// The caller finds out which pages the base has, with [`PageHashes`](crate::PageHashes), and compresses the others, on any
/// thread. Pages are stored once, however often they occur. The writer keeps about 17 bytes in memory per page, and 40 per
/// page that is stored.
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
    stored: HashMap<PageHash, u64>,
    map: MapBuilder,
    base: BaseRecord,
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
    pub fn new(mut out: W, base: BaseRecord, options: WriteOptions) -> Result<Self> {
        base.encode()?;
        out.write_all(&head()).map_err(Error::Write)?;
        let options = WriteOptions { content_len: None, content_checksum: false, page_hashes: false, ..options };
        let archive = ArchiveWriter::new(out, options)?;
        Ok(Self { archive, stored: HashMap::new(), map: MapBuilder::default(), base })
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
        let pages = self.map.pages().saturating_add(part.page_count());
        if pages > MAX_CONTENT_LEN / PAGE_SIZE as u64 {
            return Err(Error::Misuse("a delta has at most 16 TiB of content".to_owned()));
        }
        let first_new = self.stored.len() as u64;
        let mut is_new = Vec::new();
        for (run, hashes) in part.runs() {
            match run {
                PartRun::Zeros(pages) => self.map.push_zeros(pages),
                PartRun::Base { first, pages } => {
                    let base_pages = self.base.page_count;
                    if first.checked_add(pages).is_none_or(|end| end > base_pages) {
                        return Err(Error::Misuse(format!("the base has no page {}", first.max(base_pages))));
                    }
                    self.map.push_pages(PageOrigin::Base(first), hashes);
                }
                PartRun::New { .. } => {
                    for hash in hashes {
                        let next = self.stored.len() as u64;
                        let entry = self.stored.entry(PageHash::from_bytes(*hash));
                        is_new.push(matches!(entry, Entry::Vacant(_)));
                        self.map.push_pages(PageOrigin::Stored(*entry.or_insert(next)), slice::from_ref(hash));
                    }
                }
            }
        }
        let blocks = part.blocks_mut();
        blocks.finish();
        blocks.retain_pages(&is_new)?;
        blocks.renumber(first_new);
        self.archive.write_blocks(blocks)
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
        let (map, records) = map.finish();
        let table: Vec<u8> = records.iter().flat_map(|record| record.encode()).collect();
        let base = base.encode()?;
        let footer = DeltaFooter {
            content_len,
            stored_len: summary.archive_len,
            map_len: map.len() as u64,
            counts,
            base_len: u32::try_from(base.len()).expect("a path is short"),
            digest: digest(&[&table, &base]),
        };
        let footer_bytes = footer.encode();
        for part in [&map[..], &table, &base, &footer_bytes] {
            out.write_all(part).map_err(Error::Write)?;
        }
        out.flush().map_err(Error::Write)?;
        let OriginCounts { zero, base: base_pages, stored: stored_refs } = counts;
        let stored_pages = stored.len() as u64;
        let summary = DeltaSummary {
            content_len,
            archive_len: footer.table_at() + (table.len() + base.len() + footer_bytes.len()) as u64,
            zero_pages: zero,
            base_pages,
            stored_pages,
            duplicate_pages: stored_refs - stored_pages,
            stored: summary.pages,
        };
        Ok((out, summary))
    }
}
