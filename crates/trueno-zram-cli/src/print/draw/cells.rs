//! A map of shaded cells in rows.

use super::coloured;
use crate::print::terminal::Style;

/// The shade of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shade {
    /// Empty.
    Empty,
    /// One of four steps, 0 to 3.
    Step(u8),
}

impl Shade {
    /// All shades, from the lightest.
    pub(crate) const ALL: [Self; 5] = [Self::Empty, Self::Step(0), Self::Step(1), Self::Step(2), Self::Step(3)];

    /// Returns the shade for a part of a whole.
    pub(crate) fn of(part: u64, whole: u64) -> Self {
        let quarters = (u128::from(part) * 4).div_ceil(u128::from(whole.max(1)));
        Self::Step(u8::try_from(quarters.clamp(1, 4) - 1).unwrap_or(3))
    }

    fn character(self, unicode: bool) -> char {
        match (self, unicode) {
            (Self::Empty, true) => '·',
            (Self::Step(0), true) => '░',
            (Self::Step(1), true) => '▒',
            (Self::Step(2), true) => '▓',
            (Self::Step(_), true) => '█',
            (Self::Empty, false) => '.',
            (Self::Step(0), false) => '-',
            (Self::Step(1), false) => '+',
            (Self::Step(2), false) => '%',
            (Self::Step(_), false) => '#',
        }
    }

    /// Returns a colour of the 256: grey, green, yellow, orange, red.
    pub(super) fn colour(self) -> u8 {
        match self {
            Self::Empty => 240,
            Self::Step(0) => 71,
            Self::Step(1) => 179,
            Self::Step(2) => 173,
            Self::Step(_) => 167,
        }
    }
}

/// Draws rows of at most `columns` cells.
pub(crate) fn cells(shades: &[Shade], columns: usize, style: Style) -> Vec<String> {
    shades.chunks(columns.max(1)).map(|row| paint(row, style)).collect()
}

/// Draws each shade with its meaning, on as many lines as needed.
pub(crate) fn legend(meanings: [&str; 5], columns: usize, style: Style) -> Vec<String> {
    const GAP: usize = 2;
    let mut lines: Vec<String> = Vec::new();
    let mut used = columns;
    for (shade, meaning) in Shade::ALL.into_iter().zip(meanings) {
        let entry = format!("{} {meaning}", paint(&[shade; 2], style));
        // Escape sequences take no columns.
        let width = 3 + meaning.chars().count();
        match lines.last_mut() {
            Some(line) if used + GAP + width <= columns => {
                line.push_str(&format!("{:GAP$}{entry}", ""));
                used += GAP + width;
            }
            _ => {
                lines.push(entry);
                used = width;
            }
        }
    }
    lines
}

fn paint(row: &[Shade], style: Style) -> String {
    let paint_run = |run: &[Shade]| {
        let characters: String = run.iter().map(|shade| shade.character(style.unicode)).collect();
        coloured(&characters, run[0].colour(), style)
    };
    row.chunk_by(|a, b| a == b).map(paint_run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { width: 80, unicode: true, colour: false };

    #[test]
    fn shades_are_quarters() {
        let steps = [0, 1, 25, 26, 50, 51, 75, 76, 100, 200].map(|part| Shade::of(part, 100));
        assert_eq!(steps, [0, 0, 0, 1, 1, 2, 2, 3, 3, 3].map(Shade::Step));
        assert_eq!(Shade::of(0, 0), Shade::Step(0));
    }

    #[test]
    fn rows_are_cut_at_their_columns() {
        assert_eq!(cells(&Shade::ALL, 3, PLAIN), ["·░▒", "▓█"]);
        assert_eq!(cells(&Shade::ALL, 9, Style { unicode: false, ..PLAIN }), [".-+%#"]);
        assert_eq!(cells(&[], 9, PLAIN), Vec::<String>::new());
    }

    #[test]
    fn the_legend_takes_the_lines_it_needs() {
        let meanings = ["a", "b", "c", "d", "e"];
        assert_eq!(legend(meanings, 80, PLAIN), ["·· a  ░░ b  ▒▒ c  ▓▓ d  ██ e"]);
        assert_eq!(legend(meanings, 10, PLAIN), ["·· a  ░░ b", "▒▒ c  ▓▓ d", "██ e"]);
        assert_eq!(legend(meanings, 1, PLAIN).len(), 5);
    }

    #[test]
    fn colours_are_set_once_a_run_and_taken_back() {
        let row = cells(&[Shade::Empty, Shade::Empty, Shade::Step(3)], 9, Style { colour: true, ..PLAIN });
        assert_eq!(row, ["\x1b[38;5;240m··\x1b[0m\x1b[38;5;167m█\x1b[0m"]);
    }
}
