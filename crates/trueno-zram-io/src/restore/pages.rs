//! An archive or a delta, read by page number, back into its content or parts of it.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::ThreadPool;
use trueno_zram_archive::{ContentSpan, PageArchive};
use trueno_zram_core::{PAGE_SIZE, Page, PageRoom, is_zero};

use super::groups::write_sparse;
use super::{Sink, Way};
use crate::Observer;
use crate::error::{Error, Operation, Result};
use crate::ordered::{InOrder, lock};
use crate::spare::Spare;
use crate::timeline::{Stage, timed};

/// Pages that a lane takes at a time: a group of an archive, which is compared with the index as a whole.
const LANE_PAGES: usize = 1024;
const LANE_BYTES: u64 = (LANE_PAGES * PAGE_SIZE) as u64;
/// Parts in memory beyond one per lane, which wait for their turn.
const WAITING: usize = 2;
/// The most parts in memory: 64 MiB.
pub(super) const MOST_PARTS: usize = 16;

/// What all lanes share.
struct Shared<'a, K> {
    archive: &'a PageArchive,
    name: &'a str,
    out_name: String,
    way: Way,
    parts: Parts,
    next: AtomicU64,
    done: AtomicU64,
    in_order: InOrder<Restored, &'a mut K>,
    spare: Spare<PageRoom>,
    error: Mutex<Option<Error>>,
    observer: &'a dyn Observer,
}

/// A part of the content in memory, among the rest of its pages.
struct Restored {
    room: PageRoom,
    within: Range<usize>,
    /// All of it is zeros, which are not in memory.
    is_hole: bool,
}

impl Restored {
    fn bytes(&self) -> &[u8] {
        &self.room.as_flattened()[self.within.clone()]
    }
}

/// Ranges of the content, one behind the other in the output, cut into parts that a lane takes at a time.
struct Parts {
    ranges: Vec<PartedRange>,
    parts: u64,
    len_bytes: u64,
}

struct PartedRange {
    bytes: Range<u64>,
    /// The number of its first part.
    first_part: u64,
    /// Where it starts in the output.
    output_start: u64,
}

/// What a lane takes at a time: bytes of the content that lie in pages side by side, and their place in the output.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    bytes: Range<u64>,
    output_start: u64,
}

impl Parts {
    fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut parts = Self { ranges: Vec::new(), parts: 0, len_bytes: 0 };
        for bytes in ranges.into_iter().filter(|bytes| !bytes.is_empty()) {
            let (count, len_bytes) =
                (bytes.end.div_ceil(LANE_BYTES) - bytes.start / LANE_BYTES, bytes.end - bytes.start);
            parts.ranges.push(PartedRange { bytes, first_part: parts.parts, output_start: parts.len_bytes });
            parts.parts += count;
            parts.len_bytes += len_bytes;
        }
        parts
    }

    /// The part of this number; `None` behind the last.
    fn get(&self, number: u64) -> Option<Part> {
        if number >= self.parts {
            return None;
        }
        let before = self.ranges.partition_point(|range| range.first_part <= number);
        let PartedRange { bytes: range, first_part, output_start } = self.ranges.get(before.checked_sub(1)?)?;
        let lane = range.start / LANE_BYTES + (number - first_part);
        let start = range.start.max(lane * LANE_BYTES);
        let end = range.end.min((lane + 1) * LANE_BYTES);
        Some(Part { bytes: start..end, output_start: output_start + (start - range.start) })
    }
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
    restore_ranges(archive, name, std::iter::once(0..archive.content_len()), sink, pool, observer)
}

/// Restores ranges of the content of `archive`, in bytes, into `sink`: one behind the other, on the workers of `pool`. Returns
/// their length. Errors of the archive use `name`.
///
/// # Errors
/// [`Error::Archive`], also for a range behind the end; and those of the sink.
pub fn restore_ranges<K: Sink>(
    archive: &PageArchive,
    name: &str,
    ranges: impl IntoIterator<Item = Range<u64>>,
    sink: &mut K,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<u64> {
    let parts = Parts::new(ranges);
    let len_bytes = parts.len_bytes;
    observer.total(Some(len_bytes));
    let lanes = pool.current_num_threads().max(1);
    let (way, out_name) = (sink.way(lanes)?, sink.name().to_owned());
    let is_ordered = matches!(way, Way::InOrder);
    let rooms = if is_ordered { lanes + WAITING } else { lanes }.min(MOST_PARTS);
    let shared = Shared {
        archive,
        name,
        out_name,
        way,
        parts,
        next: AtomicU64::new(0),
        done: AtomicU64::new(0),
        in_order: InOrder::new(sink),
        spare: Spare::new((0..rooms).map(|_| PageRoom::new(LANE_PAGES)).collect()),
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
        sink.set_placed(len_bytes);
    }
    Ok(len_bytes)
}

impl<K: Sink> Shared<'_, K> {
    /// Takes parts all the way, until there are no more or something fails.
    fn run_lane(&self) -> Result<()> {
        while let Some(mut room) = self.spare.take() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = self.parts.get(number) else {
                self.spare.stop();
                break;
            };
            let page_bytes = PAGE_SIZE as u64;
            let first = part.bytes.start / page_bytes;
            let within = |position: u64| usize::try_from(position - first * page_bytes).expect("a part is small");
            let within = within(part.bytes.start)..within(part.bytes.end);
            let pages = within.end.div_ceil(PAGE_SIZE);
            let is_hole = timed(self.observer, Stage::Decode, || self.read_part(first, &mut room[..pages]));
            let is_hole = is_hole.map_err(|error| Error::archive(self.name, error))?;
            let restored = Restored { room, within, is_hole };
            if matches!(self.way, Way::InOrder) {
                self.deliver(number, restored)?;
            } else {
                if !is_hole {
                    timed(self.observer, Stage::Write, || self.write(part.output_start, restored.bytes()))?;
                }
                self.count(restored);
            }
        }
        Ok(())
    }

    /// Reads the pages of a part. Returns `true` if they are zeros that need not be in memory.
    fn read_part(&self, first: u64, room: &mut [Page]) -> trueno_zram_archive::Result<bool> {
        if !matches!(self.way, Way::Anywhere { sparse: false, .. }) && self.is_hole(first..first + room.len() as u64)? {
            return Ok(true);
        }
        self.archive.read_pages(first, room).map(|()| false)
    }

    /// Returns whether the map of a delta says that pages are zero: a few of its bytes stand for thousands of them.
    fn is_hole(&self, pages: Range<u64>) -> trueno_zram_archive::Result<bool> {
        let Some(delta) = self.archive.as_delta() else { return Ok(false) };
        let mut page = pages.start;
        while page < pages.end {
            match delta.zero_run(page)? {
                0 => return Ok(false),
                zeros => page += zeros,
            }
        }
        Ok(true)
    }

    fn deliver(&self, number: u64, restored: Restored) -> Result<()> {
        self.in_order.submit(number, restored, |sink, restored| {
            let bytes = restored.bytes();
            let span = match restored.is_hole || bytes.chunks(PAGE_SIZE).all(is_zero) {
                true => ContentSpan::Zeros(bytes.len() as u64),
                false => ContentSpan::Data(bytes),
            };
            timed(self.observer, Stage::Write, || sink.take(span))?;
            self.count(restored);
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

    /// Counts what is written, and gives its memory back.
    fn count(&self, restored: Restored) {
        let len_bytes = restored.within.len() as u64;
        let done = self.done.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes;
        self.observer.progress(done, done);
        self.spare.give(restored.room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_ranges_in_order_without_gaps() {
        let ranges = [5..5, 100..LANE_BYTES + 1, LANE_BYTES..3 * LANE_BYTES, 7..9, 0..0, 7..LANE_BYTES];
        let parts = Parts::new(ranges.clone());
        let all: Vec<Part> = (0..).map_while(|number| parts.get(number)).collect();
        assert_eq!(all.len(), 2 + 2 + 1 + 1);
        let mut output_end = 0;
        for part in &all {
            assert_eq!(part.output_start, output_end);
            assert_eq!(part.bytes.start / LANE_BYTES, (part.bytes.end - 1) / LANE_BYTES, "one lane's room");
            output_end += part.bytes.end - part.bytes.start;
        }
        assert_eq!(output_end, parts.len_bytes);
        let bytes = |ranges: &mut dyn Iterator<Item = Range<u64>>| ranges.flatten().collect::<Vec<_>>();
        assert!(bytes(&mut all.into_iter().map(|part| part.bytes)) == bytes(&mut ranges.into_iter()));
    }

    #[test]
    fn no_ranges_are_no_parts() {
        assert_eq!(Parts::new([]).get(0), None);
        assert_eq!(Parts::new([3..3, 5..5]).get(0), None);
    }
}
