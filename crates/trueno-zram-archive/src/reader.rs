//! Streams any .lz4 input, whoever made it.

use std::io::Read;

use trueno_zram_core::PAGE_SIZE;

use crate::block::Block;
use crate::constant::zero_pages_of;
use crate::content::ContentBatch;
use crate::decoder::{CpuPageDecoder, PageDecoder};
use crate::error::{Error, Result};
use crate::frame::{Frame, Shape};
use crate::header::{
    ARCHIVE_MAX_BLOCK, FRAME_MAGIC, Header, LEGACY_BLOCK, LEGACY_BLOCK_BOUND, LEGACY_MAGIC, RAW_BLOCK, SKIPPABLE_MAGIC,
};
use crate::index::{INDEX_FRAME_MAGIC, INDEX_MAGIC, IndexBuilder, Keeps};
use crate::input::Input;
use crate::lots::Lots;
use crate::summary::PageCounts;
use crate::verify::{PageFrame, check_index};

/// Content in a batch, unless told.
const BATCH_BYTES: usize = 8 << 20;

/// What the stream's index was found to be.
///
/// ```
/// use trueno_zram_archive::IndexVerdict;
/// assert_eq!(IndexVerdict::default(), IndexVerdict::Absent);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IndexVerdict {
    /// There is none.
    #[default]
    Absent,
    /// It says what the frame holds, to the last entry.
    Agrees,
    /// It is damaged, or tells of another frame; the content stands without it. The reason, in words.
    Disagrees(String),
}

/// What was read so far, and at the end in all.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentBatch, ContentHash, FrameReader, IndexVerdict, WriteOptions};
/// let (bytes, _) = ArchiveWriter::new(Vec::new(), WriteOptions::default())?.finish(Some(ContentHash::new()))?;
/// let mut reader = FrameReader::new(&bytes[..]);
/// while reader.read_batch(&mut ContentBatch::new())? {}
/// let summary = reader.summary();
/// assert_eq!((summary.frames, summary.skippable_frames, summary.content_checksums), (1, 1, 1));
/// assert_eq!(summary.index, IndexVerdict::Agrees);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// Bytes of content.
    pub content_len: u64,
    /// Bytes of input that are done with.
    pub input_len: u64,
    /// Frames with content, those of the old format included.
    pub frames: u64,
    /// Content checksums, which held.
    pub content_checksums: u64,
    /// Skippable frames, the index included.
    pub skippable_frames: u64,
    /// Blocks.
    pub blocks: u64,
    /// Pages by how they are held, of frames that are made of pages.
    pub pages: PageCounts,
    /// The index. Of several, one that disagrees.
    pub index: IndexVerdict,
}

/// Streams any .lz4 input: page archives, and frames of all other makers, old format included.
///
/// Blocks are decoded on all threads where they stand alone; pages by the [`PageDecoder`]. Whatever the input, memory
/// stays bounded (a batch and its input: 16 MiB for page archives, up to 130 MiB for the largest blocks on many
/// threads), and nothing panics.
///
/// ```
/// use trueno_zram_archive::{ContentBatch, FrameReader, Piece};
/// let frame = b"\x04\x22\x4d\x18\x60\x40\x82\x05\x00\x00\x80hello\x00\x00\x00\x00"; // made by any LZ4 tool
/// let (mut reader, mut batch, mut content) = (FrameReader::new(&frame[..]), ContentBatch::new(), Vec::new());
/// while reader.read_batch(&mut batch)? {
///     for piece in batch.pieces() {
///         match piece {
///             Piece::Data(bytes) => content.extend_from_slice(bytes),
///             Piece::Zeros(len_bytes) => content.resize(content.len() + len_bytes as usize, 0),
///         }
///     }
/// }
/// assert_eq!(content, b"hello");
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
pub struct FrameReader<R: Read, D: PageDecoder = CpuPageDecoder> {
    input: Input<R>,
    decoder: D,
    fallback: CpuPageDecoder,
    batch_bytes: usize,
    summary: ReadSummary,
    announced_len: Option<u64>,
    frame: Option<Frame>,
    /// Blocks gathered and not decoded yet; their places are in the input's window.
    pending: Vec<Block>,
    /// An error of the blocks behind those gathered, for when these are decoded.
    deferred: Option<Error>,
    /// The frame before, for its index.
    page_frame: Option<PageFrame>,
}

impl<R: Read> FrameReader<R> {
    /// Reads `input`, decoding on the rayon pool that it is called in.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, Error, FrameReader};
    /// let nothing = FrameReader::new(std::io::empty()).read_batch(&mut ContentBatch::new());
    /// assert!(matches!(nothing, Err(Error::Empty)));
    /// ```
    pub fn new(input: R) -> Self {
        Self::with_decoder(input, CpuPageDecoder::new())
    }
}

impl<R: Read, D: PageDecoder> FrameReader<R, D> {
    /// Reads `input`, with pages decoded by `decoder`.
    ///
    /// ```
    /// use trueno_zram_archive::{CpuPageDecoder, FrameReader};
    /// let reader = FrameReader::with_decoder(std::io::empty(), CpuPageDecoder::new());
    /// assert_eq!(reader.summary().frames, 0);
    /// ```
    pub fn with_decoder(input: R, decoder: D) -> Self {
        Self {
            input: Input::new(input),
            decoder,
            fallback: CpuPageDecoder::new(),
            batch_bytes: BATCH_BYTES,
            summary: ReadSummary::default(),
            announced_len: None,
            frame: None,
            pending: Vec::new(),
            deferred: None,
            page_frame: None,
        }
    }

    /// Sets about how many bytes of content a batch is to have; 8 MiB unless set. Frames of large blocks take more.
    ///
    /// ```
    /// let reader = trueno_zram_archive::FrameReader::new(std::io::empty()).batch_bytes(64 << 20); // for a GPU
    /// # drop(reader);
    /// ```
    #[must_use]
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.max(PAGE_SIZE);
        self
    }

    /// Decodes the next batch; `false` at the end, when all checksums have held.
    ///
    /// Every block handed out has passed its own checksum, where there is one. Whether the content's checksum holds is only
    /// known at the end of its frame: what was handed out before may turn out to be wrong by a later error.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, Error, FrameReader};
    /// let cut_short = b"\x04\x22\x4d\x18\x60\x40\x82\x05\x00\x00\x80hell";
    /// let error = FrameReader::new(&cut_short[..]).read_batch(&mut ContentBatch::new());
    /// assert!(matches!(error, Err(Error::Truncated { at: 15, .. })));
    /// ```
    ///
    /// # Errors
    /// Each says what is wrong, and at which byte of the input. After an error the reader is of no more use.
    pub fn read_batch(&mut self, out: &mut ContentBatch) -> Result<bool> {
        loop {
            out.start(0);
            let Some(frame) = &mut self.frame else {
                if self.next_frame()? {
                    continue;
                }
                return Ok(false);
            };
            if !self.pending.is_empty() {
                self.decode(out)?;
                if out.len_bytes() > 0 {
                    return Ok(true);
                }
            } else if let Some(error) = self.deferred.take() {
                return Err(error);
            } else if frame.ended {
                self.end_frame()?;
            } else if let Err(error) = self.gather() {
                self.deferred = Some(error);
            }
        }
    }

    /// What was read so far.
    ///
    /// ```
    /// let reader = trueno_zram_archive::FrameReader::new(std::io::empty());
    /// assert_eq!(reader.summary().input_len, 0);
    /// ```
    #[must_use]
    pub fn summary(&self) -> &ReadSummary {
        &self.summary
    }

    /// The length of content that the first frame's header announces, once `read_batch` has read it. For progress.
    ///
    /// ```
    /// let reader = trueno_zram_archive::FrameReader::new(std::io::empty());
    /// assert_eq!(reader.announced_len(), None);
    /// ```
    #[must_use]
    pub fn announced_len(&self) -> Option<u64> {
        self.announced_len
    }

    /// Goes to the next frame that has content; `false` if there is none.
    fn next_frame(&mut self) -> Result<bool> {
        self.input.release();
        let at = self.input.position();
        self.summary.input_len = at;
        if !self.input.need(1)? {
            return if at == 0 { Err(Error::Empty) } else { Ok(false) };
        }
        let magic = self.input.demand(4, "a frame's magic number")?;
        let magic: [u8; 4] = magic.try_into().expect("four bytes");
        self.input.consume(4);
        match u32::from_le_bytes(magic) {
            FRAME_MAGIC => self.start_frame(at)?,
            LEGACY_MAGIC => {
                let header = Header {
                    independent: true,
                    block_checksums: false,
                    content_checksum: false,
                    content_size: None,
                    max_block: LEGACY_BLOCK,
                };
                self.frame = Some(Frame::new(at, header, Shape::Legacy, None));
            }
            other if other & !15 == SKIPPABLE_MAGIC => {
                self.skip_frame(other)?;
                self.summary.skippable_frames += 1;
                return Ok(true);
            }
            _ if at == 0 => return Err(Error::NotLz4 { magic }),
            _ => return Err(Error::TrailingGarbage { at }),
        }
        self.summary.frames += 1;
        self.page_frame = None;
        Ok(true)
    }

    fn start_frame(&mut self, at: u64) -> Result<()> {
        const WITHIN: &str = "a frame's header";
        let flags = self.input.demand(1, WITHIN)?[0];
        let len = 1 + Header::len_after(flags);
        let header = Header::parse(self.input.demand(len, WITHIN)?, at)?;
        self.input.consume(len);
        if self.summary.frames == 0 {
            self.announced_len = header.content_size;
        }
        let like_archive = header.independent && header.max_block == ARCHIVE_MAX_BLOCK;
        let shape = match header.independent {
            true if like_archive => Shape::Pages,
            true => Shape::Blocks,
            false => Shape::Linked,
        };
        let header_len = 4 + len as u64;
        let index = like_archive.then(|| IndexBuilder::new(&header, header_len, Keeps::Checksums));
        self.frame = Some(Frame::new(at, header, shape, index));
        Ok(())
    }

    /// Passes over a skippable frame; if it is an index, it is held to the frame before.
    fn skip_frame(&mut self, magic: u32) -> Result<()> {
        const WITHIN: &str = "a skippable frame";
        let len = self.input.demand(4, WITHIN)?;
        let len = u32::from_le_bytes(len.try_into().expect("four bytes"));
        self.input.consume(4);
        let marked = magic == INDEX_FRAME_MAGIC
            && len as usize >= INDEX_MAGIC.len()
            && self.input.demand(INDEX_MAGIC.len(), WITHIN)? == INDEX_MAGIC;
        if !marked {
            return self.input.skip(u64::from(len), WITHIN);
        }
        let verdict = check_index(&mut self.input, u64::from(len), self.page_frame.take().as_ref())?;
        if !matches!(self.summary.index, IndexVerdict::Disagrees(_)) {
            self.summary.index = verdict;
        }
        Ok(())
    }

    /// Gathers blocks of the frame, as many as a batch is to have.
    fn gather(&mut self) -> Result<()> {
        self.input.release();
        let frame = self.frame.as_mut().expect("a frame is being read");
        let checksum_len = frame.header.block_checksum_len();
        let legacy = frame.shape == Shape::Legacy;
        let max_len = if legacy { LEGACY_BLOCK_BOUND } else { frame.header.max_block };
        let (mut room, mut zero_room) = frame.batch_blocks(self.batch_bytes);
        while room > 0 && zero_room > 0 && self.input.place() <= frame.input_bound(self.batch_bytes) {
            let at = self.input.position();
            if legacy && !self.input.need(1)? {
                frame.ended = true;
                return Ok(());
            }
            let word = self.input.demand(4, "a block's size")?;
            let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
            let (raw, len) = if legacy { (false, word) } else { (word & RAW_BLOCK != 0, word & !RAW_BLOCK) };
            let len = len as usize;
            if legacy && len > max_len {
                // No block: the magic number of the next frame.
                frame.ended = true;
                return Ok(());
            }
            if word == 0 && !legacy {
                self.input.consume(4);
                frame.ended = true;
                return Ok(());
            }
            if len > max_len {
                return Err(Error::BlockTooLarge { at, len_bytes: len as u64, max_bytes: max_len as u64 });
            }
            self.input.demand(4 + len + checksum_len, "a block")?;
            let start = self.input.place() + 4;
            let mut block = Block { at, start, len, raw, zero_pages: 0 };
            if frame.shape == Shape::Pages && !raw {
                block.zero_pages = zero_pages_of(block.bytes(self.input.window())).unwrap_or(0);
            }
            if block.zero_pages > 0 {
                zero_room -= 1;
            } else {
                room -= 1;
            }
            // The first block tells what the frame is made of, most often.
            if frame.shape == Shape::Pages && frame.content_len == 0 && self.pending.is_empty() && !block.may_be_page()
            {
                frame.shape = Shape::Blocks;
                room = room.min(frame.batch_blocks(self.batch_bytes).0);
            }
            self.input.consume(4 + len + checksum_len);
            self.pending.push(block);
        }
        Ok(())
    }

    /// Decodes pending blocks.
    fn decode(&mut self, out: &mut ContentBatch) -> Result<()> {
        let frame = self.frame.as_mut().expect("pending blocks are of a frame");
        // A frame that was taken for pages may have left more blocks here than there are places for large ones.
        let room = if frame.shape == Shape::Pages { usize::MAX } else { frame.batch_blocks(self.batch_bytes).0 };
        let blocks = &self.pending[..self.pending.len().min(room)];
        let lots = Lots {
            window: self.input.window(),
            blocks,
            checksummed: frame.header.block_checksums,
            max_block: frame.header.max_block,
            hash: frame.header.content_checksum.then_some(&mut frame.hash),
        };
        let done = match frame.shape {
            Shape::Pages => {
                let decoded = in_pool(blocks.len(), || lots.decode_pages(&mut self.decoder, &self.fallback, out))?;
                frame.enter(&decoded);
                if decoded.odd * 8 > decoded.blocks {
                    frame.shape = Shape::Blocks;
                }
                decoded.blocks
            }
            Shape::Blocks | Shape::Legacy => {
                frame.index = None;
                in_pool(usize::MAX, || lots.decode_blocks(None, out))?
            }
            Shape::Linked => in_pool(usize::MAX, || lots.decode_blocks(Some(&mut frame.history), out))?,
        };
        self.pending.drain(..done);
        self.summary.blocks += done as u64;
        self.summary.input_len = self.pending.first().map_or(self.input.position(), |block| block.at);
        self.summary.content_len += out.len_bytes();
        frame.content_len += out.len_bytes();
        frame.check_len(|announced, actual| actual <= announced)
    }

    /// Checks what stands at a frame's end.
    fn end_frame(&mut self) -> Result<()> {
        let frame = self.frame.take().expect("a frame is being read");
        frame.check_len(|announced, actual| actual == announced)?;
        if frame.header.content_checksum {
            let at = self.input.position();
            let stored = self.input.demand(4, "the content's checksum")?;
            let expected = u32::from_le_bytes(stored.try_into().expect("four bytes"));
            let actual = frame.hash.digest();
            if actual != expected {
                return Err(Error::ContentChecksum { at, expected, actual });
            }
            self.input.consume(4);
            self.summary.content_checksums += 1;
        }
        let (content_len, frame_len) = (frame.content_len, self.input.position() - frame.at);
        self.page_frame = frame.index.map(|index| PageFrame { index: index.finish(), content_len, frame_len });
        if let Some(PageFrame { index, .. }) = &self.page_frame {
            let (all, more) = (&mut self.summary.pages, index.counts);
            all.zero += more.zero;
            all.same_filled += more.same_filled;
            all.lz4 += more.lz4;
            all.raw += more.raw;
        }
        Ok(())
    }
}

impl<R: Read, D: PageDecoder> std::fmt::Debug for FrameReader<R, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").field("summary", &self.summary).finish_non_exhaustive()
    }
}

/// Runs work that forks many times inside the pool; going there each time takes longer. Little work is done here.
fn in_pool<T: Send>(blocks: usize, work: impl FnOnce() -> T + Send) -> T {
    if blocks < 32 { work() } else { rayon::join(work, || ()).0 }
}
