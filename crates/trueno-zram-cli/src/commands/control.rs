//! `trueno-zram stat`, `save` and `load`: requests to the control socket of a running `serve`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use trueno_zram_core::Algorithm;
use trueno_zram_io::{ChainFile, FileId, Operation, Output, OutputOptions, OutputTarget};
use trueno_zram_serve::control::{ControlClient, ControlError, ExportStat, ServedFile};

use crate::args::Global;
use crate::failure::Failure;
use crate::files::{
    self,
    needed_files::{self, NeededFiles},
};
use crate::print::{json, printable::printable, quantity, report, stdout};

/// The name in a request for the only export that a server has.
const ONLY_EXPORT: &str = "";

/// Show what a running `serve` holds.
#[derive(Debug, clap::Args)]
pub(crate) struct StatArgs {
    /// The control socket of the server.
    socket: PathBuf,
}

/// Save what a running `serve` holds to a page archive, as it is at this moment. Requests go on meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct SaveArgs {
    /// The control socket of the server.
    socket: PathBuf,
    /// The archive to write; `-` is standard output.
    file: PathBuf,
    /// The format to write: lz4, zstd or zstd:LEVEL. Without it, zstd for a name that ends in .zst, else lz4.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Overwrite the archive if it exists. What the server itself reads is never overwritten.
    #[arg(short, long)]
    force: bool,
}

/// Load a page archive, or any other .lz4 or .zst file, into a running `serve`, from the start of the device on.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// The control socket of the server.
    socket: PathBuf,
    /// The archive to load.
    file: PathBuf,
}

/// The result of `stat`, for scripts.
#[derive(Debug, Serialize)]
struct StatReport {
    exports: Vec<ExportStat>,
}

/// The result of `save` or `load`, for scripts.
#[derive(Debug, Serialize)]
struct TransferReport<'a> {
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in: Option<u64>,
    bytes_out: u64,
}

/// Runs `stat`.
pub(crate) fn stat(args: &StatArgs, global: &Global) -> Result<ExitCode, Failure> {
    let exports = exports(&args.socket)?;
    if global.json {
        json::print(global, "stat", &StatReport { exports })?;
    } else {
        stdout::print_lines(&table(&exports))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `save`.
pub(crate) fn save(args: &SaveArgs, global: &Global) -> Result<ExitCode, Failure> {
    let target = files::single_target(&args.file, global)?;
    let algorithm = args.algorithm.unwrap_or_else(|| algorithm_of(&args.file));
    check_served_files(&args.socket, &target, global)?;
    let client = connect(&args.socket)?;
    let options = OutputOptions::default().with_force(args.force).with_binary(true);
    let mut output = Output::create(&target, None, options)?;
    let name = output.name.clone();
    let saved = client.save(ONLY_EXPORT, algorithm, &mut output);
    let bytes_in = saved.map_err(|error| match error {
        ControlError::Output(source) => trueno_zram_io::Error::io(&name, Operation::Write, source).into(),
        ControlError::Io(source) => Failure::at(args.socket.display(), format!("the connection failed: {source}")),
        error => Failure::at(args.socket.display(), error),
    })?;
    let bytes_out = output.finish(None)?;
    report::say(global, &format!("{name}: {} in {}", quantity::bytes(bytes_in), quantity::bytes(bytes_out)));
    json::print(global, "save", &TransferReport { file: &name, bytes_in: Some(bytes_in), bytes_out })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `load`.
pub(crate) fn load(args: &LoadArgs, global: &Global) -> Result<ExitCode, Failure> {
    if global.json {
        needed_files::check_stdout(std::slice::from_ref(&args.file), global)?;
    }
    let file = args.file.display().to_string();
    let mut archive = File::open(&args.file).map_err(|error| Failure::io(&file, &error))?;
    let loaded = connect(&args.socket)?.load(ONLY_EXPORT, &mut archive);
    let bytes_out = loaded.map_err(|error| Failure::at(&file, error))?;
    report::say(global, &format!("{file}: {} loaded", quantity::bytes(bytes_out)));
    json::print(global, "load", &TransferReport { file: &file, bytes_in: None, bytes_out })?;
    Ok(ExitCode::SUCCESS)
}

fn connect(socket: &Path) -> Result<ControlClient, Failure> {
    ControlClient::connect(socket).map_err(|error| Failure::io(socket.display(), &error))
}

/// Asks a server for its statistics.
fn exports(socket: &Path) -> Result<Vec<ExportStat>, Failure> {
    connect(socket)?.stat().map_err(|error| Failure::at(socket.display(), error))
}

/// Refuses an output that would hit a file that the server reads: for its own sake, as the server may be started again with
/// that file, and for the sake of its bases and of what else is read with them.
fn check_served_files(socket: &Path, target: &OutputTarget, global: &Global) -> Result<(), Failure> {
    for export in exports(socket)? {
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

/// The columns of zramctl, as far as they have a meaning here, and the ratio.
fn table(exports: &[ExportStat]) -> String {
    let mut rows =
        vec![["NAME", "SIZE", "DATA", "COMPR", "TOTAL", "LIMIT", "RATIO", "SAME", "ALGORITHM"].map(str::to_owned)];
    for export in exports {
        let mm = &export.stats.mm;
        let ratio = mm.orig_data_size as f64 / mm.mem_used_total.max(1) as f64;
        rows.push([
            printable(&export.name),
            quantity::bytes(export.stats.size_bytes),
            quantity::bytes(mm.orig_data_size),
            quantity::bytes(mm.compr_data_size),
            quantity::bytes(mm.mem_used_total),
            if mm.mem_limit == 0 { "none".to_owned() } else { quantity::bytes(mm.mem_limit) },
            if mm.mem_used_total == 0 { "-".to_owned() } else { format!("{ratio:.2}") },
            quantity::count(mm.same_pages),
            printable(&export.algorithm),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..9).map(width).collect();
    let line = |row: &[String; 9]| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
