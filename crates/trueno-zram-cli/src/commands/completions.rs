//! `trueno-zram completions`: shell completions on standard output.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, Global};
use crate::failure::Failure;

/// Print shell completions.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "For bash: trueno-zram completions bash > ~/.local/share/bash-completion/completions/trueno-zram"
)]
pub(crate) struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &Args, _global: &Global) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "trueno-zram", &mut script);
    std::io::stdout().write_all(&script).map_err(|e| Failure::io("standard output", &e))?;
    Ok(ExitCode::SUCCESS)
}
