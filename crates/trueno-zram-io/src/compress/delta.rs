//! A source of pages into a delta: lanes that read, hash, and compress what the base does not have.
//!
//! A lane takes some pages, hashes them, and looks the hashes up. Pages that cannot change meanwhile are hashed in the
//! page cache; others are read first, a few at a time, so that they are hashed from the core's cache. Only new pages
//! are compressed. The writer then takes the parts of all lanes in order and leaves out copies. Little is written, so
//! one thread at a time writes it.

use std::io::BufWriter;
use std::sync::Mutex;

use rayon::ThreadPool;
use trueno_zram_archive::{
    BaseRecord, BlockShape, DeltaPart, DeltaSummary, DeltaWriter, PageFinder, PageHash, PageHashes, WriteOptions,
};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, PageRoom, is_zero};

use super::{Claimed, NumberedSource, Ticket};
use crate::Observer;
use crate::error::{Error, Operation};
use crate::ordered::{InOrder, lock};
use crate::output::ArchiveOutput;
use crate::source::{ClaimedRange, PageSource};
use crate::spare::Spare;
use crate::timeline::{Stage, timed};

/// Pages that are read at a time. Most are only hashed, so more of them stay in the core's cache than if all were
/// compressed. Reading 256 at a time takes 0.36 µs per page and core from the page cache of ext4, and 64 at a time
/// 0.42.
const READ_PAGES: usize = 256;

/// The most pages that a lane takes at a time. Giving mapped pages back interrupts the other cores, each time.
const MAX_LANE_PAGES: usize = 1024;

/// Parts of a source that each lane takes at least, if that leaves [`READ_PAGES`] for each: lanes end at about the same
/// time.
const PARTS_PER_LANE: u64 = 16;

/// Parts beyond one per lane, which wait for their turn.
const WAITING_PER_LANE: usize = 4;

/// Bytes of blocks that are written at a time. Most parts have a few pages that are new, or none; the blocks of others
/// are written without a copy.
const WRITE_BYTES: usize = 64 << 10;

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
    /// Pages that a lane takes at a time.
    lane_pages: usize,
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
    let lane_pages = lane_pages(source.len_bytes(), lane_count);
    let parts = (0..lane_count * (1 + WAITING_PER_LANE)).map(|_| DeltaPart::new()).collect();
    let shared = Shared {
        source: Mutex::new(NumberedSource::new(source)),
        lane_pages,
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
        let mut room = PageRoom::new(self.lane_pages);
        let mut lane = Lane { zeros: Vec::new(), hashes: Vec::new(), finder: self.hashes.finder(), codec };
        while let Some(mut part) = self.parts.take() {
            let ticket = timed(self.observer, Stage::Read, || lock(&self.source).claim(&mut room))?;
            let Some(ticket) = ticket else {
                self.parts.stop();
                break;
            };
            let number = ticket.number;
            let len_bytes = self.fill(ticket, &mut room, &mut lane, &mut part)?;
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

    /// Fills a part with what was claimed. Returns the bytes of content.
    fn fill(
        &self,
        ticket: Ticket,
        room: &mut PageRoom,
        lane: &mut Lane<'_>,
        part: &mut DeltaPart,
    ) -> Result<u64, S::Error> {
        let Ticket { first_page, claimed, .. } = ticket;
        part.start(self.shape);
        match claimed {
            Claimed::Zeros(pages) => {
                part.push_zeros(pages);
                Ok(pages * PAGE_SIZE as u64)
            }
            Claimed::Filled(len_bytes) => {
                self.add(filled_up(room, len_bytes), first_page, lane, part)?;
                Ok(len_bytes as u64)
            }
            Claimed::Range(range) => {
                if let Some(added) = range.borrow(|pages| self.add(pages, first_page, lane, part)) {
                    added?;
                } else {
                    // What came of borrowed pages is void.
                    part.start(self.shape);
                    self.read(&range, first_page, room, lane, part)?;
                }
                Ok(range.len_bytes() as u64)
            }
        }
    }

    /// Fills a part with a range that is read, a few pages at a time.
    fn read(
        &self,
        range: &ClaimedRange,
        first_page: u64,
        room: &mut PageRoom,
        lane: &mut Lane<'_>,
        part: &mut DeltaPart,
    ) -> Result<(), S::Error> {
        for first in (0..range.len_bytes().div_ceil(PAGE_SIZE)).step_by(READ_PAGES) {
            let skipped = first * PAGE_SIZE;
            let now = (range.len_bytes() - skipped).min(READ_PAGES * PAGE_SIZE);
            let bytes = &mut room.as_flattened_mut()[..now];
            timed(self.observer, Stage::Read, || range.read_part(skipped, bytes))?;
            self.add(filled_up(room, now), first_page + first as u64, lane, part)?;
        }
        Ok(())
    }

    /// Finds out which pages the base has, and adds them and the others to a part.
    fn add(&self, pages: &[Page], first: u64, lane: &mut Lane<'_>, part: &mut DeltaPart) -> Result<(), S::Error> {
        timed(self.observer, Stage::Hash, || lane.hash(pages));
        let added = timed(self.observer, Stage::Compress, || lane.add(pages, first, part));
        Ok(added.map_err(|error| match error {
            AddError::Codec(error) => Error::Codec(error),
            AddError::Archive(error) => Error::archive(self.out_name, error),
        })?)
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

/// Pages that a lane takes at a time from a source of this length. Pages of a stream are all in memory at once, so it
/// takes few.
fn lane_pages(source_bytes: Option<u64>, lanes: usize) -> usize {
    let pages = source_bytes.map_or(0, |len_bytes| len_bytes / PAGE_SIZE as u64);
    let share = pages / (lanes as u64 * PARTS_PER_LANE);
    usize::try_from(share).unwrap_or(usize::MAX).clamp(READ_PAGES, MAX_LANE_PAGES)
}

/// The pages that hold this many bytes, from the start of the room. A shorter last one is filled up with zeros.
fn filled_up(room: &mut PageRoom, len_bytes: usize) -> &[Page] {
    let pages = &mut room[..len_bytes.div_ceil(PAGE_SIZE)];
    pages.as_flattened_mut()[len_bytes..].fill(0);
    pages
}

/// An error of the codec or of the archive.
#[derive(Debug, thiserror::Error)]
enum AddError {
    #[error(transparent)]
    Codec(#[from] trueno_zram_core::Error),
    #[error(transparent)]
    Archive(#[from] trueno_zram_archive::Error),
}

/// The buffers and the codec of a lane.
struct Lane<'a> {
    /// Which of the pages are zero.
    zeros: Vec<bool>,
    /// The hashes of the others.
    hashes: Vec<PageHash>,
    finder: PageFinder<'a>,
    codec: &'a mut PageCodec,
}

impl Lane<'_> {
    /// Hashes the pages that are not zero.
    fn hash(&mut self, pages: &[Page]) {
        let Self { zeros, hashes, .. } = self;
        zeros.clear();
        hashes.clear();
        let is_hashed = |page: &&Page| {
            let is_zero = is_zero(*page);
            zeros.push(is_zero);
            !is_zero
        };
        PageHash::of_pages(pages.iter().filter(is_hashed), hashes);
    }

    /// Adds pages that were hashed.
    fn add(&mut self, pages: &[Page], first: u64, part: &mut DeltaPart) -> Result<(), AddError> {
        let (mut out, mut hashes) = ([0; PAGE_SIZE], self.hashes.iter());
        for ((number, page), is_zero) in (first..).zip(pages).zip(&self.zeros) {
            if *is_zero {
                part.push_zeros(1);
                continue;
            }
            let hash = hashes.next().expect("every page that is not zero was hashed");
            match self.finder.find(number, hash) {
                Some(same) => part.push_base(same, *hash),
                None => {
                    // The encoder reads bytes more than once, and a borrowed page may change after all.
                    let page = std::hint::black_box(*page);
                    part.push_page(self.codec.compress(&page, &mut out)?, &page, *hash)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
