//! Shows what `inspect` found: figures, histograms, a map of the image, the ranges of a snapshot.

use std::io::{self, Write};

use trueno_zram_archive::address_map::{Consistency, StoredMap, StoredMapping};
use trueno_zram_core::{FILL_WORD_BYTES, PAGE_SIZE};

use super::findings::{Content, Findings, Format};
use super::{OverviewCell, SIZE_STEP, Survey, ratio};
use crate::print::{
    draw::{Bar, Shade, bars, beside, cells, legend},
    printable::printable,
    quantity,
    terminal::Style,
};

/// Two histograms are drawn side by side from this many columns on.
const WIDE: usize = 100;
/// The most rows of the map.
const MAP_ROWS: usize = 12;
/// The ranges shown of an address map, unless all are asked for.
const FEW_RANGES: usize = 12;

/// The ranges of an address map to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    Largest,
    All,
}

impl Findings {
    /// Writes everything for people to read.
    pub(crate) fn describe(&self, out: &mut dyn Write, style: Style, ranges: Ranges) -> io::Result<()> {
        let mut lines = self.figures();
        if self.survey.kinds.pages > 0 {
            lines.push(String::new());
            lines.extend(histograms(&self.survey, self.content.as_ref(), style));
            lines.push(String::new());
            lines.extend(map(&self.survey, style));
        }
        for line in lines {
            writeln!(out, "{line}")?;
        }
        match &self.map {
            Some(map) => address_map(out, map, ranges),
            None => Ok(()),
        }
    }

    fn format_text(&self) -> &'static str {
        match self.format {
            Format::Image => "image",
            Format::Archive => "page archive",
            Format::Lz4Frame if self.note.is_some() => ".lz4 file whose page index cannot be used",
            Format::Lz4Frame => ".lz4 file without a page index",
            Format::ZstdFrame if self.note.is_some() => ".zst file whose page index cannot be used",
            Format::ZstdFrame => ".zst file without a page index",
        }
    }

    /// Returns `true` if the file has a page index, usable or not.
    fn has_index(&self) -> bool {
        match self.format {
            Format::Image => false,
            Format::Archive => true,
            Format::Lz4Frame | Format::ZstdFrame => self.note.is_some(),
        }
    }

    fn figures(&self) -> Vec<String> {
        let survey = &self.survey;
        let (pages, bytes) = (quantity::pages(survey.kinds.pages), quantity::bytes(survey.bytes));
        let mut lines = vec![format!("{}: {}, {bytes}, {pages}", printable(&self.name), self.format_text())];
        let tail_bytes = survey.bytes % PAGE_SIZE as u64;
        if tail_bytes > 0 {
            lines[0].push_str(&format!(" (the last one has {tail_bytes} bytes)"));
        }
        if self.cut_off {
            lines.push("  the start of its content only: the file holds more than inspect looks at".into());
        }
        lines.push(String::new());
        let kinds = [
            ("zero", survey.kinds.zero),
            ("same-filled", survey.kinds.same_filled),
            ("lz4", survey.kinds.lz4),
            ("zstd", survey.kinds.zstd),
            ("raw", survey.kinds.raw),
        ];
        // Compressed pages are of one format.
        let unused = if survey.kinds.zstd > 0 && survey.kinds.lz4 == 0 { "lz4" } else { "zstd" };
        for (kind, count) in kinds.into_iter().filter(|(kind, count)| *kind != unused || *count > 0) {
            let share = quantity::share(count, survey.kinds.pages);
            lines.push(format!("  {kind:<12}{:>14}{share:>10}", quantity::count(count)));
        }
        lines.push(String::new());
        let held = quantity::bytes(survey.held_bytes);
        lines.push(format!(
            "  ratio {:.3}: stored in {held}; {:.3} without zero and same-filled pages",
            survey.ratio(),
            survey.ratio_of_rest()
        ));
        if let Some(file_bytes) = self.file_bytes {
            let (size, file_ratio) = (quantity::bytes(file_bytes), ratio(survey.bytes, file_bytes));
            let included = if self.has_index() { "headers, checksums and index" } else { "headers and checksums" };
            lines.push(format!("  file of {size}: ratio {file_ratio:.3}, {included} included"));
        }
        match &self.content {
            Some(content) => lines.extend(content_figures(content)),
            None => lines.push("  use --decode to see entropy and copies".into()),
        }
        lines
    }
}

impl Content {
    /// Writes the content of an image for people to read.
    pub(crate) fn describe(&self, out: &mut dyn Write, style: Style) -> io::Result<()> {
        let mut lines = content_figures(self);
        if self.entropies.pages > 0 {
            lines.push(String::new());
            lines.extend(entropies(self, style));
        }
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

fn content_figures(content: &Content) -> Vec<String> {
    let copies = content.copies.copies();
    let about = if content.copies.is_exact() { "" } else { "about " };
    let copies = match copies {
        0 => "  no page is a copy of another one".into(),
        1 => "  1 page is an exact copy of another one".into(),
        copies => format!("  {about}{} pages are exact copies of others", quantity::count(copies)),
    };
    let mut lines = vec![format!("{copies} (not counting zero and same-filled pages)")];
    if let Some(mean) = content.entropies.mean_bits() {
        lines.push(format!("  entropy {mean:.2} bits per byte on average (not counting zero pages)"));
    }
    lines
}

/// The sizes, and the entropies if they are known, side by side if there is room.
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
    // The colours of the map below.
    let bar = |label: String, count, shade| Bar { label, count, shade: Some(shade) };
    let by_size = |len_bytes: usize| Shade::of(len_bytes as u64, PAGE_SIZE as u64);
    let mut rows = vec![
        bar("zero".into(), survey.kinds.zero, Shade::Empty),
        bar("same-filled".into(), survey.kinds.same_filled, by_size(FILL_WORD_BYTES)),
    ];
    let sizes = survey.lz4_sizes.iter().zip(survey.zstd_sizes).map(|(lz4, zstd)| lz4 + zstd);
    for (step, count) in sizes.enumerate() {
        let most = ((step + 1) * SIZE_STEP).min(PAGE_SIZE - 1);
        rows.push(bar(format!("{} - {most:>4}", step * SIZE_STEP + 1), count, by_size(most)));
    }
    rows.push(bar("raw  4096".into(), survey.kinds.raw, by_size(PAGE_SIZE)));
    titled("Bytes per page", bars(&rows, survey.kinds.pages, style))
}

fn entropies(content: &Content, style: Style) -> Vec<String> {
    let entropies = &content.entropies;
    let row = |(step, count): (usize, u64)| {
        let label = format!("{:.1} - {:.1}", step as f64 / 2.0, (step + 1) as f64 / 2.0);
        Bar { label, count, shade: None }
    };
    let rows: Vec<_> = entropies.by_half_bit.into_iter().enumerate().map(row).collect();
    titled("Entropy in bits per byte (no zero pages)", bars(&rows, entropies.pages, style))
}

fn titled(title: &str, mut lines: Vec<String>) -> Vec<String> {
    lines.insert(0, title.into());
    lines
}

/// The image from front to back.
fn map(survey: &Survey, style: Style) -> Vec<String> {
    const LABEL_WIDTH: usize = 12;
    let room = style.width - LABEL_WIDTH;
    // A multiple of 16 makes offsets easy to read.
    let columns = if room >= 64 { room / 16 * 16 } else { room };
    let overview = survey.overview.at_most(columns * MAP_ROWS);
    let shades: Vec<Shade> = overview.cells.iter().map(shade).collect();
    let cell_bytes = overview.pages_per_cell * PAGE_SIZE as u64;
    let each = format!("{} ({})", quantity::bytes(cell_bytes), quantity::pages(overview.pages_per_cell));
    let mut lines = vec![format!("From front to back, {each} per cell")];
    for (row, text) in cells(&shades, columns, style).into_iter().enumerate() {
        let start = quantity::bytes((row * columns) as u64 * cell_bytes);
        lines.push(format!("{start:>10}  {text}"));
    }
    let meanings = ["zero", "up to 1/4", "up to 1/2", "up to 3/4", "more"];
    let legend = legend(meanings, room, style);
    lines.extend(legend.into_iter().map(|line| format!("{:LABEL_WIDTH$}{line}", "")));
    lines
}

fn shade(cell: &OverviewCell) -> Shade {
    if cell.zero_pages == cell.pages { Shade::Empty } else { Shade::of(cell.held_bytes, cell.pages * PAGE_SIZE as u64) }
}

/// Writes the ranges of a snapshot in order of their addresses, the largest or all.
fn address_map(out: &mut dyn Write, map: &StoredMap, ranges: Ranges) -> io::Result<()> {
    let how = match map.consistency {
        Consistency::Live => "read while it was running",
        Consistency::Stopped => "read while it was stopped",
    };
    let count = quantity::count(map.mapping_count);
    writeln!(out, "\nMemory of {} (process {}), {how}; {count} ranges", printable(&map.command), map.pid)?;
    if map.pages.unreadable > 0 {
        writeln!(out, "  {} could not be read", quantity::pages(map.pages.unreadable))?;
    }
    writeln!(out, "  {:>16} {:>16} {:<4} {:>11} {:>13}  name", "start", "end", "", "pages", "untouched")?;
    if ranges == Ranges::All || map.mapping_count <= FEW_RANGES as u64 {
        return map.mappings().try_for_each(|mapping| range(out, &mapping));
    }
    for mapping in largest(map) {
        range(out, &mapping)?;
    }
    let smaller = quantity::count(map.mapping_count - FEW_RANGES as u64);
    writeln!(out, "  and {smaller} smaller ones: --ranges shows all")
}

fn range(out: &mut dyn Write, mapping: &StoredMapping<'_>) -> io::Result<()> {
    let [stored, untouched] = [mapping.pages.stored, mapping.pages.untouched].map(quantity::count);
    let name = if mapping.name.is_empty() { "anonymous".into() } else { printable(mapping.name) };
    let permissions = mapping.flags.permissions();
    let (start, end) = (mapping.start, mapping.end());
    writeln!(out, "  {start:16x} {end:16x} {permissions:<4} {stored:>11} {untouched:>13}  {name}")
}

/// The mappings with the most stored pages, in order of their addresses. Takes memory for those only.
fn largest(map: &StoredMap) -> Vec<StoredMapping<'_>> {
    let mut largest: Vec<StoredMapping<'_>> = Vec::with_capacity(FEW_RANGES + 1);
    for mapping in map.mappings() {
        // Of equal ones the first stays.
        let at = largest.partition_point(|kept| kept.pages.stored >= mapping.pages.stored);
        if at < FEW_RANGES {
            largest.insert(at, mapping);
            largest.truncate(FEW_RANGES);
        }
    }
    largest.sort_by_key(|mapping| mapping.start);
    largest
}
