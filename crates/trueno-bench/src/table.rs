//! The figures of a run as text. With one bar, lines fit 80 columns.

use std::fmt::Write;

use crate::document::{Along, Direction, Document, Quotient, Row};
use crate::engines::C_LZ4_BLOCKS;
use crate::engines::cpu::TRUENO_CPU;
use crate::engines::{BAR, NVCOMP, NVCOMP_ZSTD};
use crate::quantity::{self, counted, figure};

/// Blocks that were made on the CPU are a bar for ratios alone.
fn compares_speed(bar: &str) -> bool {
    bar != C_LZ4_BLOCKS
}

/// Draws everything of a run.
#[must_use]
pub fn draw(document: &Document) -> String {
    let width = document.rows.iter().map(|row| row.engine.len()).max().unwrap_or(0).max(11);
    // Writing to a string does not fail.
    let mut out = String::new();
    let mut corpora: Vec<&str> = document.rows.iter().map(|row| row.corpus.as_str()).collect();
    corpora.dedup();
    for corpus in corpora {
        let _ = writeln!(out, "{}\n{}", title(document, corpus), head(document, width));
        let mut last_threads = 0;
        for row in document.rows.iter().filter(|row| row.corpus == corpus) {
            if last_threads != 0 && row.engine == document.rows[0].engine && row.threads != last_threads {
                out.push('\n');
            }
            last_threads = row.threads;
            let quotients = document.bars.iter().map(|bar| document.quotient(row, bar)).collect::<Vec<_>>();
            let _ = writeln!(out, "{}", line(row, &document.bars, &quotients, width));
        }
        out.push('\n');
    }
    if !document.means.is_empty() {
        let _ = writeln!(out, "geometric means over {}", counted(document.corpora.len(), "corpus", "corpora"));
        let _ = writeln!(out, "{}", head(document, width));
        for mean in &document.means {
            let quotients = document.bars.iter().map(|bar| mean.quotient(bar)).collect::<Vec<_>>();
            let _ = writeln!(out, "{}", line(&mean.as_row(), &document.bars, &quotients, width));
        }
        out.push('\n');
    }
    out += &series(document);
    out += &notes(document);
    out
}

fn title(document: &Document, name: &str) -> String {
    let Some(corpus) = document.corpora.iter().find(|corpus| corpus.name == name) else {
        return format!("{name}: {} of all corpora", quantity::pages(document.run.pages));
    };
    let variants = if corpus.variants > 1 { format!(" in {} rotations", corpus.variants) } else { String::new() };
    format!("{name}: {}{variants}, {} same-filled left out", quantity::pages(corpus.distinct_pages), corpus.same_filled)
}

fn bar_name(bar: &str) -> &str {
    match bar {
        BAR | C_LZ4_BLOCKS => "vs C",
        NVCOMP => "vs nv",
        NVCOMP_ZSTD => "nv-z",
        _ => "bus",
    }
}

fn head(document: &Document, width: usize) -> String {
    let mut head = format!("{:<width$} threads   ratio", "engine");
    if let Some(bar) = document.bars.first() {
        head += &format!(" {:>5}", bar_name(bar));
    }
    for (name, room) in [("compress GB/s", 13), ("decompress GB/s", 15)] {
        head += &format!(" {name:>room$}");
        for bar in document.bars.iter().filter(|bar| compares_speed(bar)) {
            head += &format!(" {:>5}", bar_name(bar));
        }
    }
    head
}

fn line(row: &Row, bars: &[&str], quotients: &[Option<&Quotient>], width: usize) -> String {
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), figure);
    let mut line = format!("{:<width$} {:>7} {:>7.3}", row.engine, row.threads, row.ratio);
    if let Some(first) = quotients.first() {
        line += &format!(" {:>5}", or_dash(first.map(|quotient| quotient.ratio)));
    }
    for (direction, room) in [(Direction::Compress, 13), (Direction::Decompress, 15)] {
        line += &format!(" {:>room$}", figure(row.gbps(direction)));
        for (_, quotient) in bars.iter().zip(quotients).filter(|(bar, _)| compares_speed(bar)) {
            line += &format!(" {:>5}", or_dash(quotient.map(|quotient| quotient.speed(direction))));
        }
    }
    line
}

/// The series by batch size and by threads: each point's share of the largest batch, or its multiple of one thread.
fn series(document: &Document) -> String {
    let mut out = String::new();
    for (along, title, share) in [
        (Along::Batch, "by pages per call, and share of the largest call's speed", "share"),
        (Along::Threads, "by threads, and multiple of one thread's speed", "times"),
    ] {
        let points = document.scaling.iter().filter(|point| point.along == along).collect::<Vec<_>>();
        if points.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{title}; all corpora mixed");
        let line = |[engine, pages, threads, compress, compress_share, decompress, decompress_share]: [&str; 7]| {
            format!(
                "{engine:<15} {pages:>9} {threads:>7} {compress:>14} {compress_share:>5} {decompress:>16} {decompress_share:>5}\n"
            )
        };
        out += &line(["engine", "pages", "threads", "compress GB/s", share, "decompress GB/s", share]);
        let mut engines: Vec<&str> = points.iter().map(|point| point.engine.as_str()).collect();
        engines.sort_unstable();
        engines.dedup();
        for engine in engines {
            let of_engine = points.iter().filter(|point| point.engine == engine).collect::<Vec<_>>();
            let base = if along == Along::Batch { of_engine[of_engine.len() - 1] } else { of_engine[0] };
            for point in &of_engine {
                let share = |direction| figure(point.gbps(direction) / base.gbps(direction));
                out += &line([
                    engine,
                    &quantity::count(point.pages),
                    &point.threads.to_string(),
                    &figure(point.compress_gbps),
                    &share(Direction::Compress),
                    &figure(point.decompress_gbps),
                    &share(Direction::Decompress),
                ]);
            }
        }
        out.push('\n');
    }
    out
}

fn notes(document: &Document) -> String {
    let mut out = String::new();
    let mut noted: Vec<&str> = Vec::new();
    for row in document.rows.iter().filter(|row| !row.note.is_empty()) {
        if !noted.contains(&row.engine.as_str()) {
            let _ = writeln!(out, "{}: {}", row.engine, row.note);
            noted.push(&row.engine);
        }
    }
    for left_out in &document.left_out {
        let _ = writeln!(out, "{} is left out: {}", left_out.engine, left_out.why);
    }
    for (what, pages) in document
        .crossing
        .into_iter()
        .flat_map(|crossing| [("compress", crossing.compress_pages), ("decompress", crossing.decompress_pages)])
    {
        let text = pages.map_or("never in these batches".into(), |pages| format!("from {}", quantity::pages(pages)));
        let _ = writeln!(out, "the GPU overtakes the CPU to {what}: {text}");
    }
    out += "Same-filled pages are left out for all engines.";
    if !document.bars.is_empty() {
        out += " vs: speed against that engine\nin the same rounds.";
    }
    let rounds = counted(document.run.rounds, "round", "rounds");
    let _ = writeln!(out, " Medians of {rounds}. Every page was\ndecoded and compared.");
    if let Some(text) = summary(document) {
        let _ = writeln!(out, "\n{text}");
    }
    out
}

/// The last lines of `bench`: our own means on the most threads.
fn summary(document: &Document) -> Option<String> {
    let ours = document.means.iter().rfind(|mean| mean.engine == TRUENO_CPU)?;
    let against = ours.quotient(BAR);
    let times = |value: Option<f64>| value.map_or(String::new(), |value| format!(" ({} x)", figure(value)));
    let speed = |direction| {
        format!("{} GB/s{}", figure(ours.gbps(direction)), times(against.map(|quotient| quotient.speed(direction))))
    };
    Some(format!(
        "trueno-cpu on {}, geometric means{}:\nratio {:.3}{}, compress {}, decompress {}",
        quantity::threads(ours.threads),
        if against.is_some() { ", and against C lz4" } else { "" },
        ours.ratio,
        times(against.map(|quotient| quotient.ratio)),
        speed(Direction::Compress),
        speed(Direction::Decompress)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::tests::document;

    #[test]
    fn lines_fit_80_columns() {
        let drawn = draw(&document(8));
        let facts = |line: &&str| !line.contains("left out:") && !line.contains("same-filled left out");
        let widest = drawn.lines().filter(facts).max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 80, "{widest}");
        assert!(
            drawn.lines().last().is_some_and(|last| last.starts_with("ratio ") && last.contains("GB/s (")),
            "{drawn}"
        );
    }

    #[test]
    fn without_a_bar_there_are_no_quotients() {
        let mut document = document(8);
        document.rows.retain(|row| row.engine != BAR);
        document.quotients.clear();
        document.finish_rows();
        let drawn = draw(&document);
        assert!(!drawn.contains("vs") && !drawn.contains("C lz4"), "{drawn}");
        assert!(crate::html::page(&document).contains("C lz4 was not measured"));
    }
}
