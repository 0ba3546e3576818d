//! The error type of the crate.

use crate::cpu::InstructionSet;
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

/// The ways an operation of this crate can fail.
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
    /// No GPU can be used. The text names the driver call and the CUDA error.
    #[error("GPU not available: {0}")]
    GpuNotAvailable(String),
    /// A GPU in use failed.
    #[cfg(feature = "gpu")]
    #[error("GPU failed: {0}")]
    Gpu(#[source] crate::gpu::GpuError),
    /// A configuration value is out of range. Nothing was allocated.
    #[error("{field} is {value}; allowed: {allowed}")]
    Config {
        /// The configuration field.
        field: &'static str,
        /// The rejected value.
        value: String,
        /// The values that are accepted.
        allowed: String,
    },
    /// A compressor was asked for something that it does not support.
    #[error("{by} does not support {what}")]
    Unsupported {
        /// The request.
        what: String,
        /// The part that rejects it.
        by: &'static str,
    },
    /// This CPU lacks the requested instructions.
    #[error("this CPU does not support {0}")]
    InstructionSetUnavailable(InstructionSet),
    /// The worker threads could not be started.
    #[error("cannot start {threads} worker threads: {reason}")]
    ThreadPool {
        /// The number of threads requested.
        threads: usize,
        /// The operating system's reason.
        reason: String,
    },
    /// The name of no known algorithm.
    #[error("unknown algorithm {name:?}: use none, lz4, zstd or zstd:LEVEL")]
    UnknownAlgorithm {
        /// The name as given.
        name: String,
    },
    /// A compression level outside Zstandard's range.
    #[error("zstd level {level} is outside {min} to {max}")]
    ZstdLevel {
        /// The level as given.
        level: i32,
        /// The lowest level.
        min: i32,
        /// The highest level.
        max: i32,
    },
    /// A stored page kind with no meaning.
    #[error("unknown page kind {value}")]
    UnknownPageKind {
        /// The number as stored.
        value: u8,
    },
    /// A compressed length that is impossible for the page kind.
    #[error("a {kind} page cannot be held in {len_bytes} bytes")]
    HeldLength {
        /// The claimed kind.
        kind: PageKind,
        /// The number of bytes given.
        len_bytes: usize,
    },
    /// An LZ4 block that does not decode to exactly one page.
    #[error("corrupt LZ4 block: {0}")]
    CorruptLz4(#[from] DecodeError),
    /// A Zstandard frame that does not decode.
    #[error("corrupt Zstandard frame: {reason}")]
    CorruptZstd {
        /// The Zstandard library's message.
        reason: String,
    },
    /// An intact Zstandard frame of the wrong length.
    #[error("the Zstandard frame holds {len_bytes} bytes, not the {PAGE_SIZE} of a page")]
    ZstdFrameLength {
        /// The bytes it decodes to.
        len_bytes: usize,
    },
    /// The Zstandard library failed, which only happens when it runs out of memory.
    #[error("Zstandard failed: {reason}")]
    ZstdFailed {
        /// The Zstandard library's message.
        reason: String,
    },
    /// A page of a batch failed. Decompression still restores all other pages.
    #[error("page {index}: {error}")]
    InPage {
        /// The index of the first page that failed.
        index: usize,
        /// The reason.
        error: Box<Error>,
    },
    /// An index entry that points outside the arena.
    #[error("bytes {offset} to {offset} + {len_bytes} lie outside the arena of {arena_len_bytes} bytes")]
    OutsideArena {
        /// The claimed start.
        offset: u64,
        /// The claimed length.
        len_bytes: usize,
        /// The length of the arena.
        arena_len_bytes: usize,
    },
    /// The destination and the batch differ in length.
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
    /// Adds the index of the page in its batch.
    pub(crate) fn in_page(self, index: usize) -> Self {
        Self::InPage { index, error: Box::new(self) }
    }
}
