//! Restores what is left of a damaged file. An index finds the blocks after a damaged one.

mod tail;
mod walk;

use std::io::{Cursor, Read, Seek, SeekFrom};
use std::mem;

use trueno_zram_core::{PAGE_SIZE, PageKind};

use crate::block::Block;
use crate::blocks::{BlockPlace, GroupIndex};
use crate::constant::zero_pages_of;
use crate::content::{ContentBatch, ContentSpan, Stretch};
use crate::damage::{Damage, DamageKind, record};
use crate::entry::PageEntry;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::hash::ContentHash;
use crate::header::{ARCHIVE_MAX_BLOCK, RAW_BLOCK};
use crate::index::GROUP_PAGES;
use crate::index_builder::{IndexBuilder, Keeps};
use crate::input::Input;
use crate::lost_header;
use crate::lots::decode_extra;
use crate::reader::{FrameReader, IndexVerdict};
use crate::seek::{ArchiveReader, read_at, read_footer};
use crate::verify::{PageFrame, check_index};
use crate::zstd::group::check_frame;
use crate::zstd::seek_table::{MAX_FRAMES, SeekEntry};

use tail::{Stream, Tail};
use walk::walk;

/// The longest group in a file that is read.
const MAX_GROUP_BYTES: u64 = 5 << 20;

/// Restores a damaged file as far as possible. What is lost becomes zeros, and is listed.
///
/// In a page archive whose index is readable, every page that is intact is restored at its position: blocks are found by
/// the index, whatever happened to those before them. If nothing is lost, the content is compared with its checksum at the
/// end, and the index with the blocks: one that does not describe them is listed as damage. Pages behind those that the index
/// knows are restored, too. Other files are read like a stream, by a [`FrameReader`] that is
/// [salvaging](FrameReader::salvaging).
///
/// If no damage is listed, the content is exactly that of a `FrameReader`, and its index agrees with it.
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
    /// Pages that the index does not know.
    Tail(Box<Tail<F>>),
    /// All pages by the index are restored.
    Ended,
    Stream(Box<Stream<F>>),
}

struct ByIndex<F: Read + Seek> {
    archive: ArchiveReader<F>,
    next_group: u64,
    window: Vec<u8>,
    /// Hash of what was restored, as long as it can match the frame's checksum: nothing is lost.
    hash: Option<ContentHash>,
    /// The index that the blocks should have, as long as nothing is lost.
    built: Option<IndexBuilder>,
    /// Position after the last block of the group read last, if all its pages were found; else where the index says.
    blocks_end: u64,
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
        let input = Cursor::new(replacement.unwrap_or_default()).chain(file.take(u64::MAX));
        let reader = FrameReader::new(input).salvaging();
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
        !matches!(self.source, Source::Stream(_))
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
        let more = match &mut self.source {
            Source::Index(by_index) => by_index.read_batch(out, &mut self.damage)?,
            Source::Tail(tail) => tail.read_batch(out, &mut self.damage)?,
            Source::Ended => false,
            Source::Stream(reader) => return reader.read_batch(out),
        };
        if more {
            return Ok(true);
        }
        match mem::replace(&mut self.source, Source::Ended) {
            Source::Index(by_index) => match by_index.finish(&mut self.damage)? {
                Some(tail) => {
                    self.source = Source::Tail(Box::new(tail));
                    self.read_batch(out)
                }
                None => Ok(false),
            },
            _ => Ok(false),
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
            Source::Stream(reader) => reader.damage(),
            _ => &self.damage,
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
            Source::Stream(reader) => reader.into_damage(),
            _ => self.damage,
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
        let blocks_end = archive.footer.frame_len - archive.layout.end_len();
        let start = archive.table.get(0).map_or(blocks_end, |first| first.offset);
        let built = Some(IndexBuilder::new(archive.layout, start, Keeps::Checksums));
        Self { archive, next_group: 0, window: Vec::new(), hash, built, blocks_end }
    }

    /// Restores the next group.
    fn read_batch(&mut self, out: &mut ContentBatch, damage: &mut Vec<Damage>) -> Result<bool> {
        let more = self.read_group(out, damage)?;
        // A damaged header loses no content.
        if damage.iter().any(|part| !part.content.is_empty()) {
            (self.hash, self.built) = (None, None);
        }
        if let Some(hash) = self.hash.as_mut().filter(|_| more) {
            for span in out.spans() {
                match span {
                    ContentSpan::Data(bytes) => hash.update(bytes),
                    ContentSpan::Zeros(len_bytes) => hash.update_zeros(len_bytes),
                }
            }
        }
        Ok(more)
    }

    /// After the last group: returns the blocks that the index leaves out, or compares content that is complete with its
    /// checksum, and the index with the blocks.
    fn finish(mut self, damage: &mut Vec<Damage>) -> Result<Option<Tail<F>>> {
        let ArchiveReader { footer, layout, .. } = &self.archive;
        let content_len = footer.content_len;
        if self.blocks_end < footer.frame_len - layout.end_len() {
            record(damage, self.blocks_end, content_len..content_len, DamageKind::Index);
            return Tail::open(self.archive, self.blocks_end).map(Some);
        }
        let index_at = footer.frame_len;
        if let Some(hash) = self.hash.take() {
            self.compare(&hash, damage)?;
        }
        let agrees = match self.built.take() {
            Some(built) => readable(self.describes(built))?.unwrap_or(false),
            // What was lost is listed.
            None => !damage.is_empty(),
        };
        if !agrees {
            record(damage, index_at, content_len..content_len, DamageKind::Index);
        }
        Ok(None)
    }

    /// Returns whether the index, and the seek table behind it, are those that the blocks should have.
    fn describes(&mut self, built: IndexBuilder) -> Result<bool> {
        let ArchiveReader { file, footer, layout, seek_table_len, .. } = &mut self.archive;
        if matches!(layout, Layout::Lz4(_)) {
            // A stream must end behind these blocks, too.
            let mut end_mark = [0xff; 4];
            read_at(file, built.at(), &mut end_mark)?;
            if end_mark != [0; 4] {
                return Ok(false);
            }
        }
        let frame_len = built.at() + layout.end_len();
        let frame = PageFrame { index: built.finish(), content_len: footer.content_len, frame_len };
        // Behind the magic number and the length of the index's frame.
        let (at, index_len) = (footer.frame_len + 8, footer.index_len());
        file.seek(SeekFrom::Start(at)).map_err(|source| Error::Read { at, source })?;
        let mut input = Input::new(file);
        if check_index(&mut input, index_len - 8, Some(&frame))? != IndexVerdict::Agrees {
            return Ok(false);
        }
        let Some(mut table) = frame.index.seek_table else { return Ok(true) };
        let compressed_len = u32::try_from(index_len).unwrap_or(u32::MAX);
        table.push(SeekEntry { compressed_len, content_len: 0 });
        match seek_table_len.checked_sub(8) {
            None => Ok(table.frames() > MAX_FRAMES),
            Some(payload_len) => {
                input.skip(8, "the seek table")?;
                table.agrees(&mut input, payload_len)
            }
        }
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
        let (places, found_end) = match index.places(file, number) {
            Ok(places) => (places, end),
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
                Ok((stretch, entry)) => {
                    let len_bytes = stretch.len_bytes();
                    self.built.take_if(|built| !built.push_read(entry, len_bytes));
                    out.push(stretch);
                }
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
        self.blocks_end = if page == first_page + group_pages { found_end } else { end };
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
    /// Restores the block, which must hold `len_bytes`. Returns the entry that an index has for it, too.
    fn restore(
        &self,
        layout: &Layout,
        len_bytes: u64,
        extra: &mut Vec<u8>,
    ) -> std::result::Result<(Stretch, PageEntry), DamageKind> {
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
            return if whole { Ok((Stretch::Zeros(len_bytes), block.entry(window))) } else { Err(DamageKind::Block) };
        }
        let before = extra.len();
        match decode_extra(&block, window, &[], ARCHIVE_MAX_BLOCK, extra) {
            Ok(stretch) if stretch.len_bytes() == len_bytes => Ok((stretch, block.entry(window))),
            _ => {
                extra.truncate(before);
                Err(DamageKind::Block)
            }
        }
    }

    /// Returns the block whose size word is at `at` in the window, if size word and checksum are right.
    fn lz4_block(&self, at: usize, checksummed: bool) -> std::result::Result<Block, DamageKind> {
        let BlockPlace { first_page, len_bytes, kind, .. } = self.place;
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
        if !raw {
            block.zero_pages = zero_pages_of(block.bytes(self.window)).unwrap_or(0);
        }
        Ok(block)
    }
}

impl<F: Read + Seek> std::fmt::Debug for SalvageReader<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SalvageReader").field("uses_index", &self.uses_index()).field("damage", &self.damage()).finish()
    }
}
