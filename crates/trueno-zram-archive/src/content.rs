//! What readers hand out: stretches of bytes and of zeros, in order.

use trueno_zram_core::{PAGE_SIZE, Page};

/// A stretch of content.
///
/// ```
/// use trueno_zram_archive::Piece;
/// let len_bytes = |piece: Piece<'_>| match piece {
///     Piece::Data(bytes) => bytes.len() as u64,
///     Piece::Zeros(len_bytes) => len_bytes,
/// };
/// assert_eq!(len_bytes(Piece::Zeros(4096)), 4096);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes.
    Data(&'a [u8]),
    /// So many zero bytes, which were not written out: a hole, if the output can have holes.
    Zeros(u64),
}

/// A batch of decoded content. Made once and filled again and again; several of them let writing run beside reading.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentBatch, FrameReader, Piece, WriteOptions};
/// let options = WriteOptions { content_checksum: false, ..WriteOptions::default() };
/// let mut archive = ArchiveWriter::new(Vec::new(), options)?;
/// archive.write_zero_pages(100)?;
/// archive.write_tail(b"and a tail")?;
/// let (archive, _) = archive.finish(None)?;
///
/// let (mut reader, mut batch) = (FrameReader::new(&archive[..]), ContentBatch::new());
/// assert!(reader.read_batch(&mut batch)?);
/// assert_eq!(batch.pieces().collect::<Vec<_>>(), [Piece::Zeros(409_600), Piece::Data(b"and a tail")]);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct ContentBatch {
    /// Room for pages and for slots of larger blocks.
    pub(crate) main: Vec<Page>,
    /// Blocks that were thought to be pages and are not.
    pub(crate) extra: Vec<u8>,
    stretches: Vec<Stretch>,
    len_bytes: u64,
}

/// A stretch of content by its place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stretch {
    Main { start: usize, len: usize },
    Extra { start: usize, len: usize },
    Zeros(u64),
}

impl ContentBatch {
    /// An empty batch.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::ContentBatch::new().len_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The content, in order.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::ContentBatch::new().pieces().count(), 0);
    /// ```
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.stretches.iter().map(|stretch| stretch.find(self.main.as_flattened(), &self.extra))
    }

    /// Bytes of content, zeros included.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::ContentBatch::default().len_bytes(), 0);
    /// ```
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Empties the batch and makes room for `pages` in `main`. The memory is kept.
    pub(crate) fn start(&mut self, pages: usize) {
        self.extra.clear();
        self.stretches.clear();
        self.len_bytes = 0;
        if self.main.len() < pages {
            self.main = vec![[0; PAGE_SIZE]; pages];
        }
    }

    /// Adds a stretch; joined with the last one where they meet. Gives the number that it has.
    pub(crate) fn push(&mut self, stretch: Stretch) {
        self.len_bytes += stretch.len_bytes();
        match (self.stretches.last_mut(), stretch) {
            (_, stretch) if stretch.len_bytes() == 0 => {}
            (Some(Stretch::Zeros(before)), Stretch::Zeros(more)) => *before += more,
            (Some(Stretch::Main { start, len }), Stretch::Main { start: next, len: more }) if *start + *len == next => {
                *len += more;
            }
            _ => self.stretches.push(stretch),
        }
    }
}

impl Stretch {
    pub(crate) fn len_bytes(self) -> u64 {
        match self {
            Self::Main { len, .. } | Self::Extra { len, .. } => len as u64,
            Self::Zeros(len_bytes) => len_bytes,
        }
    }

    pub(crate) fn find<'a>(self, main: &'a [u8], extra: &'a [u8]) -> Piece<'a> {
        match self {
            Self::Main { start, len } => Piece::Data(&main[start..start + len]),
            Self::Extra { start, len } => Piece::Data(&extra[start..start + len]),
            Self::Zeros(len_bytes) => Piece::Zeros(len_bytes),
        }
    }
}
