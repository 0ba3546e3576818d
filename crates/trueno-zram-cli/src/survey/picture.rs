//! What `inspect` found, as a picture for people.

use trueno_zram_core::{FILL_WORD_BYTES, PAGE_SIZE};

use super::findings::{Content, Findings};
use super::{Cell, SIZE_STEP, Survey, ratio};
use crate::address_map::{AddressMap, Consistency, Mapping, PageState};
use crate::draw::{Bar, Shade, bars, beside, cells, legend};
use crate::quantity;
use crate::terminal::{Style, printable};

/// From so many columns on, two histograms stand side by side.
const WIDE: usize = 100;
/// Rows of the map at most.
const MAP_ROWS: usize = 12;
/// Ranges shown of an address map, unless all are asked for.
const FEW_RANGES: usize = 12;

impl Findings {
    /// All of it; figures alone without a style.
    pub(crate) fn describe(&self, style: Option<Style>, all_ranges: bool) -> String {
        let mut lines = self.figures();
        if let Some(style) = style.filter(|_| self.survey.pages > 0) {
            lines.push(String::new());
            lines.extend(histograms(&self.survey, self.content.as_ref(), style));
            lines.push(String::new());
            lines.extend(map(&self.survey, style));
        }
        if let Some(map) = &self.map {
            lines.push(String::new());
            lines.extend(address_map(map, all_ranges));
        }
        lines.join("\n") + "\n"
    }

    fn figures(&self) -> Vec<String> {
        let survey = &self.survey;
        let (pages, bytes) = (quantity::pages(survey.pages), quantity::bytes(survey.bytes));
        let mut lines = vec![format!("{}: {}, {bytes}, {pages}", self.name, self.format.text())];
        let tail_bytes = survey.bytes % PAGE_SIZE as u64;
        if tail_bytes > 0 {
            lines[0].push_str(&format!(" (the last of {tail_bytes} bytes)"));
        }
        lines.push(String::new());
        let kinds =
            [("zero", survey.zero), ("same-filled", survey.same_filled), ("lz4", survey.lz4), ("raw", survey.raw)];
        for (kind, count) in kinds {
            let share = quantity::share(count, survey.pages);
            lines.push(format!("  {kind:<12}{:>14}{share:>10}", quantity::count(count)));
        }
        lines.push(String::new());
        let held = quantity::bytes(survey.held_bytes);
        lines.push(format!(
            "  ratio {:.3}: held in {held}; without zero and same-filled pages {:.3}",
            survey.ratio(),
            survey.ratio_of_rest()
        ));
        if let Some(file_bytes) = self.file_bytes {
            let (size, file_ratio) = (quantity::bytes(file_bytes), ratio(survey.bytes, file_bytes));
            lines.push(format!("  file {size}, ratio {file_ratio:.3}, with all that is around the pages"));
        }
        match &self.content {
            Some(content) => lines.extend(content_figures(content)),
            None => lines.push("  entropy and copies: --decode shows them".into()),
        }
        lines
    }
}

fn content_figures(content: &Content) -> Vec<String> {
    let copies = content.copies.copies();
    let about = if content.copies.is_exact() { "" } else { "about " };
    let copies = match copies {
        0 => "  no page is a copy of another".into(),
        1 => "  1 page is an exact copy of another".into(),
        copies => format!("  {about}{} pages are exact copies of others", quantity::count(copies)),
    };
    let mut lines = vec![format!("{copies} (zero and same-filled ones apart)")];
    if let Some(mean) = content.entropies.mean_bits() {
        lines.push(format!("  entropy {mean:.2} bits a byte, the mean of all pages but zero ones"));
    }
    lines
}

/// The sizes, and the entropies if they are known: side by side where there is room.
fn histograms(survey: &Survey, content: Option<&Content>, style: Style) -> Vec<String> {
    const GAP: usize = 3;
    let half = Style { width: style.width / 2 - GAP, ..style };
    match content.filter(|content| content.entropies.pages > 0) {
        None => sizes(survey, style),
        Some(content) if style.width >= WIDE => {
            beside(&sizes(survey, half), &entropies(content, half), style.width / 2 + GAP)
        }
        Some(content) => {
            let mut lines = sizes(survey, style);
            lines.push(String::new());
            lines.extend(entropies(content, style));
            lines
        }
    }
}

fn sizes(survey: &Survey, style: Style) -> Vec<String> {
    // The colours of the map, so that its cells are found here again.
    let bar = |label: String, count, shade| Bar { label, count, shade: Some(shade) };
    let by_size = |len_bytes: usize| Shade::of(len_bytes as u64, PAGE_SIZE as u64);
    let mut rows = vec![
        bar("zero".into(), survey.zero, Shade::Empty),
        bar("same-filled".into(), survey.same_filled, by_size(FILL_WORD_BYTES)),
    ];
    for (step, count) in survey.lz4_sizes.into_iter().enumerate() {
        let most = ((step + 1) * SIZE_STEP).min(PAGE_SIZE - 1);
        rows.push(bar(format!("{} - {most:>4}", step * SIZE_STEP + 1), count, by_size(most)));
    }
    rows.push(bar("raw  4096".into(), survey.raw, by_size(PAGE_SIZE)));
    titled("Bytes a page takes", bars(&rows, survey.pages, style))
}

fn entropies(content: &Content, style: Style) -> Vec<String> {
    let entropies = &content.entropies;
    let row = |(step, count): (usize, u64)| {
        let label = format!("{:.1} - {:.1}", step as f64 / 2.0, (step + 1) as f64 / 2.0);
        Bar { label, count, shade: None }
    };
    let rows: Vec<_> = entropies.by_half_bit.into_iter().enumerate().map(row).collect();
    titled("Entropy of a page, bits a byte (zero pages apart)", bars(&rows, entropies.pages, style))
}

fn titled(title: &str, mut lines: Vec<String>) -> Vec<String> {
    lines.insert(0, title.into());
    lines
}

/// The image from front to back.
fn map(survey: &Survey, style: Style) -> Vec<String> {
    const LABEL_WIDTH: usize = 12;
    let room = style.width - LABEL_WIDTH;
    // Steps that are easy to count with.
    let columns = if room >= 64 { room / 16 * 16 } else { room };
    let overview = survey.overview.at_most(columns * MAP_ROWS);
    let shades: Vec<Shade> = overview.cells.iter().map(shade).collect();
    let cell_bytes = overview.pages_per_cell * PAGE_SIZE as u64;
    let each = format!("{} ({})", quantity::bytes(cell_bytes), quantity::pages(overview.pages_per_cell));
    let mut lines = vec![format!("From front to back, {each} a cell")];
    for (row, text) in cells(&shades, columns, style).into_iter().enumerate() {
        let start = quantity::bytes((row * columns) as u64 * cell_bytes);
        lines.push(format!("{start:>10}  {text}"));
    }
    let meanings = ["zero", "to 1/4 held", "to 1/2", "to 3/4", "more"];
    let legend = legend(meanings, room, style);
    lines.extend(legend.into_iter().map(|line| format!("{:LABEL_WIDTH$}{line}", "")));
    lines
}

fn shade(cell: &Cell) -> Shade {
    if cell.zero_pages == cell.pages { Shade::Empty } else { Shade::of(cell.held_bytes, cell.pages * PAGE_SIZE as u64) }
}

/// The ranges of a snapshot, the largest or all, in order of their addresses.
fn address_map(map: &AddressMap, all: bool) -> Vec<String> {
    let how = match map.consistency {
        Consistency::Live => "read while it ran",
        Consistency::Stopped => "it stood still",
    };
    let ranges = map.mappings.len();
    let mut lines =
        vec![format!("Memory of {} (process {}), {how}; {ranges} ranges", printable(&map.command), map.pid)];
    let unreadable = map.pages(PageState::Unreadable);
    if unreadable > 0 {
        lines.push(format!("  {} could not be read", quantity::pages(unreadable)));
    }
    let mut shown: Vec<&Mapping> = map.mappings.iter().collect();
    if !all && shown.len() > FEW_RANGES {
        shown.sort_by_key(|mapping| std::cmp::Reverse(mapping.pages(PageState::Stored)));
        shown.truncate(FEW_RANGES);
        shown.sort_by_key(|mapping| mapping.start);
    }
    lines.push(format!("  {:>16} {:>16} {:<4} {:>11} {:>13}  name", "start", "end", "", "pages", "untouched"));
    for mapping in &shown {
        let [stored, untouched] =
            [PageState::Stored, PageState::Untouched].map(|state| quantity::count(mapping.pages(state)));
        let name = if mapping.name.is_empty() { "anonymous".into() } else { printable(&mapping.name) };
        let permissions = mapping.flags.permissions();
        let (start, end) = (mapping.start, mapping.end());
        lines.push(format!("  {start:16x} {end:16x} {permissions:<4} {stored:>11} {untouched:>13}  {name}"));
    }
    if shown.len() < ranges {
        lines.push(format!("  and {} smaller ones: --ranges shows all", ranges - shown.len()));
    }
    lines
}
