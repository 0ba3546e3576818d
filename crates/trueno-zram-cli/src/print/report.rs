//! Reports on files that are done: lines for people, JSON objects for scripts.

use std::time::Duration;

use serde::Serialize;
use trueno_zram_archive::{Delta, Pages as _, ReadSummary, WriteSummary};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
pub(crate) use crate::print::json::PageKinds as Pages;
use crate::print::{json, messages};

/// The result of one file. `ratio` is the size of its content divided by that of its compressed form, in both directions.
#[derive(Debug, Serialize)]
pub(crate) struct FileReport<'a> {
    #[serde(skip)]
    pub(crate) command: &'static str,
    pub(crate) file: &'a str,
    /// `None` if nothing is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<&'a str>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) ratio: f64,
    #[serde(flatten)]
    pub(crate) pages: Pages,
    pub(crate) seconds: f64,
    pub(crate) backend: &'static str,
    pub(crate) threads: usize,
}

impl<'a> FileReport<'a> {
    /// The report on a file that was compressed.
    pub(crate) fn compressed(
        command: &'static str,
        (file, output): (&'a str, &'a str),
        summary: &WriteSummary,
        time: Duration,
        engine: &Engine,
    ) -> Self {
        Self {
            command,
            file,
            output: Some(output),
            bytes_in: summary.content_len,
            bytes_out: summary.archive_len,
            ratio: ratio(summary.content_len, summary.archive_len),
            pages: summary.pages.into(),
            seconds: time.as_secs_f64(),
            backend: engine.name(),
            threads: engine.threads(),
        }
    }

    /// The report on a file that was restored or verified.
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

    /// The report on a delta that was restored or verified.
    pub(crate) fn restored_delta(
        command: &'static str,
        (file, output): (&'a str, Option<&'a str>),
        delta: &Delta,
        bytes_in: u64,
        time: Duration,
        engine: &Engine,
    ) -> Self {
        let zero = delta.origin_counts().zero;
        let stored = Pages::from(delta.stored().info().pages);
        Self {
            command,
            file,
            output,
            bytes_in,
            bytes_out: delta.len_bytes(),
            ratio: ratio(delta.len_bytes(), bytes_in),
            pages: Pages { pages: delta.page_count(), zero, ..stored },
            seconds: time.as_secs_f64(),
            backend: "cpu",
            threads: engine.threads(),
        }
    }
}

/// Divides the size of content by that of its compressed form; 1 for empty content.
pub(crate) fn ratio(content_bytes: u64, compressed_bytes: u64) -> f64 {
    if content_bytes == 0 || compressed_bytes == 0 { 1.0 } else { content_bytes as f64 / compressed_bytes as f64 }
}

/// Returns the speed in 10^9 bytes per second.
pub(crate) fn gbps(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
}

/// Prints the back end in use, with `-v`.
pub(crate) fn say_engine(global: &Global, engine: &Engine) {
    if global.verbose > 0 {
        messages::line(format_args!("back end: {}", engine.describe()));
    }
}

/// Prints a line on standard error, unless `-q`.
pub(crate) fn say(global: &Global, line: &str) {
    if !global.quiet {
        messages::line(line);
    }
}

/// Prints a warning about a file on standard error, unless `-q`.
pub(crate) fn warn(global: &Global, name: &str, warning: &str) {
    say(global, &format!("trueno-zram: {name}: warning: {warning}"));
}

/// The failure for a command line that sends both JSON and data to standard output.
pub(crate) fn json_needs_stdout() -> Failure {
    Failure::usage("--json and the data cannot share standard output; give -o FILE")
}

/// Prints a report as a line of JSON, if `--json` asks for it.
pub(crate) fn print_json(global: &Global, report: &FileReport<'_>) -> Result<(), Failure> {
    json::print(global, report.command, report)
}

#[cfg(test)]
mod tests {
    use super::ratio;

    #[test]
    fn the_ratio_of_empty_content_is_1() {
        assert_eq!([ratio(0, 0), ratio(0, 47), ratio(4096, 0), ratio(8192, 1024)], [1.0, 1.0, 1.0, 8.0]);
    }
}
