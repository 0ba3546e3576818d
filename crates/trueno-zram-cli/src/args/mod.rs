//! The command line: options of all commands, and the commands.

pub(crate) mod compression;
pub(crate) mod lz4_compat;
pub(crate) mod parse_errors;
pub(crate) mod ranges;
pub(crate) mod verify;
pub(crate) mod version;

use std::fmt;
use std::num::{IntErrorKind, NonZeroUsize, ParseIntError};
use std::str::FromStr;
use std::thread::available_parallelism;

use clap::{Parser, Subcommand, ValueEnum};

use crate::commands::{
    bench, completions, compress, control, criu, decompress, extract, flatten, info, inspect, man, restore, selftest,
    serve, snapshot, test,
};
use crate::print::stopwatch::Stopwatch;

/// The two forms of a command line, aligned as `--help` prints them.
const USAGE: &str = "trueno-zram [OPTIONS] <COMMAND>\n       trueno-zram [-d|-t|-l] [FILE]...";

/// The form without a command.
pub(crate) const COMPAT_USAGE: &str = "trueno-zram [-d|-t|-l] [OPTIONS] [FILE]...";

/// Compress memory images into standard .lz4 and .zst files: fast, seekable, safe.
///
/// Without a command, `trueno-zram` works like lz4: it compresses the FILEs it is given, or standard input; -d
/// decompresses, and so does a FILE that ends in .lz4 or .zst; -t tests, -l lists, -1 to -22 set the level, --zstd makes
/// .zst files, -r takes the files in directories. So `tar -I trueno-zram -cf` and `-xf` work.
#[derive(Debug, Parser)]
#[command(name = "trueno-zram", version, propagate_version = true, arg_required_else_help = true)]
#[command(override_usage = USAGE)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of all commands.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct Global {
    /// Print no progress or summaries.
    #[arg(short, long, global = true, conflicts_with = "verbose", overrides_with = "quiet")]
    pub(crate) quiet: bool,
    /// Print more: the back end that was chosen and why, times, figures. Twice: the time of all threads per stage.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Number of worker threads, up to 256; 0 means one per core.
    #[arg(short = 'T', long, global = true, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = parse_threads)]
    threads: u16,
    /// The back end that compresses and decompresses pages.
    #[arg(long, global = true, value_enum, default_value_t = Backend::Auto)]
    pub(crate) backend: Backend,
    /// Print results as JSON on standard output, for scripts.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The time of each file.
    #[arg(skip)]
    pub(crate) stopwatch: Stopwatch,
}

impl Global {
    /// Number of worker threads.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.asked_threads().or_else(|| available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }

    /// Number of worker threads, if the user gave one.
    pub(crate) fn asked_threads(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(self.threads.into())
    }
}

/// Parses a whole number, with an error that says what is wrong in plain words.
pub(crate) fn parse_whole<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "the number is too large".to_owned(),
        _ => "not a number".to_owned(),
    })
}

fn parse_threads(text: &str) -> Result<u16, String> {
    const MAX_THREADS: u16 = 256;
    match parse_whole(text)? {
        threads @ 0..=MAX_THREADS => Ok(threads),
        threads => Err(format!("{threads} is not in 0..={MAX_THREADS}")),
    }
}

/// The back end that compresses and decompresses pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The GPU or the CPU, whichever is measured to be faster.
    Auto,
    /// The GPU; an error if there is none.
    Gpu,
    /// The CPU.
    Cpu,
    /// The GPU kernels, interpreted on the CPU: slow, for checking.
    Interpreter,
}

impl fmt::Display for Backend {
    /// Writes the value as it is spelled on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no value is hidden").get_name())
    }
}

/// The commands. Those without a description here have it at their arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compress a file into a page archive, which is a standard .lz4 or .zst file.
    Compress(compress::Args),
    /// Restore a page archive, or any other .lz4 or .zst file.
    Decompress(decompress::Args),
    /// Verify a .lz4 or .zst file without writing anything.
    Test(test::Args),
    /// Restore some pages of a page archive, reading only those.
    Extract(extract::Args),
    Flatten(flatten::Args),
    Inspect(inspect::Args),
    Info(info::Args),
    Bench(bench::Args),
    Selftest(selftest::Args),
    Snapshot(snapshot::Args),
    Serve(serve::Args),
    Stat(control::StatArgs),
    Save(control::SaveArgs),
    Load(control::LoadArgs),
    Resize(control::ResizeArgs),
    Restore(restore::Args),
    Criu(criu::Args),
    Completions(completions::Args),
    Man(man::Args),
}
