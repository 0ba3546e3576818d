//! Options of the writer, and what it has written.

use trueno_zram_core::PageStats;

use crate::format::Format;

/// The format of an archive, and what it carries besides the pages.
///
/// ```
/// use trueno_zram_archive::WriteOptions;
/// let options = WriteOptions { content_len: Some(1 << 31), ..WriteOptions::default() };
/// assert!(options.block_checksums && !options.content_checksum);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Pages of each form. `bytes_out` is the length of their blocks, with size words and checksums.
    pub pages: PageStats,
    /// Length of the content in bytes.
    pub content_len: u64,
    /// Length of the archive in bytes.
    pub archive_len: u64,
    /// Length of the index with its sections, and of the seek table; 0 if the index was left out because it would be longer
    /// than 4 GiB.
    pub index_len: u64,
}
