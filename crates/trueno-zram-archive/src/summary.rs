//! What goes into an archive and what came of it: options, counts, lengths.

/// What the frame is to carry.
///
/// ```
/// use trueno_zram_archive::WriteOptions;
/// let options = WriteOptions { content_len: Some(1 << 31), ..WriteOptions::default() };
/// assert!(options.block_checksums && options.content_checksum);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// The content's length, if it is known: it goes into the frame's header, and is held to at the end.
    pub content_len: Option<u64>,
    /// A checksum after each block.
    pub block_checksums: bool,
    /// A checksum of all content at the frame's end: [`ArchiveWriter::finish`](crate::ArchiveWriter::finish) then asks for it.
    pub content_checksum: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { content_len: None, block_checksums: true, content_checksum: true }
    }
}

/// Pages by how they are held.
///
/// ```
/// use trueno_zram_archive::PageCounts;
/// let pages = PageCounts { zero: 2, lz4: 5, ..PageCounts::default() };
/// assert_eq!(pages.total(), 7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Pages of zeros.
    pub zero: u64,
    /// Pages of one repeated 8-byte word that is not zero.
    pub same_filled: u64,
    /// Pages that shrink, as LZ4 blocks.
    pub lz4: u64,
    /// Pages that do not shrink, as they are.
    pub raw: u64,
}

impl PageCounts {
    /// All pages; a shorter last one counts.
    ///
    /// ```
    /// assert_eq!(trueno_zram_archive::PageCounts::default().total(), 0);
    /// ```
    #[must_use]
    pub fn total(&self) -> u64 {
        self.zero + self.same_filled + self.lz4 + self.raw
    }
}

/// What was written.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentHash, WriteOptions};
/// let (bytes, summary) = ArchiveWriter::new(Vec::new(), WriteOptions::default())?.finish(Some(ContentHash::new()))?;
/// assert_eq!(summary.archive_len, bytes.len() as u64);
/// assert_eq!(summary.content_len, 0);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Pages by how they are held.
    pub pages: PageCounts,
    /// Bytes of content.
    pub content_len: u64,
    /// Bytes written in all.
    pub archive_len: u64,
    /// Bytes of those that are the index with its sections; 0 if it would be longer than 4 GiB, and was left out.
    pub index_len: u64,
}
