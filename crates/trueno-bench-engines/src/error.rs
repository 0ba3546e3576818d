//! What can go wrong while measuring.

use std::io;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, or an attribute of the kernel's, could not be used.
    #[error("{place}: {source}")]
    Io {
        /// Which one.
        place: String,
        /// Why not.
        source: io::Error,
    },
    /// There is nothing to measure.
    #[error("{name} has no pages but same-filled ones")]
    NoPages {
        /// The corpus.
        name: String,
    },
    /// Two corpora could not be told apart.
    #[error("two files are called {name}")]
    SameName {
        /// The name of both.
        name: String,
    },
    /// An engine does not give back what it was given.
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
        engine: &'static str,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// An input or output error, and where.
    pub(crate) fn io(place: impl ToString) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { place: place.to_string(), source }
    }

    /// An engine's failure.
    pub(crate) fn engine<E: ToString>(engine: &'static str) -> impl Fn(E) -> Self {
        move |reason| Self::Engine { engine, reason: reason.to_string() }
    }
}

impl From<Error> for String {
    /// For binaries whose errors are a line of text.
    fn from(error: Error) -> Self {
        error.to_string()
    }
}
