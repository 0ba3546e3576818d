//! Restores an archive into a file that exists already.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use trueno_zram_archive::{ArchiveReader, DeltaReader, IndexVerdict};
use trueno_zram_io::{ExistingFile, Positioned};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::input::Input;
use crate::messages;
use crate::progress::Progress;
use crate::report::{self, Report};
use crate::restore;

/// Fills the file at `path`, and reports it as `decompress` does.
pub(crate) fn fill_file(input: &Input, path: &Path, engine: &mut Engine, global: &Global) -> Result<(), Failure> {
    let name = path.display().to_string();
    let file = File::options().read(true).write(true).open(path).map_err(|error| Failure::io(&name, &error))?;
    let report = fill(input, file, &name, engine, global)?;
    let speed = report.bytes_out as f64 / report.seconds.max(1e-9) / 1e9;
    report::say(global, &format!("{}: {} bytes restored, {speed:.2} GB/s: {name}", input.name, report.bytes_out));
    report::print_json(global, &report)
}

/// Fills an open file.
pub(crate) fn fill<'a>(
    input: &'a Input,
    file: File,
    name: &'a str,
    engine: &mut Engine,
    global: &Global,
) -> Result<Report<'a>, Failure> {
    if let Some(failure) = restore::not_compressed(input) {
        return Err(failure);
    }
    let content_len = content_len(input)?;
    let target = file.metadata().map_err(|error| Failure::io(name, &error))?;
    if (target.dev(), target.ino()) == (input.metadata.dev(), input.metadata.ino()) {
        return Err(Failure::at(name, "is the input itself; nothing was changed"));
    }
    let mut sink = ExistingFile::new(file, name, content_len)?;
    let progress = Progress::start(global, &input.name, None);
    match restore::restore(input, &mut sink, engine, global, &progress) {
        Ok(summary) => {
            if let IndexVerdict::Disagrees(reason) = &summary.index {
                messages::problem(format_args!(
                    "{}: warning: the content is complete, but its index is not: {reason}",
                    input.name
                ));
            }
            sink.finish()?;
            let time = progress.finish_with_timeline(global);
            Ok(Report::restored("decompress", (&input.name, Some(name)), &summary, time, engine))
        }
        Err(failure) => {
            sink.abandon();
            Err(failure)
        }
    }
}

/// The length of an archive's content, by its index. A file of other tools need not state it: the output then grows as needed.
fn content_len(input: &Input) -> Result<u64, Failure> {
    let Some(file) = input.seekable() else {
        return Err(Failure::at(&input.name, "is not a regular file; only such an archive is restored in place"));
    };
    let mut magic = [0; 8];
    if file.read_exact_at(&mut magic, 0).is_ok() && DeltaReader::is_delta(&magic) {
        return Err(Failure::at(
            &input.name,
            "is a delta; `trueno-zram flatten` makes an archive that can fill a file",
        ));
    }
    let archive = ArchiveReader::open(Positioned::new(file));
    let archive = archive.map_err(|error| restore::input_failure(&input.name, error))?;
    Ok(archive.map_or(0, |archive| archive.content_len()))
}
