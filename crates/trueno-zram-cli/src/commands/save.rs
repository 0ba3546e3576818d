//! `trueno-zram save`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use trueno_zram_core::Algorithm;
use trueno_zram_io::{ChainFile, FileId, Operation, Output, OutputOptions, OutputTarget};
use trueno_zram_serve::control::{ControlError, ServedFile};

use crate::args::Global;
use crate::commands::control;
use crate::failure::Failure;
use crate::files::{self, needed_files::NeededFiles};
use crate::print::{json, quantity, report};

/// Save what a running `serve` holds to a page archive, as it is at this moment. Requests go on meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The control socket of the server.
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// The archive to write; `-` is standard output.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The export to save. Without a name, the first.
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// The format to write: lz4, zstd or zstd:LEVEL. Without it, zstd for a name that ends in .zst, else lz4.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Overwrite the archive if it exists. What the server itself reads is never overwritten.
    #[arg(short, long)]
    force: bool,
}

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct SaveReport<'a> {
    file: &'a str,
    bytes_in: u64,
    bytes_out: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let target = files::single_target(&args.file, global)?;
    let algorithm = args.algorithm.unwrap_or_else(|| algorithm_of(&args.file));
    check_served_files(args, &target, global)?;
    let client = control::connect(&args.socket)?;
    let options = OutputOptions::default().with_force(args.force).with_binary(true);
    let mut output = Output::create(&target, None, options)?;
    let name = output.name.clone();
    let saved = client.save(&args.export, algorithm, &mut output);
    let bytes_in = saved.map_err(|error| match error {
        ControlError::Output(source) => trueno_zram_io::Error::io(&name, Operation::Write, source).into(),
        ControlError::Io(source) => Failure::at(args.socket.display(), format!("the connection failed: {source}")),
        error => Failure::at(args.socket.display(), error),
    })?;
    let bytes_out = output.finish(None)?;
    report::say(global, &format!("{name}: {} in {}", quantity::bytes(bytes_in), quantity::bytes(bytes_out)));
    json::print(global, "save", &SaveReport { file: &name, bytes_in, bytes_out })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses an output that would hit a file that the server reads: for its own sake, as the server may be started again with
/// that file, and for the sake of its bases and of what else is read with them.
fn check_served_files(args: &Args, target: &OutputTarget, global: &Global) -> Result<(), Failure> {
    let exports = control::connect(&args.socket)?.stat();
    for export in exports.map_err(|error| Failure::at(args.socket.display(), error))? {
        let id = |file: &ServedFile| FileId { device: file.device, inode: file.inode };
        let files: Vec<_> = export.files.into_iter().map(|file| ChainFile { id: id(&file), path: file.path }).collect();
        NeededFiles::of_server(&files).check_target(target, global)?;
    }
    Ok(())
}

/// The algorithm that the name of a file asks for.
fn algorithm_of(path: &Path) -> Algorithm {
    let is_zst = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zst"));
    if is_zst { Algorithm::Zstd { level: 3 } } else { Algorithm::Lz4 }
}
