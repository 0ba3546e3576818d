//! `trueno-zram load`.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use crate::args::Global;
use crate::commands::control;
use crate::failure::Failure;
use crate::files::needed_files;
use crate::print::{json, quantity, report};

/// Load a page archive, or any other .lz4 or .zst file, into a running `serve`, from the start of the device on.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The control socket of the server.
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// The archive to load.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The export to load into. Without a name, the first.
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
}

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct LoadReport {
    file: String,
    bytes_out: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    if global.json {
        needed_files::check_stdout(std::slice::from_ref(&args.file), global)?;
    }
    let file = args.file.display().to_string();
    let mut archive = File::open(&args.file).map_err(|error| Failure::io(&file, &error))?;
    let client = control::connect(&args.socket)?;
    let loaded = client.load(&args.export, &mut archive);
    let bytes_out = loaded.map_err(|error| Failure::at(&file, error))?;
    report::say(global, &format!("{file}: {} loaded", quantity::bytes(bytes_out)));
    json::print(global, "load", &LoadReport { file, bytes_out })?;
    Ok(ExitCode::SUCCESS)
}
