//! Horizontal bars, one per line. The longest fills the width.

use super::Shade;
use crate::print::{quantity, terminal::Style};

/// One bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) count: u64,
    /// The shade whose colour it has; `None` for the default colour.
    pub(crate) shade: Option<Shade>,
}

/// A colour of the 256 that no shade has: blue.
const PLAIN_COLOUR: u8 = 67;

/// Columns of the share after a bar.
const SHARE_WIDTH: usize = 8;
/// The least width of bars.
const LEAST_WIDTH: usize = 8;

/// Draws lines of at most `style.width` columns: label, bar, share of `whole`.
pub(crate) fn bars(rows: &[Bar], whole: u64, style: Style) -> Vec<String> {
    let label_width = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
    let width = style.width.saturating_sub(label_width + SHARE_WIDTH + 3).max(LEAST_WIDTH);
    let longest = rows.iter().map(|row| row.count).max().unwrap_or(0);
    let line = |row: &Bar| {
        let bar = bar(row.count, longest, width, style.unicode);
        let share = if row.count == 0 { String::new() } else { quantity::share(row.count, whole) };
        let axis = if style.unicode { '│' } else { '|' };
        let pad = " ".repeat(width - bar.chars().count());
        let bar = super::coloured(&bar, row.shade.map_or(PLAIN_COLOUR, Shade::colour), style);
        format!("{:>label_width$} {axis}{bar}{pad} {share:>SHARE_WIDTH$}", row.label).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Draws a bar of `count` where `longest` fills `width`. A count above 0 is always visible.
fn bar(count: u64, longest: u64, width: usize, unicode: bool) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if count == 0 {
        return String::new();
    }
    let parts = if unicode { 8 } else { 1 };
    let scaled = u128::from(count) * (width * parts) as u128;
    let longest = u128::from(longest);
    let filled = usize::try_from((scaled + longest / 2) / longest).unwrap_or(usize::MAX).min(width * parts);
    if filled == 0 {
        return if unicode { EIGHTHS[1] } else { "." }.to_owned();
    }
    if unicode { format!("{}{}", "█".repeat(filled / 8), EIGHTHS[filled % 8]) } else { "#".repeat(filled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style { width: 40, unicode: true, colour: false };

    #[test]
    fn the_longest_bar_fills_the_room_and_the_least_shows() {
        assert_eq!(bar(100, 100, 10, true), "██████████");
        assert_eq!(bar(1, 1_000_000, 10, true), "▏");
        assert_eq!(bar(0, 100, 10, true), "");
        assert_eq!(bar(51, 100, 10, true), "█████▏");
        assert_eq!(bar(51, 100, 10, false), "#####");
        assert_eq!(bar(1, 1_000_000, 10, false), ".");
        assert_eq!(bar(u64::MAX, u64::MAX, 10, true), "██████████");
    }

    #[test]
    fn no_line_is_wider_than_there_is_room() {
        let rows = [("zero", 30), ("a longer label", 100), ("", 0)].map(|(label, count)| Bar {
            label: label.into(),
            count,
            shade: None,
        });
        for unicode in [true, false] {
            let lines = bars(&rows, 130, Style { unicode, ..STYLE });
            assert_eq!(lines.len(), 3);
            assert!(lines.iter().all(|line| line.chars().count() <= 40), "{lines:#?}");
            assert!(lines[1].ends_with(" 76.9 %"));
            assert!(unicode || lines.iter().all(|line| line.is_ascii()));
        }
    }

    #[test]
    fn no_rows_and_no_counts_are_fine() {
        assert_eq!(bars(&[], 0, STYLE), Vec::<String>::new());
        assert_eq!(bars(&[Bar { label: "a".into(), count: 0, shade: None }], 0, STYLE), ["a │"]);
    }
}
