//! An archive, or any other .lz4 file, back into its content: one stage reads and decodes, one writes.

use std::sync::mpsc::channel;
use std::thread;

use rayon::ThreadPool;
use trueno_zram_archive::{ContentBatch, ContentSpan, Damage, FrameReader, ReadSummary, SalvageReader};
use trueno_zram_core::BatchCodec;

use crate::Observer;
use crate::error::{Error, Operation, Result};
use crate::input::Input;
use crate::output::Output;

/// Batches on their way: one that is decoded, one that is written, one that waits.
const BATCHES: usize = 3;

/// Takes the content, in order.
pub trait Sink: Send {
    /// Takes the next batch.
    ///
    /// # Errors
    /// Any that ends the restoring.
    fn take(&mut self, batch: &ContentBatch) -> Result<()>;
}

impl Sink for Output {
    fn take(&mut self, batch: &ContentBatch) -> Result<()> {
        for span in batch.spans() {
            let written = match span {
                ContentSpan::Data(bytes) => self.write_data(bytes),
                ContentSpan::Zeros(len_bytes) => self.write_zeros(len_bytes),
            };
            written.map_err(|error| Error::io(&self.name, Operation::Write, error))?;
        }
        Ok(())
    }
}

/// Checks the content, and keeps nothing.
#[derive(Debug)]
pub struct Nowhere;

impl Sink for Nowhere {
    fn take(&mut self, _batch: &ContentBatch) -> Result<()> {
        Ok(())
    }
}

/// What [`salvage`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// Bytes of content, the zeros in place of what is lost included.
    pub content_len: u64,
    /// What is lost, in order of the content.
    pub damage: Vec<Damage>,
}

/// Decodes all of `input` into `sink`: pages by `codec`, or on the workers of `pool` if there is none. One more thread
/// writes.
///
/// # Errors
/// [`Error::Archive`] for the input, those of the sink, [`Error::Thread`].
pub fn restore(
    input: &Input,
    sink: &mut impl Sink,
    codec: Option<&mut dyn BatchCodec>,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<ReadSummary> {
    let mut reader = match codec {
        Some(codec) => FrameReader::with_codec(input.file(), codec),
        None => FrameReader::new(input.file()),
    };
    let mut total_known = false;
    decode_and_write(sink, pool, |batch| {
        let more = reader.read_batch(batch).map_err(|error| Error::archive(&input.name, error))?;
        let summary = reader.summary();
        if !total_known && reader.announced_len().is_some() {
            observer.total(reader.announced_len());
            total_known = true;
        }
        observer.progress(summary.content_len, summary.input_len);
        Ok(more)
    })?;
    Ok(reader.summary().clone())
}

/// Restores what is left of a damaged input into `sink`. What is lost becomes zeros, and is listed. Pages are found by the
/// index, if the input has one and can be read at any position.
///
/// # Errors
/// [`Error::Archive`] for an input that cannot be read or is not a .lz4 file, those of the sink, [`Error::Thread`].
pub fn salvage(input: &Input, sink: &mut impl Sink, pool: &ThreadPool, observer: &dyn Observer) -> Result<Salvaged> {
    let failed = |error| Error::archive(&input.name, error);
    let mut content_len = 0;
    let mut counted = |more: trueno_zram_archive::Result<bool>, batch: &ContentBatch| {
        content_len += batch.len_bytes();
        observer.progress(content_len, content_len);
        more.map_err(failed)
    };
    let damage = match input.seekable() {
        Some(file) => {
            let mut reader = SalvageReader::open(file).map_err(failed)?;
            decode_and_write(sink, pool, |batch| counted(reader.read_batch(batch), batch))?;
            reader.into_damage()
        }
        None => {
            let mut reader = FrameReader::new(input.file()).salvaging();
            decode_and_write(sink, pool, |batch| counted(reader.read_batch(batch), batch))?;
            reader.into_damage()
        }
    };
    Ok(Salvaged { content_len, damage })
}

/// Decodes batches on the pool until `next` returns `false`, and writes them on another thread.
fn decode_and_write(
    sink: &mut impl Sink,
    pool: &ThreadPool,
    mut next: impl FnMut(&mut ContentBatch) -> Result<bool> + Send,
) -> Result<()> {
    let (free, to_fill) = channel();
    for _ in 0..BATCHES {
        free.send(ContentBatch::new()).expect("the receiver exists");
    }
    let (filled, to_write) = channel();
    thread::scope(|scope| {
        let writer = thread::Builder::new().name("write".into()).spawn_scoped(scope, move || -> Result<()> {
            for batch in to_write {
                sink.take(&batch)?;
                // The reader may have ended; then no batch is filled again.
                let _ = free.send(batch);
            }
            Ok(())
        });
        let writer = writer.map_err(Error::Thread)?;
        let decoded = pool.install(|| -> Result<()> {
            for mut batch in to_fill {
                if !next(&mut batch)? || filled.send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        });
        drop(filled);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A failed write stops the reading, so it comes first.
        written.and(decoded)
    })
}
