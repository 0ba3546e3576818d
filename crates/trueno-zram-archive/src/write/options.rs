//! Options of the writer, and the totals of a finished archive.

use trueno_zram_core::PageStats;

use crate::format::Format;

/// The format of an archive, and what it carries besides the pages.
///
/// ```
/// use trueno_zram_archive::WriteOptions;
/// let options = WriteOptions::default().with_content_len(1 << 31);
/// assert!(options.block_checksums && !options.content_checksum);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// The format.
    pub format: Format,
    /// The content's length, if it is known: the writer checks it at the end. LZ4 frames also have it in their header.
    pub content_len: Option<u64>,
    /// A checksum per block: of the LZ4 block, or of the content of the Zstandard frame.
    pub block_checksums: bool,
    /// A checksum of all content at the end of the LZ4 frame. [`ArchiveWriter::finish`](crate::ArchiveWriter::finish) needs
    /// the hash then. Zstandard archives do not have one: each frame ends with its own.
    pub content_checksum: bool,
    /// A hash per page in a section of the index, for [deltas](crate::DeltaWriter) that are made from the archive later: 16 bytes
    /// per page that is not zero.
    pub page_hashes: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            format: Format::Lz4,
            content_len: None,
            block_checksums: true,
            content_checksum: false,
            page_hashes: false,
        }
    }
}

impl WriteOptions {
    /// Sets the format: LZ4 by default.
    ///
    /// ```
    /// use trueno_zram_archive::{Format, WriteOptions};
    /// assert_eq!(WriteOptions::default().with_format(Format::Zstd).format, Format::Zstd);
    /// ```
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Announces the length of the content, if it is known; it is not by default.
    ///
    /// ```
    /// use trueno_zram_archive::WriteOptions;
    /// assert_eq!(WriteOptions::default().with_content_len(4096).content_len, Some(4096));
    /// assert_eq!(WriteOptions::default().with_content_len(None).content_len, None);
    /// ```
    #[must_use]
    pub fn with_content_len(mut self, len_bytes: impl Into<Option<u64>>) -> Self {
        self.content_len = len_bytes.into();
        self
    }

    /// Sets whether every block has a checksum: `true` by default.
    ///
    /// ```
    /// use trueno_zram_archive::WriteOptions;
    /// assert!(!WriteOptions::default().with_block_checksums(false).block_checksums);
    /// ```
    #[must_use]
    pub fn with_block_checksums(mut self, block_checksums: bool) -> Self {
        self.block_checksums = block_checksums;
        self
    }

    /// Sets whether an LZ4 frame ends with a checksum of all content: `false` by default.
    ///
    /// ```
    /// use trueno_zram_archive::WriteOptions;
    /// assert!(WriteOptions::default().with_content_checksum(true).content_checksum);
    /// ```
    #[must_use]
    pub fn with_content_checksum(mut self, content_checksum: bool) -> Self {
        self.content_checksum = content_checksum;
        self
    }

    /// Sets whether the index has a hash per page: `false` by default.
    ///
    /// ```
    /// use trueno_zram_archive::WriteOptions;
    /// assert!(WriteOptions::default().with_page_hashes(true).page_hashes);
    /// ```
    #[must_use]
    pub fn with_page_hashes(mut self, page_hashes: bool) -> Self {
        self.page_hashes = page_hashes;
        self
    }
}

/// Totals of an archive that was written.
///
/// ```
/// use trueno_zram_archive::{ArchiveWriter, ContentHash, WriteOptions};
/// let (bytes, summary) = ArchiveWriter::new(Vec::new(), WriteOptions::default())?.finish(Some(ContentHash::new()))?;
/// assert_eq!(summary.archive_len, bytes.len() as u64);
/// assert_eq!(summary.content_len, 0);
/// # Ok::<(), trueno_zram_archive::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSummary {
    /// Pages of each kind. `bytes_out` is the length of their blocks, with size words and checksums.
    pub pages: PageStats,
    /// Length of the content in bytes.
    pub content_len: u64,
    /// Length of the archive in bytes.
    pub archive_len: u64,
    /// Length of the index with its sections, and of the seek table; 0 if the index was left out because it would be longer
    /// than 4 GiB.
    pub index_len: u64,
}
