//! Restores an input, or what is left of a damaged one.

use std::sync::Arc;
use std::time::Duration;

use trueno_zram_archive::{Damage, Delta, Error, Format, IndexVerdict, PageArchive, Pages, ReadSummary};
use trueno_zram_io::{ArchiveChain, Input, Salvaged, Sink, Workers};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::files::delta;
use crate::print::{
    json::PageKinds,
    messages,
    progress::Progress,
    report::{FileNames, FileReport},
};

/// An input that was restored as a whole.
pub(crate) enum Restored<'a> {
    /// A compressed file, by its groups or as a stream.
    File(Box<ReadSummary>),
    /// A delta.
    Delta(&'a Delta),
}

/// An input, with its bases if it is a delta.
pub(crate) type InputWithBases<'a> = (&'a Input, Option<&'a ArchiveChain>);

/// Restores all of an input into `sink`. The caller judges the index.
pub(crate) fn restore_whole<'a>(
    (input, chain): InputWithBases<'a>,
    sink: &mut impl Sink,
    engine: &mut Engine,
    global: &Global,
    progress: &Progress,
) -> Result<Restored<'a>, Failure> {
    let pool = engine.pool();
    let workers = Workers::new(&pool).with_observer(progress);
    if let Some(archive) = chain.map(|chain| &chain.archive)
        && let Some(delta) = archive.as_delta()
    {
        trueno_zram_io::restore_pages(archive, &input.name, sink, workers)?;
        return Ok(Restored::Delta(delta));
    }
    if let Some(format) = format_of_input(input) {
        engine.prepare_for(format)?;
    }
    let summary = trueno_zram_io::restore(input, sink, engine.decoders(), workers)?;
    engine.warn_of_fallback();
    if global.verbose > 0 {
        messages::line(description(&summary));
    }
    Ok(Restored::File(Box::new(summary)))
}

impl Restored<'_> {
    /// Returns the problem of the index, if the content is complete but its index does not describe it.
    pub(crate) fn index_problem(&self) -> Option<&str> {
        let Self::File(summary) = self else { return None };
        match &summary.index {
            IndexVerdict::Disagrees(reason) => Some(reason),
            IndexVerdict::Absent | IndexVerdict::Agrees => None,
        }
    }

    /// Warns if the content is complete but its index is not.
    pub(crate) fn warn_of_index(&self, input: &Input) {
        if let Some(reason) = self.index_problem() {
            let name = &input.name;
            messages::problem(format_args!("{name}: warning: the content is complete, but its index is not: {reason}"));
        }
    }

    /// The report on an input that was restored.
    pub(crate) fn report<'a>(
        &self,
        names: FileNames<'a>,
        input: &Input,
        time: Duration,
        engine: &Engine,
    ) -> FileReport<'a> {
        match self {
            Self::File(summary) => names.restored(summary, time, engine),
            Self::Delta(delta) => names.restored_delta(delta, input.len_bytes.unwrap_or(0), time, engine),
        }
    }
}

/// Restores what is left of a damaged input, and lists what is not. Returns the bytes of content.
pub(crate) fn salvage(
    input: &Input,
    sink: &mut impl Sink,
    engine: &Engine,
    progress: &Progress,
) -> Result<(u64, Vec<Damage>), Failure> {
    let Salvaged { content_len, damage } =
        trueno_zram_io::salvage(input, sink, Workers::new(&engine.pool()).with_observer(progress))?;
    for part in &damage {
        messages::problem(format_args!("{}: {part}", input.name));
    }
    Ok((content_len, damage))
}

/// Describes the frames, pages and index of the input, for `-v`.
fn description(summary: &ReadSummary) -> String {
    let index = match &summary.index {
        IndexVerdict::Absent => "no index",
        IndexVerdict::Agrees => "index agrees",
        IndexVerdict::Disagrees(_) => "index disagrees",
    };
    format!(
        "frames: {} ({} with a content checksum), {} blocks; pages: {}; {index}",
        summary.frames,
        summary.content_checksums,
        summary.blocks,
        PageKinds::from(summary.pages)
    )
}

/// Opens an archive to read its pages by number; `None` if it has no index, or cannot be read at any position. The inner error
/// is of the index.
pub(crate) fn pages_by_index(input: &Input) -> Result<Result<Option<PageArchive>, Error>, Failure> {
    let Some(file) = input.seekable() else { return Ok(Ok(None)) };
    let file = file.try_clone().map_err(|error| Failure::io(&input.name, &error))?;
    Ok(PageArchive::standard(Arc::new(file)))
}

/// Proves pages that were read before that, as far as that is due: what was made of them is complete after that.
pub(crate) fn prove_read(pages: &(impl Pages + ?Sized), name: &str) -> Result<(), Failure> {
    while pages.is_proof_due() {
        pages.prove_next().map_err(|error| input_failure(name, error))?;
    }
    Ok(())
}

/// An error of the archive's reader, with the name of the input.
pub(crate) fn input_failure(name: &str, error: Error) -> Failure {
    trueno_zram_io::Error::archive(name, error).into()
}

/// An error of opening an archive by its path: that the file cannot be opened is the system's own message.
pub(crate) fn open_failure(name: &str, error: Error) -> Failure {
    match error {
        Error::Read { at: 0, source } => Failure::io(name, &source),
        error => input_failure(name, error),
    }
}

/// Returns the failure of an input that is not a compressed file; `None` if it is one, or if its start cannot be read.
pub(crate) fn not_compressed(input: &Input) -> Option<Failure> {
    let magic = magic_of(input).filter(|_| !delta::is_delta(input))?;
    Format::of_magic(magic).is_none().then(|| input_failure(&input.name, Error::NotCompressed { magic }))
}

/// The format of an input, if it can be seen.
pub(crate) fn format_of_input(input: &Input) -> Option<Format> {
    magic_of(input).and_then(Format::of_magic)
}

fn magic_of(input: &Input) -> Option<[u8; 4]> {
    use std::os::unix::fs::FileExt;
    let mut magic = [0; 4];
    input.seekable()?.read_exact_at(&mut magic, 0).ok()?;
    Some(magic)
}
