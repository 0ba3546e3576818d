//! `trueno-zram test`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use trueno_zram_archive::{IndexVerdict, PageArchive};
use trueno_zram_io::{Discard, Input, Workers};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    self,
    delta::BasesArgs,
    needed_files::{self, NeededFiles},
    restore,
};
use crate::print::{
    progress::Progress,
    report::{self, FileReport},
};

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files to verify. Standard input if there are none, and for `-`.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    bases: BasesArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    if global.json {
        needed_files::check_stdout(&files::inputs(&args.files)?, global)?;
    }
    let mut engine = Engine::choose(global)?;
    report::say_engine(global, &engine);
    files::for_each(&args.files, "test", global, |path| test(path, args, global, &mut engine))
}

fn test(path: &Path, args: &Args, global: &Global, engine: &mut Engine) -> Result<(), Failure> {
    let input = Input::open(path)?;
    if let Some(chain) = args.bases.open_delta(path, &input)? {
        if global.json {
            NeededFiles::of_base(chain.bases()).check_stdout(global)?;
        }
        return test_delta(&input, &chain.archive, global, engine);
    }
    let progress = Progress::start(global, &input.name, None);
    let summary = restore::restore(&input, &mut Discard, engine, global, &progress)?;
    let time = progress.finish_with_timeline(global);
    // The content is complete, but `extract` would read wrong pages.
    if let IndexVerdict::Disagrees(reason) = &summary.index {
        return Err(Failure::damaged(&input.name, format!("the index does not describe the content: {reason}")));
    }
    say_ok(global, &FileReport::restored("test", (&input.name, None), &summary, time, engine), time)
}

/// Reads every page of a delta, and compares it with its hash.
fn test_delta(input: &Input, archive: &PageArchive, global: &Global, engine: &Engine) -> Result<(), Failure> {
    let progress = Progress::start(global, &input.name, None);
    trueno_zram_io::restore_pages(
        archive,
        &input.name,
        &mut Discard,
        Workers::new(&engine.pool()).with_observer(&progress),
    )?;
    let time = progress.finish_with_timeline(global);
    let delta = archive.as_delta().expect("opened as a delta");
    let bytes_in = input.len_bytes.unwrap_or(0);
    say_ok(global, &FileReport::restored_delta("test", (&input.name, None), delta, bytes_in, time, engine), time)
}

fn say_ok(global: &Global, report: &FileReport<'_>, time: Duration) -> Result<(), Failure> {
    let &FileReport { file, bytes_out, ratio, .. } = report;
    let line = if bytes_out == 0 {
        format!("{file}: OK, empty")
    } else {
        format!("{file}: OK, {bytes_out} bytes, ratio {ratio:.3}, {:.2} GB/s", report::gbps(bytes_out, time))
    };
    report::say(global, &line);
    report::print_json(global, report)
}
