//! A source of pages into a delta: lanes that read, hash, and compress what the base does not have.
//!
//! A lane reads a few pages, hashes them while they are in its core's cache, and looks the hashes up. Only pages that are new
//! are compressed. Then the writer takes the pages of all lanes in order, and leaves out copies. Little is written, so
//! it is written in order as well.

use std::io::BufWriter;
use std::sync::Mutex;

use rayon::ThreadPool;
use trueno_zram_archive::{
    BaseRecord, BlockShape, DeltaPart, DeltaSummary, DeltaWriter, PageHash, PageHashes, WriteOptions,
};
use trueno_zram_core::{PAGE_SIZE, PageCodec, PageRoom, is_zero};

use super::lanes::LANE_PAGES;
use super::{Claimed, NumberedSource, Ticket};
use crate::Observer;
use crate::error::{Error, Operation};
use crate::ordered::{InOrder, lock};
use crate::output::ArchiveOutput;
use crate::source::PageSource;
use crate::spare::Spare;
use crate::timeline::{Stage, timed};

/// Parts beyond one per lane, which wait for their turn.
const WAITING_PER_LANE: usize = 4;

/// Bytes of blocks that are written at a time. A part has a few pages that are new, or none.
const WRITE_BYTES: usize = 256 << 10;

/// The archive that a delta is made from.
#[derive(Clone, Debug)]
pub struct Base<'a> {
    /// What the delta says about it.
    pub record: BaseRecord,
    /// The hashes of its pages.
    pub hashes: &'a PageHashes,
}

/// What [`compress_delta`] returns.
#[derive(Debug)]
pub struct CompressedDelta<S, W> {
    /// The source, at its end.
    pub source: S,
    /// The output, which holds the whole delta.
    pub out: W,
    /// What was written.
    pub summary: DeltaSummary,
}

/// Writes the delta, in pieces of [`WRITE_BYTES`].
type Writer<W> = DeltaWriter<BufWriter<W>>;

/// What all lanes share.
struct Shared<'a, S: PageSource, W: ArchiveOutput> {
    source: Mutex<NumberedSource<S>>,
    delta: InOrder<(DeltaPart, u64), (Writer<W>, u64)>,
    shape: BlockShape,
    hashes: &'a PageHashes,
    parts: Spare<DeltaPart>,
    /// The first error.
    error: Mutex<Option<S::Error>>,
    out_name: &'a str,
    observer: &'a dyn Observer,
}

/// Compresses the pages of `source` that `base` does not have into a delta, which is written to `out`. There is a lane per
/// codec, on the pool's workers. Errors of the output use `out_name`.
///
/// # Errors
/// Those of the source; [`Error::Io`] and [`Error::Archive`] for the output; [`Error::Codec`].
///
/// # Panics
/// A panic of the source, of the codec or of the output is passed on once all lanes have stopped.
pub fn compress_delta<S: PageSource, W: ArchiveOutput>(
    source: S,
    (out, out_name): (W, &str),
    base: Base<'_>,
    options: WriteOptions,
    codecs: &mut [PageCodec],
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<CompressedDelta<S, W>, S::Error> {
    let Base { record, hashes } = base;
    let out = BufWriter::with_capacity(WRITE_BYTES, out);
    let writer = DeltaWriter::new(out, record, options).map_err(|error| Error::archive(out_name, error))?;
    let lane_count = codecs.len().min(pool.current_num_threads()).max(1);
    let parts = (0..lane_count * (1 + WAITING_PER_LANE)).map(|_| DeltaPart::new()).collect();
    let shared = Shared {
        source: Mutex::new(NumberedSource::new(source)),
        shape: writer.block_shape(),
        delta: InOrder::new((writer, 0)),
        hashes,
        parts: Spare::new(parts),
        error: Mutex::new(None),
        out_name,
        observer,
    };
    pool.scope(|scope| {
        for codec in codecs.iter_mut().take(lane_count) {
            let shared = &shared;
            scope.spawn(move |_| {
                if let Err(error) = shared.parts.run(|| shared.run_lane(codec)) {
                    lock(&shared.error).get_or_insert(error);
                    shared.parts.stop();
                }
            });
        }
    });
    shared.finish()
}

impl<S: PageSource, W: ArchiveOutput> Shared<'_, S, W> {
    /// Takes parts all the way, until the source ends or something fails.
    fn run_lane(&self, codec: &mut PageCodec) -> Result<(), S::Error> {
        let mut lane = Lane { room: PageRoom::new(LANE_PAGES), hashes: Vec::new(), codec };
        while let Some(mut part) = self.parts.take() {
            let ticket = timed(self.observer, Stage::Read, || lock(&self.source).claim(&mut lane.room))?;
            let Some(ticket) = ticket else {
                self.parts.stop();
                break;
            };
            let number = ticket.number;
            part.start(self.shape);
            let len_bytes = self.fill(ticket, &mut lane, &mut part)?;
            self.delta.submit(number, (part, len_bytes), |(writer, content_len), (mut part, len_bytes)| {
                let pushed = timed(self.observer, Stage::Write, || writer.push(&mut part));
                pushed.map_err(|error| Error::archive(self.out_name, error))?;
                *content_len += len_bytes;
                self.observer.progress(*content_len, writer.written());
                self.parts.give(part);
                Ok::<(), S::Error>(())
            })?;
        }
        Ok(())
    }

    /// Reads what was claimed, and finds out which pages the base has. Returns the bytes of content.
    fn fill(&self, ticket: Ticket, lane: &mut Lane<'_>, part: &mut DeltaPart) -> Result<u64, S::Error> {
        let Ticket { first_page, claimed, .. } = ticket;
        let len_bytes = match claimed {
            Claimed::Zeros(pages) => {
                part.push_zeros(pages);
                return Ok(pages * PAGE_SIZE as u64);
            }
            Claimed::Range(range) => timed(self.observer, Stage::Read, || range.read(&mut lane.room))?,
            Claimed::Filled(len_bytes) => len_bytes,
        };
        let pages = len_bytes.div_ceil(PAGE_SIZE);
        // A shorter last page is filled up with zeros.
        lane.room[..pages].as_flattened_mut()[len_bytes..].fill(0);
        timed(self.observer, Stage::Hash, || lane.hash(pages));
        let added = timed(self.observer, Stage::Compress, || lane.add(pages, first_page, self.hashes, part));
        added.map_err(|error| match error {
            AddError::Codec(error) => Error::Codec(error),
            AddError::Archive(error) => Error::archive(self.out_name, error),
        })?;
        Ok(len_bytes as u64)
    }

    /// Ends the delta, once all lanes have stopped.
    fn finish(self) -> Result<CompressedDelta<S, W>, S::Error> {
        let Self { source, delta, error, out_name, .. } = self;
        if let Some(error) = error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(error);
        }
        let failed = |error| S::Error::from(Error::archive(out_name, error));
        let mut source = source.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).source;
        let (mut writer, content_len) = delta.into_stage().expect("no lane failed");
        for (name, bytes) in source.sections()? {
            writer.add_section(name, &bytes).map_err(failed)?;
        }
        let (out, summary) = writer.finish(content_len).map_err(failed)?;
        let out = out.into_inner().map_err(|error| Error::io(out_name, Operation::Write, error.into_error()))?;
        Ok(CompressedDelta { source, out, summary })
    }
}

/// An error of the codec or of the archive.
#[derive(Debug, thiserror::Error)]
enum AddError {
    #[error(transparent)]
    Codec(#[from] trueno_zram_core::Error),
    #[error(transparent)]
    Archive(#[from] trueno_zram_archive::Error),
}

/// The memory of a lane.
struct Lane<'a> {
    room: PageRoom,
    hashes: Vec<PageHash>,
    codec: &'a mut PageCodec,
}

impl Lane<'_> {
    /// Hashes the pages that are not zero.
    fn hash(&mut self, pages: usize) {
        self.hashes.clear();
        PageHash::of_pages(self.room[..pages].iter().filter(|page| !is_zero(*page)), &mut self.hashes);
    }

    /// Adds pages that were hashed.
    fn add(&mut self, pages: usize, first: u64, base: &PageHashes, part: &mut DeltaPart) -> Result<(), AddError> {
        let (mut out, mut hashes) = ([0; PAGE_SIZE], self.hashes.iter());
        for (number, page) in (first..).zip(&self.room[..pages]) {
            if is_zero(page) {
                part.push_zeros(1);
                continue;
            }
            let hash = hashes.next().expect("every page that is not zero was hashed");
            match base.find(number, hash) {
                Some(same) => part.push_base(same, *hash),
                None => part.push_page(self.codec.compress(page, &mut out)?, page, *hash)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
