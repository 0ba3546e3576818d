//! Failures that end a command: a line that names the thing and the problem, a kind for scripts, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use serde::Serialize;
use trueno_zram_io::{Refusal, STANDARD_OUTPUT, os_text};

use crate::print::messages;
use crate::signals;

/// The reason that a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments make no sense together. Exit code 2, as for arguments that do not parse.
    Usage(String),
    /// The work failed. Exit code 1.
    Failed { kind: FailureKind, message: String },
    /// The reader of our standard output went away. Ends the process by SIGPIPE, as with other tools.
    BrokenPipe,
}

/// The kind of a failure, for scripts: `error_kind` in `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    NotFound,
    PermissionDenied,
    NoSpace,
    /// A socket or a port that another process uses.
    InUse,
    /// Another error of the system.
    Io,
    /// The output exists.
    Exists,
    /// An input or an output that cannot be used as such: a directory, a file that is still read.
    Refused,
    /// The input is not a compressed file.
    NotCompressed,
    /// The input is damaged.
    Damaged,
    /// The base of a delta cannot be used.
    Base,
    Other,
}

impl From<&io::Error> for FailureKind {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::PermissionDenied => Self::PermissionDenied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::AddrInUse => Self::InUse,
            _ => Self::Io,
        }
    }
}

impl From<&trueno_zram_archive::Error> for FailureKind {
    fn from(error: &trueno_zram_archive::Error) -> Self {
        use trueno_zram_archive::Error;
        match error {
            Error::Read { source, .. } | Error::Write(source) => source.into(),
            Error::NotRegular => Self::Refused,
            Error::Empty | Error::NotCompressed { .. } => Self::NotCompressed,
            Error::Base { .. } | Error::ChainTooLong { .. } => Self::Base,
            Error::Misuse(_) | Error::MissingFeature { .. } => Self::Other,
            _ => Self::Damaged,
        }
    }
}

impl Failure {
    /// Arguments that make no sense together.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::Usage(message.to_string())
    }

    /// A failure of the given kind.
    pub(crate) fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self::Failed { kind, message: message.to_string() }
    }

    /// A failure that concerns `place`: `"snapshot.img: No space left on device"`.
    pub(crate) fn at(place: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::new(FailureKind::Other, format_args!("{place}: {error}"))
    }

    /// An input or an output, `place`, that cannot be used.
    pub(crate) fn refused(place: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(FailureKind::Refused, format_args!("{place}: {why}"))
    }

    /// A file, `place`, whose content is damaged.
    pub(crate) fn damaged(place: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::new(FailureKind::Damaged, format_args!("{place}: {error}"))
    }

    /// An input or output error at `place`.
    pub(crate) fn io(place: impl fmt::Display, error: &io::Error) -> Self {
        let place = place.to_string();
        if error.kind() == io::ErrorKind::BrokenPipe && place == STANDARD_OUTPUT {
            return Self::BrokenPipe;
        }
        Self::new(error.into(), format_args!("{place}: {}", os_text(error)))
    }

    /// Prints the message, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                messages::problem(message);
                ExitCode::from(2)
            }
            Self::Failed { message, .. } => {
                messages::problem(message);
                ExitCode::from(1)
            }
            Self::BrokenPipe => signals::end_by_broken_pipe(),
        }
    }
}

/// The errors of the I/O crate, with the option that helps.
impl From<trueno_zram_io::Error> for Failure {
    fn from(error: trueno_zram_io::Error) -> Self {
        use trueno_zram_io::Error;
        let (kind, help) = match &error {
            Error::Io { name, source, .. } if source.kind() == io::ErrorKind::BrokenPipe && name == STANDARD_OUTPUT => {
                return Self::BrokenPipe;
            }
            Error::Refused { refusal: Refusal::Terminal, .. } => {
                return Self::usage(
                    "binary data is not written to a terminal; give -o FILE, or -f to do it all the same",
                );
            }
            Error::Io { source, .. } | Error::Thread(source) => (source.into(), ""),
            Error::Closed { name: STANDARD_OUTPUT } => (FailureKind::Io, "; -o /dev/null discards the data"),
            Error::Refused { refusal: Refusal::Exists, .. } => (FailureKind::Exists, "; -f overwrites it"),
            Error::Refused { refusal: Refusal::DiscardsData, .. } => {
                (FailureKind::Refused, "; --rm would remove the input and leave nothing")
            }
            Error::Refused { .. } => (FailureKind::Refused, ""),
            Error::Archive { source, .. } => (source.into(), ""),
            _ => (FailureKind::Other, ""),
        };
        Self::new(kind, format_args!("{error}{help}"))
    }
}
