//! `trueno-zram test`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trueno_zram_io::{Discard, Input};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    self,
    delta::BasesArgs,
    folders::{FileFilter, FolderArgs},
    needed_files::{self, NeededFiles},
    restore,
};
use crate::print::{
    progress::Progress,
    report::{self, FileNames},
};

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files to verify. Standard input if there are none, and for `-`.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    bases: BasesArgs,
    #[command(flatten)]
    folders: FolderArgs,
}

/// Runs `trueno-zram test`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let Some(files) = args.folders.expand(&args.files, FileFilter::Compressed, global)? else {
        return Ok(ExitCode::SUCCESS);
    };
    if global.json {
        needed_files::check_stdout(&files::inputs(&files)?, global)?;
    }
    let mut engine = Engine::choose(global)?;
    let done = files::for_each(&files, "test", global, |path| test(path, args, global, &mut engine));
    report::say_engine(global, &engine);
    done
}

fn test(path: &Path, args: &Args, global: &Global, engine: &mut Engine) -> Result<(), Failure> {
    let input = Input::open(path)?;
    let chain = args.bases.open_delta(path, &input)?;
    if let Some(chain) = chain.as_ref().filter(|_| global.json) {
        NeededFiles::of_base(chain.bases()).check_stdout(global)?;
    }
    let progress = Progress::start(global, &input.name, None);
    let restored = restore::restore_whole((&input, chain.as_ref()), &mut Discard, engine, global, &progress)?;
    let time = progress.finish(global);
    // The content is complete, but `extract` would read wrong pages.
    if let Some(reason) = restored.index_problem() {
        return Err(Failure::damaged(&input.name, format!("the index does not describe the content: {reason}")));
    }
    let file = &input.name[..];
    let report = restored.report(FileNames { command: "test", file, output: None }, &input, time, engine);
    let line = match report.bytes_out {
        0 => format!("{file}: OK, empty"),
        bytes => format!("{file}: OK, {bytes} bytes, ratio {:.3}, {:.2} GB/s", report.ratio, report.gbps(bytes)),
    };
    report::say(global, &line);
    report.print_json(global)
}
