//! `trueno-zram restore --elf-core`: a process snapshot as a core file for debuggers.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use trueno_zram_archive::address_map::StoredMap;
use trueno_zram_archive::process_state::ProcessState;
use trueno_zram_archive::{PageArchive, Pages};
use trueno_zram_core::{PAGE_SIZE, Page};
use trueno_zram_io::{ArchiveChain, Operation, Output, OutputOptions};

use super::Args;
use crate::args::Global;
use crate::failure::Failure;
use crate::files::{
    self,
    needed_files::NeededFiles,
    restore::{input_failure, open_failure, prove_read},
};
use crate::print::{json, quantity, report};
use crate::process::elf_core::{CoreFile, CorePart};

/// Pages restored at a time.
const COPY_PAGES: usize = 64;

/// The result, for scripts.
#[derive(Debug, Serialize)]
struct CoreReport<'a> {
    file: &'a str,
    output: &'a str,
    pid: u32,
    threads: usize,
    bytes_out: u64,
    seconds: f64,
}

/// Writes the core file of a snapshot to `output`.
pub(super) fn run(args: &Args, output: &Path, global: &Global) -> Result<ExitCode, Failure> {
    let Args { archive, bases, force, verify, .. } = args;
    let target = files::single_target(output, global)?;
    let name = archive.display().to_string();
    let no_snapshot = || Failure::at(&name, "is not a snapshot of a process; `trueno-zram snapshot` makes one");
    let chain =
        bases.opener().with_verify((*verify).into()).open_chain(archive).map_err(|error| open_failure(&name, error))?;
    let ArchiveChain { archive: pages, files } = chain.ok_or_else(no_snapshot)?;
    NeededFiles::of_archive(&files).check_target(&target, global)?;
    let map = StoredMap::read(pages.stored());
    let map = map.map_err(|error| Failure::at(&name, error))?.ok_or_else(no_snapshot)?;
    let state = ProcessState::read(pages.stored()).map_err(|error| input_failure(&name, error))?;
    map.check_pages(pages.page_count()).map_err(|error| Failure::at(&name, error))?;
    let core = CoreFile::new(&map, state.as_ref()).map_err(|error| Failure::at(&name, error))?;

    // A process's memory can hold secrets.
    let options = OutputOptions::default().with_force(*force).with_binary(true).with_sparse(true).with_private(true);
    let mut out = Output::create(&target, None, options)?;
    let output_name = out.name.clone();
    let written = |result: io::Result<()>| {
        result.map_err(|error| Failure::from(trueno_zram_io::Error::io(&output_name, Operation::Write, error)))
    };
    written(out.write_data(&core.head()))?;
    let mut buffer = vec![[0; PAGE_SIZE]; COPY_PAGES];
    for part in core.parts() {
        match *part {
            CorePart::Zeros(len) => written(out.write_zeros(len))?,
            CorePart::Pages { first, count } => {
                copy_pages(&pages, first..first + count, &mut buffer, &name, |pages| {
                    written(out.write_data(pages.as_flattened()))
                })?;
            }
        }
    }
    prove_read(&pages, &name)?;
    let bytes_out = out.finish_with(None, &mut |warning| report::warn(global, &output_name, &warning.to_string()))?;
    let threads = state.as_ref().map_or(0, |state| state.threads.len());
    let registers = match threads {
        0 => "without registers (snapshot --stop saves them)".to_owned(),
        1 => "with the registers of 1 thread".to_owned(),
        count => format!("with the registers of {count} threads"),
    };
    report::say(global, &format!("{name}: core file of {} {registers}: {output_name}", quantity::bytes(bytes_out)));
    let seconds = global.stopwatch.lap().as_secs_f64();
    json::print(
        global,
        "restore",
        &CoreReport { file: &name, output: &output_name, pid: map.pid, threads, bytes_out, seconds },
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Reads pages, some at a time.
fn copy_pages(
    archive: &PageArchive,
    pages: Range<u64>,
    buffer: &mut [Page],
    name: &str,
    mut write: impl FnMut(&[Page]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut next = pages.start;
    while next < pages.end {
        let count = usize::try_from(pages.end - next).unwrap_or(buffer.len()).min(buffer.len());
        let portion = &mut buffer[..count];
        archive.read(next, portion).map_err(|error| input_failure(name, error))?;
        write(portion)?;
        next += count as u64;
    }
    Ok(())
}
