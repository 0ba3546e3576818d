//! The lines on standard error. One that cannot be written is dropped: it must not stop the work it is about.

use std::fmt;
use std::io::{self, Write};

use crate::print::printable::{printable, printable_lines};

/// Writes a line to standard error, as far as it is printable.
pub(crate) fn line(text: impl fmt::Display) {
    write(printable(&text.to_string()) + "\n");
}

/// Writes a text of several lines to standard error.
pub(crate) fn lines(text: impl fmt::Display) {
    write(printable_lines(&text.to_string()));
}

fn write(text: String) {
    // With one call, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes an error or a warning: a line that starts with the name of the tool.
pub(crate) fn problem(text: impl fmt::Display) {
    line(format_args!("trueno-zram: {text}"));
}
