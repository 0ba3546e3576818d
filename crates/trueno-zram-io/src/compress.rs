//! A source of pages into an archive: lanes that read, compress, hash and write side by side.
//!
//! A lane reads a few pages and compresses them while they are in its core's cache. Hashing and writing follow the
//! order of the input: a lane that is early leaves its parcel for the lane that has the one before, so that no lane
//! waits for another. Stages with a thread each (read, hash, compress on a pool, write) took a sixth to a third more
//! time on two cores, depending on the size of their batches.

use std::io::Write;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use rayon::ThreadPool;
use trueno_zram_archive::{ArchiveWriter, ContentHash, Summary, WriteOptions};
use trueno_zram_core::{BatchCodec, CompressedBatch, PAGE_SIZE, Page, PageCodec};

use crate::Observer;
use crate::error::Error;
use crate::ordered::{InOrder, lock};
use crate::source::{Claim, PageSource};

/// Pages that a lane on the CPU takes at a time: together with their compressed form they stay in the core's cache.
const LANE_PAGES: usize = 64;
/// Lanes before a shared codec: one compresses, one reads, one hashes and writes.
const SHARED_LANES: usize = 3;
/// Parcels beyond one per lane, which wait for their turn: two per lane, or two in all where parcels are large.
const WAITING_PER_LANE: usize = 2;
const WAITING_SHARED: usize = 2;

/// What compresses the pages.
pub enum Compressors<'a> {
    /// One codec per lane. The lanes run on the pool's workers.
    Lanes(&'a mut [PageCodec]),
    /// One codec for all lanes, used by one at a time. The lanes run on threads of their own and mostly wait for it: on
    /// the pool, a lane could be resumed inside the codec's own work and wait for itself.
    Shared {
        /// Compresses a batch.
        codec: &'a mut dyn BatchCodec,
        /// Pages per batch.
        batch_pages: usize,
    },
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

/// Compresses one lane's pages.
enum Lane<'a> {
    Own(&'a mut PageCodec),
    Shared(&'a Mutex<&'a mut dyn BatchCodec>),
}

impl Lane<'_> {
    /// Compresses `pages` into `batch`, which is emptied first.
    fn compress(&mut self, pages: &[Page], batch: &mut CompressedBatch) -> Result<(), Error> {
        match self {
            Lane::Own(codec) => {
                batch.clear();
                let mut out = [0; PAGE_SIZE];
                for page in pages {
                    batch.push(codec.compress(page, &mut out)?);
                }
            }
            // A codec starts every batch anew, whatever happened to the one before.
            Lane::Shared(codec) => lock(codec).compress_into(pages, batch, &())?,
        }
        Ok(())
    }
}

/// A part of the source on its way, with the memory it needs; used again and again.
struct Parcel {
    content: Content,
    pages: Vec<Page>,
    batch: CompressedBatch,
}

#[derive(Clone, Copy)]
enum Content {
    /// This many bytes of `pages`.
    Data(usize),
    Zeros(u64),
}

impl Parcel {
    fn new(pages: usize) -> Self {
        Self { content: Content::Data(0), pages: vec![[0; PAGE_SIZE]; pages], batch: CompressedBatch::new() }
    }

    fn hash_into(&self, hash: &mut ContentHash) {
        match self.content {
            Content::Zeros(len_bytes) => hash.update_zeros(len_bytes),
            Content::Data(len_bytes) => hash.update(&self.pages.as_flattened()[..len_bytes]),
        }
    }

    fn compress(&mut self, lane: &mut Lane<'_>) -> Result<(), Error> {
        let Content::Data(len_bytes) = self.content else { return Ok(()) };
        lane.compress(&self.pages[..len_bytes / PAGE_SIZE], &mut self.batch)
    }

    fn write_to<W: Write + Send>(
        &self,
        archive: &mut ArchiveWriter<W>,
        pool: &ThreadPool,
    ) -> trueno_zram_archive::Result<()> {
        /// Blocks that the archive's writer puts together on one thread; more of them are worth the way to the pool.
        const FEW: usize = 64;
        match self.content {
            Content::Zeros(len_bytes) => archive.write_zero_pages(len_bytes / PAGE_SIZE as u64),
            Content::Data(len_bytes) => {
                if self.batch.len() <= FEW {
                    archive.write_batch(&self.batch)?;
                } else {
                    pool.install(|| archive.write_batch(&self.batch))?;
                }
                archive.write_tail(self.pages.as_flattened()[..len_bytes].as_chunks::<PAGE_SIZE>().1)
            }
        }
    }
}

/// What the lanes share.
struct Shared<'a, S: PageSource, W: Write> {
    source: Mutex<NumberedSource<S>>,
    hash: InOrder<(u64, Parcel), Option<ContentHash>>,
    archive: InOrder<Parcel, ArchiveWriter<W>>,
    free: Mutex<Free<S::Error>>,
    /// A parcel became free, or something failed.
    changed: Condvar,
    pool: &'a ThreadPool,
    out_name: &'a str,
    observer: &'a dyn Observer,
}

/// A source that numbers what is claimed from it.
struct NumberedSource<S> {
    source: S,
    has_ended: bool,
    next_number: u64,
}

/// Parcels to fill.
struct Free<E> {
    parcels: Vec<Parcel>,
    has_failed: bool,
    /// The first error.
    error: Option<E>,
}

/// Stops the other lanes when dropped: a lane that panics must not keep them waiting for its parcel.
struct StopOthers<'a, E> {
    free: &'a Mutex<Free<E>>,
    changed: &'a Condvar,
}

impl<E> Drop for StopOthers<'_, E> {
    fn drop(&mut self) {
        lock(self.free).has_failed = true;
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
pub fn compress<S: PageSource, W: Write + Send>(
    source: S,
    (out, out_name): (W, &str),
    options: WriteOptions,
    compressors: Compressors<'_>,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Compressed<S, W>, S::Error> {
    let archive_failed = |error| S::Error::from(Error::archive(out_name, error));
    let archive = ArchiveWriter::new(out, options).map_err(archive_failed)?;
    let (most_lanes, most_pages) = match &compressors {
        Compressors::Lanes(codecs) => (codecs.len().min(pool.current_num_threads()).max(1), LANE_PAGES),
        Compressors::Shared { batch_pages, .. } => (SHARED_LANES, *batch_pages),
    };
    // A small input needs few lanes and little memory.
    let page_count = source.len_bytes().map_or(u64::MAX, |len_bytes| len_bytes.div_ceil(PAGE_SIZE as u64));
    let page_count = usize::try_from(page_count).unwrap_or(usize::MAX).max(1);
    let parcel_pages = most_pages.min(page_count);
    let lane_count = most_lanes.min(page_count.div_ceil(parcel_pages));
    let waiting = match &compressors {
        Compressors::Lanes(_) => WAITING_PER_LANE * lane_count,
        Compressors::Shared { .. } => WAITING_SHARED,
    };
    let parcels = (0..lane_count + waiting).map(|_| Parcel::new(parcel_pages)).collect();
    let shared = Shared {
        source: Mutex::new(NumberedSource { source, has_ended: false, next_number: 0 }),
        hash: InOrder::new(options.content_checksum.then(ContentHash::new)),
        archive: InOrder::new(archive),
        free: Mutex::new(Free { parcels, has_failed: false, error: None }),
        changed: Condvar::new(),
        pool,
        out_name,
        observer,
    };
    match compressors {
        Compressors::Lanes(codecs) => pool.scope(|scope| {
            for codec in codecs.iter_mut().take(lane_count) {
                scope.spawn(|_| shared.run(Lane::Own(codec)));
            }
        }),
        Compressors::Shared { codec, .. } => run_on_threads(&shared, lane_count, &Mutex::new(codec))?,
    }
    let Shared { source, hash, archive, free, .. } = shared;
    if let Some(error) = free.into_inner().unwrap_or_else(PoisonError::into_inner).error {
        return Err(error);
    }
    let mut source = source.into_inner().unwrap_or_else(PoisonError::into_inner).source;
    let mut archive = archive.into_stage().expect("no lane failed");
    for (name, bytes) in source.sections()? {
        archive.add_section(name, &bytes).map_err(archive_failed)?;
    }
    let hash = hash.into_stage().expect("no lane failed");
    let (out, summary) = archive.finish(hash).map_err(archive_failed)?;
    Ok(Compressed { source, out, summary })
}

/// Runs lanes on threads of their own, before one codec.
fn run_on_threads<'a, S: PageSource, W: Write + Send>(
    shared: &Shared<'_, S, W>,
    lane_count: usize,
    codec: &'a Mutex<&'a mut dyn BatchCodec>,
) -> Result<(), S::Error> {
    thread::scope(|scope| {
        let mut running = Vec::new();
        for number in 0..lane_count {
            let work = || shared.run(Lane::Shared(codec));
            match thread::Builder::new().name(format!("lane-{number}")).spawn_scoped(scope, work) {
                Ok(lane) => running.push(lane),
                Err(error) if running.is_empty() => return Err(Error::Thread(error).into()),
                // Those that run do all the work.
                Err(_) => break,
            }
        }
        for lane in running {
            if let Err(panic) = lane.join() {
                std::panic::resume_unwind(panic);
            }
        }
        Ok(())
    })
}

impl<S: PageSource, W: Write + Send> Shared<'_, S, W> {
    /// Takes parcels all the way, until the source ends or something fails.
    fn run(&self, mut lane: Lane<'_>) {
        let stop_others = StopOthers { free: &self.free, changed: &self.changed };
        match self.run_to_the_end(&mut lane) {
            Ok(()) => std::mem::forget(stop_others),
            Err(error) => {
                lock(&self.free).error.get_or_insert(error);
            }
        }
    }

    fn run_to_the_end(&self, lane: &mut Lane<'_>) -> Result<(), S::Error> {
        while let Some(mut parcel) = self.free_parcel() {
            let Some(number) = self.fill(&mut parcel)? else {
                // Another lane may wait for one, to find the end as well.
                self.give_back(parcel);
                break;
            };
            parcel.compress(lane)?;
            let mut hashed = Vec::new();
            self.hash.submit(number, (number, parcel), |hash, (number, parcel)| {
                if let Some(hash) = hash {
                    parcel.hash_into(hash);
                }
                hashed.push((number, parcel));
                Ok::<(), S::Error>(())
            })?;
            for (number, parcel) in hashed {
                self.archive.submit(number, parcel, |archive, parcel| self.write(archive, parcel))?;
            }
        }
        Ok(())
    }

    /// A parcel to fill; none if something failed.
    fn free_parcel(&self) -> Option<Parcel> {
        let waits = |free: &mut Free<S::Error>| free.parcels.is_empty() && !free.has_failed;
        let free = self.changed.wait_while(lock(&self.free), waits);
        let mut free = free.unwrap_or_else(PoisonError::into_inner);
        if free.has_failed { None } else { free.parcels.pop() }
    }

    fn give_back(&self, parcel: Parcel) {
        lock(&self.free).parcels.push(parcel);
        self.changed.notify_one();
    }

    /// Fills a parcel with what comes next, and numbers it; none at the end.
    fn fill(&self, parcel: &mut Parcel) -> Result<Option<u64>, S::Error> {
        let (claim, number) = {
            let mut numbered = lock(&self.source);
            if numbered.has_ended {
                return Ok(None);
            }
            // A source that fails has ended for the other lanes as well.
            numbered.has_ended = true;
            let claim = numbered.source.claim(&mut parcel.pages)?;
            if matches!(claim, Claim::End) {
                return Ok(None);
            }
            numbered.has_ended = false;
            let number = numbered.next_number;
            numbered.next_number += 1;
            (claim, number)
        };
        parcel.content = match claim {
            // Outside the lock: other lanes read at the same time.
            Claim::Range(range) => Content::Data(range.read(&mut parcel.pages)?),
            Claim::Filled(len_bytes) => Content::Data(len_bytes),
            Claim::Zeros(len_bytes) => Content::Zeros(len_bytes),
            Claim::End => return Ok(None),
        };
        Ok(Some(number))
    }

    fn write(&self, archive: &mut ArchiveWriter<W>, parcel: Parcel) -> Result<(), S::Error> {
        parcel.write_to(archive, self.pool).map_err(|error| Error::archive(self.out_name, error))?;
        self.observer.progress(archive.pages().bytes_in(), archive.written());
        self.give_back(parcel);
        Ok(())
    }
}

impl std::fmt::Debug for Compressors<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lanes(codecs) => write!(f, "Lanes({})", codecs.len()),
            Self::Shared { batch_pages, .. } => write!(f, "Shared(batches of {batch_pages} pages)"),
        }
    }
}

#[cfg(test)]
mod tests;
