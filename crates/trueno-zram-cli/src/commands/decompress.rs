//! `trueno-zram decompress`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use trueno_zram_io::{Input, MetadataWarning, Output, OutputOptions, OutputTarget};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    self, FileArgs,
    delta::BasesArgs,
    folders::FileFilter,
    in_place,
    needed_files::{InputChains, NeededFiles},
    restore,
};
use crate::print::{
    json,
    progress::Progress,
    quantity,
    report::{self, FileNames},
};

/// Arguments of `decompress`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("force", |force| force.help("Overwrite files and block devices")))]
pub(crate) struct Args {
    #[command(flatten)]
    files: FileArgs,
    /// Write zeros instead of leaving holes where pages of new files are all zeros.
    #[arg(long)]
    no_sparse: bool,
    /// Restore what is left of a damaged file. Damaged pages become zeros and are listed; the exit code is 1.
    #[arg(long, conflicts_with = "rm")]
    salvage: bool,
    #[command(flatten)]
    bases: BasesArgs,
    /// Fill the existing file OUT in place: it is not replaced, and whoever has it open sees the content. What it has is dropped
    /// first, and zeros become holes. It keeps its length if it is longer. If this fails, it is left empty of content; if a signal ends
    /// it, a part of the content stays, and it says so.
    #[arg(long, requires = "output", conflicts_with_all = ["salvage", "no_sparse", "stdout", "output_dir"])]
    in_place: bool,
}

impl Args {
    /// The arguments for files that are restored beside themselves, and then removed or kept.
    pub(crate) fn of_files(files: Vec<PathBuf>, bases: &BasesArgs, keep: bool) -> Self {
        Self {
            files: FileArgs::beside(files, keep),
            no_sparse: false,
            salvage: false,
            bases: bases.clone(),
            in_place: false,
        }
    }
}

/// Runs `trueno-zram decompress`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let Some(files) = args.files.expand(FileFilter::Compressed, global)? else { return Ok(ExitCode::SUCCESS) };
    let args = &Args { files, ..args.clone() };
    args.files.check(global)?;
    args.files.check_targets(files::restored_name)?;
    let mut engine = Engine::choose(global)?;
    let chains = InputChains::of(&args.files.files, &args.bases.opener());
    let done = files::for_each(&args.files.files, "decompress", global, |path| {
        decompress(path, args, &chains, global, &mut engine)
    });
    report::say_engine(global, &engine);
    done
}

fn decompress(
    path: &Path,
    args: &Args,
    chains: &InputChains,
    global: &Global,
    engine: &mut Engine,
) -> Result<(), Failure> {
    let FileArgs { force, rm, .. } = args.files;
    let input = Input::open(path)?;
    if rm {
        chains.check_removal(path, &input.metadata)?;
    }
    if let Some(output) = args.files.output.as_deref().filter(|_| args.in_place) {
        let removal = args.files.removal(path, &input)?;
        let delta = args.bases.open_delta(path, &input)?;
        in_place::fill_file((&input, delta.as_ref()), output, engine, global)?;
        return removal.complete();
    }
    // Of a file that is not compressed at all, its name is not the problem.
    let target = args.files.target(path, files::restored_name);
    let target = target.map_err(|failure| restore::not_compressed(&input).unwrap_or(failure))?;
    let removal = args.files.removal(path, &input)?;
    let delta = args.bases.open_delta(path, &input)?;
    if let Some(chain) = &delta {
        NeededFiles::of_base(chain.bases()).check_target(&target, global)?;
    }
    chains.check_target(&target, global)?;
    if delta.is_some() && args.salvage {
        return Err(Failure::at(
            &input.name,
            "is a delta: it is restored as a whole or not at all; leave out --salvage",
        ));
    }
    let options = OutputOptions::default().with_force(force).with_sparse(!args.no_sparse).with_durable(rm);
    let output = Output::create(&target, Some(&input.metadata), options);
    let mut output = output.map_err(|error| args.files.output_failure(error))?;
    let progress = Progress::start(global, &input.name, None);
    if args.salvage {
        return salvage(&input, output, engine, global, progress);
    }
    let restored = restore::restore_whole((&input, delta.as_ref()), &mut output, engine, global, &progress)?;
    restored.warn_of_index(&input);
    let output_name = output.name.clone();
    let warn = &mut |warning: MetadataWarning| report::warn(global, &output_name, &warning.to_string());
    output.finish_with(Some(&input.metadata), warn).map_err(|error| args.files.output_failure(error))?;
    let time = progress.finish(global);
    removal.complete()?;

    let names = FileNames { command: "decompress", file: &input.name, output: Some(&output_name) };
    let report = restored.report(names, &input, time, engine);
    if target != OutputTarget::Stdout || global.verbose > 0 {
        let (bytes, speed) = (report.bytes_out, report.gbps(report.bytes_out));
        report::say(global, &format!("{}: {bytes} bytes restored, {speed:.2} GB/s: {output_name}", input.name));
    }
    report.print_json(global)
}

/// The result of a salvage that found no damage.
#[derive(Debug, Serialize)]
struct Salvaged<'a> {
    file: &'a str,
    output: &'a str,
    bytes_out: u64,
}

/// Restores a damaged file as far as possible. The output stays, whatever is missing in it.
fn salvage(
    input: &Input,
    mut output: Output,
    engine: &Engine,
    global: &Global,
    progress: Progress,
) -> Result<(), Failure> {
    let (content_len, damage) = restore::salvage(input, &mut output, engine, &progress)?;
    let output_name = output.name.clone();
    let warn = &mut |warning: MetadataWarning| report::warn(global, &output_name, &warning.to_string());
    output.finish_with(Some(&input.metadata), warn)?;
    progress.finish(global);
    if damage.is_empty() {
        report::say(global, &format!("{}: no damage, {content_len} bytes written: {output_name}", input.name));
        return json::print(
            global,
            "decompress",
            &Salvaged { file: &input.name, output: &output_name, bytes_out: content_len },
        );
    }
    let pages: u64 = damage.iter().map(|part| part.pages().end - part.pages().start).sum();
    let lost = match pages {
        // Of a header, the index, or at an end that is missing.
        0 => "damaged outside its pages".to_owned(),
        _ => format!("{} damaged and replaced by zeros", quantity::pages(pages)),
    };
    let what = format!("{lost}, {content_len} bytes written: {output_name}");
    Err(Failure::damaged(&input.name, what))
}
