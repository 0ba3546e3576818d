//! The errors of a store.

use std::io;

/// The result of a store's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a store, with the page and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The options do not describe a possible store.
    #[error("{0}")]
    Options(String),
    /// A request reaches beyond the store's end.
    #[error("{len_bytes} bytes at {offset} reach beyond the end of a store of {size_bytes} bytes")]
    OutOfRange {
        /// The first byte of the request.
        offset: u64,
        /// Length of the request.
        len_bytes: u64,
        /// Length of the store.
        size_bytes: u64,
    },
    /// A write would need more memory than the limit allows. It changed nothing, if it is not longer than
    /// [`MAX_UNDIVIDED_WRITE_BYTES`](crate::MAX_UNDIVIDED_WRITE_BYTES).
    #[error("page {page} does not fit: {held_bytes} of {limit_bytes} bytes are in use")]
    NoSpace {
        /// The page that did not fit.
        page: u64,
        /// Memory in use.
        held_bytes: u64,
        /// The limit, or less if [`limit_growth`](crate::Store::limit_growth) allows less at present.
        limit_bytes: u64,
    },
    /// The bytes of a page do not decode: another program wrote to them.
    #[error("page {page} is corrupt")]
    CorruptPage {
        /// The page's number.
        page: u64,
        /// The reason.
        source: trueno_zram_core::Error,
    },
    /// A table entry is invalid: another program wrote to it.
    #[error("the table entry of page {page} is corrupt: {defect}")]
    CorruptEntry {
        /// The page's number.
        page: u64,
        /// The defect of the entry.
        defect: &'static str,
    },
    /// A page of the archive beneath the store cannot be read.
    #[error("page {page} of the archive cannot be read")]
    Base {
        /// The page's number.
        page: u64,
        /// The reason.
        source: trueno_zram_archive::Error,
    },
    /// A file descriptor does not hold a store that this version can attach to.
    #[error("cannot attach to the store: {0}")]
    Attach(String),
    /// Another store, in this or another process, uses the same memory.
    #[error("the store is in use{}", .process.map_or_else(String::new, |process| format!(" by process {process}")))]
    InUse {
        /// The process that uses it, if it is known.
        process: Option<u32>,
    },
    /// The store cannot get another length. Nothing was changed.
    #[error("cannot have {size_bytes} bytes: {reason}")]
    Resize {
        /// The length that was asked for.
        size_bytes: u64,
        /// The reason.
        reason: ResizeRefusal,
    },
    /// A page could not be compressed.
    #[error("page {page} could not be compressed")]
    Compress {
        /// The page's number.
        page: u64,
        /// The reason.
        source: trueno_zram_core::Error,
    },
    /// A compressor could not be created, or failed.
    #[error(transparent)]
    Codec(#[from] trueno_zram_core::Error),
    /// An archive could not be read or written.
    #[error(transparent)]
    Archive(#[from] trueno_zram_archive::Error),
    /// The system refused memory or a thread.
    #[error("{what}")]
    System {
        /// A sentence about the attempt.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// The reason why a store keeps its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeRefusal {
    /// The length is 0, or not a multiple of 4096.
    #[error("the size must be a multiple of 4096 above 0")]
    PartialPage,
    /// The store was created without room for that.
    #[error("the store was made with room for {max_bytes} bytes")]
    TooLarge {
        /// The length to which it can grow.
        max_bytes: u64,
    },
    /// A page beyond the new end has data.
    #[error("page {page}, beyond the new end, has data; discard what lies there first")]
    NotEmpty {
        /// The last of these pages.
        page: u64,
    },
    /// The archive beneath the store reaches beyond the new end.
    #[error("the archive beneath it has {base_bytes} bytes")]
    Base {
        /// Length of the archive.
        base_bytes: u64,
    },
    /// The store is being saved.
    #[error("the store is being saved; try again afterwards")]
    Snapshot,
    /// A request that began before did not end in time.
    #[error("a request is still at work; try again")]
    Busy,
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
