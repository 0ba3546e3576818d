//! Text on standard output. Data goes through `trueno_zram_io::Output`.

use std::io::{self, BufWriter, Write};

use trueno_zram_io::{Error, STANDARD_OUTPUT, check_stdout_written};

use crate::failure::{Failure, FailureKind};
use crate::print::printable::printable_lines;

/// Writes to standard output for people or scripts. All text goes through here, so that none is lost silently: not if
/// standard output is closed, nor if the last bytes cannot be written, even if that shows only when it is closed.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if trueno_zram_io::was_closed_at_start(io::stdout()) {
        return Err(Failure::new(FailureKind::Io, Error::Closed { name: STANDARD_OUTPUT }));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let written = write(&mut out).and_then(|()| out.flush()).and_then(|()| check_stdout_written());
    written.map_err(|error| Failure::io(STANDARD_OUTPUT, &error))
}

/// Writes lines for people to standard output, as far as they are printable.
pub(crate) fn print_lines(text: &str) -> Result<(), Failure> {
    print(|out| out.write_all(printable_lines(text).as_bytes()))
}
