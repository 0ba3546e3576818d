//! Everything that can go wrong, with the numbers that say where and why.

use crate::cpu::Backend;
use crate::lz4::DecodeError;
use crate::page::{PAGE_SIZE, PageKind};

/// The crate's result type.
///
/// ```
/// fn pages(bytes: usize) -> trueno_zram_core::Result<usize> {
///     Ok(bytes / trueno_zram_core::PAGE_SIZE)
/// }
/// assert_eq!(pages(8192), Ok(2));
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
///
/// ```
/// use trueno_zram_core::{Error, PAGE_SIZE, PageCodec, PageData, PageKind};
/// let cut_short = PageData::new(PageKind::Lz4, &[0x4f, 1, 2])?;
/// let error = PageCodec::default().decompress(cut_short, &mut [0; PAGE_SIZE]).unwrap_err();
/// assert!(matches!(error, Error::CorruptLz4(_)));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no usable GPU; the text names the driver call and the CUDA error.
    #[error("GPU not available: {0}")]
    GpuNotAvailable(String),
    /// A back end was asked for something that it does not do.
    #[error("{by} does not support {what}")]
    Unsupported {
        /// The request.
        what: String,
        /// The part that refuses it.
        by: &'static str,
    },
    /// This CPU lacks the instructions that a forced back end needs.
    #[error("this CPU cannot run the {0} back end")]
    BackendUnavailable(Backend),
    /// The worker threads could not be started.
    #[error("cannot start {threads} worker threads: {reason}")]
    ThreadPool {
        /// How many were asked for.
        threads: usize,
        /// The operating system's reason.
        reason: String,
    },
    /// A name that is no algorithm.
    #[error("unknown algorithm {name:?}: use none, lz4, zstd or zstd:LEVEL")]
    UnknownAlgorithm {
        /// The name as given.
        name: String,
    },
    /// A level outside what Zstandard offers.
    #[error("zstd level {level} is outside {min} to {max}")]
    ZstdLevel {
        /// The level as given.
        level: i32,
        /// The lowest level.
        min: i32,
        /// The highest level.
        max: i32,
    },
    /// A stored kind that stands for nothing.
    #[error("{value} is no kind of compressed page")]
    UnknownPageKind {
        /// The number as stored.
        value: u8,
    },
    /// A length that a page of that kind cannot have.
    #[error("a {kind} page cannot be held in {len_bytes} bytes")]
    HeldLength {
        /// How the page claims to be held.
        kind: PageKind,
        /// The bytes it has.
        len_bytes: usize,
    },
    /// An LZ4 block that is no page.
    #[error("corrupt LZ4 block: {0}")]
    CorruptLz4(#[from] DecodeError),
    /// A Zstandard frame that is no page.
    #[error("corrupt Zstandard frame: {reason}")]
    CorruptZstd {
        /// What the Zstandard library says.
        reason: String,
    },
    /// A Zstandard frame that is intact, but not a page.
    #[error("the Zstandard frame holds {len_bytes} bytes, not the {PAGE_SIZE} of a page")]
    ZstdFrameLength {
        /// The bytes it decodes to.
        len_bytes: usize,
    },
    /// The Zstandard library failed, which only happens when it cannot get memory.
    #[error("Zstandard failed: {reason}")]
    ZstdFailed {
        /// What the Zstandard library says.
        reason: String,
    },
    /// A page of a batch failed. Decompression restores all other pages.
    #[error("page {index}: {error}")]
    InPage {
        /// Its place in the batch. Where several fail, the first.
        index: usize,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// An index entry that points outside the arena.
    #[error("bytes {offset} to {offset} + {len_bytes} lie outside the arena of {arena_len_bytes} bytes")]
    OutsideArena {
        /// Where the page claims to start.
        offset: u64,
        /// The bytes it claims.
        len_bytes: usize,
        /// The bytes there are.
        arena_len_bytes: usize,
    },
    /// The place for the pages is not as large as the batch.
    #[error("the batch has {batch_pages} pages, its destination {destination_pages}")]
    PageCount {
        /// Pages in the batch.
        batch_pages: usize,
        /// Pages in the destination.
        destination_pages: usize,
    },
}

impl From<trueno_page::UnknownPageKind> for Error {
    fn from(error: trueno_page::UnknownPageKind) -> Self {
        Self::UnknownPageKind { value: error.value }
    }
}

impl Error {
    /// Says in which page of a batch the error lies.
    pub(crate) fn in_page(self, index: usize) -> Self {
        Self::InPage { index, error: Box::new(self) }
    }
}
