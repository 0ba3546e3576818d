//! `trueno-zram completions`: shell completions on standard output.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, Global};
use crate::failure::Failure;
use crate::print::{json, stdout};

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

/// Runs `trueno-zram completions`.
pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    json::refuse(global, "completions")?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "trueno-zram", &mut script);
    stdout::print(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}
