//! The way of a .lz4 file back to its content: read and decode | write, a thread each, with a few batches between.

use std::sync::mpsc::channel;
use std::thread;

use trueno_zram_archive::{ContentBatch, ContentSpan, Error, FrameReader, IndexVerdict, ReadSummary};

use crate::args::Global;
use crate::engine::Engine;
use crate::failure::{Failure, plain};
use crate::input::Input;
use crate::output::Output;
use crate::progress::Progress;
use crate::terminal::printable;

/// Batches on their way: one that is decoded, one that is written, one that waits.
const BATCHES: usize = 3;

/// What takes the content, in order.
pub(crate) trait Sink: Send {
    /// Takes the next batch.
    fn take(&mut self, batch: &ContentBatch) -> Result<(), Failure>;
}

impl Sink for Output {
    fn take(&mut self, batch: &ContentBatch) -> Result<(), Failure> {
        for span in batch.spans() {
            let written = match span {
                ContentSpan::Data(bytes) => self.write_data(bytes),
                ContentSpan::Zeros(len_bytes) => self.write_zeros(len_bytes),
            };
            written.map_err(|error| Failure::io(&self.name, &error))?;
        }
        Ok(())
    }
}

/// Content that is checked and goes nowhere.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn take(&mut self, _batch: &ContentBatch) -> Result<(), Failure> {
        Ok(())
    }
}

/// Decodes all of `input` into `sink`. Says what is odd about it and no error.
pub(crate) fn restore(
    input: &Input,
    sink: &mut impl Sink,
    engine: &mut Engine,
    global: &Global,
    progress: &Progress,
) -> Result<ReadSummary, Failure> {
    let pool = engine.pool();
    let mut reader = match engine.codec() {
        Some(codec) => FrameReader::with_codec(input.file(), codec),
        None => FrameReader::new(input.file()),
    };
    let (free, to_fill) = channel();
    for _ in 0..BATCHES {
        free.send(ContentBatch::new()).expect("the receiver is at hand");
    }
    let (filled, to_write) = channel();
    thread::scope(|scope| {
        let writer = thread::Builder::new().name("write".into()).spawn_scoped(scope, move || {
            for batch in to_write {
                sink.take(&batch)?;
                // The reader may be done; then nothing is to be filled any more.
                let _ = free.send(batch);
            }
            Ok(())
        });
        let writer = writer.map_err(|error| Failure::io("worker thread", &error))?;
        let decoded = pool.install(|| {
            let mut total_known = false;
            for mut batch in to_fill {
                let more = reader.read_batch(&mut batch).map_err(|error| input_failure(&input.name, error))?;
                let summary = reader.summary();
                if !total_known && reader.announced_len().is_some() {
                    progress.set_total(reader.announced_len());
                    total_known = true;
                }
                progress.update(summary.content_len, summary.input_len);
                if !more || filled.send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        });
        drop(filled);
        let written = writer.join().expect("the writer does not panic");
        // What could not be written stopped the reading, if it failed first.
        written.and(decoded)
    })?;
    let summary = reader.summary().clone();
    engine.tell_fallback();
    if let IndexVerdict::Disagrees(reason) = &summary.index {
        let name = printable(&input.name);
        eprintln!("trueno-zram: {name}: warning: the content is whole, but its index is not: {reason}");
    }
    if global.verbose > 0 {
        eprintln!("{}", description(&summary));
    }
    Ok(summary)
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

/// What the reader has to say of an input.
pub(crate) fn input_failure(name: &str, error: Error) -> Failure {
    match error {
        Error::Read { at, source } => Failure::at(name, format!("cannot read at byte {at}: {}", plain(&source))),
        error => Failure::at(name, error),
    }
}
