//! What ends a command early: one line that says what and where, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use trueno_zram_io::{Refusal, STANDARD_OUTPUT, os_text};

use crate::print::messages;
use crate::signals;

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments make no sense together. Exit code 2, as for arguments that do not parse.
    Usage(String),
    /// Something did not work. Exit code 1.
    Failed(String),
    /// The reader of our standard output went away. Ends the process by SIGPIPE, as with other tools.
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

    /// An input or output error, and where.
    pub(crate) fn io(place: impl fmt::Display, error: &io::Error) -> Self {
        let place = place.to_string();
        if error.kind() == io::ErrorKind::BrokenPipe && place == STANDARD_OUTPUT {
            return Self::BrokenPipe;
        }
        Self::at(place, os_text(error))
    }

    /// Prints the message, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                messages::problem(message);
                ExitCode::from(2)
            }
            Self::Failed(message) => {
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
        match &error {
            Error::Io { name, source, .. } if source.kind() == io::ErrorKind::BrokenPipe && name == STANDARD_OUTPUT => {
                Self::BrokenPipe
            }
            Error::Closed { name: STANDARD_OUTPUT } => Self::Failed(format!("{error}; -o /dev/null discards the data")),
            Error::Refused { refusal, .. } => match refusal {
                Refusal::Terminal => {
                    Self::usage("binary data is not written to a terminal; give -o FILE, or -f to do it all the same")
                }
                Refusal::Exists => Self::Failed(format!("{error}; -f overwrites it")),
                Refusal::DiscardsData => {
                    Self::Failed(format!("{error}; --rm would remove the input and leave nothing"))
                }
                _ => Self::Failed(error.to_string()),
            },
            _ => Self::Failed(error.to_string()),
        }
    }
}
