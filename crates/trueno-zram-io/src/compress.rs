//! A source of pages into an archive: lanes that read, compress, assemble blocks and write side by side.
//!
//! A lane reads a few pages, compresses them while they are in its core's cache, and assembles their blocks with
//! checksums. Only the place of the blocks in the archive follows the order of the input. A lane that is early leaves
//! its parcel for the lane that has the one before, so that no lane waits for another. Then the blocks are written: at
//! their place by any lane, or in order where the output has no positions.
//!
//! Stages with a thread each (read, hash, compress on a pool, write) took a sixth to a third more time on two cores,
//! depending on the size of their batches.

mod delta;
mod lanes;
mod ring;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use rayon::ThreadPool;
use trueno_zram_archive::{ArchiveWriter, BlockShape, ContentHash, PageBlocks, Summary, WriteOptions};
use trueno_zram_core::gpu::{GpuBatchCompressor, Interpreter};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec};

use crate::Observer;
use crate::anywhere::Anywhere;
use crate::error::{Error, Operation};
use crate::ordered::{InOrder, lock};
use crate::output::ArchiveOutput;
use crate::source::{Claim, ClaimedRange, PageSource};
use crate::timeline::{Stage, timed};

pub use delta::{Base, CompressedDelta, compress_delta};

/// Pages of a hole in one parcel: 64 MiB of content, and 300 KB of blocks.
const ZERO_PAGES: u64 = 16 << 10;

/// Bytes of blocks that may wait to be written.
const MOST_JOB_BYTES: usize = 16 << 20;

/// Slots of a stream for each slot of the ring, as its documentation says.
pub(crate) const SLOTS_PER_RING_SLOT: usize = 3;

/// What compresses the pages.
#[derive(Debug)]
pub enum Compressors<'a> {
    /// One codec per lane. The lanes run on the pool's workers.
    Lanes(&'a mut [PageCodec]),
    /// A GPU. Lanes read into its slots and assemble blocks from its results. They run on threads of their own, as many
    /// as the pool has, since the GPU's compressor may need the pool.
    Gpu {
        /// Compresses slots.
        gpu: Gpu<'a>,
        /// Codecs for lanes that find the GPU busy: one per lane, or none to leave everything to the GPU.
        helpers: &'a mut [PageCodec],
    },
}

/// A GPU, or the interpreter in its place.
#[derive(Debug)]
pub enum Gpu<'a> {
    /// A GPU.
    Cuda(&'a mut GpuBatchCompressor),
    /// The interpreter.
    Interpreter(&'a mut GpuBatchCompressor<Interpreter>),
}

/// What [`compress`] returns.
#[derive(Debug)]
pub struct Compressed<S, W> {
    /// The source, at its end.
    pub source: S,
    /// The output, which holds the whole archive.
    pub out: W,
    /// What was written.
    pub summary: Summary,
}

/// A claimed part of the source.
struct Ticket {
    /// Its number in the order of the input.
    number: u64,
    first_page: u64,
    claimed: Claimed,
}

enum Claimed {
    /// To be read outside the lock.
    Range(ClaimedRange),
    /// This many bytes are in the room.
    Filled(usize),
    /// This many zero pages.
    Zeros(u64),
}

/// A source that numbers what is claimed from it.
struct NumberedSource<S> {
    source: S,
    has_ended: bool,
    next_number: u64,
    next_page: u64,
    /// Pages of a hole that were claimed and not handed out.
    zero_pages: u64,
}

impl<S: PageSource> NumberedSource<S> {
    fn new(source: S) -> Self {
        Self { source, has_ended: false, next_number: 0, next_page: 0, zero_pages: 0 }
    }

    /// Claims what comes next; none at the end.
    fn claim(&mut self, room: &mut [Page]) -> Result<Option<Ticket>, S::Error> {
        if self.has_ended {
            return Ok(None);
        }
        let claimed = match self.zero_pages {
            0 => {
                // A source that fails has ended for the other lanes as well.
                self.has_ended = true;
                let claim = self.source.claim(room)?;
                match claim {
                    Claim::Range(range) => Claimed::Range(range),
                    Claim::Filled(len_bytes) => Claimed::Filled(len_bytes),
                    Claim::Zeros(len_bytes) => {
                        self.zero_pages = len_bytes / PAGE_SIZE as u64;
                        Claimed::Zeros(0)
                    }
                    Claim::End => return Ok(None),
                }
            }
            _ => Claimed::Zeros(0),
        };
        self.has_ended = false;
        let (claimed, pages) = match claimed {
            Claimed::Zeros(_) => {
                // Ends at a multiple, so that runs of zeros end where they would in one piece.
                let pages = self.zero_pages.min(ZERO_PAGES - self.next_page % ZERO_PAGES);
                self.zero_pages -= pages;
                (Claimed::Zeros(pages), pages)
            }
            Claimed::Range(range) => {
                let pages = range.len_bytes().div_ceil(PAGE_SIZE) as u64;
                (Claimed::Range(range), pages)
            }
            Claimed::Filled(len_bytes) => (Claimed::Filled(len_bytes), len_bytes.div_ceil(PAGE_SIZE) as u64),
        };
        let ticket = Ticket { number: self.next_number, first_page: self.next_page, claimed };
        self.next_number += 1;
        self.next_page += pages;
        Ok(Some(ticket))
    }
}

/// Content that is hashed in order, before its memory is used again.
trait Content {
    fn hash_into(&self, hash: &mut ContentHash);

    /// Called once the content is hashed, or need not be. Returns whether its memory can be used again.
    fn release(&mut self) -> bool {
        true
    }
}

/// A parcel on its way to the archive: its blocks, and the memory that holds its content, if that is still needed.
struct Parcel<C> {
    number: u64,
    content: C,
    blocks: PageBlocks,
}

/// Finished blocks, and where they belong.
struct Job {
    at: u64,
    blocks: PageBlocks,
}

/// What all lanes share, whatever compresses.
struct Shared<'a, S: PageSource, W: ArchiveOutput, C> {
    source: Mutex<NumberedSource<S>>,
    hash: InOrder<Parcel<C>, Option<ContentHash>>,
    archive: InOrder<Parcel<C>, ArchiveWriter<W>>,
    shape: BlockShape,
    /// Whether the content is hashed.
    hashes: bool,
    /// None: the output is written in order.
    anywhere: Option<Anywhere>,
    state: Mutex<State<S::Error, C>>,
    /// The state changed.
    changed: Condvar,
    out_name: &'a str,
    observer: &'a dyn Observer,
}

struct State<E, C> {
    /// Memory for blocks.
    spare: Vec<PageBlocks>,
    /// Memory for content, to be used again.
    free: Vec<C>,
    /// Blocks to be written at their place.
    jobs: VecDeque<Job>,
    /// Bytes of these blocks.
    job_bytes: usize,
    /// Threads that write.
    writing: usize,
    /// Lanes before a GPU that wait for work.
    waiting: usize,
    has_ended: bool,
    has_failed: bool,
    /// The first error.
    error: Option<E>,
}

impl<E, C> State<E, C> {
    /// Whether more may be read: what waits to be written is bounded.
    fn has_room(&self) -> bool {
        self.job_bytes < MOST_JOB_BYTES
    }
}

/// Stops the other lanes when dropped: a lane that panics must not keep them waiting for its parcel.
struct StopOthers<'a, E, C> {
    state: &'a Mutex<State<E, C>>,
    changed: &'a Condvar,
}

impl<E, C> Drop for StopOthers<'_, E, C> {
    fn drop(&mut self) {
        lock(self.state).has_failed = true;
        self.changed.notify_all();
    }
}

/// Compresses all of `source` into a page archive, which is written to `out`. Errors of the output use `out_name`.
///
/// # Errors
/// Those of the source; [`Error::Io`] and [`Error::Archive`] for the output; [`Error::Codec`]; [`Error::Thread`].
///
/// # Panics
/// A panic of the source, of the codec or of the output is passed on once all lanes have stopped.
pub fn compress<S: PageSource, W: ArchiveOutput>(
    source: S,
    out: (W, &str),
    options: WriteOptions,
    compressors: Compressors<'_>,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Compressed<S, W>, S::Error> {
    match compressors {
        Compressors::Lanes(codecs) => lanes::compress(source, out, options, codecs, pool, observer),
        Compressors::Gpu { gpu: Gpu::Cuda(gpu), helpers } => {
            let slots = SLOTS_PER_RING_SLOT * gpu.config().ring_buffer_slots;
            let stream = gpu.compress_stream().map_err(Error::Codec)?;
            ring::compress(source, out, options, (&stream, slots), helpers, pool, observer)
        }
        Compressors::Gpu { gpu: Gpu::Interpreter(gpu), helpers } => {
            let slots = SLOTS_PER_RING_SLOT * gpu.config().ring_buffer_slots;
            let stream = gpu.compress_stream().map_err(Error::Codec)?;
            ring::compress(source, out, options, (&stream, slots), helpers, pool, observer)
        }
    }
}

impl<'a, S: PageSource, W: ArchiveOutput, C: Content> Shared<'a, S, W, C> {
    /// Starts the archive.
    fn new(
        source: S,
        (out, out_name): (W, &'a str),
        options: WriteOptions,
        threads: usize,
        observer: &'a dyn Observer,
    ) -> Result<Self, S::Error> {
        // One lane writes in order anyway.
        let anywhere = if threads > 1 { out.anywhere(threads) } else { None };
        let archive = ArchiveWriter::new(out, options).map_err(|error| Error::archive(out_name, error))?;
        let shape = archive.block_shape();
        let source = NumberedSource::new(source);
        let state = State {
            spare: Vec::new(),
            free: Vec::new(),
            jobs: VecDeque::new(),
            job_bytes: 0,
            writing: 0,
            waiting: 0,
            has_ended: false,
            has_failed: false,
            error: None,
        };
        Ok(Self {
            source: Mutex::new(source),
            hash: InOrder::new(options.content_checksum.then(ContentHash::new)),
            archive: InOrder::new(archive),
            shape,
            hashes: options.content_checksum,
            anywhere,
            state: Mutex::new(state),
            changed: Condvar::new(),
            out_name,
            observer,
        })
    }

    /// Ends the archive, once all lanes have stopped.
    fn finish(self) -> Result<Compressed<S, W>, S::Error> {
        let Self { source, hash, archive, state, out_name, .. } = self;
        if let Some(error) = state.into_inner().unwrap_or_else(PoisonError::into_inner).error {
            return Err(error);
        }
        let archive_failed = |error| S::Error::from(Error::archive(out_name, error));
        let mut source = source.into_inner().unwrap_or_else(PoisonError::into_inner).source;
        let mut archive = archive.into_stage().expect("no lane failed");
        for (name, bytes) in source.sections()? {
            archive.add_section(name, &bytes).map_err(archive_failed)?;
        }
        let hash = hash.into_stage().expect("no lane failed");
        let (out, summary) = archive.finish(hash).map_err(archive_failed)?;
        Ok(Compressed { source, out, summary })
    }

    /// Runs a lane to its end. The first error of all lanes is kept.
    fn run(&self, lane: impl FnOnce() -> Result<(), S::Error>) {
        let stop_others = StopOthers { state: &self.state, changed: &self.changed };
        match lane() {
            Ok(()) => std::mem::forget(stop_others),
            Err(error) => {
                lock(&self.state).error.get_or_insert(error);
            }
        }
    }

    /// Blocks to write at their place, if there are some and not enough threads write already.
    fn take_job(&self, state: &mut State<S::Error, C>) -> Option<Job> {
        let writers = self.anywhere.as_ref().map_or(0, Anywhere::writers);
        let job = if state.writing < writers { state.jobs.pop_front() } else { None };
        if let Some(job) = &job {
            state.writing += 1;
            state.job_bytes -= job.blocks.bytes().len();
        }
        job
    }

    /// Claims what comes next into `room`; none at the end, of which the other lanes are told.
    fn claim(&self, room: &mut [Page]) -> Result<Option<Ticket>, S::Error> {
        let ticket = timed(self.observer, Stage::Read, || lock(&self.source).claim(room))?;
        if ticket.is_none() {
            lock(&self.state).has_ended = true;
            self.changed.notify_all();
        }
        Ok(ticket)
    }

    /// Reads a range, outside the lock: other lanes read at the same time.
    fn read(&self, range: &ClaimedRange, room: &mut [Page]) -> Result<usize, Error> {
        timed(self.observer, Stage::Read, || range.read(room))
    }

    /// Memory for blocks, from `first_page` on.
    fn blocks(&self, first_page: u64) -> PageBlocks {
        let mut blocks = lock(&self.state).spare.pop().unwrap_or_default();
        blocks.start(first_page, self.shape);
        blocks
    }

    /// Takes a parcel with its blocks to the archive, with all others that are due.
    fn deliver(&self, parcel: Parcel<C>) -> Result<(), S::Error> {
        let mut hashed = Vec::new();
        self.hash.submit(parcel.number, parcel, |hash, mut parcel| {
            if let Some(hash) = hash {
                timed(self.observer, Stage::Hash, || parcel.content.hash_into(hash));
            }
            let _ = parcel.content.release();
            hashed.push(parcel);
            Ok::<(), S::Error>(())
        })?;
        for parcel in hashed {
            self.archive.submit(parcel.number, parcel, |archive, parcel| self.place(archive, parcel))?;
        }
        Ok(())
    }

    /// Gives the blocks of a parcel their place, or writes them if the output is written in order.
    fn place(&self, archive: &mut ArchiveWriter<W>, parcel: Parcel<C>) -> Result<(), S::Error> {
        let Parcel { mut content, blocks, .. } = parcel;
        let content = content.release().then_some(content);
        let failed = |error| Error::archive(self.out_name, error);
        if self.anywhere.is_none() {
            timed(self.observer, Stage::Write, || archive.write_blocks(&blocks)).map_err(failed)?;
            self.observer.progress(archive.pages().bytes_in(), archive.written());
            let mut state = lock(&self.state);
            state.spare.push(blocks);
            state.free.extend(content);
        } else {
            let at = archive.place_blocks(&blocks).map_err(failed)?;
            archive.get_mut().skip(blocks.bytes().len() as u64);
            self.observer.progress(archive.pages().bytes_in(), archive.written());
            let mut state = lock(&self.state);
            state.job_bytes += blocks.bytes().len();
            state.jobs.push_back(Job { at, blocks });
            state.free.extend(content);
            drop(state);
            // For the blocks to write; the one below is for the memory.
            self.changed.notify_one();
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Writes blocks at their place.
    fn write(&self, job: Job) -> Result<(), S::Error> {
        let Job { at, blocks } = job;
        let anywhere = self.anywhere.as_ref().expect("a job has a place");
        let written = timed(self.observer, Stage::Write, || anywhere.write_at(at, blocks.bytes()));
        written.map_err(|error| Error::io(self.out_name, Operation::Write, error))?;
        let mut state = lock(&self.state);
        state.writing -= 1;
        state.spare.push(blocks);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
