//! The lines on standard error. One that cannot be written is dropped: it must not stop the work it is about.

use std::fmt;
use std::io::{self, Write};

use crate::terminal::printable;

/// Writes a line to standard error, without the characters that would control the terminal.
pub(crate) fn line(text: impl fmt::Display) {
    // With one call, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("{}\n", printable(&text.to_string())).as_bytes());
}

/// Writes an error or a warning: a line that starts with the name of the tool.
pub(crate) fn problem(text: impl fmt::Display) {
    line(format_args!("trueno-zram: {text}"));
}
