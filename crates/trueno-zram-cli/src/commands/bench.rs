//! `trueno-zram bench`: back ends and rivals side by side, in one run.

mod document;
mod gpu;
mod html;
mod interrupt;
mod lineup;
mod measure;
mod scaling;
mod stages;
mod table;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use trueno_bench_engines::nvcomp;

use crate::args::{Backend, Global};
use crate::failure::Failure;
use crate::machine::{Machine, Measure};
use crate::output::{Output, OutputOptions, Target};
use document::{CorpusFacts, Document, Run};
use interrupt::Watch;
use lineup::Lineup;

/// Arguments of `bench`.
///
/// Every engine does the same job: a batch of pages into blocks, packed one after the other, and back. Same-filled pages
/// are counted and left out for all of them. All engines take their turn in each round; figures are medians, and quotients
/// are medians of neighbouring timings. Every engine's output is decoded and compared before it is timed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files of 4 KiB pages [default: the built-in corpus].
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write a report with plots there: one HTML page that needs nothing else. A file of that name is replaced.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// A rival to measure beside the others: nvcomp=PATH names the library libnvcomp.so, which needs a GPU.
    #[arg(long, value_name = "KIND=PATH")]
    rival: Vec<Rival>,
    /// Rounds; the median of each figure counts.
    #[arg(long, value_name = "N", default_value = "7")]
    rounds: NonZeroUsize,
    /// Pages in a batch, at most: a smaller corpus is repeated whole, a larger one sampled.
    #[arg(long, value_name = "N", default_value = "8192")]
    pages: NonZeroUsize,
}

/// A rival that is loaded from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rival {
    NvComp(PathBuf),
}

impl FromStr for Rival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("nvcomp", path)) if !path.is_empty() => Ok(Self::NvComp(path.into())),
            Some((kind, _)) if kind != "nvcomp" => Err(format!("there is no rival {kind:?}; there is nvcomp")),
            _ => Err("expected nvcomp=PATH".into()),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    if global.backend == Backend::Interpreter {
        return Err(Failure::usage("the interpreter checks kernels and times nothing; see selftest"));
    }
    let threads = global.threads();
    let gpu = gpu::open(global.backend, threads)?;
    let nvcomp = args.rival.iter().map(|Rival::NvComp(path)| nvcomp::Session::new(path)).collect::<Result<Vec<_>, _>>();
    let lineup = Lineup::new(gpu, nvcomp.map_err(measured)?);
    let corpora = trueno_bench_engines::load(&args.files, args.pages.get()).map_err(measured)?;
    for corpus in corpora.iter().filter(|corpus| corpus.tail_bytes > 0) {
        crate::report::say(
            global,
            &format!("{}: {} bytes at its end are no page: left out", corpus.name, corpus.tail_bytes),
        );
    }
    // The report's place is tried before minutes are spent on measuring.
    let report = args.html.as_ref().map(|path| open_report(path)).transpose()?;

    let watch = Watch::start(global, lineup.steps(&corpora, threads, args.rounds.get()));
    let run = Run { rounds: args.rounds.get(), pages: args.pages.get(), threads };
    let document = watch.guard(|watch| measure_all(&lineup, &corpora, run, watch))?;

    if let Some(report) = report {
        write_report(report, &document)?;
    }
    let text = if global.json {
        serde_json::to_string_pretty(&document).map_err(|e| Failure::at("bench", e))? + "\n"
    } else {
        table::draw(&document)
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|e| Failure::io("standard output", &e))?;
    Ok(ExitCode::SUCCESS)
}

fn measure_all(
    lineup: &Lineup,
    corpora: &[trueno_bench_engines::Corpus],
    run: Run,
    watch: &Watch,
) -> Result<Document, Failure> {
    let mut document = Document {
        machine: Machine::look(Measure::Nothing, None),
        command: command_line(),
        date: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or_else(|_| "?".into(), |time| document::date(time.as_secs())),
        run,
        corpora: corpora.iter().map(|corpus| CorpusFacts::of(corpus, run.pages)).collect(),
        rows: Vec::new(),
        quotients: Vec::new(),
        means: Vec::new(),
        scaling: Vec::new(),
        stages: Vec::new(),
        crossing: None,
        left_out: Vec::new(),
    };
    for corpus in corpora {
        let (rows, quotients) = measure::side_by_side(lineup, corpus, run, watch)?;
        document.rows.extend(rows);
        document.quotients.extend(quotients);
    }
    document.means = document::means(&document.rows, &document.quotients);
    let mixed = scaling::mix(corpora, run.pages);
    let (scaling, mut gpu_stages) = scaling::measure(lineup, &mixed, run, watch)?;
    document.crossing = scaling::crossing(&scaling, lineup);
    document.scaling = scaling;
    document.stages = stages::measure(&mixed, run, watch)?;
    document.stages.append(&mut gpu_stages);
    document.left_out = lineup.left_out();
    Ok(document)
}

fn open_report(path: &std::path::Path) -> Result<Output, Failure> {
    let options = OutputOptions { force: true, ..OutputOptions::default() };
    Ok(Output::create(&Target::Path(path.to_owned()), None, options)?)
}

fn write_report(mut report: Output, document: &Document) -> Result<(), Failure> {
    let written = report.write_all(html::page(document).as_bytes());
    written.map_err(|e| Failure::io(&report.name, &e))?;
    report.finish(None)?;
    Ok(())
}

/// The command as it was given, for the report.
fn command_line() -> String {
    let quoted = |arg: &str| match arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c)) {
        true if !arg.is_empty() => arg.to_owned(),
        _ => format!("'{}'", arg.replace('\'', r"'\''")),
    };
    let args = std::env::args_os().skip(1).map(|arg| quoted(&arg.to_string_lossy()));
    std::iter::once("trueno-zram".to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

/// What failed while measuring says itself what and where.
fn measured(error: trueno_bench_engines::Error) -> Failure {
    Failure::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_are_named_by_kind_and_path() {
        assert_eq!("nvcomp=/lib/x.so".parse(), Ok(Rival::NvComp("/lib/x.so".into())));
        for (text, word) in [("nvcomp", "nvcomp=PATH"), ("nvcomp=", "nvcomp=PATH"), ("snappy=x", "\"snappy\"")] {
            assert!(text.parse::<Rival>().is_err_and(|message| message.contains(word)), "{text}");
        }
    }
}
