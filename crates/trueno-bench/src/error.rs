//! Errors of measuring.

use std::io;

use trueno_zram_core::PAGE_SIZE;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of measuring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or a kernel attribute could not be used.
    #[error("{place}: {source}")]
    Io {
        /// The file.
        place: String,
        /// The cause.
        source: io::Error,
    },
    /// A file that holds less than one page.
    #[error("{name}: the file has {len_bytes} bytes, less than one page ({PAGE_SIZE} bytes)")]
    ShorterThanPage {
        /// The file.
        name: String,
        /// Its length.
        len_bytes: usize,
    },
    /// A file of same-filled pages, which are not measured.
    #[error("{name}: all pages are same-filled; there is nothing to measure")]
    OnlySameFilled {
        /// The file.
        name: String,
    },
    /// Two files with the same name.
    #[error("two files are called {name}")]
    SameName {
        /// The name of both.
        name: String,
    },
    /// An engine does not restore what it compressed.
    #[error("{engine} does not restore page {page}")]
    NotRestored {
        /// The engine.
        engine: String,
        /// The first page that is wrong.
        page: usize,
    },
    /// An engine could not be set up, or failed.
    #[error("{engine}: {reason}")]
    Engine {
        /// The engine.
        engine: String,
        /// The cause.
        reason: String,
    },
    /// An [`Observer`](crate::Observer) ended the run.
    #[error("stopped")]
    Stopped,
}

impl Error {
    /// An input or output error at a place.
    pub(crate) fn io(place: impl ToString) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { place: place.to_string(), source }
    }

    /// A failure of an engine.
    pub(crate) fn engine<E: ToString>(engine: &str) -> impl Fn(E) -> Self {
        move |reason| Self::Engine { engine: engine.to_owned(), reason: reason.to_string() }
    }
}
