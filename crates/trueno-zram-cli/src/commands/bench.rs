//! `trueno-zram bench`: arguments, progress and output. The measuring is `trueno-bench`'s.

mod interrupt;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use serde::Serialize;
use trueno_bench::bench::Bench;
use trueno_bench::{Document, Gpu, Rivals, RunSettings, html, load, table};
use trueno_zram_io::{Output, OutputOptions, OutputTarget};

use crate::args::{Backend, Global};
use crate::failure::{Failure, FailureKind};
use crate::files::needed_files;
use crate::machine::{Machine, Measure};
use crate::print::{json, report::say, stdout};
use interrupt::Watch;

/// Measure our engines and their rivals side by side.
///
/// Every engine does the same job: it compresses a batch of pages into blocks, packed one after the other, and restores
/// them. Same-filled pages are counted and left out for all engines. In each round, all engines take turns. Figures are
/// medians, and quotients are medians of neighbouring timings. The output of every engine is decoded and compared before it
/// is timed.
///
/// C lz4, lz4_flex, Zstandard and nvCOMP are measured only by a tool that was built with the feature `rivals`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files of 4 KiB pages [default: the built-in corpus].
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write a report with plots to this file: one HTML page that needs nothing else. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also measure a rival outside this program. `nvcomp=PATH` loads the library libnvcomp.so and needs a GPU. `zram` needs
    /// root: it adds temporary zram devices to the kernel, removes them after use, and removes devices that an earlier run
    /// left because it was killed.
    #[arg(long, value_name = "nvcomp=PATH|zram")]
    rival: Vec<Rival>,
    /// Rounds; the median of each figure counts.
    #[arg(long, value_name = "N", default_value = "7")]
    rounds: NonZeroUsize,
    /// The most pages in a batch: a smaller corpus is filled up with rotations of its pages, a larger one sampled.
    #[arg(long, value_name = "N", default_value = "8192")]
    pages: NonZeroUsize,
}

/// A rival that runs only if asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rival {
    NvComp(PathBuf),
    Zram,
}

impl FromStr for Rival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("nvcomp", path)) if !path.is_empty() => Ok(Self::NvComp(path.into())),
            None if text == "zram" => Ok(Self::Zram),
            Some(("nvcomp", _)) => Err("expected nvcomp=PATH".into()),
            None if text == "nvcomp" => Err("expected nvcomp=PATH".into()),
            _ => Err(format!("unknown rival {text:?}; expected nvcomp=PATH or zram")),
        }
    }
}

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct BenchReport<'a> {
    machine: Machine,
    #[serde(flatten)]
    document: &'a Document,
}

/// Runs `trueno-zram bench`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    needed_files::check_stdout(&args.files, global)?;
    args.html.as_ref().map_or(Ok(()), |html| needed_files::check_inputs(html, &args.files))?;
    let gpu = match (global.backend, Gpu::find()) {
        (Backend::Interpreter, _) => {
            return Err(Failure::usage("the interpreter checks kernels and times nothing; see selftest"));
        }
        (Backend::Cpu, _) => Gpu::Absent("--backend cpu".into()),
        (Backend::Gpu, Gpu::Absent(why)) => return Err(Failure::at("--backend gpu", why)),
        (_, gpu) => gpu,
    };
    let mut rivals = Rivals::default();
    for rival in &args.rival {
        match rival {
            Rival::NvComp(path) => rivals.nvcomp = Some(path.clone()),
            Rival::Zram => rivals.zram = true,
        }
    }
    if rivals.zram {
        for device in trueno_bench::remove_leftovers() {
            say(global, &format!("removed {device}, which an earlier run had left"));
        }
    }
    let corpora = load(&args.files, args.pages.get()).map_err(measured)?;
    for corpus in corpora.iter().filter(|corpus| corpus.tail_bytes > 0) {
        say(
            global,
            &format!("{}: the last {} bytes are not a whole page and are left out", corpus.name, corpus.tail_bytes),
        );
    }
    let run = RunSettings { rounds: args.rounds.get(), pages: args.pages.get(), threads: global.threads() };
    let bench = Bench::new(gpu, &rivals, &corpora, run).map_err(measured)?;
    // The report is opened before minutes are spent on measuring.
    let report = args.html.as_deref().map(open_report).transpose()?;
    let document = Watch::start(global, bench.parts()).guard(|watch| bench.run(watch).map_err(measured))?;
    if let Some(report) = report {
        write_report(report, &document)?;
    }
    if global.json {
        json::print(global, "bench", &BenchReport { machine: Machine::look(Measure::Nothing), document: &document })?;
    } else {
        stdout::print_lines(&table::draw(&document))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn open_report(path: &Path) -> Result<Output, Failure> {
    let options = OutputOptions::default().with_force(true);
    Ok(Output::create(&OutputTarget::Path(path.to_owned()), None, options)?)
}

fn write_report(mut report: Output, document: &Document) -> Result<(), Failure> {
    let written = report.write_all(html::page(document).as_bytes());
    written.map_err(|e| Failure::io(&report.name, &e))?;
    report.finish(None)?;
    Ok(())
}

/// Errors of the measuring name what failed and where.
fn measured(error: trueno_bench::Error) -> Failure {
    match error {
        trueno_bench::Error::Stopped => Failure::at("bench", "stopped by a signal"),
        trueno_bench::Error::Io { place, source } => Failure::io(place, &source),
        error => Failure::new(FailureKind::Other, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_are_named_by_kind_and_path() {
        assert_eq!("nvcomp=/lib/x.so".parse(), Ok(Rival::NvComp("/lib/x.so".into())));
        assert_eq!("zram".parse(), Ok(Rival::Zram));
        for (text, word) in
            [("nvcomp", "nvcomp=PATH"), ("nvcomp=", "nvcomp=PATH"), ("snappy=x", "\"snappy"), ("zram=1", "\"zram=1\"")]
        {
            assert!(text.parse::<Rival>().is_err_and(|message| message.contains(word)), "{text}");
        }
    }
}
