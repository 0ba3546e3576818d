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
use crate::workers::Workers;

/// Pages that a lane takes at a time: a group of an archive, which is compared with the index as a whole.
const LANE_PAGES: usize = 1024;
const LANE_BYTES: u64 = (LANE_PAGES * PAGE_SIZE) as u64;
const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Parts in memory beyond one per lane, which wait for those before them.
const QUEUED_UNITS: usize = 2;
/// The most parts in memory: 64 MiB.
const MAX_UNITS: usize = 16;

/// Restores ranges of pages into content.
struct RestoreRanges<'a, K> {
    archive: &'a dyn Pages,
    name: &'a str,
    content: ContentWriter<'a>,
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

/// The work of a lane at a time: a range of the content, and its offset in the output.
#[derive(Debug, Default, PartialEq, Eq)]
struct ContentPart {
    bytes: Range<u64>,
    output_start: u64,
}

/// Ranges of the content, which follow each other in the output, divided into parts that a lane takes at a time.
struct ContentParts {
    ranges: std::vec::IntoIter<Range<u64>>,
    /// The rest of the range that is being divided.
    rest: Range<u64>,
    /// The offset of the next part in the output.
    output_end: u64,
}

impl ContentParts {
    fn new(ranges: Vec<Range<u64>>) -> Self {
        Self { ranges: ranges.into_iter(), rest: 0..0, output_end: 0 }
    }
}

impl Iterator for ContentParts {
    type Item = ContentPart;

    fn next(&mut self) -> Option<ContentPart> {
        while self.rest.is_empty() {
            self.rest = self.ranges.next()?;
        }
        let (start, output_start) = (self.rest.start, self.output_end);
        self.rest.start = self.rest.end.min((start / LANE_BYTES + 1).saturating_mul(LANE_BYTES));
        self.output_end += self.rest.start - start;
        Some(ContentPart { bytes: start..self.rest.start, output_start })
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
    let (ranges, observer): (Vec<_>, _) = (ranges.into_iter().collect(), workers.observer);
    let len_bytes = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
    observer.total(Some(len_bytes));
    let lanes = workers.threads().min(archive.max_readers()).max(1);
    let content = ContentWriter::new(sink.write_mode(lanes), sink.name(), observer);
    let is_in_order = content.is_in_order();
    let max_units = if is_in_order { lanes + QUEUED_UNITS } else { lanes }.min(MAX_UNITS);
    let work = RestoreRanges { archive, name, content, sink: PhantomData };
    let pipeline = Pipeline::new(work, ContentParts::new(ranges), sink, max_units, observer);
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
    type Source = ContentParts;
    type Unit = RangeUnit;
    type Lane = ();
    type Ordered = &'a mut K;
    type Error = Error;

    fn new_unit(&self) -> RangeUnit {
        let (part, buffer) = (ContentPart::default(), AlignedPages::new(LANE_PAGES));
        RangeUnit { part, buffer, within: 0..0, is_hole: false }
    }

    fn claim(&self, parts: &mut ContentParts, _lane: &mut (), unit: &mut RangeUnit) -> Result<bool> {
        let Some(part) = parts.next() else { return Ok(false) };
        unit.part = part;
        Ok(true)
    }

    fn run(&self, _lane: &mut (), unit: &mut RangeUnit) -> Result<()> {
        let RangeUnit { part, buffer, within, is_hole } = &mut *unit;
        let first = part.bytes.start / PAGE_BYTES;
        let position = |at: u64| usize::try_from(at - first * PAGE_BYTES).expect("a part is small");
        *within = position(part.bytes.start)..position(part.bytes.end);
        let pages = &mut buffer[..within.end.div_ceil(PAGE_SIZE)];
        let read = timed(self.content.observer, Stage::Decode, || self.read_part(first, pages));
        *is_hole = read.map_err(|error| Error::archive(self.name, error))?;
        self.content.write(unit.part.output_start, std::iter::once(unit.span()))
    }

    fn coded_bytes(&self, unit: &RangeUnit) -> u64 {
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
        timed(self.content.observer, Stage::Write, || sink.take(span))?;
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
    fn is_hole(&self, mut pages: Range<u64>) -> trueno_zram_archive::Result<bool> {
        while let Some(page) = pages.next() {
            match self.archive.zero_run(page)? {
                0 => return Ok(false),
                zeros => pages.start = page + zeros,
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
        let all: Vec<ContentPart> = ContentParts::new(ranges.to_vec()).collect();
        assert_eq!(all.len(), 2 + 2 + 1 + 1);
        let mut output_end = 0;
        for part in &all {
            assert_eq!(part.output_start, output_end);
            assert_eq!(part.bytes.start / LANE_BYTES, (part.bytes.end - 1) / LANE_BYTES, "one lane's buffer");
            output_end += part.bytes.end - part.bytes.start;
        }
        let bytes = |ranges: &mut dyn Iterator<Item = Range<u64>>| ranges.flatten().collect::<Vec<_>>();
        assert!(bytes(&mut all.into_iter().map(|part| part.bytes)) == bytes(&mut ranges.into_iter()));
    }

    #[test]
    fn no_ranges_are_no_parts() {
        assert_eq!(ContentParts::new(Vec::new()).next(), None);
        assert_eq!(ContentParts::new(vec![3..3, 5..5]).next(), None);
    }
}
