//! What ends a command early: one line that says what and where, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::terminal::printable;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments make no sense together. Exit code 2, as for arguments that do not parse.
    Usage(String),
    /// Something did not work. Exit code 1.
    Failed(String),
    /// Whoever read our output went away, which is no error.
    BrokenPipe,
}

impl Failure {
    /// Arguments that make no sense together.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::Usage(message.to_string())
    }

    /// What failed, and where: `"snapshot.img: No space left on device"`.
    pub(crate) fn at(place: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::Failed(format!("{place}: {error}"))
    }

    /// An input or output error, and where. A broken pipe is no error.
    pub(crate) fn io(place: impl fmt::Display, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::BrokenPipe } else { Self::at(place, plain(error)) }
    }

    /// Prints the one line there is to say, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                eprintln!("trueno-zram: {}", printable(message));
                ExitCode::from(2)
            }
            Self::Failed(message) => {
                eprintln!("trueno-zram: {}", printable(message));
                ExitCode::from(1)
            }
            Self::BrokenPipe => ExitCode::SUCCESS,
        }
    }
}

/// The error as a reader wants it, without the number that Rust adds: `No such file or directory`.
pub(crate) fn plain(error: &io::Error) -> String {
    let mut message = error.to_string();
    if let Some(number) = error.raw_os_error() {
        let added = format!(" (os error {number})");
        message.truncate(message.strip_suffix(&added).map_or(message.len(), str::len));
    }
    message
}
