//! The figures behind the plots.

use super::look;
use super::svg::escape;
use crate::document::{Along, Document, Point};
use crate::engines::BAR;
use crate::quantity::{self, figure};

/// Rows of cells under a head.
fn table(head: &[&str], rows: impl Iterator<Item = String>) -> String {
    let head: String = head.iter().map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
    let body: String = rows.collect();
    format!("<div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n")
}

fn name_cell(engine: &str) -> String {
    format!("<td class=\"name {}\">{}</td>", look::class(engine), escape(engine))
}

fn cells(values: &[String]) -> String {
    values.iter().map(|value| format!("<td>{value}</td>")).collect()
}

fn row_class(engine: &str, starts: bool) -> &'static str {
    match (engine.starts_with("trueno"), starts) {
        (true, true) => " class=\"ours start\"",
        (true, false) => " class=\"ours\"",
        (false, true) => " class=\"start\"",
        (false, false) => "",
    }
}

/// A quotient, or a dash where C lz4 did not run.
fn against(quotient: Option<f64>) -> String {
    quotient.map_or("–".to_owned(), figure)
}

const SPEEDS: [&str; 6] = ["ratio", "vs C lz4", "compress<br>GB/s", "vs C lz4", "decompress<br>GB/s", "vs C lz4"];

/// Geometric means over the corpora.
pub(crate) fn means(document: &Document) -> String {
    let mut last_threads = 0;
    let rows = document.means.iter().map(|mean| {
        let starts = last_threads != 0 && last_threads != mean.threads;
        last_threads = mean.threads;
        let quotient = mean.quotient(BAR);
        let values = [
            mean.threads.to_string(),
            format!("{:.3}", mean.ratio),
            against(quotient.map(|quotient| quotient.ratio)),
            figure(mean.compress_gbps),
            against(quotient.map(|quotient| quotient.compress)),
            figure(mean.decompress_gbps),
            against(quotient.map(|quotient| quotient.decompress)),
        ];
        format!("<tr{}>{}{}</tr>\n", row_class(&mean.engine, starts), name_cell(&mean.engine), cells(&values))
    });
    table(&[&["engine", "threads"], &SPEEDS[..]].concat(), rows)
}

/// Every row, with its quotients.
pub(crate) fn rows(document: &Document) -> String {
    let mut last_corpus = String::new();
    let rows = document.rows.iter().map(|row| {
        let quotient = document.quotient(row, BAR);
        let starts = !last_corpus.is_empty() && last_corpus != row.corpus;
        last_corpus.clone_from(&row.corpus);
        let values = [
            row.threads.to_string(),
            quantity::count(row.pages),
            quantity::count(row.same_filled),
            format!("{:.3}", row.ratio),
            against(quotient.map(|quotient| quotient.ratio)),
            figure(row.compress_gbps),
            against(quotient.map(|quotient| quotient.compress)),
            figure(row.decompress_gbps),
            against(quotient.map(|quotient| quotient.decompress)),
        ];
        let corpus = format!("<td>{}</td>", escape(&row.corpus));
        format!("<tr{}>{corpus}{}{}</tr>\n", row_class(&row.engine, starts), name_cell(&row.engine), cells(&values))
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
        format!("<tr{}>{}{}</tr>\n", row_class(&point.engine, false), name_cell(&point.engine), cells(&values))
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
        format!("<tr{}>{}{}</tr>\n", row_class(&stage.engine, false), name_cell(&stage.engine), cells(&values))
    });
    table(&["engine", "direction", "stage", "threads", "pages", "ns per page"], rows)
}
