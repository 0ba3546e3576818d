//! The tables for people and the JSON for machines.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use trueno_bench_engines::Corpus;
use trueno_bench_engines::timing::geometric_mean;

/// What one engine did on one corpus. Speeds count uncompressed bytes; same-filled pages are left out.
#[derive(Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) corpus: String,
    pub(crate) engine: String,
    pub(crate) threads: usize,
    pub(crate) pages: usize,
    pub(crate) same_filled: usize,
    pub(crate) ratio: f64,
    pub(crate) compress_gbps: f64,
    pub(crate) decompress_gbps: f64,
    pub(crate) compress_vs_c_lz4: f64,
    pub(crate) decompress_vs_c_lz4: f64,
    /// Moving the same pages with as many threads, where that was measured.
    pub(crate) memcpy_gbps: Option<f64>,
    /// The decoder's speed on C lz4's own blocks, against C lz4's.
    pub(crate) c_lz4_blocks_vs_c_lz4: Option<f64>,
}

const HEAD: &str = "engine              ratio   vs C   compress GB/s   vs C   decompress GB/s   vs C   C's blocks";

pub(crate) fn print_corpus(corpus: &Corpus, rows: &[Row]) {
    println!("\n{}: {} pages, {} same-filled left out", corpus.name, corpus.pages.len(), corpus.same_filled);
    println!("{HEAD}");
    let rows: Vec<&Row> = rows.iter().filter(|row| row.corpus == corpus.name).collect();
    for row in &rows {
        println!("{}", row_text(row, row.ratio / rows[0].ratio));
    }
}

fn row_text(row: &Row, ratio_vs_c: f64) -> String {
    let c_blocks = row.c_lz4_blocks_vs_c_lz4.map_or("-".into(), |ratio| format!("{ratio:.3}"));
    format!(
        "{:<18} {:6.3} {:6.3} {:15.3} {:6.3} {:17.3} {:6.3} {c_blocks:>12}",
        row.engine,
        row.ratio,
        ratio_vs_c,
        row.compress_gbps,
        row.compress_vs_c_lz4,
        row.decompress_gbps,
        row.decompress_vs_c_lz4,
    )
}

/// Geometric means over the corpora, for the engines that ran on all of them.
pub(crate) fn print_means(rows: &[Row]) {
    let mut by_engine: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    let mut order = Vec::new();
    for row in rows {
        let of_engine = by_engine.entry(&row.engine).or_default();
        if of_engine.is_empty() {
            order.push(row.engine.as_str());
        }
        of_engine.push(row);
    }
    let Some(bar) = order.first().map(|bar| by_engine[bar].clone()) else { return };
    println!("\ngeometric means over {} corpora", bar.len());
    println!("{HEAD}   least ratio vs C");
    for engine in order {
        let of_engine = &by_engine[engine];
        if of_engine.len() != bar.len() {
            continue;
        }
        let mean = |value: &dyn Fn(&Row) -> f64| geometric_mean(of_engine.iter().map(|row| value(row)));
        let ratios_vs_c: Vec<f64> = of_engine.iter().zip(&bar).map(|(row, bar)| row.ratio / bar.ratio).collect();
        let c_blocks = mean(&|row| row.c_lz4_blocks_vs_c_lz4.unwrap_or(f64::NAN));
        let row = Row {
            ratio: mean(&|row| row.ratio),
            compress_gbps: mean(&|row| row.compress_gbps),
            decompress_gbps: mean(&|row| row.decompress_gbps),
            compress_vs_c_lz4: mean(&|row| row.compress_vs_c_lz4),
            decompress_vs_c_lz4: mean(&|row| row.decompress_vs_c_lz4),
            c_lz4_blocks_vs_c_lz4: Some(c_blocks).filter(|ratio| ratio.is_finite()),
            ..of_engine[0].clone()
        };
        let least = ratios_vs_c.iter().copied().fold(f64::INFINITY, f64::min);
        println!("{} {least:18.3}", row_text(&row, geometric_mean(ratios_vs_c)));
    }
}

pub(crate) fn print_scaling(rows: &[Row]) {
    println!("\nbatches of {} mixed pages", rows[0].pages);
    println!("threads   compress GB/s   speed-up   decompress GB/s   speed-up   memcpy GB/s   speed-up");
    let memcpy_gbps = |row: &Row| row.memcpy_gbps.unwrap_or(f64::NAN);
    for row in rows {
        println!(
            "{:7} {:15.3} {:10.2} {:17.3} {:10.2} {:13.3} {:10.2}",
            row.threads,
            row.compress_gbps,
            row.compress_gbps / rows[0].compress_gbps,
            row.decompress_gbps,
            row.decompress_gbps / rows[0].decompress_gbps,
            memcpy_gbps(row),
            memcpy_gbps(row) / memcpy_gbps(&rows[0]),
        );
    }
}

pub(crate) fn write_json(file: &Path, rows: &[Row]) -> Result<(), String> {
    let json = serde_json::to_string_pretty(rows).map_err(|e| e.to_string())?;
    std::fs::write(file, json + "\n").map_err(|e| format!("{}: {e}", file.display()))
}
