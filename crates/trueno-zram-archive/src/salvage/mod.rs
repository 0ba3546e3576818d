//! Restores the intact parts of a damaged file. With an index, the blocks after a damaged one are found.

pub(crate) mod damage;
mod group;
pub(crate) mod lost_header;
mod unindexed;
mod walk;

use std::io::{Cursor, Read};
use std::mem;
use std::sync::Arc;

use crate::archive::{Archive, read_footer};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::hashes::content_hash::ContentHash;
use crate::index::builder::{IndexBuilder, Retention};
use crate::lz4::header::SKIPPABLE_HEAD_LEN;
use crate::read_at::{ReadAt, SequentialReader, read_at};
use crate::salvage::damage::{Damage, DamageKind, record};
use crate::stream::content::{ContentBatch, SpanRef};
use crate::stream::index_check::{ExpectedIndex, check_index};
use crate::stream::input::InputWindow;
use crate::stream::reader::{FrameReader, IndexVerdict};
use crate::zstd::seek_table::{MAX_FRAMES, SeekEntry};

use group::DamagedGroup;
use unindexed::{SalvageStream, UnindexedBlocks};

/// Restores the intact parts of a damaged file. Lost parts become zeros, and are listed.
///
/// In a page archive whose index is readable, every page that is intact is restored at its position: blocks are found by
/// the index, whatever happened to those before them. If nothing is lost, the content is compared with its checksum at the
/// end, and the index with the blocks: one that does not describe them is listed as damage. Pages after those that the index
/// describes are restored, too. Other files are read like a stream, by a [`FrameReader`] that is
/// [salvaging](FrameReader::salvaging).
///
/// If no damage is listed, the content is exactly that of a `FrameReader`, and its index agrees with it.
///
/// A damaged frame header loses no content if the index is readable, or else if the first block is intact: the fields of
/// the header are then found by trial.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{ArchiveWriter, ContentBatch, CpuBatchCompressor, DamageKind, SalvageReader, WriteOptions};
///
/// let options = WriteOptions::default();
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_batch(&CpuBatchCompressor::default().compress(&[[1; 4096], [2; 4096], [3; 4096]])?)?;
/// let (mut bytes, _) = archive.finish(None)?;
/// bytes[50] ^= 0xff; // the size of the second block
///
/// let mut reader = SalvageReader::open(Arc::new(bytes))?;
/// while reader.read_batch(&mut ContentBatch::new())? {}
/// assert_eq!((reader.damage()[0].pages(), reader.damage()[0].kind), (1..2, DamageKind::Header));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SalvageReader {
    source: SalvageSource,
    damage: Vec<Damage>,
}

enum SalvageSource {
    Index(Box<ArchiveSalvage>),
    /// Blocks after those that the index describes.
    UnindexedBlocks(Box<UnindexedBlocks>),
    /// All pages are restored.
    Ended,
    Stream(Box<SalvageStream>),
}

struct ArchiveSalvage {
    archive: Archive,
    next_group: u64,
    window: Vec<u8>,
    /// The hash of the restored content, as long as nothing is lost. It must match the frame's checksum.
    hash: Option<ContentHash>,
    /// The index that the blocks should have, as long as nothing is lost.
    built: Option<IndexBuilder>,
    /// Position after the last block of the group read last, if all its pages were found; else what the index says.
    blocks_end: u64,
}

impl SalvageReader {
    /// Opens a file, by its index if that is readable.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, SalvageReader};
    /// let mut empty = SalvageReader::open(std::sync::Arc::new(Vec::new()))?;
    /// assert!(empty.read_batch(&mut ContentBatch::new()).is_err());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn open(file: Arc<dyn ReadAt>) -> Result<Self> {
        if let Some(archive) = readable(Archive::read_from(Arc::clone(&file)))?.flatten() {
            return Ok(Self::by_index(archive, Vec::new()));
        }
        let mut replacement = None;
        if lost_header::is_damaged(&*file)? {
            if let Some(end) = readable(read_footer(&*file))?.flatten()
                && let Some((header, header_len)) = lost_header::by_index(&*file, &end.footer)?
            {
                let archive = Archive::with_layout(file, end, Layout::Lz4(header), header_len)?;
                return Ok(Self::by_index(archive, vec![Damage { at: 0, content: 0..0, kind: DamageKind::Header }]));
            }
            replacement = lost_header::by_blocks(&*file)?;
        }
        let is_replaced = replacement.is_some();
        let start = replacement.unwrap_or_default();
        let file = SequentialReader::new(&file, start.len() as u64..u64::MAX)?;
        let reader = FrameReader::new(Cursor::new(start).chain(file)).salvaging();
        let reader = if is_replaced { reader.with_damaged_header() } else { reader };
        Ok(Self { source: SalvageSource::Stream(Box::new(reader)), damage: Vec::new() })
    }

    fn by_index(archive: Archive, damage: Vec<Damage>) -> Self {
        Self { source: SalvageSource::Index(Box::new(ArchiveSalvage::new(archive))), damage }
    }

    /// Returns `true` if blocks are found by an index.
    ///
    /// ```
    /// let other = trueno_zram_archive::SalvageReader::open(std::sync::Arc::new(b"some other file".to_vec()))?;
    /// assert!(!other.uses_index());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn uses_index(&self) -> bool {
        !matches!(self.source, SalvageSource::Stream(_))
    }

    /// Restores the next batch; returns `false` at the end.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, SalvageReader};
    /// let frame = b"\x04\x22\x4d\x18\x60\x40\x82\x05\x00\x00\x80hello\x00\x00\x00\x00";
    /// let mut reader = SalvageReader::open(std::sync::Arc::new(frame.to_vec()))?;
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
            SalvageSource::Index(by_index) => by_index.read_batch(out, &mut self.damage)?,
            SalvageSource::UnindexedBlocks(blocks) => blocks.read_batch(out, &mut self.damage)?,
            SalvageSource::Ended => false,
            SalvageSource::Stream(reader) => return reader.read_batch(out),
        };
        if more {
            return Ok(true);
        }
        match mem::replace(&mut self.source, SalvageSource::Ended) {
            SalvageSource::Index(by_index) => match by_index.finish(&mut self.damage)? {
                Some(blocks) => {
                    self.source = SalvageSource::UnindexedBlocks(Box::new(blocks));
                    self.read_batch(out)
                }
                None => Ok(false),
            },
            _ => Ok(false),
        }
    }

    /// Returns the damage so far, in order of the content.
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        match &self.source {
            SalvageSource::Stream(reader) => reader.damage(),
            _ => &self.damage,
        }
    }

    /// Returns the damage, without a copy of the list.
    ///
    /// ```
    /// let other = trueno_zram_archive::SalvageReader::open(std::sync::Arc::new(b"some other file".to_vec()))?;
    /// assert!(other.into_damage().is_empty());
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn into_damage(self) -> Vec<Damage> {
        match self.source {
            SalvageSource::Stream(reader) => reader.into_damage(),
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

impl ArchiveSalvage {
    fn new(archive: Archive) -> Self {
        let hash = archive.layout.content_checksum().then(ContentHash::new);
        let blocks_end = archive.footer.frame_len - archive.layout.end_len();
        let start = archive.index().table.get(0).map_or(blocks_end, |first| first.offset);
        let built = Some(IndexBuilder::new(archive.layout, start, Retention::Checksums));
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
            out.spans().for_each(|span| hash.update_span(span));
        }
        Ok(more)
    }

    /// After the last group: returns the blocks that the index leaves out, or compares content that is complete with its
    /// checksum, and the index with the blocks.
    fn finish(mut self, damage: &mut Vec<Damage>) -> Result<Option<UnindexedBlocks>> {
        let Archive { footer, layout, .. } = &self.archive;
        let content_len = footer.content_len;
        if self.blocks_end < footer.frame_len - layout.end_len() {
            record(damage, self.blocks_end, content_len..content_len, DamageKind::Index);
            return UnindexedBlocks::open(&self.archive, self.blocks_end).map(Some);
        }
        let index_at = footer.frame_len;
        if let Some(hash) = self.hash.take() {
            self.compare(&hash, damage)?;
        }
        let agrees = match self.built.take() {
            Some(built) => readable(self.describes(built))?.unwrap_or(false),
            // The lost pages are listed.
            None => !damage.is_empty(),
        };
        if !agrees {
            record(damage, index_at, content_len..content_len, DamageKind::Index);
        }
        Ok(None)
    }

    /// Returns `true` if the index, and the seek table after it, are those that the blocks should have.
    fn describes(&self, built: IndexBuilder) -> Result<bool> {
        let Archive { file, footer, layout, .. } = &self.archive;
        if matches!(layout, Layout::Lz4(_)) {
            // A stream must end after these blocks, too.
            let mut end_mark = [0xff; 4];
            read_at(&**file, built.at(), &mut end_mark)?;
            if end_mark != [0; 4] {
                return Ok(false);
            }
        }
        let frame_len = built.at() + layout.end_len();
        let frame = ExpectedIndex { index: built.finish(), content_len: footer.content_len, frame_len };
        let (at, index_len) = (footer.frame_len + SKIPPABLE_HEAD_LEN, footer.index_len());
        let mut input = InputWindow::new(SequentialReader::new(file, at..u64::MAX)?);
        if check_index(&mut input, index_len - SKIPPABLE_HEAD_LEN, Some(&frame))? != IndexVerdict::Agrees {
            return Ok(false);
        }
        let Some(mut table) = frame.index.seek_table else { return Ok(true) };
        table.push(SeekEntry::of_index(index_len));
        match self.archive.seek_table_len.checked_sub(SKIPPABLE_HEAD_LEN) {
            None => Ok(table.frames() > MAX_FRAMES),
            Some(payload_len) => {
                input.skip(SKIPPABLE_HEAD_LEN, "the seek table")?;
                table.agrees(&mut input, payload_len)
            }
        }
    }

    /// Compares content of which no page is lost with the checksum at the end of the frame.
    fn compare(&self, hash: &ContentHash, damage: &mut Vec<Damage>) -> Result<()> {
        let (len_bytes, checksum_at) = (hash.len_bytes(), self.archive.footer.frame_len - 4);
        let mut expected = [0; 4];
        match read_at(&*self.archive.file, checksum_at, &mut expected) {
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
        if self.next_group >= self.archive.footer.groups() {
            return Ok(false);
        }
        let group = DamagedGroup::read(&self.archive, self.next_group, mem::take(&mut self.window))?;
        self.next_group += 1;
        for place in &group.places {
            let content = group.content_of(place);
            match group.restore(place, content.end - content.start, &mut out.extra) {
                Ok((span_ref, entry)) => {
                    self.built.take_if(|built| !built.push_read(entry, span_ref.len_bytes()));
                    out.push(span_ref);
                }
                Err(kind) => {
                    out.push(SpanRef::Zeros(content.end - content.start));
                    record(damage, place.offset, content, kind);
                }
            }
        }
        let lost = group.lost_content();
        if !lost.is_empty() {
            record(damage, group.start, lost.clone(), DamageKind::Header);
            out.push(SpanRef::Zeros(lost.end - lost.start));
        }
        (self.blocks_end, self.window) = (group.blocks_end, group.window);
        Ok(true)
    }
}

impl std::fmt::Debug for SalvageReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SalvageReader").field("uses_index", &self.uses_index()).field("damage", &self.damage()).finish()
    }
}
