//! Errors, with the name of the file and the operation.

use std::fmt;
use std::io;

/// The name that messages use for standard input.
pub const STANDARD_INPUT: &str = "standard input";

/// The name that messages use for standard output.
pub const STANDARD_OUTPUT: &str = "standard output";

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a pipeline or of a file, with the name of the file.
///
/// ```
/// let error = trueno_zram_io::Input::open("/no/such/file".as_ref()).unwrap_err();
/// assert_eq!(error.to_string(), "/no/such/file: No such file or directory");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{name}: {operation}{}", os_text(source))]
    Io {
        /// The file.
        name: String,
        /// The operation that failed.
        operation: Operation,
        /// The system's answer.
        source: io::Error,
    },
    /// An input or output that cannot be used.
    #[error("{name}: {refusal}")]
    Refused {
        /// The file.
        name: String,
        /// The reason.
        refusal: Refusal,
    },
    /// A file that is filled in place was truncated by another process.
    #[error("{name}: became shorter while it was filled; nothing of the content was left in it")]
    Shrunk {
        /// The file.
        name: String,
    },
    /// A standard stream was closed when the process started.
    #[error("{name} is closed")]
    Closed {
        /// [`STANDARD_INPUT`] or [`STANDARD_OUTPUT`].
        name: &'static str,
    },
    /// An archive cannot be read or written.
    #[error("{name}: {}", archive_text(source))]
    Archive {
        /// The archive.
        name: String,
        /// The error of the archive, with its position.
        source: trueno_zram_archive::Error,
    },
    /// The compressor failed.
    #[error("compressor: {0}")]
    Codec(#[from] trueno_zram_core::Error),
    /// A thread could not be started.
    #[error("cannot start a worker thread: {}", os_text(.0))]
    Thread(#[source] io::Error),
}

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Opens it.
    Open,
    /// Reads it.
    Read,
    /// Writes it.
    Write,
    /// Moves to a position in it.
    Seek,
    /// Syncs it to disk.
    Sync,
    /// Sets its length.
    SetLength,
    /// Gives a complete file its name.
    Rename,
}

impl Operation {
    /// Returns the error that this operation failed with, on the file of this name.
    pub(crate) fn failed<E: Into<io::Error>>(self, name: impl fmt::Display) -> impl FnOnce(E) -> Error {
        move |error| Error::io(name, self, error.into())
    }
}

impl fmt::Display for Operation {
    /// The start of a message. Nothing for the operations that the system's own text makes clear.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open | Self::Read | Self::Write => "",
            Self::Seek => "cannot seek: ",
            Self::Sync => "cannot write to the disk: ",
            Self::SetLength => "cannot set its length: ",
            Self::Rename => "cannot give the complete file its name: ",
        })
    }
}

/// The reason why an input or output is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The output exists, and overwriting was not asked for.
    #[error("exists already")]
    Exists,
    /// A directory.
    #[error("is a directory")]
    Directory,
    /// The output is the input.
    #[error("is the input; it cannot be the output too")]
    Input,
    /// The output discards what is written to it, and the input is to be removed.
    #[error("discards all data")]
    DiscardsData,
    /// A symbolic link whose target does not exist.
    #[error("is a dangling symlink")]
    Dangling,
    /// Private data may only go to a regular file that did not exist before.
    #[error("is not a regular file; private data is written to a new file or to standard output")]
    NotPrivate,
    /// Only a regular file can be filled in place.
    #[error("is not a regular file; only such a file can be filled in place")]
    NotRegular,
    /// Opening a named pipe would wait for its other end.
    #[error("is a named pipe; an archive is read from a regular file here")]
    NamedPipe,
    /// Private data is not written through a symbolic link.
    #[error("is a symlink; private data is not written through one")]
    Link,
    /// Binary data for a terminal.
    #[error("is a terminal")]
    Terminal,
}

impl Error {
    /// Creates the error of a failed system call.
    ///
    /// ```
    /// use trueno_zram_io::{Error, Operation};
    /// let full = std::io::Error::from_raw_os_error(28);
    /// assert_eq!(Error::io("image", Operation::Write, full).to_string(), "image: No space left on device");
    /// ```
    pub fn io(name: impl fmt::Display, operation: Operation, source: io::Error) -> Self {
        Self::Io { name: name.to_string(), operation, source }
    }

    /// Creates the error of an archive's reader or writer. A failed write becomes [`Error::Io`].
    ///
    /// ```
    /// use trueno_zram_io::Error;
    /// let error = Error::archive("image.lz4", trueno_zram_archive::Error::NotRegular);
    /// assert!(error.to_string().starts_with("image.lz4: "));
    /// ```
    pub fn archive(name: impl fmt::Display, error: trueno_zram_archive::Error) -> Self {
        match error {
            trueno_zram_archive::Error::Write(source) => Self::io(name, Operation::Write, source),
            source => Self::Archive { name: name.to_string(), source },
        }
    }

    pub(crate) fn refused(name: impl fmt::Display, refusal: Refusal) -> Self {
        Self::Refused { name: name.to_string(), refusal }
    }
}

fn archive_text(error: &trueno_zram_archive::Error) -> String {
    match error {
        trueno_zram_archive::Error::Read { at, source } => format!("cannot read at byte {at}: {}", os_text(source)),
        error => error.to_string(),
    }
}

/// Returns the text of an error without the number that Rust adds: `No such file or directory`.
///
/// ```
/// let error = std::io::Error::from_raw_os_error(24);
/// assert_eq!(trueno_zram_io::os_text(&error), "Too many open files");
/// ```
#[must_use]
pub fn os_text(error: &io::Error) -> String {
    let mut message = error.to_string();
    if let Some(number) = error.raw_os_error() {
        let added = format!(" (os error {number})");
        message.truncate(message.strip_suffix(&added).map_or(message.len(), str::len));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_start_with_the_name_and_a_failed_write_is_that_of_the_output() {
        let full = || io::Error::from_raw_os_error(28);
        let read = Error::archive("archive", trueno_zram_archive::Error::Read { at: 7, source: full() });
        assert!(matches!(read, Error::Archive { .. }));
        assert_eq!(read.to_string(), "archive: cannot read at byte 7: No space left on device");
        let write = Error::archive("archive", trueno_zram_archive::Error::Write(full()));
        assert!(matches!(&write, Error::Io { operation: Operation::Write, .. }));
        assert_eq!(write.to_string(), "archive: No space left on device");
        let irregular = Error::archive("archive", trueno_zram_archive::Error::NotRegular).to_string();
        assert!(irregular.len() > "archive: ".len(), "{irregular}");
    }
}
