//! The tables for people, at most 80 columns wide.

use std::fmt::Write;

use super::document::{BAR, Direction, Document, Mean, Quotient, Row};
use crate::quantity;

const HEAD: &str = "\
engine      threads   ratio  vs C   compress GB/s  vs C   decompress GB/s  vs C";

/// Everything of a run.
pub(crate) fn draw(document: &Document) -> String {
    let mut out = String::new();
    for corpus in &document.corpora {
        let of_corpus = |name: &String| *name == corpus.name;
        let pages = quantity::pages(corpus.distinct_pages as u64);
        let copies = if corpus.copies > 1 { format!(" x {} copies", corpus.copies) } else { String::new() };
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}: {pages}{copies}, {} same-filled left out", corpus.name, corpus.same_filled);
        let _ = writeln!(out, "{HEAD}");
        let rows = document.rows.iter().zip(&document.quotients).filter(|(row, _)| of_corpus(&row.corpus));
        let mut last_threads = 0;
        for (row, quotient) in rows {
            if last_threads != 0 && row.engine == BAR && row.threads != last_threads {
                let _ = writeln!(out);
            }
            last_threads = row.threads;
            let _ = writeln!(out, "{}", line(row, quotient));
        }
        let _ = writeln!(out);
    }
    let _ = writeln!(out, "geometric means over {}", counted(document.corpora.len(), "corpus", "corpora"));
    let _ = writeln!(out, "{HEAD}");
    for mean in &document.means {
        let _ = writeln!(out, "{}", line(&row_of(mean), &quotient_of(mean)));
    }
    out.push('\n');
    for left_out in &document.left_out {
        let _ = writeln!(out, "{} is left out: {}", left_out.engine, left_out.why);
    }
    if let Some(crossing) = document.crossing {
        for (what, pages) in [("compress", crossing.compress_pages), ("decompress", crossing.decompress_pages)] {
            let text = pages
                .map_or("never in these batches".into(), |pages| format!("from {}", quantity::pages(pages as u64)));
            let _ = writeln!(out, "the GPU overtakes the CPU to {what}: {text}");
        }
    }
    let _ = writeln!(
        out,
        "Same-filled pages are left out for all; vs C: against C lz4 in the same rounds,\non as many threads; medians of {}; every page was decoded and compared.",
        counted(document.run.rounds, "round", "rounds")
    );
    if let Some(text) = summary(document) {
        let _ = writeln!(out, "\n{text}");
    }
    out
}

/// The last lines: what our own came to, on the most threads.
pub(crate) fn summary(document: &Document) -> Option<String> {
    let ours = document.means.iter().rfind(|mean| mean.engine == "trueno-cpu")?;
    let speed = |direction| format!("{} GB/s ({:.2} x)", speed(ours.gbps(direction)), ours.vs_c_lz4(direction));
    let threads = counted(ours.threads, "thread", "threads");
    Some(format!(
        "trueno-cpu on {threads}, geometric means, and against C lz4:\nratio {:.3} ({:.2} x), compress {}, decompress {}",
        ours.ratio,
        ours.ratio_vs_c_lz4,
        speed(Direction::Compress),
        speed(Direction::Decompress)
    ))
}

fn line(row: &Row, quotient: &Quotient) -> String {
    let Row { engine, threads, ratio, .. } = row;
    format!(
        "{engine:<11} {threads:>7} {ratio:>7.3} {:>5} {:>15} {:>5} {:>17} {:>5}",
        quotient_text(quotient.ratio),
        speed(row.compress_gbps),
        quotient_text(quotient.compress),
        speed(row.decompress_gbps),
        quotient_text(quotient.decompress),
    )
}

/// `1 round`, `7 rounds`.
pub(crate) fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// Three digits that count.
pub(crate) fn speed(gbps: f64) -> String {
    let decimals = if gbps < 10.0 {
        2
    } else if gbps < 100.0 {
        1
    } else {
        0
    };
    format!("{gbps:.decimals$}")
}

/// Likewise.
pub(crate) fn quotient_text(quotient: f64) -> String {
    speed(quotient)
}

fn row_of(mean: &Mean) -> Row {
    Row {
        corpus: String::new(),
        engine: mean.engine.clone(),
        threads: mean.threads,
        pages: 0,
        same_filled: 0,
        ratio: mean.ratio,
        compress_gbps: mean.compress_gbps,
        decompress_gbps: mean.decompress_gbps,
    }
}

fn quotient_of(mean: &Mean) -> Quotient {
    Quotient {
        corpus: String::new(),
        engine: mean.engine.clone(),
        threads: mean.threads,
        bar_threads: mean.threads,
        ratio: mean.ratio_vs_c_lz4,
        compress: mean.compress_vs_c_lz4,
        decompress: mean.decompress_vs_c_lz4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.876, 5.0, 12.34, 347.8].map(speed), ["0.88", "5.00", "12.3", "348"]);
    }

    #[test]
    fn lines_fit_80_columns() {
        assert!(HEAD.len() <= 80);
    }
}
