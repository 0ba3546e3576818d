//! `trueno-zram test`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trueno_zram_archive::IndexVerdict;
use trueno_zram_io::Nowhere;

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files;
use crate::input::Input;
use crate::json;
use crate::progress::Progress;
use crate::report::{self, Report};
use crate::restore;

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files to verify. Standard input if there are none, and for `-`.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let mut engine = Engine::choose(global)?;
    report::say_engine(global, &engine);
    files::for_each(&args.files, |path| json::tracked(global, "test", path, test(path, global, &mut engine)))
}

fn test(path: &Path, global: &Global, engine: &mut Engine) -> Result<(), Failure> {
    let input = Input::open(path)?;
    let progress = Progress::start(global, &input.name, None);
    let summary = restore::restore(&input, &mut Nowhere, engine, global, &progress)?;
    let time = progress.finish_with_timeline(global);
    // The content is complete, but `extract` would read wrong pages.
    if let IndexVerdict::Disagrees(reason) = &summary.index {
        return Err(Failure::at(&input.name, format!("the index does not describe the content: {reason}")));
    }
    let report = Report::restored("test", (&input.name, None), &summary, time, engine);
    let Report { file, bytes_out, ratio, .. } = report;
    let line = if bytes_out == 0 {
        format!("{file}: OK, empty")
    } else {
        format!("{file}: OK, {bytes_out} bytes, ratio {ratio:.3}, {:.2} GB/s", report::gbps(bytes_out, time))
    };
    report::say(global, &line);
    report::print_json(global, &report)
}
