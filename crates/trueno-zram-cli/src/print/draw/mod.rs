//! Pictures for the terminal: bars, and maps of cells.

mod bars;
mod beside;
mod cells;

pub(crate) use bars::{Bar, bars};
pub(crate) use beside::beside;
pub(crate) use cells::{Shade, cells, legend};

use crate::print::terminal::Style;

/// Returns the text in one of 256 colours, if the style has colours.
fn coloured(text: &str, colour: u8, style: Style) -> String {
    if style.colour && !text.is_empty() { format!("\x1b[38;5;{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Returns the columns that text takes. Escape sequences take none.
fn columns(text: &str) -> usize {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default();
    let after_colour = |part: &str| part.split_once('m').map_or(0, |(_, text)| text.chars().count());
    first.chars().count() + parts.map(after_colour).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_take_no_columns() {
        let style = Style { width: 80, unicode: true, colour: true };
        assert_eq!(columns(&format!("a{}b", coloured("██", 7, style))), 4);
        assert_eq!(coloured("", 7, style), "");
        assert_eq!(coloured("x", 7, Style { colour: false, ..style }), "x");
        assert_eq!(columns(""), 0);
    }
}
