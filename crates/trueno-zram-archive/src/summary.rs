//! Options of the writer, and what it has written.

use trueno_zram_core::PageStats;

/// What the frame carries besides the pages.
///
/// ```
/// use trueno_zram_archive::WriteOptions;
/// let options = WriteOptions { content_len: Some(1 << 31), ..WriteOptions::default() };
/// assert!(options.block_checksums && options.content_checksum);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// The content's length, if it is known: it goes into the frame's header, and the writer checks it at the end.
    pub content_len: Option<u64>,
    /// A checksum after each block.
    pub block_checksums: bool,
    /// A checksum of all content at the frame's end. [`ArchiveWriter::finish`](crate::ArchiveWriter::finish) needs the hash
    /// then.
    pub content_checksum: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { content_len: None, block_checksums: true, content_checksum: true }
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
    /// Length of the index with its sections; 0 if it was left out because it would be longer than 4 GiB.
    pub index_len: u64,
}
