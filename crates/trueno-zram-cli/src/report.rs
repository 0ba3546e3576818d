//! What is said of a file that is done: one line for people, one JSON object for scripts.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use trueno_zram_archive::ReadSummary;
use trueno_zram_core::PageStats;

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::terminal::printable;

/// What came of one file. `ratio` is that of its content to its compressed form, whichever way it went.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) command: &'static str,
    pub(crate) file: &'a str,
    /// None where nothing is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<&'a str>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) ratio: f64,
    pub(crate) pages: Pages,
    pub(crate) seconds: f64,
    pub(crate) backend: &'static str,
    pub(crate) threads: usize,
}

impl<'a> Report<'a> {
    /// Of a file that was restored, or read as if it were.
    pub(crate) fn restored(
        command: &'static str,
        (file, output): (&'a str, Option<&'a str>),
        summary: &ReadSummary,
        time: Duration,
        engine: &Engine,
    ) -> Self {
        Self {
            command,
            file,
            output,
            bytes_in: summary.input_len,
            bytes_out: summary.content_len,
            ratio: ratio(summary.content_len, summary.input_len),
            pages: summary.pages.into(),
            seconds: time.as_secs_f64(),
            backend: engine.name(),
            threads: engine.threads(),
        }
    }
}

/// Pages by how they are held.
#[derive(Debug, Serialize)]
pub(crate) struct Pages {
    pub(crate) zero: u64,
    pub(crate) same_filled: u64,
    pub(crate) lz4: u64,
    pub(crate) raw: u64,
}

impl From<PageStats> for Pages {
    fn from(counts: PageStats) -> Self {
        let PageStats { zero, same_filled, lz4, raw, .. } = counts;
        Self { zero, same_filled: same_filled - zero, lz4, raw }
    }
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { zero, same_filled, lz4, raw } = self;
        write!(f, "{zero} zero, {same_filled} same-filled, {lz4} lz4, {raw} raw")
    }
}

/// The ratio of content to its compressed form; 1 for nothing.
pub(crate) fn ratio(content_bytes: u64, compressed_bytes: u64) -> f64 {
    if compressed_bytes == 0 { 1.0 } else { content_bytes as f64 / compressed_bytes as f64 }
}

/// Decimal gigabytes a second.
pub(crate) fn gbps(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
}

/// Says which back end is at work, with `-v`.
pub(crate) fn say_engine(global: &Global, engine: &Engine) {
    if global.verbose > 0 {
        eprintln!("back end: {}", engine.describe());
    }
}

/// A line on standard error, unless `-q`.
pub(crate) fn say(global: &Global, line: &str) {
    if !global.quiet {
        eprintln!("{}", printable(line));
    }
}

/// A warning about a file on standard error, unless `-q`.
pub(crate) fn warn(global: &Global, name: &str, warning: &str) {
    say(global, &format!("trueno-zram: {name}: warning: {warning}"));
}

/// `--json` and the data both want standard output.
pub(crate) fn json_needs_stdout() -> Failure {
    Failure::usage("--json and the data cannot share standard output; give -o FILE")
}

/// Prints a report as one line of JSON, if asked for.
pub(crate) fn print_json(global: &Global, report: &impl Serialize) -> Result<(), Failure> {
    if !global.json {
        return Ok(());
    }
    let line = serde_json::to_string(report).expect("a report has nothing that JSON cannot say");
    writeln!(io::stdout(), "{line}").map_err(|error| Failure::io("standard output", &error))
}
