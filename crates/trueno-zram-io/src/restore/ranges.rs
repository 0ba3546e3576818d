//! An archive or a delta, read by page number, back into its content or parts of it.

use std::marker::PhantomData;
use std::ops::Range;

use trueno_zram_archive::{ContentSpan, Pages};
use trueno_zram_core::{AlignedPages, PAGE_SIZE, Page, is_zero};

use super::content_writer::ContentWriter;
use super::{Sink, WriteMode};
use crate::error::{Error, Result};
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{Pipeline, Work};
use crate::workers::{Observer, Workers};

/// Pages that a lane takes at a time: a group of an archive, which is compared with the index as a whole.
const LANE_PAGES: usize = 1024;
const LANE_BYTES: u64 = (LANE_PAGES * PAGE_SIZE) as u64;
const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Parts in memory beyond one per lane, which wait for those before them.
const QUEUED_UNITS: usize = 2;
/// The most parts in memory: 64 MiB.
pub(super) const MAX_UNITS: usize = 16;

/// Restores ranges of pages into content.
struct RestoreRanges<'a, K> {
    archive: &'a dyn Pages,
    name: &'a str,
    parts: ContentParts,
    content: ContentWriter<'a>,
    observer: &'a dyn Observer,
    sink: PhantomData<fn(&'a mut K)>,
}

/// A part of the content in memory, among the rest of its pages.
struct RangeUnit {
    part: ContentPart,
    buffer: AlignedPages,
    within: Range<usize>,
    /// All of it is zeros, which are not in memory.
    is_hole: bool,
}

impl RangeUnit {
    fn span(&self) -> ContentSpan<'_> {
        match self.is_hole {
            true => ContentSpan::Zeros(self.within.len() as u64),
            false => ContentSpan::Data(&self.buffer.as_flattened()[self.within.clone()]),
        }
    }
}

/// Ranges of the content, which follow each other in the output, divided into parts that a lane takes at a time.
struct ContentParts {
    ranges: Vec<PartedRange>,
    parts: u64,
    len_bytes: u64,
}

struct PartedRange {
    bytes: Range<u64>,
    /// The number of its first part.
    first_part: u64,
    /// The offset of its start in the output.
    output_start: u64,
}

/// The work of a lane at a time: a range of the content, and its offset in the output.
#[derive(Debug, PartialEq, Eq)]
struct ContentPart {
    bytes: Range<u64>,
    output_start: u64,
}

impl ContentParts {
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

    /// Returns the part of this number; `None` after the last.
    fn get(&self, number: u64) -> Option<ContentPart> {
        if number >= self.parts {
            return None;
        }
        let before = self.ranges.partition_point(|range| range.first_part <= number);
        let PartedRange { bytes: range, first_part, output_start } = self.ranges.get(before.checked_sub(1)?)?;
        let lane = range.start / LANE_BYTES + (number - first_part);
        let start = range.start.max(lane * LANE_BYTES);
        let end = range.end.min((lane + 1) * LANE_BYTES);
        Some(ContentPart { bytes: start..end, output_start: output_start + (start - range.start) })
    }
}

/// Restores all content of `archive` into `sink`, on the threads of the pool. Returns its length. Every page of a delta is
/// compared with its hash. Errors of the archive use `name`.
///
/// ```no_run
/// use trueno_zram_io::{ArchiveOpener, Output, OutputOptions, OutputTarget, Workers, restore_pages};
/// let pool = rayon::ThreadPoolBuilder::new().build()?;
/// let archive = ArchiveOpener::new().open("tuesday.tzd".as_ref())?.expect("an archive or a delta");
/// let mut output = Output::create(&OutputTarget::Path("image".into()), None, OutputOptions::default())?;
/// restore_pages(&archive, "tuesday.tzd", &mut output, Workers::new(&pool))?;
/// output.finish(None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Archive`], and those of the sink.
pub fn restore_pages<K: Sink>(archive: &dyn Pages, name: &str, sink: &mut K, workers: Workers<'_>) -> Result<u64> {
    restore_ranges(archive, name, std::iter::once(0..archive.len_bytes()), sink, workers)
}

/// Restores ranges of the content of `archive`, in bytes, into `sink`, one after the other, on the threads of the pool. Returns
/// their total length. Errors of the archive use `name`.
///
/// ```no_run
/// use trueno_zram_io::{ArchiveOpener, Output, OutputOptions, OutputTarget, Workers, restore_ranges};
/// let pool = rayon::ThreadPoolBuilder::new().build()?;
/// let archive = ArchiveOpener::new().open("image.lz4".as_ref())?.expect("an archive or a delta");
/// let mut output = Output::create(&OutputTarget::Stdout, None, OutputOptions::default())?;
/// restore_ranges(&archive, "image.lz4", [0..4096, 1 << 20..2 << 20], &mut output, Workers::new(&pool))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Archive`], also for a range past the end; and those of the sink.
pub fn restore_ranges<K: Sink>(
    archive: &dyn Pages,
    name: &str,
    ranges: impl IntoIterator<Item = Range<u64>>,
    sink: &mut K,
    workers: Workers<'_>,
) -> Result<u64> {
    let (parts, observer) = (ContentParts::new(ranges), workers.observer);
    let len_bytes = parts.len_bytes;
    observer.total(Some(len_bytes));
    let lanes = workers.threads().min(archive.max_readers()).max(1);
    let content = ContentWriter::new(sink.write_mode(lanes)?, sink.name(), observer);
    let is_in_order = content.is_in_order();
    let max_units = if is_in_order { lanes + QUEUED_UNITS } else { lanes }.min(MAX_UNITS);
    let work = RestoreRanges { archive, name, parts, content, observer, sink: PhantomData };
    let pipeline = Pipeline::new(work, 0, sink, max_units, observer);
    pipeline.run_on(workers.pool, (0..lanes).map(|_| ()));
    let done = pipeline.finish()?;
    // Unmaps the output before it is used again.
    drop(done.work);
    if !is_in_order {
        done.ordered.set_written(len_bytes);
    }
    Ok(len_bytes)
}

impl<'a, K: Sink> Work for RestoreRanges<'a, K> {
    /// The number of the next part.
    type Source = u64;
    type Unit = RangeUnit;
    type Lane = ();
    type Ordered = &'a mut K;
    type Error = Error;

    fn unit(&self) -> RangeUnit {
        let part = ContentPart { bytes: 0..0, output_start: 0 };
        RangeUnit { part, buffer: AlignedPages::new(LANE_PAGES), within: 0..0, is_hole: false }
    }

    fn claim(&self, next: &mut u64, _lane: &mut (), unit: &mut RangeUnit) -> Result<bool> {
        let Some(part) = self.parts.get(*next) else { return Ok(false) };
        *next += 1;
        unit.part = part;
        Ok(true)
    }

    fn run(&self, _lane: &mut (), unit: &mut RangeUnit) -> Result<()> {
        let RangeUnit { part, buffer, within, is_hole } = &mut *unit;
        let first = part.bytes.start / PAGE_BYTES;
        let position = |at: u64| usize::try_from(at - first * PAGE_BYTES).expect("a part is small");
        *within = position(part.bytes.start)..position(part.bytes.end);
        let pages = &mut buffer[..within.end.div_ceil(PAGE_SIZE)];
        let read = timed(self.observer, Stage::Decode, || self.read_part(first, pages));
        *is_hole = read.map_err(|error| Error::archive(self.name, error))?;
        self.content.write(unit.part.output_start, std::iter::once(unit.span()))
    }

    fn content_len(&self, unit: &RangeUnit) -> u64 {
        unit.within.len() as u64
    }

    fn is_ordered(&self) -> bool {
        self.content.is_in_order()
    }

    fn in_order(&self, sink: &mut &'a mut K, unit: &mut RangeUnit) -> Result<bool> {
        let span = match unit.span() {
            ContentSpan::Data(bytes) if bytes.chunks(PAGE_SIZE).all(is_zero) => ContentSpan::Zeros(bytes.len() as u64),
            span => span,
        };
        timed(self.observer, Stage::Write, || sink.take(span))?;
        self.content.count(span.len_bytes());
        Ok(false)
    }
}

impl<K> RestoreRanges<'_, K> {
    /// Reads the pages of a part. Returns `true` if they are zeros that need not be in memory.
    fn read_part(&self, first: u64, buffer: &mut [Page]) -> trueno_zram_archive::Result<bool> {
        let has_no_holes = matches!(self.content.mode, WriteMode::Positional { sparse: false, .. });
        if !has_no_holes && self.is_hole(first..first + buffer.len() as u64)? {
            return Ok(true);
        }
        self.archive.read(first, buffer).map(|()| false)
    }

    /// Returns `true` if the map of a delta states that pages are zero: a few of its bytes stand for thousands of them.
    fn is_hole(&self, pages: Range<u64>) -> trueno_zram_archive::Result<bool> {
        let mut page = pages.start;
        while page < pages.end {
            match self.archive.zero_run(page)? {
                0 => return Ok(false),
                zeros => page += zeros,
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_ranges_in_order_without_gaps() {
        let ranges = [5..5, 100..LANE_BYTES + 1, LANE_BYTES..3 * LANE_BYTES, 7..9, 0..0, 7..LANE_BYTES];
        let parts = ContentParts::new(ranges.clone());
        let all: Vec<ContentPart> = (0..).map_while(|number| parts.get(number)).collect();
        assert_eq!(all.len(), 2 + 2 + 1 + 1);
        let mut output_end = 0;
        for part in &all {
            assert_eq!(part.output_start, output_end);
            assert_eq!(part.bytes.start / LANE_BYTES, (part.bytes.end - 1) / LANE_BYTES, "one lane's buffer");
            output_end += part.bytes.end - part.bytes.start;
        }
        assert_eq!(output_end, parts.len_bytes);
        let bytes = |ranges: &mut dyn Iterator<Item = Range<u64>>| ranges.flatten().collect::<Vec<_>>();
        assert!(bytes(&mut all.into_iter().map(|part| part.bytes)) == bytes(&mut ranges.into_iter()));
    }

    #[test]
    fn no_ranges_are_no_parts() {
        assert_eq!(ContentParts::new([]).get(0), None);
        assert_eq!(ContentParts::new([3..3, 5..5]).get(0), None);
    }
}
