//! The figures behind the plots.

use super::engine_style;
use super::svg::escape;
use crate::document::{Along, Document, Point, Quotient, Row};
use crate::engines::BAR;
use crate::quantity::{self, figure};

/// Rows of cells under a head.
fn table(head: &[&str], rows: impl Iterator<Item = String>) -> String {
    let head: String = head.iter().map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
    let body: String = rows.collect();
    format!("<div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n")
}

/// A row of an engine: its name, after `before`, and cells.
fn row(engine: &str, starts: bool, before: &str, cells: &[String]) -> String {
    let class = match (engine.starts_with("trueno"), starts) {
        (true, true) => " class=\"ours start\"",
        (true, false) => " class=\"ours\"",
        (false, true) => " class=\"start\"",
        (false, false) => "",
    };
    let cells: String = cells.iter().map(|value| format!("<td>{value}</td>")).collect();
    let name = format!("<td class=\"name {}\">{}</td>", engine_style::class(engine), escape(engine));
    format!("<tr{class}>{before}{name}{cells}</tr>\n")
}

const SPEEDS: [&str; 6] = ["ratio", "vs C lz4", "compress<br>GB/s", "vs C lz4", "decompress<br>GB/s", "vs C lz4"];

/// The cells under `SPEEDS`, with dashes where C lz4 did not run.
fn speeds(row: &Row, quotient: Option<&Quotient>) -> [String; 6] {
    let against = |value: fn(&Quotient) -> f64| quotient.map_or("–".to_owned(), |quotient| figure(value(quotient)));
    [
        format!("{:.3}", row.ratio),
        against(|quotient| quotient.ratio),
        figure(row.compress_gbps),
        against(|quotient| quotient.compress),
        figure(row.decompress_gbps),
        against(|quotient| quotient.decompress),
    ]
}

/// Geometric means over the corpora.
pub(crate) fn means(document: &Document) -> String {
    let mut last_threads = 0;
    let rows = document.means.iter().map(|mean| {
        let starts = last_threads != 0 && last_threads != mean.threads;
        last_threads = mean.threads;
        let values = [&[mean.threads.to_string()], &speeds(&mean.as_row(), mean.quotient(BAR))[..]].concat();
        row(&mean.engine, starts, "", &values)
    });
    table(&[&["engine", "threads"], &SPEEDS[..]].concat(), rows)
}

/// Every row, with its quotients.
pub(crate) fn rows(document: &Document) -> String {
    let mut last_corpus = String::new();
    let rows = document.rows.iter().map(|measured| {
        let starts = !last_corpus.is_empty() && last_corpus != measured.corpus;
        last_corpus.clone_from(&measured.corpus);
        let counts = [measured.threads, measured.pages, measured.same_filled].map(quantity::count);
        let values = [&counts[..], &speeds(measured, document.quotient(measured, BAR))].concat();
        row(&measured.engine, starts, &format!("<td>{}</td>", escape(&measured.corpus)), &values)
    });
    table(&[&["corpus", "engine", "threads", "pages", "same-filled<br>left out"], &SPEEDS[..]].concat(), rows)
}

/// One series.
pub(crate) fn scaling(document: &Document, along: Along) -> String {
    let rows = document.scaling.iter().filter(|point| point.along == along).map(|point: &Point| {
        let values = [
            point.threads.to_string(),
            quantity::count(point.pages),
            figure(point.compress_gbps),
            figure(point.decompress_gbps),
        ];
        row(&point.engine, false, "", &values)
    });
    table(&["engine", "threads", "pages", "compress<br>GB/s", "decompress<br>GB/s"], rows)
}

/// The stages.
pub(crate) fn stages(document: &Document) -> String {
    let rows = document.stages.iter().map(|stage| {
        let values = [
            stage.direction.name().to_owned(),
            stage.stage.to_owned(),
            stage.threads.to_string(),
            quantity::count(stage.pages),
            format!("{:.1}", stage.ns_per_page),
        ];
        row(&stage.engine, false, "", &values)
    });
    table(&["engine", "direction", "stage", "threads", "pages", "ns per page"], rows)
}
