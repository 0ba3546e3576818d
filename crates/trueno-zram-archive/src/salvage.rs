//! Restores what is left of a damaged file. An index finds the blocks after a damaged one.

use std::io::{Chain, Cursor, Read, Seek, SeekFrom};

use trueno_zram_core::{PAGE_SIZE, PageKind};

use crate::block::Block;
use crate::blocks::{BlockPlace, GroupIndex};
use crate::constant::{damaged_zero_pages, zero_pages_of};
use crate::content::{ContentBatch, ContentSpan, Stretch};
use crate::damage::{Damage, DamageKind, record};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::hash::ContentHash;
use crate::header::{ARCHIVE_MAX_BLOCK, RAW_BLOCK};
use crate::index::GROUP_PAGES;
use crate::lost_header;
use crate::lots::decode_extra;
use crate::reader::FrameReader;
use crate::seek::{ArchiveReader, read_at, read_footer};
use crate::zstd::constant::word_of;
use crate::zstd::frame::{Seen, look};
use crate::zstd::group::check_frame;

/// The longest group in a file that is read.
const MAX_GROUP_BYTES: u64 = 5 << 20;

/// Restores a damaged file as far as possible. What is lost becomes zeros, and is listed.
///
/// In a page archive whose index is readable, every page that is intact is restored at its position: blocks are found by
/// the index, whatever happened to those before them. If nothing is lost, the content is compared with its checksum at the
/// end. Other files are read like a stream, by a
/// [`FrameReader`] that is [salvaging](FrameReader::salvaging).
///
/// A damaged frame header loses no content if the index is readable, or else if the first block is intact: the fields of
/// the header are then found by trial.
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
    /// The bytes that replace a damaged header, and the file after them.
    Stream(Box<FrameReader<'static, Chain<Cursor<Vec<u8>>, F>>>),
}

struct ByIndex<F: Read + Seek> {
    archive: ArchiveReader<F>,
    next_group: u64,
    window: Vec<u8>,
    /// Hash of what was restored, as long as it can match the frame's checksum: nothing is lost, and it is not compared
    /// yet.
    hash: Option<ContentHash>,
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
        if readable(ArchiveReader::open(&mut file))?.flatten().is_some() {
            let archive = ArchiveReader::open(file)?;
            let archive = archive.ok_or_else(|| Error::index("it vanished while the file was read"))?;
            return Ok(Self::by_index(archive, Vec::new()));
        }
        let mut replacement = None;
        if lost_header::is_damaged(&mut file)? {
            if let Some(end) = readable(read_footer(&mut file))?.flatten()
                && let Some((header, header_len)) = lost_header::by_index(&mut file, &end.footer)?
            {
                let archive = ArchiveReader::with_layout(file, end, Layout::Lz4(header), header_len)?;
                return Ok(Self::by_index(archive, vec![Damage { at: 0, content: 0..0, kind: DamageKind::Header }]));
            }
            replacement = lost_header::by_blocks(&mut file)?;
        }
        let skipped = replacement.as_ref().map_or(0, Vec::len) as u64;
        file.seek(SeekFrom::Start(skipped)).map_err(|source| Error::Read { at: skipped, source })?;
        let is_replaced = replacement.is_some();
        let reader = FrameReader::new(Cursor::new(replacement.unwrap_or_default()).chain(file)).salvaging();
        let reader = if is_replaced { reader.with_damaged_header() } else { reader };
        Ok(Self { source: Source::Stream(Box::new(reader)), damage: Vec::new() })
    }

    fn by_index(archive: ArchiveReader<F>, damage: Vec<Damage>) -> Self {
        Self { source: Source::Index(Box::new(ByIndex::new(archive))), damage }
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
    /// [`Error::Read`], and [`Error::NotCompressed`] or [`Error::Empty`] if the file does not start with a frame.
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

    /// Returns the damage, without a copy of the list.
    ///
    /// ```
    /// let other = trueno_zram_archive::SalvageReader::open(std::io::Cursor::new(b"some other file"))?;
    /// assert!(other.into_damage().is_empty());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn into_damage(self) -> Vec<Damage> {
        match self.source {
            Source::Index(_) => self.damage,
            Source::Stream(reader) => reader.into_damage(),
        }
    }
}

/// Returns a result, `None` if it is an error of the data, and the error if the file cannot be read.
fn readable<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ Error::Read { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}

impl<F: Read + Seek> ByIndex<F> {
    fn new(archive: ArchiveReader<F>) -> Self {
        let hash = archive.layout.content_checksum().then(ContentHash::new);
        Self { archive, next_group: 0, window: Vec::new(), hash }
    }

    /// Restores the next group. After the last one, compares the content with its checksum.
    fn read_batch(&mut self, out: &mut ContentBatch, damage: &mut Vec<Damage>) -> Result<bool> {
        let more = self.read_group(out, damage)?;
        // A damaged header loses no content.
        if damage.iter().any(|part| !part.content.is_empty()) {
            self.hash = None;
        } else if more {
            if let Some(hash) = &mut self.hash {
                for span in out.spans() {
                    match span {
                        ContentSpan::Data(bytes) => hash.update(bytes),
                        ContentSpan::Zeros(len_bytes) => hash.update_zeros(len_bytes),
                    }
                }
            }
        } else if let Some(hash) = self.hash.take() {
            self.compare(&hash, damage)?;
        }
        Ok(more)
    }

    /// Compares content of which no page is lost with the checksum at the end of the frame.
    fn compare(&mut self, hash: &ContentHash, damage: &mut Vec<Damage>) -> Result<()> {
        let ArchiveReader { file, footer, .. } = &mut self.archive;
        let (len_bytes, checksum_at) = (hash.len_bytes(), footer.frame_len - 4);
        let mut expected = [0; 4];
        match read_at(file, checksum_at, &mut expected) {
            Ok(()) if hash.digest() == u32::from_le_bytes(expected) => {}
            Ok(()) => record(damage, 0, 0..len_bytes, DamageKind::Content),
            // The file became shorter while it was read.
            Err(Error::Truncated { .. }) => {
                record(damage, checksum_at, len_bytes..len_bytes, DamageKind::Truncated);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read_group(&mut self, out: &mut ContentBatch, damage: &mut Vec<Damage>) -> Result<bool> {
        out.start(0);
        let ArchiveReader { file, footer, layout, table, .. } = &mut self.archive;
        let number = self.next_group;
        let Some(group) = table.get(number) else { return Ok(false) };
        self.next_group += 1;
        let start = group.offset;
        let index = GroupIndex { footer, layout, table };
        let end = index.end(number);
        let len = (end.saturating_sub(start)).min(MAX_GROUP_BYTES);
        self.window.clear();
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.take(len).read_to_end(&mut self.window))
            .map_err(|source| Error::Read { at: start, source })?;
        let first_page = number * GROUP_PAGES as u64;
        let content_len = footer.content_len;
        let group_pages = (content_len.div_ceil(PAGE_SIZE as u64) - first_page).min(GROUP_PAGES as u64);
        let places = match index.places(file, number) {
            Ok(places) => places,
            Err(error @ Error::Read { .. }) => return Err(error),
            Err(_) => walk(&self.window, start, layout, first_page, group_pages),
        };
        let mut page = first_page;
        for place in places {
            let content = place.first_page * PAGE_SIZE as u64
                ..((place.first_page + place.pages) * PAGE_SIZE as u64).min(content_len);
            page = place.first_page + place.pages;
            let wanted = Wanted { place, window: &self.window, window_at: start, content_len };
            match wanted.restore(layout, content.end - content.start, &mut out.extra) {
                Ok(stretch) => out.push(stretch),
                Err(kind) => {
                    record(damage, place.offset, content.clone(), kind);
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
struct Wanted<'a> {
    place: BlockPlace,
    /// The group in memory, and its position in the file.
    window: &'a [u8],
    window_at: u64,
    /// Length of the archive's content.
    content_len: u64,
}

impl Wanted<'_> {
    /// Restores the block, which must hold `len_bytes`.
    fn restore(
        &self,
        layout: &Layout,
        len_bytes: u64,
        extra: &mut Vec<u8>,
    ) -> std::result::Result<Stretch, DamageKind> {
        let (window, place) = (self.window, &self.place);
        let at = usize::try_from(place.offset - self.window_at).unwrap_or(usize::MAX);
        let end = at.saturating_add(layout.overhead() + place.len_bytes as usize);
        if end > window.len() {
            return Err(DamageKind::Truncated);
        }
        let block = match layout {
            Layout::Lz4(_) => self.lz4_block(at, layout.block_checksums())?,
            Layout::Zstd { checksums } => {
                let (block, fits) = check_frame(place, self.window_at, window, self.content_len, *checksums);
                if !fits {
                    return Err(DamageKind::Header);
                }
                block.verify(window).map_err(|_| DamageKind::Checksum)?;
                block
            }
        };
        if place.zero {
            let whole = block.zero_pages as u64 == place.pages && len_bytes == place.pages * PAGE_SIZE as u64;
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

    /// Returns the block whose size word is at `at` in the window, if size word and checksum are right.
    fn lz4_block(&self, at: usize, checksummed: bool) -> std::result::Result<Block, DamageKind> {
        let BlockPlace { first_page, len_bytes, kind, zero, .. } = self.place;
        let raw = kind == PageKind::Raw;
        let (start, size) = (at + 4, len_bytes | if raw { RAW_BLOCK } else { 0 });
        if self.window[at..start] != size.to_le_bytes() {
            return Err(DamageKind::Header);
        }
        let mut block = Block::lz4(self.place.offset, start, len_bytes as usize, raw);
        block.page = Some(first_page);
        if checksummed && block.verify(self.window).is_err() {
            return Err(DamageKind::Checksum);
        }
        if zero {
            block.zero_pages = zero_pages_of(block.bytes(self.window)).unwrap_or(0);
        }
        Ok(block)
    }
}

/// Finds the blocks of a group whose entries are lost, one by one from its start. If the pages do not add up, only those
/// before the first damaged block are certain.
fn walk(window: &[u8], window_at: u64, layout: &Layout, first_page: u64, group_pages: u64) -> Vec<BlockPlace> {
    let (mut found, mut at, mut page, mut certain) = (Vec::new(), 0, first_page, None);
    while page < first_page + group_pages {
        let step = match layout {
            Layout::Lz4(_) => lz4_step(window, at, layout),
            Layout::Zstd { .. } => frame_step(window, at),
        };
        let Some(Step { pages, kind, zero, len, damaged }) = step else { break };
        if damaged && certain.is_none() {
            certain = Some(found.len());
        }
        let (offset, len_bytes) = (window_at + at as u64, u32::try_from(len).expect("a block is short"));
        found.push(BlockPlace { first_page: page, pages, kind, zero, offset, len_bytes });
        at += layout.overhead() + len;
        page += pages;
    }
    if page != first_page + group_pages || at != window.len() {
        found.truncate(certain.unwrap_or(found.len()));
    }
    found
}

/// A block that was found without the index.
struct Step {
    pages: u64,
    kind: PageKind,
    zero: bool,
    /// Length as in [`BlockPlace`].
    len: usize,
    damaged: bool,
}

/// Finds a block by its size word.
fn lz4_step(window: &[u8], at: usize, layout: &Layout) -> Option<Step> {
    let size = u32::from_le_bytes(*window.get(at..)?.first_chunk()?);
    let (len, raw) = ((size & !RAW_BLOCK) as usize, size & RAW_BLOCK != 0);
    if len == 0 || len > PAGE_SIZE || at + layout.overhead() + len > window.len() {
        return None;
    }
    let block = Block::lz4(0, at + 4, len, raw);
    let bytes = block.bytes(window);
    let damaged = layout.block_checksums() && block.verify(window).is_err();
    let zeros = if raw {
        None
    } else {
        zero_pages_of(bytes).or_else(|| damaged.then(|| damaged_zero_pages(bytes, 16)).flatten())
    };
    let kind = match zeros {
        Some(_) => PageKind::SameFilled,
        None if raw => PageKind::Raw,
        None => PageKind::Lz4,
    };
    Some(Step { pages: zeros.unwrap_or(1) as u64, kind, zero: zeros.is_some(), len, damaged })
}

/// Finds a frame by its header.
fn frame_step(window: &[u8], at: usize) -> Option<Step> {
    let Seen::Page(frame) = look(window.get(at..)?) else { return None };
    let bytes = &window[at..at + frame.len];
    let zero = frame.zero_pages > 0;
    let kind = if zero || word_of(bytes).is_some() {
        PageKind::SameFilled
    } else if frame.raw {
        PageKind::Raw
    } else {
        PageKind::Zstd
    };
    Some(Step { pages: frame.zero_pages.max(1) as u64, kind, zero, len: frame.len, damaged: false })
}

impl<F: Read + Seek> std::fmt::Debug for SalvageReader<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SalvageReader").field("uses_index", &self.uses_index()).field("damage", &self.damage()).finish()
    }
}
