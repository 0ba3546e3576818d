//! The way of an input into a page archive: lanes that read, compress, hash and write side by side.
//!
//! A lane reads a few pages and compresses them while they lie in its core's cache. Hashing and writing go by the order
//! of the input: a parcel that is done early is left for the lane that does the one before it, so that no lane waits
//! for another. Stages with a thread each (read, hash, compress on a pool, write) took a sixth to a third more time on
//! two cores, by the size of their batches.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rayon::ThreadPool;
use trueno_zram_archive::{ArchiveWriter, ContentHash, Summary, WriteOptions};
use trueno_zram_core::{CompressedBatch, PAGE_SIZE, Page};

use crate::engine::{Engine, Lane};
use crate::failure::Failure;
use crate::input::{PageReader, Piece};
use crate::progress::Progress;

/// A stretch of the input on its way, with the memory it takes; used again and again.
struct Parcel {
    /// Its place in the order of the input.
    number: u64,
    piece: Piece,
    pages: Vec<Page>,
    batch: CompressedBatch,
}

/// An input that lanes read in turn.
struct Source {
    /// None once it has ended.
    input: Option<PageReader>,
    next_number: u64,
}

impl Parcel {
    fn new(pages: usize) -> Self {
        let pages = vec![[0; PAGE_SIZE]; pages];
        Self { number: 0, piece: Piece::End, pages, batch: CompressedBatch::new() }
    }

    /// The bytes that were read.
    fn bytes(&self) -> &[u8] {
        match self.piece {
            Piece::Data(len) => &self.pages.as_flattened()[..len],
            Piece::Zeros(_) | Piece::End => &[],
        }
    }

    /// The bytes after the last whole page.
    fn tail(&self) -> &[u8] {
        self.bytes().as_chunks::<PAGE_SIZE>().1
    }

    fn hash_into(&self, hash: &mut ContentHash) {
        match self.piece {
            Piece::Zeros(len_bytes) => hash.update_zeros(len_bytes),
            Piece::Data(_) | Piece::End => hash.update(self.bytes()),
        }
    }

    fn compress(&mut self, lane: &mut Lane<'_>) -> Result<(), Failure> {
        let Piece::Data(len) = self.piece else { return Ok(()) };
        let compressed = lane.compress_into(&self.pages[..len / PAGE_SIZE], &mut self.batch);
        compressed.map_err(|error| Failure::at("compressor", error))
    }
}

/// Parcels to fill.
struct Free {
    parcels: Vec<Parcel>,
    failed: bool,
}

/// Dropped by a lane that did not come to the end, by a failure or a panic: the others stop, and do not wait for it.
struct Unfinished<'a> {
    free: &'a Mutex<Free>,
    changed: &'a Condvar,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        lock(self.free).failed = true;
        self.changed.notify_all();
    }
}

/// Work that is done on parcels in the order of the input, by the lane that comes when it is due.
struct InOrder<T> {
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    /// Parcels that wait for those before them.
    early: BTreeMap<u64, Parcel>,
    next_number: u64,
    /// What the work is done with; none while a lane does it, or if that failed.
    tool: Option<T>,
}

impl<T> InOrder<T> {
    fn new(tool: T) -> Self {
        Self { queue: Mutex::new(Queue { early: BTreeMap::new(), next_number: 0, tool: Some(tool) }) }
    }

    /// Leaves a parcel to be worked on. If no lane is at it, this one is, as long as there is something due.
    fn submit(
        &self,
        parcel: Parcel,
        mut work: impl FnMut(&mut T, Parcel) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut queue = lock(&self.queue);
        queue.early.insert(parcel.number, parcel);
        let Some(mut tool) = queue.tool.take() else { return Ok(()) };
        loop {
            let due = queue.next_number;
            let Some(parcel) = queue.early.remove(&due) else { break };
            queue.next_number += 1;
            drop(queue);
            work(&mut tool, parcel)?;
            queue = lock(&self.queue);
        }
        // Put back under the lock that showed nothing due: whatever comes later finds it.
        queue.tool = Some(tool);
        Ok(())
    }

    fn into_tool(self) -> T {
        let queue = self.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
        queue.tool.expect("it is put back, unless the work failed")
    }
}

/// What all lanes share.
struct Shared<'a, W: Write> {
    source: Mutex<Source>,
    hash: InOrder<Option<ContentHash>>,
    archive: InOrder<ArchiveWriter<W>>,
    free: Mutex<Free>,
    /// A parcel became free, or something failed.
    changed: Condvar,
    pool: &'a ThreadPool,
    out_name: &'a str,
    progress: &'a Progress,
}

/// Compresses all of `input` into a page archive in `out`; gives `out` back.
pub(crate) fn compress<W: Write + Send>(
    input: PageReader,
    (out, out_name): (W, &str),
    options: WriteOptions,
    engine: &mut Engine,
    progress: &Progress,
) -> Result<(W, Summary), Failure> {
    let pool = engine.pool();
    let (lanes, lane_pages) = engine.lanes()?;
    let archive = ArchiveWriter::new(out, options).map_err(|error| archive_failure(out_name, error))?;
    // For each that is filled, two that wait for their turn.
    let parcels = (0..3 * lanes.len()).map(|_| Parcel::new(lane_pages)).collect();
    let shared = Shared {
        source: Mutex::new(Source { input: Some(input), next_number: 0 }),
        hash: InOrder::new(options.content_checksum.then(ContentHash::new)),
        archive: InOrder::new(archive),
        free: Mutex::new(Free { parcels, failed: false }),
        changed: Condvar::new(),
        pool: &pool,
        out_name,
        progress,
    };
    thread::scope(|scope| {
        let mut running = Vec::new();
        for lane in lanes {
            let work = || shared.run(lane);
            match thread::Builder::new().name("lane".into()).spawn_scoped(scope, work) {
                Ok(lane) => running.push(lane),
                Err(error) if running.is_empty() => return Err(Failure::io("worker thread", &error)),
                // Those that run do all the work.
                Err(_) => break,
            }
        }
        let done = running.into_iter().map(|lane| lane.join().expect("lanes do not panic"));
        // All are waited for; the first failure is told.
        done.fold(Ok(()), Result::and)
    })?;
    let (archive, hash) = (shared.archive.into_tool(), shared.hash.into_tool());
    archive.finish(hash).map_err(|error| archive_failure(out_name, error))
}

/// What the archive's writer has to say, without the words that the name of the output makes needless.
pub(crate) fn archive_failure(name: &str, error: trueno_zram_archive::Error) -> Failure {
    match error {
        trueno_zram_archive::Error::Write(error) => Failure::io(name, &error),
        error => Failure::at(name, error),
    }
}

impl<W: Write + Send> Shared<'_, W> {
    /// Takes parcels all the way, until the input ends or something fails.
    fn run(&self, mut lane: Lane<'_>) -> Result<(), Failure> {
        let unfinished = Unfinished { free: &self.free, changed: &self.changed };
        let done = self.run_to_the_end(&mut lane);
        if done.is_ok() {
            std::mem::forget(unfinished);
        }
        done
    }

    fn run_to_the_end(&self, lane: &mut Lane<'_>) -> Result<(), Failure> {
        while let Some(mut parcel) = self.free_parcel() {
            if !self.fill(&mut parcel)? {
                // Another lane may wait for one, to find the end as well.
                self.give_back(parcel);
                break;
            }
            parcel.compress(lane)?;
            let mut hashed = Vec::new();
            self.hash.submit(parcel, |hash, parcel| {
                if let Some(hash) = hash {
                    parcel.hash_into(hash);
                }
                hashed.push(parcel);
                Ok(())
            })?;
            for parcel in hashed {
                self.archive.submit(parcel, |archive, parcel| self.write(archive, parcel))?;
            }
        }
        Ok(())
    }

    /// A parcel to fill; none if something failed.
    fn free_parcel(&self) -> Option<Parcel> {
        let waits = |free: &mut Free| free.parcels.is_empty() && !free.failed;
        let free = self.changed.wait_while(lock(&self.free), waits);
        let mut free = free.unwrap_or_else(PoisonError::into_inner);
        if free.failed { None } else { free.parcels.pop() }
    }

    fn give_back(&self, parcel: Parcel) {
        lock(&self.free).parcels.push(parcel);
        self.changed.notify_one();
    }

    /// Fills a parcel with what comes next; `false` at the end.
    fn fill(&self, parcel: &mut Parcel) -> Result<bool, Failure> {
        let mut source = lock(&self.source);
        let Some(input) = &mut source.input else { return Ok(false) };
        let piece = input.next(&mut parcel.pages).map_err(|error| Failure::io(input.name(), &error));
        // An input that failed has ended for the other lanes as well.
        if !matches!(piece, Ok(Piece::Data(_) | Piece::Zeros(_))) {
            source.input = None;
        }
        parcel.piece = piece?;
        parcel.number = source.next_number;
        source.next_number += 1;
        Ok(parcel.piece != Piece::End)
    }

    fn write(&self, archive: &mut ArchiveWriter<W>, parcel: Parcel) -> Result<(), Failure> {
        let written = write_parcel(archive, &parcel, self.pool);
        written.map_err(|error| archive_failure(self.out_name, error))?;
        self.progress.update(archive.pages().pages() * PAGE_SIZE as u64, archive.written());
        self.give_back(parcel);
        Ok(())
    }
}

fn write_parcel<W: Write + Send>(
    archive: &mut ArchiveWriter<W>,
    parcel: &Parcel,
    pool: &ThreadPool,
) -> trueno_zram_archive::Result<()> {
    /// Blocks that the archive's writer puts together on one thread; more of them are worth the way to the pool.
    const FEW: usize = 64;
    match parcel.piece {
        Piece::Zeros(len_bytes) => archive.write_zero_pages(len_bytes / PAGE_SIZE as u64),
        Piece::End => Ok(()),
        Piece::Data(_) => {
            if parcel.batch.len() <= FEW {
                archive.write_batch(&parcel.batch)?;
            } else {
                pool.install(|| archive.write_batch(&parcel.batch))?;
            }
            archive.write_tail(parcel.tail())
        }
    }
}

/// A lane that panics has its panic passed on when it is joined; what it left behind is not used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::num::NonZeroUsize;

    use clap::Parser;

    use super::*;
    use crate::args::{BackendChoice, Cli};
    use crate::input::Input;

    /// Takes the frame's header, and panics on the first block.
    struct Panics(usize);

    impl Write for Panics {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            assert!(self.0 == 1, "this writer panics");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    #[should_panic(expected = "lanes do not panic")]
    fn a_lane_that_panics_does_not_hold_up_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        // More than all parcels hold, so that lanes wait for those that the panic took.
        std::fs::write(&path, vec![1; 4000 * PAGE_SIZE]).unwrap();
        let input = Input::open(&path).unwrap().into_pages();
        let mut engine = Engine::with(BackendChoice::Cpu, NonZeroUsize::new(3).unwrap()).unwrap();
        let progress = Progress::start(&Cli::parse_from(["trueno-zram", "-q", "info"]).global, "image", None);
        let _ = compress(input, (Panics(0), "out"), WriteOptions::default(), &mut engine, &progress);
    }
}
