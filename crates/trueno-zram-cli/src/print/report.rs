//! Reports on files that are done: lines for people, JSON objects for scripts.

use std::time::Duration;

use serde::Serialize;
use trueno_zram_archive::{BaseRecord, Delta, DeltaSummary, Pages as _, ReadSummary, WriteSummary};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::delta::Origins;
use crate::print::{
    json::{self, PageKinds},
    messages,
};

/// The result of one file. `ratio` is the size of its content divided by that of its compressed form, in both directions.
#[derive(Debug, Serialize)]
pub(crate) struct FileReport<'a> {
    #[serde(flatten)]
    names: FileNames<'a>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) ratio: f64,
    #[serde(flatten)]
    pub(crate) pages: PageKinds,
    pub(crate) seconds: f64,
    backend: &'static str,
    threads: usize,
    /// The origins of the pages of a delta that was made.
    #[serde(flatten)]
    pub(crate) origins: Option<Origins>,
}

/// A file, its output, and the command that reads one and writes the other.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct FileNames<'a> {
    #[serde(skip)]
    pub(crate) command: &'static str,
    pub(crate) file: &'a str,
    /// `None` if nothing is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<&'a str>,
}

impl<'a> FileNames<'a> {
    /// The report on a file that was compressed.
    pub(crate) fn compressed(self, summary: &WriteSummary, time: Duration, engine: &Engine) -> FileReport<'a> {
        let (bytes_in, bytes_out) = (summary.content_len, summary.archive_len);
        FileReport {
            bytes_in,
            bytes_out,
            ratio: ratio(bytes_in, bytes_out),
            pages: summary.pages.into(),
            ..self.report(time, engine)
        }
    }

    /// The report on a file that was compressed into a delta of `base`.
    pub(crate) fn compressed_delta(
        self,
        base: Option<&BaseRecord>,
        summary: &DeltaSummary,
        time: Duration,
        engine: &Engine,
    ) -> FileReport<'a> {
        let (bytes_in, bytes_out) = (summary.content_len, summary.archive_len);
        let pages = summary.zero_pages + summary.base_pages + summary.stored_pages + summary.duplicate_pages;
        FileReport {
            bytes_in,
            bytes_out,
            ratio: ratio(bytes_in, bytes_out),
            pages: PageKinds { pages, zero: summary.zero_pages, ..summary.stored.into() },
            backend: "cpu",
            origins: Some(Origins::written(base, summary)),
            ..self.report(time, engine)
        }
    }

    /// The report on a file that was restored or verified.
    pub(crate) fn restored(self, summary: &ReadSummary, time: Duration, engine: &Engine) -> FileReport<'a> {
        FileReport {
            bytes_in: summary.input_len,
            bytes_out: summary.content_len,
            ratio: ratio(summary.content_len, summary.input_len),
            pages: summary.pages.into(),
            ..self.report(time, engine)
        }
    }

    /// The report on a delta of `bytes_in` that was restored or verified.
    pub(crate) fn restored_delta(
        self,
        delta: &Delta,
        bytes_in: u64,
        time: Duration,
        engine: &Engine,
    ) -> FileReport<'a> {
        FileReport {
            bytes_in,
            bytes_out: delta.len_bytes(),
            ratio: ratio(delta.len_bytes(), bytes_in),
            pages: PageKinds::of_delta(delta),
            backend: "cpu",
            ..self.report(time, engine)
        }
    }

    /// A report without sizes and pages.
    fn report(self, time: Duration, engine: &Engine) -> FileReport<'a> {
        FileReport {
            names: self,
            bytes_in: 0,
            bytes_out: 0,
            ratio: 1.0,
            pages: PageKinds::default(),
            seconds: time.as_secs_f64(),
            backend: engine.name(),
            threads: engine.threads(),
            origins: None,
        }
    }
}

impl FileReport<'_> {
    /// Returns the speed of this many bytes in 10^9 bytes per second.
    pub(crate) fn gbps(&self, bytes: u64) -> f64 {
        bytes as f64 / self.seconds.max(1e-9) / 1e9
    }

    /// Prints the report as a line of JSON, if `--json` asks for it.
    pub(crate) fn print_json(&self, global: &Global) -> Result<(), Failure> {
        json::print(global, self.names.command, self)
    }
}

/// Divides the size of content by that of its compressed form; 1 for empty content.
pub(crate) fn ratio(content_bytes: u64, compressed_bytes: u64) -> f64 {
    if content_bytes == 0 || compressed_bytes == 0 { 1.0 } else { content_bytes as f64 / compressed_bytes as f64 }
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

#[cfg(test)]
mod tests {
    use super::ratio;

    #[test]
    fn the_ratio_of_empty_content_is_1() {
        assert_eq!([ratio(0, 0), ratio(0, 47), ratio(4096, 0), ratio(8192, 1024)], [1.0, 1.0, 1.0, 8.0]);
    }
}
