//! Restores the content of an archive, or of any other .lz4 or .zst file.
//!
//! The groups of an archive lie at known offsets: lanes read, check, restore and write them in parallel. Every other
//! input is a stream: one stage reads and decodes, one writes. An archive whose groups do not match its index is read as a
//! stream as well, from its first byte: only that reveals the exact error.

mod content_writer;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
pub(crate) mod groups;
mod ranges;

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use trueno_zram_archive::{Archive, ContentBatch, ContentSpan, Damage, FrameReader, ReadSummary, SalvageReader};
use trueno_zram_core::BatchCodec;

use crate::error::{Error, Operation, Result};
use crate::gpu::Gpu;
use crate::input::Input;
use crate::output::positional_file::PositionalFile;
use crate::pipeline::timeline::{Stage, timed};
use crate::workers::Workers;
use groups::GroupsOutcome;

pub use ranges::{restore_pages, restore_ranges};

/// Batches in memory: one that is decoded, one that is written, one that waits.
const BATCHES: usize = 3;

/// An archive of fewer groups is read as a stream.
const MIN_GROUPS: u64 = 2;

/// A destination of restored content: takes it in order, or offers a file that many threads write at any offset.
///
/// ```
/// use trueno_zram_archive::ContentSpan;
/// use trueno_zram_io::{Result, Sink};
///
/// /// Counts the bytes that are not part of a hole.
/// struct DataBytes(u64);
///
/// impl Sink for DataBytes {
///     fn take(&mut self, span: ContentSpan<'_>) -> Result<()> {
///         if let ContentSpan::Data(bytes) = span {
///             self.0 += bytes.len() as u64;
///         }
///         Ok(())
///     }
///
///     fn name(&self) -> &str {
///         "counter"
///     }
/// }
/// # DataBytes(0).take(ContentSpan::Zeros(1))?;
/// # Ok::<(), trueno_zram_io::Error>(())
/// ```
pub trait Sink: Send {
    /// Takes the content that comes next, in [`WriteMode::InOrder`].
    ///
    /// # Errors
    /// Any that ends the restoring.
    fn take(&mut self, span: ContentSpan<'_>) -> Result<()>;

    /// Chooses how content is written by this many threads.
    fn write_mode(&self, _threads: usize) -> WriteMode {
        WriteMode::InOrder
    }

    /// Notes the length of the content, all of which was written in [`WriteMode::Positional`].
    fn set_written(&mut self, _len_bytes: u64) {}

    /// Discards content that was written in [`WriteMode::Positional`]: the archive is not what its index says, and is read again
    /// as a stream. All content comes again, in order, except for the content that the sink has [taken](Self::take).
    ///
    /// # Errors
    /// Any that ends the restoring.
    fn restart(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the name that messages use.
    fn name(&self) -> &str;
}

/// The way in which content is written to a [`Sink`].
///
/// ```
/// use trueno_zram_io::{Discard, Sink, WriteMode};
/// assert!(matches!(Discard.write_mode(4), WriteMode::Discard));
/// ```
#[derive(Debug)]
pub enum WriteMode {
    /// In order, by one thread at a time.
    InOrder,
    /// At its offset in a file, by many threads.
    Positional {
        /// The file.
        file: PositionalFile,
        /// `true` if zeros are left out.
        sparse: bool,
    },
    /// Not at all: it is only checked.
    Discard,
}

/// A sink that discards all content: the archive is only checked. [`restore`] has an example.
#[derive(Debug)]
pub struct Discard;

impl Sink for Discard {
    fn take(&mut self, _span: ContentSpan<'_>) -> Result<()> {
        Ok(())
    }

    fn write_mode(&self, _threads: usize) -> WriteMode {
        WriteMode::Discard
    }

    fn name(&self) -> &str {
        "discarded content"
    }
}

/// The codecs that restore pages. [`restore`] has an example.
#[derive(Debug)]
pub enum Decoders<'a> {
    /// The workers of the pool.
    Cpu,
    /// A GPU, which takes the feature `gpu`.
    Gpu {
        /// Restores slots.
        gpu: Gpu<'a>,
        /// `true` if threads that find the GPU busy restore pages themselves.
        cpu_helps: bool,
    },
}

impl Decoders<'_> {
    /// The codec for a stream's reader; `None` if the reader decodes on the pool itself.
    fn codec(&mut self) -> Option<&mut dyn BatchCodec> {
        match self {
            // The CPU decodes a stream as fast as one thread reads it, without a transfer over the bus.
            Self::Cpu | Self::Gpu { cpu_helps: true, .. } => None,
            Self::Gpu { gpu, cpu_helps: false } => gpu.codec(),
        }
    }
}

/// The result of [`salvage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// Bytes of content, including the zeros in place of lost parts.
    pub content_len: u64,
    /// The parts that are lost, in order of the content.
    pub damage: Vec<Damage>,
}

/// Decodes all of `input` into `sink`, on the threads of the pool and with a GPU if `decoders` has one. One more thread
/// writes, or drives the GPU.
///
/// ```
/// use trueno_zram_io::{Decoders, Discard, Input, Workers, restore};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("archive");
/// let mut archive = std::fs::File::create(&path)?;
/// trueno_zram_archive::compress(&[7; 100_000][..], &mut archive, &trueno_zram_archive::WriteOptions::default())?;
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
/// let summary = restore(&Input::open(&path)?, &mut Discard, Decoders::Cpu, Workers::new(&pool))?;
/// assert_eq!(summary.content_len, 100_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Archive`] for the input, those of the sink, [`Error::Codec`], [`Error::Thread`].
pub fn restore(
    input: &Input,
    sink: &mut impl Sink,
    mut decoders: Decoders<'_>,
    workers: Workers<'_>,
) -> Result<ReadSummary> {
    let mut taken = 0;
    if let Some(file) = input.seekable()
        && let Ok(Some(archive)) = Archive::read_from(clone_file(file, &input.name)?)
    {
        if archive.info().group_count >= MIN_GROUPS {
            workers.observer.total(Some(archive.info().content_len));
            match groups::restore_groups(archive, sink, &mut decoders, workers)? {
                GroupsOutcome::All(summary) => return Ok(*summary),
                GroupsOutcome::FallBackToStream { taken: in_order } => taken = in_order,
            }
        }
        input.rewind()?;
    }
    restore_stream(input, sink, decoders.codec(), taken, workers)
}

/// Decodes `input` as a stream. The sink has taken the first `taken` bytes of the content already.
fn restore_stream(
    input: &Input,
    sink: &mut impl Sink,
    codec: Option<&mut dyn BatchCodec>,
    mut taken: u64,
    workers: Workers<'_>,
) -> Result<ReadSummary> {
    let observer = workers.observer;
    let mut reader = match codec {
        Some(codec) => FrameReader::with_codec(input.file(), codec),
        None => FrameReader::new(input.file()),
    };
    let mut total_known = false;
    let mut take = |span: ContentSpan<'_>| match skip_taken(span, &mut taken) {
        Some(span) => sink.take(span),
        None => Ok(()),
    };
    decode_and_write(&mut take, workers, |batch| {
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

/// Returns the rest of a span after the first `taken` bytes, and counts these down.
fn skip_taken<'a>(span: ContentSpan<'a>, taken: &mut u64) -> Option<ContentSpan<'a>> {
    let len_bytes = span.len_bytes();
    let skipped = len_bytes.min(*taken);
    *taken -= skipped;
    if skipped == len_bytes {
        return None;
    }
    Some(match span {
        ContentSpan::Data(bytes) => ContentSpan::Data(&bytes[usize::try_from(skipped).ok()?..]),
        ContentSpan::Zeros(len_bytes) => ContentSpan::Zeros(len_bytes - skipped),
    })
}

/// Restores the intact parts of a damaged input into `sink`. Lost parts become zeros, and are listed. Pages are found by the
/// index, if the input has one and can be read at any position.
///
/// ```no_run
/// use trueno_zram_io::{Discard, Input, Workers, salvage};
/// let pool = rayon::ThreadPoolBuilder::new().build()?;
/// let salvaged = salvage(&Input::open("damaged.lz4".as_ref())?, &mut Discard, Workers::new(&pool))?;
/// println!("{} bytes, {} parts are lost", salvaged.content_len, salvaged.damage.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Archive`] for an input that cannot be read or is neither a .lz4 nor a .zst file, those of the sink,
/// [`Error::Thread`].
pub fn salvage(input: &Input, sink: &mut impl Sink, workers: Workers<'_>) -> Result<Salvaged> {
    let failed = |error| Error::archive(&input.name, error);
    let mut content_len = 0;
    let mut counted = |more: trueno_zram_archive::Result<bool>, batch: &ContentBatch| {
        content_len += batch.len_bytes();
        workers.observer.progress(content_len, content_len);
        more.map_err(failed)
    };
    let mut take = |span: ContentSpan<'_>| sink.take(span);
    let damage = match input.seekable() {
        Some(file) => {
            let mut reader = SalvageReader::open(clone_file(file, &input.name)?).map_err(failed)?;
            decode_and_write(&mut take, workers, |batch| counted(reader.read_batch(batch), batch))?;
            reader.into_damage()
        }
        None => {
            let mut reader = FrameReader::new(input.file()).salvaging();
            decode_and_write(&mut take, workers, |batch| counted(reader.read_batch(batch), batch))?;
            reader.into_damage()
        }
    };
    Ok(Salvaged { content_len, damage })
}

/// Duplicates the file, for readers that share it.
fn clone_file(file: &File, name: &str) -> Result<Arc<File>> {
    file.try_clone().map(Arc::new).map_err(|error| Error::io(name, Operation::Open, error))
}

/// Decodes batches on the pool until `next` returns `false`, and writes them on another thread.
fn decode_and_write(
    take: &mut (impl FnMut(ContentSpan<'_>) -> Result<()> + Send),
    workers: Workers<'_>,
    mut next: impl FnMut(&mut ContentBatch) -> Result<bool> + Send,
) -> Result<()> {
    let Workers { pool, observer } = workers;
    let (free, to_fill) = channel();
    for _ in 0..BATCHES {
        free.send(ContentBatch::new()).expect("the receiver exists");
    }
    let (filled, to_write) = channel::<ContentBatch>();
    thread::scope(|scope| {
        let writer = thread::Builder::new().name("write".into()).spawn_scoped(scope, move || -> Result<()> {
            for batch in to_write {
                timed(observer, Stage::Write, || batch.spans().try_for_each(&mut *take))?;
                // The reader may have ended; then no batch is filled again.
                let _ = free.send(batch);
            }
            Ok(())
        });
        let writer = writer.map_err(Error::Thread)?;
        let decoded = pool.install(move || -> Result<()> {
            while let Ok(mut batch) = timed(observer, Stage::Wait, || to_fill.recv()) {
                let more = timed(observer, Stage::Decode, || next(&mut batch))?;
                if !more || filled.send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A failed write stops the reading, so it comes first.
        written.and(decoded)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_cut_where_the_sink_has_it_already() {
        let mut taken = 10;
        assert_eq!(skip_taken(ContentSpan::Zeros(4), &mut taken), None);
        assert_eq!(skip_taken(ContentSpan::Data(b"eight by"), &mut taken), Some(ContentSpan::Data(b"by")));
        assert_eq!(skip_taken(ContentSpan::Zeros(7), &mut taken), Some(ContentSpan::Zeros(7)));
        assert_eq!(taken, 0);
    }
}
