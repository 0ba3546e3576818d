//! Restores an archive or a delta into a file that exists already.

use std::fs::File;
use std::path::Path;

use trueno_zram_archive::Pages;
use trueno_zram_io::{ExistingFile, FileId, Input};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::{
    needed_files::NeededFiles,
    restore::{self, InputWithBases},
};
use crate::print::{
    messages,
    progress::Progress,
    report::{self, FileNames},
};
use crate::signals::{self, ActionId};

/// Fills the file at `path`, and reports it as `decompress` does.
pub(crate) fn fill_file(
    source: InputWithBases<'_>,
    path: &Path,
    engine: &mut Engine,
    global: &Global,
) -> Result<(), Failure> {
    let (input, chain) = source;
    let name = &path.display().to_string();
    let file = File::options().read(true).write(true).open(path).map_err(|error| Failure::io(name, &error))?;
    if let Some(failure) = restore::not_compressed(input) {
        return Err(failure);
    }
    let content_len = match chain {
        Some(chain) => chain.archive.len_bytes(),
        None => content_len(input)?,
    };
    let target = file.metadata().map_err(|error| Failure::io(name, &error))?;
    if FileId::of(&target) == FileId::of(&input.metadata) {
        return Err(Failure::refused(name, "is the input itself; nothing was changed"));
    }
    if let Some(chain) = chain {
        let bases = NeededFiles::of_base(chain.bases());
        bases.check_open(&target, name)?;
        if global.json {
            bases.check_stdout(global)?;
        }
    }
    let _on_signal = PartlyFilledNotice::new(name);
    let mut sink = ExistingFile::new(file, name, content_len)?;
    let progress = Progress::start(global, &input.name, None);
    let restored = match restore::restore_whole(source, &mut sink, engine, global, &progress) {
        Ok(restored) => restored,
        Err(failure) => {
            sink.abandon();
            return Err(failure);
        }
    };
    restored.warn_of_index(input);
    sink.finish()?;
    let time = progress.finish(global);
    let names = FileNames { command: "decompress", file: &input.name, output: Some(name) };
    let report = restored.report(names, input, time, engine);
    let (bytes, speed) = (report.bytes_out, report.gbps(report.bytes_out));
    report::say(global, &format!("{}: {bytes} bytes restored, {speed:.2} GB/s: {name}", input.name));
    report.print_json(global)
}

/// Prints that the file is partly filled if a signal ends the process: other threads still write, so the content cannot be dropped.
struct PartlyFilledNotice(ActionId);

impl PartlyFilledNotice {
    fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self(signals::hold_off().add(move || {
            messages::problem(format_args!("{name}: ended by a signal; the file is partly filled"));
        }))
    }
}

impl Drop for PartlyFilledNotice {
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
