//! An archive that is read by page number, a delta above all, back into its content.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::ThreadPool;
use trueno_zram_archive::{ContentSpan, PageArchive};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::groups::write_sparse;
use super::{Sink, Way};
use crate::Observer;
use crate::error::{Error, Operation, Result};
use crate::ordered::{InOrder, lock};
use crate::output::is_zero;
use crate::spare::Spare;
use crate::timeline::{Stage, timed};

/// Pages that a lane takes at a time: they stay in the core's cache.
const LANE_PAGES: usize = 64;
/// Pieces of content beyond one per lane, which wait for their turn.
const WAITING_PER_LANE: usize = 4;

/// What all lanes share.
struct Shared<'a, K> {
    archive: &'a PageArchive,
    name: &'a str,
    out_name: String,
    way: Way,
    next: AtomicU64,
    done: AtomicU64,
    in_order: InOrder<(Vec<Page>, usize), &'a mut K>,
    spare: Spare<Vec<Page>>,
    error: Mutex<Option<Error>>,
    observer: &'a dyn Observer,
}

/// Restores all content of `archive` into `sink`, on the workers of `pool`. Returns its length. Every page of a delta is
/// compared with its hash. Errors of the archive use `name`.
///
/// # Errors
/// [`Error::Archive`], and those of the sink.
pub fn restore_pages<K: Sink>(
    archive: &PageArchive,
    name: &str,
    sink: &mut K,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<u64> {
    observer.total(Some(archive.content_len()));
    let lanes = pool.current_num_threads().max(1);
    let (way, out_name) = (sink.way(lanes)?, sink.name().to_owned());
    let is_ordered = matches!(way, Way::InOrder);
    let pieces = if is_ordered { lanes * (1 + WAITING_PER_LANE) } else { lanes };
    let shared = Shared {
        archive,
        name,
        out_name,
        way,
        next: AtomicU64::new(0),
        done: AtomicU64::new(0),
        in_order: InOrder::new(sink),
        spare: Spare::new((0..pieces).map(|_| vec![[0; PAGE_SIZE]; LANE_PAGES]).collect()),
        error: Mutex::new(None),
        observer,
    };
    pool.scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|_| {
                if let Err(error) = shared.spare.run(|| shared.run_lane()) {
                    lock(&shared.error).get_or_insert(error);
                    shared.spare.stop();
                }
            });
        }
    });
    let Shared { error, in_order, way, .. } = shared;
    if let Some(error) = error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(error);
    }
    drop(way);
    let sink = in_order.into_stage().expect("no lane failed");
    if !is_ordered {
        sink.set_placed(archive.content_len());
    }
    Ok(archive.content_len())
}

impl<K: Sink> Shared<'_, K> {
    /// Takes pages all the way, until there are no more or something fails.
    fn run_lane(&self) -> Result<()> {
        while let Some(mut room) = self.spare.take() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let first = number.saturating_mul(LANE_PAGES as u64);
            let left = self.archive.page_count().saturating_sub(first);
            let pages = usize::try_from(left).unwrap_or(LANE_PAGES).min(LANE_PAGES);
            if pages == 0 {
                self.spare.stop();
                break;
            }
            let read = timed(self.observer, Stage::Decode, || self.archive.read_pages(first, &mut room[..pages]));
            read.map_err(|error| Error::archive(self.name, error))?;
            let start = first * PAGE_SIZE as u64;
            let len_bytes = usize::try_from(self.archive.content_len() - start).unwrap_or(usize::MAX);
            let len_bytes = len_bytes.min(pages * PAGE_SIZE);
            if matches!(self.way, Way::InOrder) {
                self.deliver(number, room, len_bytes)?;
            } else {
                timed(self.observer, Stage::Write, || self.write(start, &room.as_flattened()[..len_bytes]))?;
                self.count(len_bytes);
                self.spare.give(room);
            }
        }
        Ok(())
    }

    fn deliver(&self, number: u64, room: Vec<Page>, len_bytes: usize) -> Result<()> {
        self.in_order.submit(number, (room, len_bytes), |sink, (room, len_bytes)| {
            let bytes = &room.as_flattened()[..len_bytes];
            let span = match bytes.chunks(PAGE_SIZE).all(is_zero) {
                true => ContentSpan::Zeros(len_bytes as u64),
                false => ContentSpan::Data(bytes),
            };
            timed(self.observer, Stage::Write, || sink.take(span))?;
            self.count(len_bytes);
            self.spare.give(room);
            Ok(())
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let Way::Anywhere { file, sparse } = &self.way else { return Ok(()) };
        let written = match sparse {
            true => write_sparse(file, at, bytes),
            false => file.write_at(at, bytes),
        };
        written.map_err(|error| Error::io(&self.out_name, Operation::Write, error))
    }

    fn count(&self, len_bytes: usize) {
        let done = self.done.fetch_add(len_bytes as u64, Ordering::Relaxed) + len_bytes as u64;
        self.observer.progress(done, done);
    }
}
