//! `trueno-zram -l`: a line per compressed file, as lz4, zstd and gzip have.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trueno_zram_archive::Pages as _;
use trueno_zram_io::{Discard, Input, Workers};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::{Failure, FailureKind};
use crate::files::{
    self,
    delta::BasesArgs,
    restore::{format_of_input, pages_by_index},
};
use crate::print::{printable::printable, quantity, report, stdout};

/// The widths of the columns before the name. Sizes have up to ten characters: `1023.9 KiB`.
fn row(kind: &str, file: &str, content: &str, ratio: &str, name: &str) -> String {
    format!("{kind:<6}{file:>12}{content:>14}{ratio:>9}  {name}\n")
}

/// Sums of the files.
#[derive(Debug, Default)]
struct Totals {
    files: u64,
    file_bytes: u64,
    content_bytes: u64,
}

/// Lists files. The content of one without an index is decoded to find its length.
pub(crate) fn run(files: &[PathBuf], bases: &BasesArgs, global: &Global) -> Result<ExitCode, Failure> {
    let mut engine = Engine::choose(global)?;
    let mut totals = Totals::default();
    stdout::print_lines(&row("Format", "Compressed", "Uncompressed", "Ratio", "Filename"))?;
    let code = files::for_each(files, "inspect", global, |path| list(path, bases, &mut engine, &mut totals))?;
    if totals.files > 1 {
        let Totals { files, file_bytes, content_bytes } = totals;
        let (file, content) = (quantity::bytes(file_bytes), quantity::bytes(content_bytes));
        let ratio = format!("{:.3}", report::ratio(content_bytes, file_bytes));
        stdout::print_lines(&row("", &file, &content, &ratio, &format!("{files} files")))?;
    }
    Ok(code)
}

fn list(path: &Path, bases: &BasesArgs, engine: &mut Engine, totals: &mut Totals) -> Result<(), Failure> {
    let input = Input::open(path)?;
    let name = input.name.clone();
    let file_bytes = input.len_bytes.unwrap_or(0);
    let (kind, content_bytes) = if let Some(chain) = bases.open_delta(path, &input)? {
        ("delta", chain.archive.len_bytes())
    } else {
        let format = format_of_input(&input).ok_or_else(|| not_listed(&input))?;
        let kind = match format {
            trueno_zram_archive::Format::Lz4 => "lz4",
            trueno_zram_archive::Format::Zstd => "zstd",
        };
        match pages_by_index(&input)? {
            Ok(Some(archive)) => (kind, archive.len_bytes()),
            // Without an index, or with one that cannot be used.
            Ok(None) | Err(_) => {
                let pool = engine.pool();
                let read = trueno_zram_io::restore(&input, &mut Discard, engine.decoders(), Workers::new(&pool))?;
                (kind, read.content_len)
            }
        }
    };
    totals.files += 1;
    totals.file_bytes += file_bytes;
    totals.content_bytes += content_bytes;
    let ratio = format!("{:.3}", report::ratio(content_bytes, file_bytes));
    let line = row(kind, &quantity::bytes(file_bytes), &quantity::bytes(content_bytes), &ratio, &printable(&name));
    stdout::print_lines(&line)
}

/// The failure of an input that is not a compressed file. For lz4, `-l` is the old format of the Linux kernel.
fn not_listed(input: &Input) -> Failure {
    let name = &input.name;
    if input.len_bytes.is_none() {
        return Failure::refused(name, "is not a regular file; -l lists files. trueno-zram -t reads from a pipe");
    }
    Failure::new(
        FailureKind::NotCompressed,
        format_args!(
            "{name}: is not compressed, and -l lists compressed files. trueno-zram inspect shows what compression would do; the \
             legacy format, which lz4 -l writes, can only be read"
        ),
    )
}
