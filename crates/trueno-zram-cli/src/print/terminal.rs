//! The abilities of standard output: its width, block characters, colours.

use std::env;
use std::io::{self, IsTerminal};

/// The style of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Columns there are.
    pub(crate) width: usize,
    /// Block characters, or ASCII alone.
    pub(crate) unicode: bool,
    /// ANSI colours.
    pub(crate) colour: bool,
}

/// The width of lines if neither the user nor the terminal gives one.
const USUAL_WIDTH: usize = 80;
/// Narrower than this, lines are left to wrap; wider bars show no more detail.
const WIDTHS: (usize, usize) = (40, 160);

impl Style {
    /// The style for standard output: block characters and colours on a terminal that takes them, else ASCII.
    pub(crate) fn of_stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self { width: width(), unicode: is_terminal && says_utf8(), colour: is_terminal && wants_colour() }
    }
}

/// The width that the user set, else that of the terminal.
fn width() -> usize {
    let set = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let width = set.or_else(of_terminal).filter(|columns| *columns > 0).unwrap_or(USUAL_WIDTH);
    width.clamp(WIDTHS.0, WIDTHS.1)
}

/// The first of these that is set names the character set.
fn says_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| env::var(name).ok());
    let locale = locale.filter(|value| !value.is_empty()).map(|value| value.to_ascii_lowercase()).next();
    locale.is_some_and(|value| value.contains("utf-8") || value.contains("utf8"))
}

/// As <https://no-color.org> asks.
fn wants_colour() -> bool {
    let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
    !dumb && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
