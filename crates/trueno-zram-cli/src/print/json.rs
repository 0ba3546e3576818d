//! The output of `--json`: one object per result on a line of its own, as docs/JSON.md describes it.
//!
//! Objects are written as they are serialized. None is ever held in memory as a tree.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use trueno_zram_archive::address_map::Consistency;
use trueno_zram_archive::{Delta, Pages as _};
use trueno_zram_core::PageStats;

use crate::args::Global;
use crate::failure::{Failure, FailureKind};
use crate::print::{printable::PrintableFormatter, stdout};

/// The version of the schema. It changes when a key changes its meaning or disappears, not when one is added.
pub(crate) const SCHEMA: u32 = 1;

/// The outcome of the work that an object reports on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Ok,
    Failed,
}

/// The keys that every object starts with, and those of its command.
#[derive(Debug, Serialize)]
struct Object<'a, T> {
    schema: u32,
    command: &'a str,
    status: Status,
    #[serde(flatten)]
    result: &'a T,
}

/// A file, or a whole run, that failed.
#[derive(Debug, Serialize)]
struct FailedResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    error: &'a str,
    error_kind: FailureKind,
}

/// The numbers of pages by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PageKinds {
    pub(crate) pages: u64,
    pub(crate) zero: u64,
    pub(crate) same_filled: u64,
    pub(crate) lz4: u64,
    pub(crate) zstd: u64,
    pub(crate) raw: u64,
}

impl PageKinds {
    /// All pages and the zero pages of a delta; of the others, those that it stores.
    pub(crate) fn of_delta(delta: &Delta) -> Self {
        let stored = delta.stored().info().pages;
        Self { pages: delta.page_count(), zero: delta.origin_counts().zero, ..stored.into() }
    }
}

impl From<PageStats> for PageKinds {
    fn from(stats: PageStats) -> Self {
        let PageStats { zero, same_filled, lz4, zstd, raw, .. } = stats;
        Self { pages: stats.pages(), zero, same_filled, lz4, zstd, raw }
    }
}

impl std::fmt::Display for PageKinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { zero, same_filled, lz4, zstd, raw, .. } = *self;
        write!(f, "{zero} zero, {same_filled} same-filled, ")?;
        // An archive has pages of one format.
        match (lz4, zstd) {
            (_, 0) => write!(f, "{lz4} lz4, {raw} raw"),
            (0, _) => write!(f, "{zstd} zstd, {raw} raw"),
            _ => write!(f, "{lz4} lz4, {zstd} zstd, {raw} raw"),
        }
    }
}

/// Prints the result of `command`, if `--json` asks for it.
pub(crate) fn print(global: &Global, command: &str, result: &impl Serialize) -> Result<(), Failure> {
    print_with(global, command, Status::Ok, result)
}

/// Prints the result of `command` with its status, if `--json` asks for it.
pub(crate) fn print_with(
    global: &Global,
    command: &str,
    status: Status,
    result: &impl Serialize,
) -> Result<(), Failure> {
    if !global.json {
        return Ok(());
    }
    stdout::print(|out| write(out, command, status, result))
}

/// Refuses `--json` for a command that prints a document of its own.
pub(crate) fn refuse(global: &Global, command: &str) -> Result<(), Failure> {
    if global.json {
        Err(Failure::usage(format!("{command} has no results to print as JSON; leave out --json")))
    } else {
        Ok(())
    }
}

/// Prints that `command` failed as a whole, if `--json` asks for it. Wrong usage prints nothing: no work was begun.
pub(crate) fn print_failed_run(global: &Global, command: &str, failure: &Failure) {
    print_failure(global, command, None, failure);
}

fn print_failure(global: &Global, command: &str, file: Option<&str>, failure: &Failure) {
    if let Failure::Failed { kind, message } = failure {
        // If standard output fails as well, the first failure is the one to report.
        let _ = print_with(global, command, Status::Failed, &FailedResult { file, error: message, error_kind: *kind });
    }
}

/// Returns the result of `command` for one file, after printing it if it is a failure and `--json` asks for it.
pub(crate) fn report_failure_of<T>(
    global: &Global,
    command: &str,
    file: &Path,
    result: Result<T, Failure>,
) -> Result<T, Failure> {
    if let Err(failure) = &result {
        print_failure(global, command, Some(&name_of(file)), failure);
    }
    result
}

/// Returns the name of the input at `path` in messages.
fn name_of(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() }
}

/// Returns the consistency of a snapshot as objects name it.
pub(crate) fn consistency(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Live => "live",
        Consistency::Stopped => "stopped",
    }
}

/// Writes one object and a line break.
fn write(mut out: impl Write, command: &str, status: Status, result: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, PrintableFormatter);
    Object { schema: SCHEMA, command, status, result }.serialize(&mut serializer)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufWriter;

    fn written(status: Status, result: &impl Serialize) -> String {
        let mut line = Vec::new();
        write(&mut line, "test", status, result).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn every_object_starts_with_the_same_keys_and_is_one_line() {
        let stats = PageStats { zero: 1, same_filled: 2, lz4: 3, raw: 4, ..PageStats::default() };
        assert_eq!(
            written(Status::Ok, &PageKinds::from(stats)),
            "{\"schema\":1,\"command\":\"test\",\"status\":\"ok\",\
             \"pages\":10,\"zero\":1,\"same_filled\":2,\"lz4\":3,\"zstd\":0,\"raw\":4}\n"
        );
        let failed = FailedResult { file: Some("a\nb"), error: "a: no", error_kind: FailureKind::NoSpace };
        assert_eq!(
            written(Status::Failed, &failed),
            "{\"schema\":1,\"command\":\"test\",\"status\":\"failed\",\"file\":\"a\\nb\",\"error\":\"a: no\",\
             \"error_kind\":\"no_space\"}\n"
        );
    }

    #[test]
    fn a_long_sequence_is_written_as_it_is_produced() {
        /// Counts how many items were produced when the first byte was written.
        struct Probe<'a>(&'a std::cell::Cell<u64>, Option<u64>);
        impl Write for &mut Probe<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1.get_or_insert(self.0.get());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        struct Long<'a>(&'a std::cell::Cell<u64>);
        impl Serialize for Long<'_> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let count = |n| {
                    self.0.set(self.0.get() + 1);
                    n
                };
                let fields = [("items", Items((0..1_000_000u64).map(count)))];
                serializer.collect_map(fields)
            }
        }
        struct Items<I>(I);
        impl<I: Iterator<Item = u64> + Clone> Serialize for Items<I> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.clone())
            }
        }
        let produced = std::cell::Cell::new(0);
        let mut probe = Probe(&produced, None);
        write(BufWriter::new(&mut probe), "test", Status::Ok, &Long(&produced)).unwrap();
        assert_eq!(produced.get(), 1_000_000);
        assert!(probe.1.unwrap() < 10_000, "{:?} items before the first byte", probe.1);
    }
}
