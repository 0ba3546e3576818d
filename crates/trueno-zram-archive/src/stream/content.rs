//! Decoded content as the readers return it: spans of bytes and of zeros, in order.

use trueno_zram_core::{PAGE_SIZE, Page};

/// A span of content.
///
/// ```
/// use trueno_zram_archive::ContentSpan;
/// let spans = [ContentSpan::Data(b"some bytes"), ContentSpan::Zeros(4096)];
/// assert_eq!(spans.map(ContentSpan::len_bytes), [10, 4096]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentSpan<'a> {
    /// These bytes.
    Data(&'a [u8]),
    /// This many zero bytes, which are not in memory: a hole, if the output can have holes.
    Zeros(u64),
}

impl ContentSpan<'_> {
    /// Returns its length in bytes.
    #[must_use]
    pub fn len_bytes(self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Zeros(len_bytes) => len_bytes,
        }
    }
}

/// A batch of decoded content. Reuse it: its memory is kept. With several, writing can run beside reading.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentBatch, ContentSpan, FrameReader, WriteOptions};
/// let options = WriteOptions::default();
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_zero_pages(100)?;
/// archive.write_tail(b"and a tail")?;
/// let (archive, _) = archive.finish(None)?;
///
/// let (mut reader, mut batch) = (FrameReader::new(&archive[..]), ContentBatch::new());
/// assert!(reader.read_batch(&mut batch)?);
/// assert_eq!(batch.spans().collect::<Vec<_>>(), [ContentSpan::Zeros(409_600), ContentSpan::Data(b"and a tail")]);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct ContentBatch {
    /// Pages, and slots of larger blocks.
    pub(crate) main: Vec<Page>,
    /// Blocks that are not one page, one after the other.
    pub(crate) extra: Vec<u8>,
    span_refs: Vec<SpanRef>,
    len_bytes: u64,
}

/// The position of a span in a batch's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpanRef {
    Main { start: usize, len: usize },
    Extra { start: usize, len: usize },
    Zeros(u64),
}

impl ContentBatch {
    /// Creates an empty batch.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::ContentBatch::new().len_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the content, in order.
    ///
    /// ```
    /// use trueno_zram_archive::{ContentBatch, ContentSpan, FrameReader};
    /// let frame = b"\x04\x22\x4d\x18\x60\x40\x82\x05\x00\x00\x80hello\x00\x00\x00\x00"; // made by any LZ4 tool
    /// let mut batch = ContentBatch::new();
    /// FrameReader::new(&frame[..]).read_batch(&mut batch)?;
    /// assert!(batch.spans().eq([ContentSpan::Data(b"hello")]));
    /// # Ok::<(), trueno_zram_archive::Error>(())
    /// ```
    pub fn spans(&self) -> impl Iterator<Item = ContentSpan<'_>> {
        self.span_refs.iter().map(|span_ref| span_ref.find(self.main.as_flattened(), &self.extra))
    }

    /// Returns the length of the content in bytes, zeros included.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Empties the batch and makes room for `pages` in `main`. The memory is kept.
    pub(crate) fn start(&mut self, pages: usize) {
        self.extra.clear();
        self.span_refs.clear();
        self.len_bytes = 0;
        if self.main.len() < pages {
            self.main = vec![[0; PAGE_SIZE]; pages];
        }
    }

    /// Appends a span, joined with the last one where they meet.
    pub(crate) fn push(&mut self, span_ref: SpanRef) {
        self.len_bytes += span_ref.len_bytes();
        match (self.span_refs.last_mut(), span_ref) {
            (_, span_ref) if span_ref.len_bytes() == 0 => {}
            (Some(SpanRef::Zeros(before)), SpanRef::Zeros(more)) => *before += more,
            (Some(SpanRef::Main { start, len }), SpanRef::Main { start: next, len: more })
            | (Some(SpanRef::Extra { start, len }), SpanRef::Extra { start: next, len: more })
                if *start + *len == next =>
            {
                *len += more;
            }
            _ => self.span_refs.push(span_ref),
        }
    }
}

impl SpanRef {
    pub(crate) fn len_bytes(self) -> u64 {
        match self {
            Self::Main { len, .. } | Self::Extra { len, .. } => len as u64,
            Self::Zeros(len_bytes) => len_bytes,
        }
    }

    pub(crate) fn find<'a>(self, main: &'a [u8], extra: &'a [u8]) -> ContentSpan<'a> {
        match self {
            Self::Main { start, len } => ContentSpan::Data(&main[start..start + len]),
            Self::Extra { start, len } => ContentSpan::Data(&extra[start..start + len]),
            Self::Zeros(len_bytes) => ContentSpan::Zeros(len_bytes),
        }
    }
}
