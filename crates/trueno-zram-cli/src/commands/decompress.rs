//! `trueno-zram decompress`.

use std::path::Path;
use std::process::ExitCode;

use trueno_zram_io::Warning;

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{self, FileArgs};
use crate::input::Input;
use crate::json;
use crate::output::{Output, OutputOptions, Target};
use crate::progress::Progress;
use crate::report::{self, Report};
use crate::restore;

/// Arguments of `decompress`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    files: FileArgs,
    /// Write zeros instead of leaving holes where pages of new files are all zeros.
    #[arg(long)]
    no_sparse: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    args.files.check(global)?;
    let mut engine = Engine::choose(global)?;
    report::say_engine(global, &engine);
    files::for_each(&args.files.files, |path| {
        json::tracked(global, "decompress", path, decompress(path, args, global, &mut engine))
    })
}

fn decompress(path: &Path, args: &Args, global: &Global, engine: &mut Engine) -> Result<(), Failure> {
    let FileArgs { force, rm, .. } = args.files;
    let input = Input::open(path)?;
    // Of a file that is not LZ4 at all, its name is not the problem.
    let target = args.files.target(path, files::restored_name);
    let target = target.map_err(|failure| restore::not_lz4(&input).unwrap_or(failure))?;
    files::check_removable(rm, path, &input)?;
    let options = OutputOptions { force, binary: false, sparse: !args.no_sparse, durable: rm, private: false };
    let mut output = Output::create(&target, Some(&input.metadata), options)?;
    let progress = Progress::start(global, &input.name, None);
    let summary = restore::restore(&input, &mut output, engine, global, &progress)?;
    let output_name = output.name.clone();
    let warn = &mut |warning: Warning| report::warn(global, &output_name, &warning.to_string());
    output.finish_with(Some(&input.metadata), warn)?;
    let time = progress.finish();
    files::remove_source(rm, path, &input.metadata)?;

    let report = Report::restored("decompress", (&input.name, Some(&output_name)), &summary, time, engine);
    if target != Target::Stdout || global.verbose > 0 {
        let speed = report::gbps(report.bytes_out, time);
        report::say(
            global,
            &format!("{}: {} bytes restored, {speed:.2} GB/s: {output_name}", input.name, report.bytes_out),
        );
    }
    report::print_json(global, &report)
}
