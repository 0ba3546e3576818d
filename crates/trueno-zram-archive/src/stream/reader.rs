//! Streams any .lz4 or .zst input.

mod gather;
mod salvage;
mod zstd;

use std::io::Read;

use trueno_zram_core::{BatchCodec, PAGE_SIZE, PageStats};

use crate::block::Block;
use crate::error::{Error, Result};
use crate::format::{Format, Layout};
use crate::index::builder::{IndexBuilder, Retention};
use crate::index::layout::{INDEX_FRAME_MAGIC, INDEX_MAGIC};
use crate::lz4::header::{
    ARCHIVE_MAX_BLOCK_LEN, FRAME_MAGIC, LEGACY_BLOCK_LEN, LEGACY_MAGIC, Lz4Header, SKIPPABLE_HEAD_LEN, SKIPPABLE_MAGIC,
};
use crate::salvage::damage::{Damage, DamageKind, record};
use crate::stream::content::{ContentBatch, SpanRef};
use crate::stream::decoder::PageDecoders;
use crate::stream::frame::{FrameShape, FrameState};
use crate::stream::index_check::{ExpectedIndex, check_index};
use crate::stream::inline::{INLINE_BYTES, InlineDecoder, decodes_inline};
use crate::stream::input::InputWindow;
use crate::stream::parallel::{PARALLEL_BLOCKS, ParallelDecoder};
use crate::zstd::frame::ZSTD_MAGIC;
use crate::zstd::libzstd::StreamDecoder;
use crate::zstd::seek_table::{ExpectedTable, MAX_FRAMES, SEEK_FRAME_MAGIC, SeekEntry};

/// Content of a batch by default.
const BATCH_BYTES: usize = 8 << 20;

/// A frame is taken for one of pages as long as no more than one of this many blocks is something else.
const BLOCKS_PER_OTHER: usize = 8;

/// The result of comparing the stream's index with its frame.
///
/// ```
/// use trueno_zram_archive::IndexVerdict;
/// assert_eq!(IndexVerdict::default(), IndexVerdict::Absent);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IndexVerdict {
    /// The stream has no index.
    #[default]
    Absent,
    /// The index describes the frame correctly, to the last entry.
    Agrees,
    /// The index is damaged or describes another frame. The content is correct without it, but pages read by this index
    /// may be others. The text says what differs.
    Disagrees(String),
}

/// Totals of a stream, as far as it was read.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentBatch, ContentHash, FrameReader, IndexVerdict, WriteOptions};
/// let (bytes, _) = ArchiveWriter::new(Vec::new(), WriteOptions::default())?.finish(Some(ContentHash::new()))?;
/// let mut reader = FrameReader::new(&bytes[..]);
/// while reader.read_batch(&mut ContentBatch::new())? {}
/// let summary = reader.summary();
/// assert_eq!((summary.frames, summary.skippable_frames, summary.content_checksums), (1, 1, 0));
/// assert_eq!(summary.index, IndexVerdict::Agrees);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadSummary {
    /// Length of the content in bytes.
    pub content_len: u64,
    /// Bytes of input that are finished.
    pub input_len: u64,
    /// Frames with content, those of the legacy format included.
    pub frames: u64,
    /// Content checksums that were verified.
    pub content_checksums: u64,
    /// Skippable frames, the index included.
    pub skippable_frames: u64,
    /// Blocks. A Zstandard frame of an archive counts as one; those of other encoders are not counted.
    pub blocks: u64,
    /// Pages of each kind, in frames that are made of pages. `bytes_out` is the length of their blocks, with size words
    /// and checksums.
    pub pages: PageStats,
    /// The index. Of several, one that disagrees.
    pub index: IndexVerdict,
}

/// Streams any .lz4 or .zst input: page archives, and frames of all other encoders, the legacy format of LZ4 included. Frames
/// with a dictionary are refused.
///
/// Independent blocks are decoded on all threads of the rayon pool that it is called in. Whatever the input, memory
/// stays bounded: one batch and its input, which is 16 MiB for page archives and up to 130 MiB for the largest blocks
/// on many threads. An input of a few bytes cannot claim that much: batches grow with the input. Zstandard frames of
/// other encoders are decoded on the calling thread, with the window that they ask for: 128 MiB at most, as `zstd -d`.
///
/// ```
/// use trueno_zram_archive::{ContentBatch, ContentSpan, FrameReader};
/// let frame = b"\x04\x22\x4d\x18\x60\x40\x82\x05\x00\x00\x80hello\x00\x00\x00\x00"; // made by any LZ4 tool
/// let (mut reader, mut batch, mut content) = (FrameReader::new(&frame[..]), ContentBatch::new(), Vec::new());
/// while reader.read_batch(&mut batch)? {
///     for span in batch.spans() {
///         match span {
///             ContentSpan::Data(bytes) => content.extend_from_slice(bytes),
///             ContentSpan::Zeros(len_bytes) => content.resize(content.len() + len_bytes as usize, 0),
///         }
///     }
/// }
/// assert_eq!(content, b"hello");
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct FrameReader<'c, R: Read> {
    input: InputWindow<R>,
    decoders: PageDecoders<'c>,
    batch_bytes: usize,
    summary: ReadSummary,
    announced_len: Option<u64>,
    frame: Option<FrameState>,
    /// Blocks gathered and not decoded yet; they lie in the input's window.
    pending: Vec<Block>,
    /// An error after the blocks gathered; reported when these are decoded.
    deferred: Option<Error>,
    /// The format of the first frame with content. All others must have it, too.
    format: Option<Format>,
    /// The frame before, for its index.
    expected_index: Option<ExpectedIndex>,
    /// The seek table that must follow the index that was read last.
    seek_table: Option<ExpectedTable>,
    /// Created for the first Zstandard frame that is not one of an archive.
    stream_decoder: Option<StreamDecoder>,
    /// Damage so far, if the reader salvages.
    damage: Option<Vec<Damage>>,
}

impl<'c, R: Read> FrameReader<'c, R> {
    /// Reads `input` and decodes on the rayon pool that it is called in.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, Error, FrameReader};
    /// let nothing = FrameReader::new(std::io::empty()).read_batch(&mut ContentBatch::new());
    /// assert!(matches!(nothing, Err(Error::Empty)));
    /// ```
    pub fn new(input: R) -> Self {
        Self::build(input, PageDecoders::new(None))
    }

    /// Reads `input`, with pages decoded by `codec`.
    ///
    /// ```
    /// # use trueno_zram_archive::{ContentBatch, WriteOptions, compress};
    /// use trueno_zram_archive::{CpuBatchCompressor, FrameReader};
    /// # let mut archive = Vec::new();
    /// # compress(&[7; 40 * 4096][..], &mut archive, &WriteOptions::default())?;
    /// let mut codec = CpuBatchCompressor::default(); // or a GPU's
    /// let mut reader = FrameReader::with_codec(&archive[..], &mut codec);
    /// while reader.read_batch(&mut ContentBatch::new())? {}
    /// assert_eq!(reader.summary().content_len, 40 * 4096);
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn with_codec(input: R, codec: &'c mut dyn BatchCodec) -> Self {
        Self::build(input, PageDecoders::new(Some(codec)))
    }

    fn build(input: R, decoders: PageDecoders<'c>) -> Self {
        Self {
            input: InputWindow::new(input),
            decoders,
            batch_bytes: BATCH_BYTES,
            summary: ReadSummary::default(),
            announced_len: None,
            frame: None,
            pending: Vec::new(),
            deferred: None,
            format: None,
            expected_index: None,
            seek_table: None,
            stream_decoder: None,
            damage: None,
        }
    }

    /// Sets about how many bytes of content a batch has; 8 MiB by default. Frames of large blocks take more.
    ///
    /// ```
    /// let reader = trueno_zram_archive::FrameReader::new(std::io::empty()).with_batch_bytes(64 << 20); // for a GPU
    /// # drop(reader);
    /// ```
    #[must_use]
    pub fn with_batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.max(PAGE_SIZE);
        self
    }

    /// Decodes the next batch; returns `false` at the end, when all checksums were verified.
    ///
    /// Every block in a batch matches its own checksum, if it has one. The content's checksum is known only at the end
    /// of its frame: content of earlier batches may turn out to be wrong by a later error.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, Error, FrameReader};
    /// let cut_short = b"\x04\x22\x4d\x18\x60\x40\x82\x05\x00\x00\x80hell";
    /// let error = FrameReader::new(&cut_short[..]).read_batch(&mut ContentBatch::new());
    /// assert!(matches!(error, Err(Error::Truncated { at: 15, .. })));
    /// ```
    ///
    /// # Errors
    /// The error says what is wrong and where. The reader cannot be used after an error.
    pub fn read_batch(&mut self, out: &mut ContentBatch) -> Result<bool> {
        out.start(0);
        match self.fill(out) {
            // Content before the error first.
            Err(error) if out.len_bytes() > 0 => {
                self.pending.clear();
                self.deferred = Some(error);
                Ok(true)
            }
            result => result,
        }
    }

    /// Fills a batch: with one step of large blocks or pages, or with many small blocks, of many frames if need be.
    fn fill(&mut self, out: &mut ContentBatch) -> Result<bool> {
        loop {
            if self.pending.is_empty()
                && let Some(error) = self.deferred.take()
            {
                self.give_up(error, out)?;
            }
            let Some(frame) = &self.frame else {
                if out.extra.len() >= INLINE_BYTES {
                    return Ok(true);
                }
                match self.next_frame() {
                    Ok(true) => continue,
                    Ok(false) => return Ok(out.len_bytes() > 0),
                    Err(error) => {
                        self.give_up(error, out)?;
                        continue;
                    }
                }
            };
            if frame.shape == FrameShape::Foreign {
                if self.decode_foreign(out)? {
                    return Ok(true);
                }
            } else if !self.pending.is_empty() {
                if self.damage.is_some() || decodes_inline(&self.pending, frame) {
                    self.decode_inline(out)?;
                    if out.extra.len() >= INLINE_BYTES {
                        return Ok(true);
                    }
                } else if out.len_bytes() > 0 {
                    return Ok(true);
                } else {
                    if let Err(error) = self.decode(out) {
                        out.start(0);
                        return Err(error);
                    }
                    if out.len_bytes() > 0 {
                        return Ok(true);
                    }
                }
            } else if frame.ended {
                if let Err(error) = self.end_frame() {
                    self.give_up(error, out)?;
                }
            } else if let Err(error) = self.gather() {
                self.deferred = Some(error);
            }
        }
    }

    /// Returns the totals so far.
    #[must_use]
    pub fn summary(&self) -> &ReadSummary {
        &self.summary
    }

    /// Returns the length of content that the first frame's header announces, once `read_batch` has read it.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, FrameReader, WriteOptions, compress};
    /// let mut archive = Vec::new();
    /// compress(&b"some memory"[..], &mut archive, &WriteOptions::default().with_content_len(11))?;
    /// let mut reader = FrameReader::new(&archive[..]);
    /// reader.read_batch(&mut ContentBatch::new())?;
    /// assert_eq!(reader.announced_len(), Some(11));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    #[must_use]
    pub fn announced_len(&self) -> Option<u64> {
        self.announced_len
    }

    /// Goes to the next frame; returns `false` at the end.
    fn next_frame(&mut self) -> Result<bool> {
        self.input.release();
        let at = self.input.position();
        self.summary.input_len = at;
        if !self.input.fill_to(1)? {
            self.note_missing_seek_table();
            return if at == 0 { Err(Error::Empty) } else { Ok(false) };
        }
        let magic = self.input.require(4, "a frame's magic number")?;
        let magic = u32::from_le_bytes(magic.try_into().expect("four bytes"));
        let format = if magic == ZSTD_MAGIC { Format::Zstd } else { Format::Lz4 };
        let mixed = self.format.is_some_and(|first| first != format);
        if magic == ZSTD_MAGIC && !mixed {
            return self.start_zstd(at).map(|()| true);
        }
        self.input.consume(4);
        let content_start = self.summary.content_len;
        match magic {
            FRAME_MAGIC if !mixed => self.start_frame(at)?,
            LEGACY_MAGIC if !mixed => {
                let header = Lz4Header { max_block_len: LEGACY_BLOCK_LEN, ..Lz4Header::archive(None, false, false) };
                self.frame = Some(FrameState::new(at, content_start, header, FrameShape::Legacy, None));
            }
            other if other & !15 == SKIPPABLE_MAGIC => {
                self.skip_frame(other, at)?;
                self.summary.skippable_frames += 1;
                return Ok(true);
            }
            other if at == 0 => return Err(Error::NotCompressed { magic: other.to_le_bytes() }),
            _ => return Err(Error::TrailingGarbage { at }),
        }
        self.summary.frames += 1;
        self.format = Some(Format::Lz4);
        self.expected_index = None;
        self.note_missing_seek_table();
        Ok(true)
    }

    fn start_frame(&mut self, at: u64) -> Result<()> {
        const WITHIN: &str = "a frame's header";
        let flags = self.input.require(1, WITHIN)?[0];
        let len = 1 + Lz4Header::len_after(flags);
        let header = Lz4Header::parse(self.input.require(len, WITHIN)?, at)?;
        self.input.consume(len);
        if self.summary.frames == 0 {
            self.announced_len = header.content_size;
        }
        let like_archive = header.independent && header.max_block_len == ARCHIVE_MAX_BLOCK_LEN;
        let shape = match header.independent {
            true if like_archive => FrameShape::Pages,
            true => FrameShape::Blocks,
            false => FrameShape::Linked,
        };
        let header_len = 4 + len as u64;
        let index = like_archive.then(|| IndexBuilder::new(Layout::Lz4(header), header_len, Retention::Checksums));
        self.frame = Some(FrameState::new(at, self.summary.content_len, header, shape, index));
        Ok(())
    }

    /// Skips a skippable frame. An index is compared with the frame before it.
    fn skip_frame(&mut self, magic: u32, at: u64) -> Result<()> {
        const WITHIN: &str = "a skippable frame";
        let len = self.input.take_u32(WITHIN)?;
        if magic == SEEK_FRAME_MAGIC
            && let Some(expected) = self.seek_table.take()
        {
            if !expected.agrees(&mut self.input, u64::from(len))? {
                self.record_verdict(IndexVerdict::Disagrees("its seek table does not describe the frames".to_owned()));
            }
            return Ok(());
        }
        self.note_missing_seek_table();
        let marked = magic == INDEX_FRAME_MAGIC
            && len as usize >= INDEX_MAGIC.len()
            && self.input.require(INDEX_MAGIC.len(), WITHIN)? == INDEX_MAGIC;
        if !marked {
            return self.input.skip(u64::from(len), WITHIN);
        }
        let mut described = self.expected_index.take();
        if at == 0 {
            // An archive without pages has no frame of them.
            let index = IndexBuilder::new(Layout::Zstd { checksums: true }, 0, Retention::Checksums).finish();
            described = Some(ExpectedIndex { index, content_len: 0, frame_len: 0 });
        }
        let verdict = check_index(&mut self.input, u64::from(len), described.as_ref())?;
        self.record_verdict(verdict);
        self.seek_table = described.and_then(|described| described.index.seek_table).map(|mut table| {
            table.push(SeekEntry::of_index(u64::from(len) + SKIPPABLE_HEAD_LEN));
            table
        });
        Ok(())
    }

    /// Notes that the seek table does not follow the index, if it should.
    fn note_missing_seek_table(&mut self) {
        if self.seek_table.take().is_some_and(|expected| expected.frames() <= MAX_FRAMES) {
            self.record_verdict(IndexVerdict::Disagrees("its seek table is missing".to_owned()));
        }
    }

    /// Records the verdict on an index. One that disagrees outweighs all others, and is damage unless other damage explains it.
    fn record_verdict(&mut self, verdict: IndexVerdict) {
        let content_len = self.summary.content_len;
        if let (Some(damage), IndexVerdict::Disagrees(_)) = (&mut self.damage, &verdict)
            && damage.is_empty()
        {
            record(damage, self.input.position(), content_len..content_len, DamageKind::Index);
        }
        if !matches!(self.summary.index, IndexVerdict::Disagrees(_)) {
            self.summary.index = verdict;
        }
    }

    /// Decodes pending blocks on all threads.
    fn decode(&mut self, out: &mut ContentBatch) -> Result<()> {
        let frame = self.frame.as_mut().expect("pending blocks belong to a frame");
        // A frame that was taken for pages may have left more blocks here than there are slots for large ones.
        let room = match frame.shape {
            FrameShape::Pages | FrameShape::PageFrames => usize::MAX,
            _ => frame.batch_blocks(self.batch_bytes, self.input.position()).0,
        };
        let blocks = &self.pending[..self.pending.len().min(room)];
        let decoder = ParallelDecoder {
            window: self.input.window(),
            blocks,
            checksummed: frame.header.block_checksums,
            max_block_len: frame.header.max_block_len,
            hash: frame.header.content_checksum.then_some(&mut frame.hash),
        };
        let done = match frame.shape {
            FrameShape::Pages | FrameShape::PageFrames => {
                let decoded = in_pool(blocks.len(), || decoder.decode_pages(&mut self.decoders, out))?;
                for (entry, len_bytes) in &decoded.entries {
                    frame.record_block(*entry, *len_bytes);
                }
                if frame.shape == FrameShape::Pages && decoded.not_pages * BLOCKS_PER_OTHER > decoded.blocks {
                    frame.shape = FrameShape::Blocks;
                }
                decoded.blocks
            }
            FrameShape::Blocks | FrameShape::Legacy | FrameShape::Foreign => {
                frame.index = None;
                in_pool(usize::MAX, || decoder.decode_blocks(None, out))?
            }
            FrameShape::Linked => in_pool(usize::MAX, || decoder.decode_blocks(Some(&mut frame.history), out))?,
        };
        frame.content_len += out.len_bytes();
        self.finish_blocks(done, out.len_bytes())
    }

    /// Decodes pending blocks on this thread.
    fn decode_inline(&mut self, out: &mut ContentBatch) -> Result<()> {
        let frame = self.frame.as_mut().expect("pending blocks belong to a frame");
        let before = out.len_bytes();
        let inline = InlineDecoder { window: self.input.window(), blocks: &self.pending, damage: self.damage.as_mut() };
        match inline.decode(frame, out) {
            Ok(done) => self.finish_blocks(done, out.len_bytes() - before),
            Err(error) => {
                self.summary.content_len += out.len_bytes() - before;
                Err(error)
            }
        }
    }

    /// Counts blocks that were decoded.
    fn finish_blocks(&mut self, done: usize, content_len: u64) -> Result<()> {
        self.pending.drain(..done);
        self.summary.blocks += done as u64;
        if self.frame.as_ref().is_some_and(|frame| frame.shape == FrameShape::PageFrames) {
            self.summary.frames += done as u64;
        }
        self.summary.input_len = self.pending.first().map_or(self.input.position(), |block| block.at);
        self.summary.content_len += content_len;
        let frame = self.frame.as_ref().expect("blocks belong to a frame");
        let checked = frame.check_room(0);
        if self.damage.is_some() { Ok(()) } else { checked }
    }

    /// Checks the end of a frame.
    fn end_frame(&mut self) -> Result<()> {
        let frame = self.frame.take().expect("a frame is being read");
        let mut checked = frame.check_len();
        if frame.header.content_checksum {
            let at = self.input.position();
            let expected = self.input.take_u32("the content's checksum")?;
            let actual = frame.hash.digest();
            if actual == expected {
                self.summary.content_checksums += 1;
            } else {
                checked = checked.and(Err(Error::ContentChecksum { at, expected, actual }));
            }
        }
        match (&mut self.damage, checked) {
            (_, Ok(())) => {}
            (None, Err(error)) => return Err(error),
            (Some(_), Err(_)) if frame.damaged => {}
            (Some(damage), Err(_)) => {
                let content = frame.content_start..self.summary.content_len;
                record(damage, frame.at, content, DamageKind::Content);
            }
        }
        let (content_len, frame_len) = (frame.content_len, self.input.position() - frame.at);
        self.expected_index = frame.index.map(|index| ExpectedIndex { index: index.finish(), content_len, frame_len });
        if let Some(ExpectedIndex { index, .. }) = &self.expected_index {
            self.summary.pages.merge(index.counts);
        }
        Ok(())
    }

    /// Ends the reading at an error, or in a salvaging reader: records the damage and loses the rest of the input.
    fn give_up(&mut self, error: Error, out: &mut ContentBatch) -> Result<()> {
        let (Some(damage), Some(kind)) = (&mut self.damage, DamageKind::of(&error)) else { return Err(error) };
        if self.summary.frames == 0 {
            return Err(error);
        }
        let at = self.input.position();
        let lost_input = self.input.skip_rest()?;
        let start = self.summary.content_len;
        // No byte of LZ4 stands for more than 255 bytes: a length that is only claimed makes no larger output.
        let bound = lost_input.saturating_mul(255);
        let lost = self.frame.take().map_or(0, |frame| frame.header.content_size.map_or(0, |_| frame.clip(bound)));
        out.push(SpanRef::Zeros(lost));
        self.summary.content_len += lost;
        record(damage, at, start..start + lost, kind);
        Ok(())
    }
}

impl<R: Read> std::fmt::Debug for FrameReader<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").field("summary", &self.summary).finish_non_exhaustive()
    }
}

/// Runs work that forks many times inside the pool, since entering it each time takes longer. Little work runs on this thread.
fn in_pool<T: Send>(blocks: usize, work: impl FnOnce() -> T + Send) -> T {
    if blocks < PARALLEL_BLOCKS { work() } else { rayon::join(work, || ()).0 }
}
