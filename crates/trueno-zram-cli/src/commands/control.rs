//! `trueno-zram stat`, `save`, `load` and `resize`: requests to the control socket of a running `serve`.

mod table;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use trueno_zram_core::{Algorithm, PAGE_SIZE};
use trueno_zram_io::{ChainFile, FileId, Operation, Output, OutputOptions, OutputTarget, os_text};
use trueno_zram_serve::control::{ControlClient, ControlError, ExportStat, ServedFile};

use trueno_zram_serve::registry::{Registry, ServerRecord};

use crate::args::Global;
use crate::commands::serve::parse_size;
use crate::failure::{Failure, FailureKind};
use crate::files::{
    self,
    needed_files::{self, NeededFiles},
};
use crate::print::{json, quantity, report, stdout};

/// The name in a request for the only export that a server has.
const ONLY_EXPORT: &str = "";

/// The time for the statistics of one of many servers.
const STAT_TIMEOUT: Duration = Duration::from_secs(5);

/// Show what a running `serve` holds, or which servers of this user run.
#[derive(Debug, clap::Args)]
pub(crate) struct StatArgs {
    /// The control socket of the server. Without it, all servers that this user has started are listed.
    socket: Option<PathBuf>,
    /// Print the statistics as OpenMetrics text.
    #[arg(long, requires = "socket", conflicts_with = "json")]
    metrics: bool,
}

/// Change the length of the device of a running `serve`.
///
/// It shrinks if all that is cut off reads as zeros, and grows up to the --max-size of the server. Clients see the new length when they
/// connect again.
#[derive(Debug, clap::Args)]
pub(crate) struct ResizeArgs {
    /// The control socket of the server.
    socket: PathBuf,
    /// The new length, such as 16G.
    #[arg(value_parser = parse_size)]
    size: u64,
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

/// The result of `stat` without a socket, for scripts.
#[derive(Debug, Serialize)]
struct ServersReport {
    servers: Vec<ListedServer>,
}

/// A running server.
#[derive(Debug, Serialize)]
struct ListedServer {
    #[serde(flatten)]
    record: ServerRecord,
    /// Its content, if it has a control socket and answers.
    exports: Vec<ExportStat>,
}

/// The result of `resize`, for scripts.
#[derive(Debug, Serialize)]
struct ResizeReport {
    size_bytes: u64,
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
    let Some(socket) = &args.socket else { return list_servers(global) };
    if args.metrics {
        let metrics = connect(socket)?.metrics().map_err(|error| Failure::at(socket.display(), error))?;
        stdout::print_lines(&metrics)?;
        return Ok(ExitCode::SUCCESS);
    }
    let exports = exports(socket)?;
    if global.json {
        json::print(global, "stat", &StatReport { exports })?;
    } else {
        stdout::print_lines(&table::of_exports(&exports))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the servers that run. One that does not answer is listed without what it holds.
fn list_servers(global: &Global) -> Result<ExitCode, Failure> {
    let records = match Registry::folder_of_user() {
        // Not made for the sake of a list.
        Some(folder) if folder.symlink_metadata().is_ok() => {
            let servers = Registry::open(&folder).and_then(|registry| registry.servers());
            servers.map_err(|error| Failure::io(folder.display(), &error))?
        }
        _ => Vec::new(),
    };
    let listed = |record: ServerRecord| {
        let exports = record.control.as_deref().map(|control| {
            let client = ControlClient::connect(control).and_then(|client| client.with_timeout(STAT_TIMEOUT));
            client.map_err(ControlError::from).and_then(ControlClient::stat)
        });
        ListedServer { record, exports: exports.and_then(Result::ok).unwrap_or_default() }
    };
    let servers: Vec<_> = records.into_iter().map(listed).collect();
    if global.json {
        json::print(global, "stat", &ServersReport { servers })?;
    } else if servers.is_empty() {
        report::say(global, "no server of this user runs; trueno-zram serve starts one");
    } else {
        stdout::print_lines(&table::of_servers(&servers))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `resize`.
pub(crate) fn resize(args: &ResizeArgs, global: &Global) -> Result<ExitCode, Failure> {
    let size_bytes = args.size.checked_next_multiple_of(PAGE_SIZE as u64).unwrap_or(args.size);
    let max_bytes = exports(&args.socket)?.first().map_or(u64::MAX, |export| export.stats.max_size_bytes);
    if size_bytes > max_bytes {
        return Err(Failure::refused(
            args.socket.display(),
            format_args!("the server was started with room for {max_bytes} bytes; more needs a start with --max-size"),
        ));
    }
    let resized = connect(&args.socket)?.resize(ONLY_EXPORT, size_bytes);
    resized.map_err(|error| match error {
        ControlError::Server(reason) => Failure::refused(args.socket.display(), reason),
        error => Failure::at(args.socket.display(), error),
    })?;
    let size = quantity::bytes(size_bytes);
    report::say(global, &format!("{}: {size} now; clients see it when they connect again", args.socket.display()));
    json::print(global, "resize", &ResizeReport { size_bytes })?;
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
    ControlClient::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Failure::new(
            FailureKind::from(&error),
            format_args!(
                "{}: {}; no server listens there, and trueno-zram stat lists those that run",
                socket.display(),
                os_text(&error)
            ),
        ),
        _ => Failure::io(socket.display(), &error),
    })
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
