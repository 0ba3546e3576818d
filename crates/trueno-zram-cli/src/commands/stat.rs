//! `trueno-zram stat`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use trueno_zram_serve::control::ExportStat;

use crate::args::Global;
use crate::commands::control;
use crate::failure::Failure;
use crate::print::{json, printable::printable, quantity, stdout};

/// Show what a running `serve` holds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The control socket of the server.
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// Show it again at this interval, until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    watch: Option<u32>,
}

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct StatReport {
    exports: Vec<ExportStat>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    loop {
        let client = control::connect(&args.socket)?;
        let exports = client.stat().map_err(|error| Failure::at(args.socket.display(), error))?;
        if global.json {
            json::print(global, "stat", &StatReport { exports })?;
        } else {
            stdout::print_lines(&table(&exports))?;
        }
        match args.watch {
            Some(seconds) => std::thread::sleep(Duration::from_secs(seconds.into())),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// The columns of zramctl, as far as they have a meaning here, and the ratio.
fn table(exports: &[ExportStat]) -> String {
    let mut rows =
        vec![["NAME", "SIZE", "DATA", "COMPR", "TOTAL", "LIMIT", "RATIO", "SAME", "ALGORITHM"].map(str::to_owned)];
    for export in exports {
        let mm = &export.stats.mm;
        let ratio = mm.orig_data_size as f64 / mm.mem_used_total.max(1) as f64;
        rows.push([
            printable(&export.name),
            quantity::bytes(export.stats.size_bytes),
            quantity::bytes(mm.orig_data_size),
            quantity::bytes(mm.compr_data_size),
            quantity::bytes(mm.mem_used_total),
            if mm.mem_limit == 0 { "none".to_owned() } else { quantity::bytes(mm.mem_limit) },
            if mm.mem_used_total == 0 { "-".to_owned() } else { format!("{ratio:.2}") },
            quantity::count(mm.same_pages),
            printable(&export.algorithm),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..9).map(width).collect();
    let line = |row: &[String; 9]| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
