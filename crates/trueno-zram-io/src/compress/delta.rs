//! A source of pages into a delta: lanes that read, hash, and compress what neither the base nor the delta has.
//!
//! A lane takes some pages, hashes them, and looks the hashes up in the base and among the pages that are stored already. Pages
//! that cannot change meanwhile are hashed in the page cache; others are read first, a few at a time, so that they are hashed from
//! the core's cache. Only new pages are compressed. The writer then takes the parts of all lanes in order and stores equal pages
//! once: so the delta is the same for any number of lanes. Without a base, lanes write blocks at the offsets that they have then, if the
//! output is a new file; little is written of a delta of a base, and one thread at a time writes it.

use std::io::{BufWriter, Write};
use std::marker::PhantomData;

use trueno_zram_archive::{
    BaseRecord, BlockShape, DeltaPart, DeltaSummary, DeltaWriter, PageFinder, PageHash, PageHashes, StoredPages,
    WriteOptions,
};
use trueno_zram_core::{AlignedPages, PAGE_SIZE, Page, PageCodec, is_zero};

use super::LANE_PAGES;
use super::numbered_source::{NumberedSource, UnitContent};
use crate::error::{Error, Operation};
use crate::input::page_source::{ClaimedRange, PageSource};
use crate::output::ArchiveOutput;
use crate::output::positional_file::PositionalFile;
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{Pipeline, Work};
use crate::workers::{Observer, Workers};

/// Pages that are read at a time. Most are only hashed, so more of them stay in the core's cache than if all were
/// compressed. Reading 256 at a time takes 0.36 µs per page and core from the page cache of ext4, and 64 at a time
/// 0.42.
const READ_PAGES: usize = 256;

/// The most pages that a lane takes at a time. Unmapping pages interrupts the other cores, each time.
const MAX_LANE_PAGES: usize = 1024;

/// The least number of parts that each lane takes, if that leaves [`READ_PAGES`] for each: lanes end at about the same
/// time.
const PARTS_PER_LANE: u64 = 16;

/// Parts in memory beyond one per lane, which wait for those before them.
const QUEUED_PER_LANE: usize = 4;

/// Bytes of blocks that are written at a time. Most parts have a few pages that are new, or none; the blocks of others
/// are written without a copy.
const WRITE_BYTES: usize = 64 << 10;

/// The memory for finding copies unless the caller says otherwise: enough for 192 GiB of pages that all differ.
const DEFAULT_TABLE_BYTES: u64 = 1 << 30;

/// The archive that a delta is made from. [`compress_delta`] has an example.
#[derive(Clone, Debug)]
pub struct DeltaBase<'a> {
    /// The identity and the path that the delta states.
    pub record: BaseRecord,
    /// The hashes of its pages.
    pub hashes: &'a PageHashes,
}

/// Options of a delta: its base, and those of any archive. [`compress_delta`] has an example.
#[derive(Clone, Debug)]
pub struct DeltaOptions<'a> {
    /// The archive that the delta is made from; `None` to store all pages, and equal ones once.
    pub base: Option<DeltaBase<'a>>,
    /// Options of the blocks.
    pub write: WriteOptions,
    /// The most bytes of memory for finding copies of stored pages: 21 to 27 per page. If they are full, copies of later pages are
    /// stored again. There is no limit for a base that states no hashes.
    pub table_bytes: u64,
}

impl DeltaOptions<'_> {
    /// Options of a delta without a base.
    ///
    /// ```
    /// use trueno_zram_io::DeltaOptions;
    /// let options = DeltaOptions { table_bytes: 64 << 20, ..DeltaOptions::without_base() };
    /// assert!(options.base.is_none());
    /// ```
    #[must_use]
    pub fn without_base() -> Self {
        Self { base: None, write: WriteOptions::default(), table_bytes: DEFAULT_TABLE_BYTES }
    }
}

impl<'a> DeltaOptions<'a> {
    /// Options of a delta that is made from this archive.
    ///
    /// ```
    /// # use trueno_zram_archive::{PageArchive, PageHashes, WriteOptions, compress};
    /// # let mut monday = Vec::new();
    /// # compress(&[7; 4096][..], &mut monday, &WriteOptions::default())?;
    /// # let monday = PageArchive::standard(std::sync::Arc::new(monday))?.expect("it has an index");
    /// use trueno_zram_io::{DeltaBase, DeltaOptions};
    /// let base = DeltaBase { record: monday.record(b"monday.lz4")?, hashes: &PageHashes::compute(&monday)? };
    /// let options = DeltaOptions::of_base(base);
    /// # drop(options);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of_base(base: DeltaBase<'a>) -> Self {
        Self { base: Some(base), ..DeltaOptions::without_base() }
    }
}

/// The result of [`compress_delta`].
#[derive(Debug)]
pub struct CompressedDelta<S, W> {
    /// The source, at its end.
    pub source: S,
    /// The output, which holds the whole delta.
    pub out: W,
    /// Counts of the pages and bytes written.
    pub summary: DeltaSummary,
}

/// A writer that buffers [`WRITE_BYTES`].
type BufferedDeltaWriter<W> = DeltaWriter<BufWriter<W>>;

/// Compresses the pages of `source` that the base does not have into a delta, which is written to `out`. Equal pages are stored
/// once. Without a base, all pages are stored. There is a lane per codec, on the threads of the pool.
///
/// ```
/// use std::sync::Arc;
/// use trueno_zram_archive::{PageArchive, PageHashes, WriteOptions};
/// use trueno_zram_core::PageCodec;
/// use trueno_zram_io::{DeltaBase, DeltaOptions, Input, Workers, compress_delta};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("image");
/// let mut monday = Vec::new();
/// trueno_zram_archive::compress(&[7; 100 * 4096][..], &mut monday, &WriteOptions::default())?;
/// let monday = PageArchive::standard(Arc::new(monday))?.expect("it has an index");
/// let base = DeltaBase { record: monday.record(b"monday.lz4")?, hashes: &PageHashes::compute(&monday)? };
///
/// std::fs::write(&path, [[7; 99 * 4096].as_slice(), &[8; 4096]].concat())?;
/// let source = Input::open(&path)?.into_pages();
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
/// let (mut codecs, options) = ([PageCodec::default()], DeltaOptions::of_base(base));
/// let tuesday = compress_delta(source, Vec::new(), options, &mut codecs, Workers::new(&pool))?;
/// assert_eq!((tuesday.summary.base_pages, tuesday.summary.stored_pages), (99, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of the source; [`Error::Io`] and [`Error::Archive`] for the output; [`Error::Codec`].
///
/// # Panics
/// A panic of the source, of the codec or of the output is passed on once all lanes have stopped.
pub fn compress_delta<S: PageSource, W: ArchiveOutput>(
    source: S,
    out: W,
    options: DeltaOptions<'_>,
    codecs: &mut [PageCodec],
    workers: Workers<'_>,
) -> Result<CompressedDelta<S, W>, S::Error> {
    let DeltaOptions { base, write, table_bytes } = options;
    let (record, hashes) = base.map(|base| (base.record, base.hashes)).unzip();
    let (out_name, observer) = (out.name().to_owned(), workers.observer);
    let out_name = out_name.as_str();
    let lanes = codecs.len().min(workers.threads()).max(1);
    let positional = if hashes.is_some() { None } else { out.positional_file(lanes) };
    let out = BufWriter::with_capacity(WRITE_BYTES, out);
    // With a base, few pages are stored.
    let expected_pages = if hashes.is_some() { 0 } else { source.data_bytes().unwrap_or(0) / PAGE_SIZE as u64 };
    // Version 1 of the format, which a base without hashes takes, stores each page once.
    let is_version_1 = record.as_ref().is_some_and(|record| record.hashes.is_none());
    let table_bytes = if is_version_1 { u64::MAX } else { table_bytes };
    let writer = DeltaWriter::new(out, record, write).map_err(|error| Error::archive(out_name, error))?;
    let mut writer = writer.with_table(expected_pages, table_bytes);
    if positional.is_some() {
        // The head lies before all blocks.
        writer.get_mut().flush().map_err(|error| Error::io(out_name, Operation::Write, error))?;
    }
    // Without a base, most pages are compressed.
    let lane_pages = if hashes.is_some() { lane_pages(source.len_bytes(), lanes) } else { LANE_PAGES };
    let (shape, borrows) = (writer.block_shape(), hashes.is_some());
    let work = CompressDelta { shape, borrows, positional, out_name, observer, delta: PhantomData };
    let stored = writer.stored_pages();
    let max_units = lanes * (1 + QUEUED_PER_LANE);
    let pipeline = Pipeline::new(work, NumberedSource::new(source), (writer, 0), max_units, observer);
    let lane = |codec| {
        let finder = hashes.map(PageHashes::finder);
        let lookup = PageLookup {
            zeros: Vec::new(),
            hashes: Vec::new(),
            known: Vec::new(),
            finder,
            stored: stored.clone(),
            codec,
        };
        DeltaLane { buffer: AlignedPages::new(lane_pages), lookup }
    };
    pipeline.run_on(workers.pool, codecs.iter_mut().take(lanes).map(lane));
    let done = pipeline.finish()?;
    let failed = |error| S::Error::from(Error::archive(out_name, error));
    let (mut source, (mut writer, content_len)) = (done.source.into_source(), done.ordered);
    for (name, bytes) in source.sections()? {
        writer.add_section(name, &bytes).map_err(failed)?;
    }
    let (out, summary) = writer.finish(content_len).map_err(failed)?;
    let out = out.into_inner().map_err(|error| Error::io(out_name, Operation::Write, error.into_error()))?;
    Ok(CompressedDelta { source, out, summary })
}

/// Compresses pages into the parts of a delta.
struct CompressDelta<'a, S, W> {
    shape: BlockShape,
    /// Pages are hashed in the page cache, if they cannot change meanwhile. It pays if few of them are compressed.
    borrows: bool,
    /// The output that lanes write by position; `None` if it is written in order.
    positional: Option<PositionalFile>,
    out_name: &'a str,
    observer: &'a dyn Observer,
    delta: PhantomData<fn(S) -> W>,
}

/// A part of the delta, and the content that it stands for.
struct DeltaUnit {
    part: DeltaPart,
    first_page: u64,
    content: UnitContent,
    content_len: u64,
    /// The offset of the blocks in the output.
    at: u64,
}

impl<'a, S: PageSource, W: ArchiveOutput> Work for CompressDelta<'a, S, W> {
    type Source = NumberedSource<S>;
    type Unit = DeltaUnit;
    type Lane = DeltaLane<'a>;
    type Ordered = (BufferedDeltaWriter<W>, u64);
    type Error = S::Error;

    fn new_unit(&self) -> DeltaUnit {
        DeltaUnit { part: DeltaPart::new(), first_page: 0, content: UnitContent::Bytes(0), content_len: 0, at: 0 }
    }

    fn claim(
        &self,
        source: &mut NumberedSource<S>,
        lane: &mut DeltaLane<'a>,
        unit: &mut DeltaUnit,
    ) -> Result<bool, S::Error> {
        let Some((first_page, content)) = source.claim(&mut lane.buffer)? else { return Ok(false) };
        (unit.first_page, unit.content) = (first_page, content);
        Ok(true)
    }

    fn run(&self, lane: &mut DeltaLane<'a>, unit: &mut DeltaUnit) -> Result<(), S::Error> {
        let DeltaUnit { part, first_page, content, content_len, .. } = unit;
        part.start(self.shape);
        *content_len = match content {
            UnitContent::Zeros(pages) => {
                part.push_zeros(*pages);
                *pages * PAGE_SIZE as u64
            }
            UnitContent::Bytes(len_bytes) => {
                self.add(zero_padded(&mut lane.buffer, *len_bytes), *first_page, &mut lane.lookup, part)?;
                *len_bytes as u64
            }
            UnitContent::Range(range) => {
                let mut borrow = || range.borrow(|pages| self.add(pages, *first_page, &mut lane.lookup, part));
                if let Some(added) = self.borrows.then(&mut borrow).flatten() {
                    added?;
                } else {
                    // Discard the result of borrowed pages.
                    part.start(self.shape);
                    self.read(range, *first_page, lane, part)?;
                }
                range.len_bytes() as u64
            }
        };
        Ok(())
    }

    fn coded_bytes(&self, unit: &DeltaUnit) -> u64 {
        unit.content_len
    }

    fn in_order(
        &self,
        (writer, content_len): &mut (BufferedDeltaWriter<W>, u64),
        unit: &mut DeltaUnit,
    ) -> Result<bool, S::Error> {
        let failed = |error| Error::archive(self.out_name, error);
        let is_placed = self.positional.is_some();
        if is_placed {
            unit.at = writer.place(&mut unit.part).map_err(failed)?;
            writer.get_mut().get_mut().skip(unit.part.block_bytes().len() as u64);
        } else {
            timed(self.observer, Stage::Write, || writer.push(&mut unit.part)).map_err(failed)?;
        }
        *content_len += unit.content_len;
        self.observer.progress(*content_len, writer.written());
        Ok(is_placed && !unit.part.block_bytes().is_empty())
    }

    fn write(&self, unit: &mut DeltaUnit) -> Result<(), S::Error> {
        let file = self.positional.as_ref().expect("the unit has an offset");
        let written = timed(self.observer, Stage::Write, || file.write_at(unit.at, unit.part.block_bytes()));
        Ok(written.map_err(|error| Error::io(self.out_name, Operation::Write, error))?)
    }

    fn max_writers(&self) -> usize {
        self.positional.as_ref().map_or(0, PositionalFile::writers)
    }

    fn queued_bytes(&self, unit: &DeltaUnit) -> usize {
        unit.part.block_bytes().len()
    }
}

impl<S, W> CompressDelta<'_, S, W> {
    /// Reads a range a few pages at a time, and adds its pages to a part.
    fn read(
        &self,
        range: &ClaimedRange,
        first_page: u64,
        lane: &mut DeltaLane<'_>,
        part: &mut DeltaPart,
    ) -> Result<(), Error> {
        for first in (0..range.len_bytes().div_ceil(PAGE_SIZE)).step_by(READ_PAGES) {
            let skipped = first * PAGE_SIZE;
            let now = (range.len_bytes() - skipped).min(READ_PAGES * PAGE_SIZE);
            let bytes = &mut lane.buffer.as_flattened_mut()[..now];
            timed(self.observer, Stage::Read, || range.read_part(skipped, bytes))?;
            self.add(zero_padded(&mut lane.buffer, now), first_page + first as u64, &mut lane.lookup, part)?;
        }
        Ok(())
    }

    /// Looks pages up in the base and among those that are stored, and adds them to a part.
    fn add(&self, pages: &[Page], first: u64, lookup: &mut PageLookup<'_>, part: &mut DeltaPart) -> Result<(), Error> {
        timed(self.observer, Stage::Hash, || {
            lookup.hash(pages);
            lookup.find(first);
        });
        timed(self.observer, Stage::Compress, || lookup.add(pages, part, self.out_name))
    }
}

/// Pages that a lane takes at a time from a source of this length. Pages of a stream are all in memory at once, so it
/// takes few.
fn lane_pages(source_bytes: Option<u64>, lanes: usize) -> usize {
    let pages = source_bytes.map_or(0, |len_bytes| len_bytes / PAGE_SIZE as u64);
    let share = pages / (lanes as u64 * PARTS_PER_LANE);
    usize::try_from(share).unwrap_or(usize::MAX).clamp(READ_PAGES, MAX_LANE_PAGES)
}

/// Returns the first pages of the buffer, which hold this many bytes. A shorter last page is padded with zeros.
fn zero_padded(buffer: &mut AlignedPages, len_bytes: usize) -> &[Page] {
    let pages = &mut buffer[..len_bytes.div_ceil(PAGE_SIZE)];
    pages.as_flattened_mut()[len_bytes..].fill(0);
    pages
}

/// The state of a lane.
struct DeltaLane<'a> {
    /// Pages that are read.
    buffer: AlignedPages,
    lookup: PageLookup<'a>,
}

/// The place of a page that need not be compressed.
#[derive(Clone, Copy, Debug)]
enum KnownPage {
    /// The page of this number in the base.
    Base(u64),
    /// The stored page of this number.
    Stored(u64),
}

/// Finds pages in the base and among those that are stored already, and compresses those that are new.
struct PageLookup<'a> {
    /// One flag per page: `true` if it is zero.
    zeros: Vec<bool>,
    /// The hashes of the others, and their places.
    hashes: Vec<PageHash>,
    known: Vec<Option<KnownPage>>,
    finder: Option<PageFinder<'a>>,
    stored: StoredPages,
    codec: &'a mut PageCodec,
}

impl PageLookup<'_> {
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

    /// Looks the hashes up. Copies that are not stored yet are left to the writer.
    fn find(&mut self, first: u64) {
        let Self { zeros, hashes, known, finder, stored, .. } = self;
        let stored = stored.read();
        known.clear();
        let numbers = (first..).zip(zeros).filter_map(|(number, is_zero)| (!*is_zero).then_some(number));
        known.extend(numbers.zip(hashes).map(|(number, hash)| {
            let in_base = finder.as_mut().and_then(|finder| finder.find(number, hash));
            in_base.map(KnownPage::Base).or_else(|| stored.find(hash).map(KnownPage::Stored))
        }));
    }

    /// Adds pages that were hashed and looked up.
    fn add(&mut self, pages: &[Page], part: &mut DeltaPart, out_name: &str) -> Result<(), Error> {
        let (mut out, mut found) = ([0; PAGE_SIZE], self.hashes.iter().zip(&self.known));
        for (page, is_zero) in pages.iter().zip(&self.zeros) {
            if *is_zero {
                part.push_zeros(1);
                continue;
            }
            let (hash, known) = found.next().expect("every page that is not zero was hashed");
            match *known {
                Some(KnownPage::Base(same)) => part.push_base(same, *hash),
                Some(KnownPage::Stored(copied)) => part.push_stored(copied, *hash),
                None => {
                    // The encoder reads bytes more than once, and a borrowed page may change after all.
                    let page = std::hint::black_box(*page);
                    let pushed = part.push_page(self.codec.compress(&page, &mut out)?, &page, *hash);
                    pushed.map_err(|error| Error::archive(out_name, error))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_take_sixteen_parts_each_of_256_to_1024_pages() {
        let pages = |count: usize| Some((count * PAGE_SIZE) as u64);
        assert_eq!(lane_pages(None, 4), READ_PAGES, "a stream");
        assert_eq!(lane_pages(pages(1000), 4), READ_PAGES);
        assert_eq!(lane_pages(pages(4 * 16 * 500), 4), 500);
        assert_eq!(lane_pages(pages(1 << 20), 4), MAX_LANE_PAGES);
    }
}
