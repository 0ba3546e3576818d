//! Restores an input, or what is left of a damaged one.

use trueno_zram_archive::{Damage, Error, IndexVerdict, ReadSummary};
use trueno_zram_io::{Salvaged, Sink};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::input::Input;
use crate::messages;
use crate::progress::Progress;

/// Decodes all of `input` into `sink`. The caller judges the index.
pub(crate) fn restore(
    input: &Input,
    sink: &mut impl Sink,
    engine: &mut Engine,
    global: &Global,
    progress: &Progress,
) -> Result<ReadSummary, Failure> {
    let pool = engine.pool();
    let summary = trueno_zram_io::restore(input, sink, engine.decoders(), &pool, progress)?;
    engine.warn_of_fallback();
    if global.verbose > 0 {
        messages::line(description(&summary));
    }
    Ok(summary)
}

/// Restores what is left of a damaged input, and lists what is not. Returns the bytes of content.
pub(crate) fn salvage(
    input: &Input,
    sink: &mut impl Sink,
    engine: &Engine,
    progress: &Progress,
) -> Result<(u64, Vec<Damage>), Failure> {
    let Salvaged { content_len, damage } = trueno_zram_io::salvage(input, sink, &engine.pool(), progress)?;
    for part in &damage {
        messages::problem(format_args!("{}: {part}", input.name));
    }
    Ok((content_len, damage))
}

/// What the input was made of, for `-v`.
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
        crate::report::Pages::from(summary.pages)
    )
}

/// An error of the archive's reader, with the name of the input.
pub(crate) fn input_failure(name: &str, error: Error) -> Failure {
    trueno_zram_io::Error::archive(name, error).into()
}

/// What to say of an input that is not a .lz4 file; none if it is one, or if that cannot be seen.
pub(crate) fn not_lz4(input: &Input) -> Option<Failure> {
    use std::os::unix::fs::FileExt;
    let mut magic = [0; 4];
    input.seekable()?.read_exact_at(&mut magic, 0).ok()?;
    // A frame, a frame of the old format, a skippable frame.
    let is_lz4 = matches!(u32::from_le_bytes(magic), 0x184d_2204 | 0x184c_2102 | 0x184d_2a50..=0x184d_2a5f);
    (!is_lz4).then(|| input_failure(&input.name, Error::NotLz4 { magic }))
}
