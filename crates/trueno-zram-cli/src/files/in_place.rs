//! Restores an archive or a delta into a file that exists already.

use std::fs::File;
use std::path::Path;

use trueno_zram_archive::Pages;
use trueno_zram_io::{ArchiveChain, ExistingFile, FileId, Input};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{needed_files::NeededFiles, restore};
use crate::print::{
    messages,
    progress::Progress,
    report::{self, FileReport},
};
use crate::signals::{self, ActionId};

/// The content for a file: an input, with its bases if it is a delta.
pub(crate) type InputWithBases<'a> = (&'a Input, Option<&'a ArchiveChain>);

/// Fills the file at `path`, and reports it as `decompress` does.
pub(crate) fn fill_file(
    source: InputWithBases<'_>,
    path: &Path,
    engine: &mut Engine,
    global: &Global,
) -> Result<(), Failure> {
    let name = path.display().to_string();
    let file = File::options().read(true).write(true).open(path).map_err(|error| Failure::io(&name, &error))?;
    let report = fill(source, file, &name, engine, global)?;
    let speed = report.bytes_out as f64 / report.seconds.max(1e-9) / 1e9;
    report::say(global, &format!("{}: {} bytes restored, {speed:.2} GB/s: {name}", report.file, report.bytes_out));
    report::print_json(global, &report)
}

/// Fills an open file.
pub(crate) fn fill<'a>(
    (input, chain): InputWithBases<'a>,
    file: File,
    name: &'a str,
    engine: &mut Engine,
    global: &Global,
) -> Result<FileReport<'a>, Failure> {
    if let Some(failure) = restore::not_compressed(input) {
        return Err(failure);
    }
    let content_len = match chain {
        Some(chain) => chain.archive.len_bytes(),
        None => content_len(input)?,
    };
    let target = file.metadata().map_err(|error| Failure::io(name, &error))?;
    if FileId::of(&target) == FileId::of(&input.metadata) {
        return Err(Failure::at(name, "is the input itself; nothing was changed"));
    }
    if let Some(chain) = chain {
        let bases = NeededFiles::of_base(chain.bases());
        bases.check_open(&target, name)?;
        if global.json {
            bases.check_stdout(global)?;
        }
    }
    let _on_signal = SayPartlyFilled::new(name);
    let mut sink = ExistingFile::new(file, name, content_len)?;
    let progress = Progress::start(global, &input.name, None);
    let restored = match restore::restore_whole((input, chain), &mut sink, engine, global, &progress) {
        Ok(restored) => restored,
        Err(failure) => {
            sink.abandon();
            return Err(failure);
        }
    };
    sink.finish()?;
    let time = progress.finish_with_timeline(global);
    Ok(restored.report(input, name, time, engine))
}

/// Prints that the file is partly filled if a signal ends the process: other threads still write, so the content cannot be dropped.
struct SayPartlyFilled(ActionId);

impl SayPartlyFilled {
    fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self(signals::hold_off().add(move || {
            messages::problem(format_args!("{name}: ended by a signal; the file is partly filled"));
        }))
    }
}

impl Drop for SayPartlyFilled {
    fn drop(&mut self) {
        signals::hold_off().remove(&self.0);
    }
}

/// The length of an archive's content, by its index. A file of other tools need not state it: the output then grows as needed.
fn content_len(input: &Input) -> Result<u64, Failure> {
    if input.seekable().is_none() {
        return Err(Failure::at(&input.name, "is not a regular file; only such an archive is restored in place"));
    }
    let archive = restore::pages_by_index(input)?.map_err(|error| restore::input_failure(&input.name, error))?;
    Ok(archive.map_or(0, |archive| archive.len_bytes()))
}
