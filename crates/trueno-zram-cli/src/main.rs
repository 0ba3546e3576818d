//! The command `trueno-zram`: compresses memory images, VM snapshots and the memory of running processes into standard `.lz4` and
//! `.zst` files with an index, and restores, serves and inspects them.
//!
//! ```console
//! $ trueno-zram compress memory.img                                  # memory.img.lz4; lz4 -d reads it
//! $ trueno-zram extract memory.img.lz4 --pages 300..310 -o pages.bin # reads those pages alone
//! $ trueno-zram snapshot PID -o process.lz4                          # the memory of a running process
//! $ trueno-zram restore --uffd vm.sock vm.mem.lz4                    # a VM runs while its memory is restored
//! $ trueno-zram serve --size 8G --nbd unix:ram.sock                  # compressed memory as a block device
//! ```
//!
//! `trueno-zram help` lists the commands. The repository's docs/FILES.md, RESTORE.md and SERVE.md describe their options, JSON.md what
//! `--json` prints. The exit code is 0 for success, 1 if anything failed, and 2 for wrong usage.
//!
//! This crate has arguments, words and exit codes only: a module per command in `commands`, what they print in `print`, their
//! files in `files`, the codec that they use in `engine`. The work is done by `trueno-zram-archive`, `-io`, `-restore`, `-criu`, `-store` and
//! `-serve`, which programs use directly.
#![deny(unsafe_code)]
// A line that cannot be written must not panic: see `print::messages`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod checks;
mod commands;
mod engine;
mod failure;
mod files;
mod machine;
mod print;
mod process;
mod signals;
mod survey;

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use trueno_zram_core::gpu::gpu_is_opening;

use args::{
    Cli, Command, lz4_compat,
    parse_errors::{self, LineForm},
    version,
};
use commands::{
    bench, completions, compress, control, criu, decompress, extract, flatten, info, inspect, man, restore, selftest,
    serve, snapshot, test,
};
use failure::Failure;
use print::{json, stdout};

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().collect();
    if version::is_asked_for(&args) {
        return version::print();
    }
    let (args, form) = match lz4_compat::with_command(args) {
        Ok(line) => line,
        Err(failure) => return failure.report(),
    };
    let parse = |args| {
        let matches = Cli::command().try_get_matches_from(lz4_compat::with_level(args))?;
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        Ok((Cli::from_arg_matches(&matches)?, name))
    };
    let named = lz4_compat::named_command(&args);
    let (cli, command) = match parse(args) {
        Ok(parsed) => parsed,
        Err(error) => return print_of_parser(error, named.as_deref(), form),
    };
    signals::survive_file_limits();
    signals::listen();
    end(run(&cli).unwrap_or_else(|failure| {
        // A signal may be the reason: what it removes, others miss. Then it ends the process here.
        drop(signals::hold_off());
        json::print_failed_run(&cli.global, &command, &failure);
        failure.report()
    }))
}

/// Ends the process at once if a thread is still opening a GPU: exit handlers would wait for a driver that hangs.
fn end(code: ExitCode) -> ExitCode {
    if gpu_is_opening() {
        // Nobody is left to hear of an error.
        let _ = io::stdout().flush();
        let number = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code);
        signal_hook::low_level::exit(number.unwrap_or(1).into());
    }
    code
}

/// Prints help, the version, or what is wrong with the arguments.
fn print_of_parser(error: clap::Error, command: Option<&str>, form: LineForm) -> ExitCode {
    if error.use_stderr() {
        return parse_errors::report(error, command, form);
    }
    let written = stdout::print(|_| error.print().and_then(|()| io::stdout().flush()));
    written.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}

fn run(cli: &Cli) -> Result<ExitCode, Failure> {
    let global = &cli.global;
    match &cli.command {
        Command::Compress(args) => compress::run(args, global),
        Command::Decompress(args) => decompress::run(args, global),
        Command::Test(args) => test::run(args, global),
        Command::Extract(args) => extract::run(args, global),
        Command::Flatten(args) => flatten::run(args, global),
        Command::Inspect(args) => inspect::run(args, global),
        Command::Info(args) => info::run(args, global),
        Command::Bench(args) => bench::run(args, global),
        Command::Selftest(args) => selftest::run(args, global),
        Command::Snapshot(args) => snapshot::run(args, global),
        Command::Serve(args) => serve::run(args, global),
        Command::Stat(args) => control::stat(args, global),
        Command::Save(args) => control::save(args, global),
        Command::Load(args) => control::load(args, global),
        Command::Resize(args) => control::resize(args, global),
        Command::Restore(args) => restore::run(args, global),
        Command::Criu(args) => criu::run(args, global),
        Command::Completions(args) => completions::run(args, global),
        Command::Man(args) => man::run(args, global),
    }
}
