//! Everything that can go wrong, with the position in the file.

use std::io;

/// The crate's result type.
///
/// ```
/// fn open(file: std::fs::File) -> trueno_zram_archive::Result<bool> {
///     Ok(trueno_zram_archive::ArchiveReader::open(file)?.is_some())
/// }
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Positions are bytes from the start of the input.
///
/// ```
/// use trueno_zram_archive::{ContentBatch, Error, FrameReader};
/// let error = FrameReader::new(&b"no frame"[..]).read_batch(&mut ContentBatch::new()).unwrap_err();
/// assert!(matches!(error, Error::NotLz4 { .. }));
/// assert_eq!(error.to_string(), "byte 0: not an LZ4 file: it starts with 6e 6f 20 66");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The output could not be written.
    #[error("cannot write: {0}")]
    Write(#[source] io::Error),
    /// The writer was given what it cannot take; the text says what.
    #[error("{0}")]
    Misuse(String),
    /// The input could not be read.
    #[error("cannot read at byte {at}: {source}")]
    Read {
        /// Where.
        at: u64,
        /// Why.
        source: io::Error,
    },
    /// The input is empty.
    #[error("the input is empty: not even a frame's header is there")]
    Empty,
    /// The input starts with something else than a frame.
    #[error("byte 0: not an LZ4 file: it starts with {}", hex(magic))]
    NotLz4 {
        /// Its first bytes.
        magic: [u8; 4],
    },
    /// Bytes that are no frame follow the last frame. All content before them has been handed out and was right.
    #[error("byte {at}: what follows the last frame is no frame")]
    TrailingGarbage {
        /// Where they start.
        at: u64,
    },
    /// The input ends too early.
    #[error("truncated: the input ends at byte {at}, within {within}")]
    Truncated {
        /// Where the input ends.
        at: u64,
        /// What is cut short.
        within: &'static str,
    },
    /// A frame's header is damaged, or asks for what nobody has defined.
    #[error("byte {at}: bad frame header: {what}")]
    Header {
        /// Where the frame starts.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The frame was made with a dictionary, which is not here.
    #[error("byte {at}: the frame needs dictionary {id:#010x}, and dictionaries are not supported")]
    Dictionary {
        /// Where the frame starts.
        at: u64,
        /// The dictionary's number.
        id: u32,
    },
    /// A block is larger than its frame allows.
    #[error("byte {at}: a block of {len_bytes} bytes, where the frame allows {max_bytes}")]
    BlockTooLarge {
        /// Where the block starts.
        at: u64,
        /// The bytes it claims.
        len_bytes: u64,
        /// The most it may have.
        max_bytes: u64,
    },
    /// A block is not what it was when it was written.
    #[error("byte {at}: corrupt block: its checksum is {actual:08x}, not {expected:08x}")]
    BlockChecksum {
        /// Where the block starts.
        at: u64,
        /// The checksum that is stored.
        expected: u32,
        /// The checksum of the bytes that are there.
        actual: u32,
    },
    /// A block that cannot be decoded.
    #[error("byte {at}: corrupt block: {reason}")]
    Block {
        /// Where the block starts.
        at: u64,
        /// Why not.
        reason: String,
    },
    /// A frame's content is not as long as its header announced.
    #[error("byte {at}: the frame holds {actual} bytes of content, its header announced {announced}")]
    ContentSize {
        /// Where the frame starts.
        at: u64,
        /// The announced length.
        announced: u64,
        /// The length so far, or in all.
        actual: u64,
    },
    /// A frame's content is not what it was when it was written.
    #[error("byte {at}: corrupt content: its checksum is {actual:08x}, not {expected:08x}")]
    ContentChecksum {
        /// Where the checksum stands.
        at: u64,
        /// The checksum that is stored.
        expected: u32,
        /// The checksum of the content.
        actual: u32,
    },
    /// The index is damaged or does not tell of this file. The file may still be read from its start.
    #[error("bad index: {0}")]
    Index(String),
    /// Pages that the archive does not have.
    #[error("pages {start} to {end} are asked for, and the archive has {pages}")]
    PageRange {
        /// The first page asked for.
        start: u64,
        /// The page after the last.
        end: u64,
        /// The pages there are.
        pages: u64,
    },
    /// The page decoder failed for a reason that is not in the data.
    #[error("the page decoder failed: {0}")]
    Decoder(trueno_zram_core::Error),
}

impl Error {
    pub(crate) fn index(reason: impl Into<String>) -> Self {
        Self::Index(reason.into())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}
