//! Side-by-side benchmark of page codecs: ratio, speed, and scaling over threads.
//!
//! `cargo bench -p trueno-zram-core --bench pages -- [--json FILE] [--rounds N] [PAGES.bin ...]`

mod engines;
mod measure;
mod report;
mod scaling;

use std::path::PathBuf;
use std::process::ExitCode;

use report::Row;

struct Options {
    files: Vec<PathBuf>,
    json: Option<PathBuf>,
    rounds: usize,
}

impl Options {
    fn from_args() -> Result<Self, String> {
        let mut options = Self { files: Vec::new(), json: None, rounds: 15 };
        let mut args = std::env::args_os().skip(1);
        while let Some(arg) = args.next() {
            match arg.to_str().unwrap_or_default() {
                // What `cargo bench` adds on its own.
                "--bench" => {}
                "--json" => options.json = Some(args.next().ok_or("--json needs a file")?.into()),
                "--rounds" => {
                    let rounds = args.next().and_then(|n| n.to_str()?.parse().ok()).filter(|n| *n > 0);
                    options.rounds = rounds.ok_or("--rounds needs a number above 0")?;
                }
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                _ => options.files.push(arg.into()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("pages: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let options = Options::from_args()?;
    let corpora = trueno_bench_engines::load(&options.files, usize::MAX)?;
    let mut rows: Vec<Row> = Vec::new();
    for corpus in &corpora {
        let mut of_corpus = measure::side_by_side(corpus, options.rounds)?;
        of_corpus.extend(measure::zram(corpus, &of_corpus[0]));
        rows.extend(of_corpus);
        report::print_corpus(corpus, &rows);
    }
    report::print_means(&rows);
    let scaling_rows = scaling::measure(&corpora, options.rounds.min(7))?;
    report::print_scaling(&scaling_rows);
    rows.extend(scaling_rows);
    match &options.json {
        Some(file) => report::write_json(file, &rows),
        None => Ok(()),
    }
}
