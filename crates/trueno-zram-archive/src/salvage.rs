//! Restores what is left of a damaged file. An index finds the blocks after a damaged one.

use std::io::{Read, Seek, SeekFrom};

use trueno_zram_core::PAGE_SIZE;

use crate::block::Block;
use crate::blocks::{BlockPlace, group_end, group_places};
use crate::constant::{damaged_zero_pages, zero_pages_of};
use crate::content::{ContentBatch, Stretch};
use crate::damage::{Damage, DamageKind, record};
use crate::error::{Error, Result};
use crate::header::{ARCHIVE_MAX_BLOCK, RAW_BLOCK};
use crate::index::GROUP_PAGES;
use crate::lots::decode_extra;
use crate::reader::FrameReader;
use crate::seek::ArchiveReader;

/// The longest group in a file that is read.
const MAX_GROUP_BYTES: u64 = 5 << 20;

/// Restores a damaged file as far as possible. What is lost becomes zeros, and is listed.
///
/// In a page archive whose index is readable, every page that is intact is restored at its position: blocks are found by
/// the index, whatever happened to those before them. Other files are read like a stream, by a
/// [`FrameReader`] that is [salvaging](FrameReader::salvaging).
///
/// ```
/// use std::io::Cursor;
/// use trueno_zram_archive::{ArchiveWriter, ContentBatch, DamageKind, SalvageReader, WriteOptions};
/// use trueno_zram_core::CpuBatchCompressor;
///
/// let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_batch(&CpuBatchCompressor::default().compress(&[[1; 4096], [2; 4096], [3; 4096]])?)?;
/// let (mut bytes, _) = archive.finish(None)?;
/// bytes[50] ^= 0xff; // the size of the second block
///
/// let mut reader = SalvageReader::open(Cursor::new(bytes))?;
/// while reader.read_batch(&mut ContentBatch::new())? {}
/// assert_eq!((reader.damage()[0].pages(), reader.damage()[0].kind), (1..2, DamageKind::Header));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SalvageReader<F: Read + Seek> {
    source: Source<F>,
    damage: Vec<Damage>,
}

enum Source<F: Read + Seek> {
    Index(Box<ByIndex<F>>),
    Stream(Box<FrameReader<'static, F>>),
}

struct ByIndex<F: Read + Seek> {
    archive: ArchiveReader<F>,
    next_group: u64,
    window: Vec<u8>,
}

impl<F: Read + Seek> SalvageReader<F> {
    /// Opens a file, by its index if that is readable.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, SalvageReader};
    /// let mut empty = SalvageReader::open(std::io::Cursor::new(b""))?;
    /// assert!(empty.read_batch(&mut ContentBatch::new()).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn open(mut file: F) -> Result<Self> {
        let indexed = match ArchiveReader::open(&mut file) {
            Ok(archive) => archive.is_some(),
            Err(error @ Error::Read { .. }) => return Err(error),
            Err(_) => false,
        };
        let source = match indexed {
            true => ArchiveReader::open(file)?
                .map(|archive| Source::Index(Box::new(ByIndex { archive, next_group: 0, window: Vec::new() })))
                .ok_or_else(|| Error::index("it vanished while the file was read"))?,
            false => {
                file.seek(SeekFrom::Start(0)).map_err(|source| Error::Read { at: 0, source })?;
                Source::Stream(Box::new(FrameReader::new(file).salvaging()))
            }
        };
        Ok(Self { source, damage: Vec::new() })
    }

    /// Returns whether blocks are found by an index.
    ///
    /// ```
    /// let other = trueno_zram_archive::SalvageReader::open(std::io::Cursor::new(b"some other file"))?;
    /// assert!(!other.uses_index());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn uses_index(&self) -> bool {
        matches!(self.source, Source::Index(_))
    }

    /// Restores the next batch; returns `false` at the end.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, SalvageReader};
    /// let frame = b"\x04\x22\x4d\x18\x60\x40\x82\x05\x00\x00\x80hello\x00\x00\x00\x00";
    /// let mut reader = SalvageReader::open(std::io::Cursor::new(frame))?;
    /// let mut batch = ContentBatch::new();
    /// assert!(reader.read_batch(&mut batch)?);
    /// assert_eq!((batch.len_bytes(), reader.damage().len()), (5, 0));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::NotLz4`] or [`Error::Empty`] if the file does not start with a frame.
    pub fn read_batch(&mut self, out: &mut ContentBatch) -> Result<bool> {
        match &mut self.source {
            Source::Index(by_index) => by_index.read_batch(out, &mut self.damage),
            Source::Stream(reader) => reader.read_batch(out),
        }
    }

    /// Returns the damage so far, in order of the content.
    ///
    /// ```
    /// let other = trueno_zram_archive::SalvageReader::open(std::io::Cursor::new(b"some other file"))?;
    /// assert!(other.damage().is_empty());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        match &self.source {
            Source::Index(_) => &self.damage,
            Source::Stream(reader) => reader.damage(),
        }
    }
}

impl<F: Read + Seek> ByIndex<F> {
    /// Restores the next group.
    fn read_batch(&mut self, out: &mut ContentBatch, damage: &mut Vec<Damage>) -> Result<bool> {
        out.start(0);
        let ArchiveReader { file, footer, header, table, .. } = &mut self.archive;
        let number = self.next_group;
        let Some(group) = table.get(number) else { return Ok(false) };
        self.next_group += 1;
        let start = group.offset;
        let end = group_end(number, footer, header, table);
        let len = (end.saturating_sub(start)).min(MAX_GROUP_BYTES);
        self.window.clear();
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.take(len).read_to_end(&mut self.window))
            .map_err(|source| Error::Read { at: start, source })?;
        let checksummed = header.block_checksums;
        let overhead = 4 + header.block_checksum_len();
        let first_page = number * GROUP_PAGES as u64;
        let content_len = footer.content_len;
        let group_pages = (content_len.div_ceil(PAGE_SIZE as u64) - first_page).min(GROUP_PAGES as u64);
        let places = match group_places(file, number, footer, header, table) {
            Ok(places) => places.iter().map(|place| Wanted::of(place, start)).collect(),
            Err(error @ Error::Read { .. }) => return Err(error),
            Err(_) => walk(&self.window, overhead, checksummed, first_page, group_pages),
        };
        let mut page = first_page;
        for wanted in places {
            let content = wanted.first_page * PAGE_SIZE as u64
                ..((wanted.first_page + wanted.pages) * PAGE_SIZE as u64).min(content_len);
            page = wanted.first_page + wanted.pages;
            match wanted.restore(&self.window, checksummed, content.end - content.start, &mut out.extra) {
                Ok(stretch) => out.push(stretch),
                Err(kind) => {
                    record(damage, start + wanted.size_at as u64, content.clone(), kind);
                    out.push(Stretch::Zeros(content.end - content.start));
                }
            }
        }
        // What a walk could not find.
        let group_len = ((first_page + group_pages) * PAGE_SIZE as u64).min(content_len);
        let found = page * PAGE_SIZE as u64;
        if found < group_len {
            record(damage, start, found..group_len, DamageKind::Header);
            out.push(Stretch::Zeros(group_len - found));
        }
        Ok(true)
    }
}

/// A block to restore.
#[derive(Clone, Copy)]
struct Wanted {
    first_page: u64,
    pages: u64,
    /// Position of its size word in the window.
    size_at: usize,
    size: u32,
    zero: bool,
}

impl Wanted {
    fn of(place: &BlockPlace, window_at: u64) -> Self {
        let raw = if place.kind == trueno_zram_core::PageKind::Raw { RAW_BLOCK } else { 0 };
        let size_at = usize::try_from(place.offset - window_at).unwrap_or(usize::MAX);
        let BlockPlace { first_page, pages, zero, len_bytes, .. } = *place;
        Self { first_page, pages, size_at, size: len_bytes | raw, zero }
    }

    /// Restores the block, which must hold `len_bytes`.
    fn restore(
        &self,
        window: &[u8],
        checksummed: bool,
        len_bytes: u64,
        extra: &mut Vec<u8>,
    ) -> std::result::Result<Stretch, DamageKind> {
        let (len, raw) = ((self.size & !RAW_BLOCK) as usize, self.size & RAW_BLOCK != 0);
        let checksum_len = if checksummed { 4 } else { 0 };
        let end = self.size_at.saturating_add(4 + len + checksum_len);
        if end > window.len() {
            return Err(DamageKind::Truncated);
        }
        let start = self.size_at + 4;
        if window[self.size_at..start] != self.size.to_le_bytes() {
            return Err(DamageKind::Header);
        }
        let mut block = Block { at: 0, start, len, raw, zero_pages: 0, page: Some(self.first_page) };
        if checksummed && block.verify(window).is_err() {
            return Err(DamageKind::Checksum);
        }
        if self.zero {
            block.zero_pages = zero_pages_of(block.bytes(window)).unwrap_or(0);
            let whole = block.zero_pages as u64 == self.pages && len_bytes == self.pages * PAGE_SIZE as u64;
            return if whole { Ok(Stretch::Zeros(len_bytes)) } else { Err(DamageKind::Block) };
        }
        let before = extra.len();
        match decode_extra(&block, window, &[], ARCHIVE_MAX_BLOCK, extra) {
            Ok(stretch) if stretch.len_bytes() == len_bytes => Ok(stretch),
            _ => {
                extra.truncate(before);
                Err(DamageKind::Block)
            }
        }
    }
}

/// Finds the blocks of a group whose entries are lost, by their size words. If the pages do not add up, only those before
/// the first damaged block are certain.
fn walk(window: &[u8], overhead: usize, checksummed: bool, first_page: u64, group_pages: u64) -> Vec<Wanted> {
    let (mut found, mut at, mut page, mut certain) = (Vec::new(), 0, first_page, None);
    while page < first_page + group_pages {
        let Some(size) = window.get(at..at + 4) else { break };
        let size = u32::from_le_bytes(size.try_into().expect("four bytes"));
        let (len, raw) = ((size & !RAW_BLOCK) as usize, size & RAW_BLOCK != 0);
        if len == 0 || len > PAGE_SIZE || at + overhead + len > window.len() {
            break;
        }
        let block = Block { at: 0, start: at + 4, len, raw, zero_pages: 0, page: None };
        let bytes = block.bytes(window);
        let damaged = checksummed && block.verify(window).is_err();
        let zeros = if raw {
            None
        } else {
            zero_pages_of(bytes).or_else(|| damaged.then(|| damaged_zero_pages(bytes, 16)).flatten())
        };
        let pages = zeros.unwrap_or(1) as u64;
        if damaged && certain.is_none() {
            certain = Some(found.len());
        }
        found.push(Wanted { first_page: page, pages, size_at: at, size, zero: zeros.is_some() });
        at += overhead + len;
        page += pages;
    }
    if page != first_page + group_pages || at != window.len() {
        found.truncate(certain.unwrap_or(found.len()));
    }
    found
}

impl<F: Read + Seek> std::fmt::Debug for SalvageReader<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SalvageReader").field("uses_index", &self.uses_index()).field("damage", &self.damage()).finish()
    }
}
