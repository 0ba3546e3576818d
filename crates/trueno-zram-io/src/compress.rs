//! A source of pages into an archive: lanes that read, compress, assemble blocks and write side by side.
//!
//! A lane reads a few pages, compresses them while they are in its core's cache, and assembles their blocks with
//! checksums. With a GPU, lanes read into its slots and assemble blocks from its results. Only the offsets of the blocks in the
//! archive are assigned in the order of the input. Then the blocks are written: at their offset by any lane, or in order if the
//! output is not a new file.
//!
//! Stages with a thread each (read, hash, compress on a pool, write) took a sixth to a third more time on two cores,
//! depending on the size of their batches.

mod delta;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
mod numbered_source;

use std::marker::PhantomData;

use trueno_zram_archive::{ArchiveWriter, BlockShape, ContentHash, PageBlocks, WriteOptions, WriteSummary};
use trueno_zram_core::{AlignedPages, PAGE_SIZE, PageCodec};

use crate::error::{Error, Operation};
use crate::gpu::Gpu;
use crate::input::page_source::PageSource;
use crate::output::ArchiveOutput;
use crate::output::positional_file::PositionalFile;
use crate::pipeline::held_slots::{HeldSlots, NoSlots};
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{Pipeline, Work};
use crate::workers::{Observer, Workers};
use numbered_source::{NumberedSource, UnitContent};

pub use delta::{CompressedDelta, DeltaBase, DeltaOptions, compress_delta};

/// Pages that a lane takes at a time: together with their compressed form they stay in the core's cache.
const LANE_PAGES: usize = 64;

/// Units in memory beyond one per lane, which wait for those before them.
const QUEUED_PER_LANE: usize = 2;

/// The codecs that compress pages.
///
/// ```
/// use trueno_zram_core::PageCodec;
/// use trueno_zram_io::Compressors;
/// let mut codecs = [PageCodec::default(), PageCodec::default()];
/// let two_lanes = Compressors::Cpu(&mut codecs);
/// # drop(two_lanes);
/// ```
#[derive(Debug)]
pub enum Compressors<'a> {
    /// One codec per lane. The lanes run on the pool's workers.
    Cpu(&'a mut [PageCodec]),
    /// A GPU, which takes the feature `gpu`. Lanes read into its slots and assemble blocks from its results. They run on
    /// threads of their own, as many as the pool has, since the GPU's compressor may need the pool.
    Gpu {
        /// Compresses slots.
        gpu: Gpu<'a>,
        /// Codecs for lanes that find the GPU busy, or not open yet: one per lane, or none to leave everything to a GPU that is open.
        helpers: &'a mut [PageCodec],
    },
}

/// The result of [`compress`].
#[derive(Debug)]
pub struct Compressed<S, W> {
    /// The source, at its end.
    pub source: S,
    /// The output, which holds the whole archive.
    pub out: W,
    /// Counts of the pages and bytes written.
    pub summary: WriteSummary,
}

/// Compresses all of `source` into a page archive, which is written to `out`. The [crate]'s documentation has an example.
///
/// # Errors
/// Those of the source; [`Error::Io`] and [`Error::Archive`] for the output; [`Error::Codec`]; [`Error::Thread`].
///
/// # Panics
/// A panic of the source, of the codec or of the output is passed on once all lanes have stopped.
pub fn compress<S: PageSource, W: ArchiveOutput>(
    source: S,
    out: W,
    options: WriteOptions,
    compressors: Compressors<'_>,
    workers: Workers<'_>,
) -> Result<Compressed<S, W>, S::Error> {
    let job = CompressJob { source, out, options, workers };
    match compressors {
        Compressors::Cpu(codecs) => compress_on_cpu(job, codecs),
        Compressors::Gpu { gpu, helpers } => gpu.compress(job, helpers),
    }
}

fn compress_on_cpu<S: PageSource, W: ArchiveOutput>(
    job: CompressJob<'_, S, W>,
    codecs: &mut [PageCodec],
) -> Result<Compressed<S, W>, S::Error> {
    let pool = job.workers.pool;
    let plan = LanePlan::new(job.source.len_bytes(), codecs.len().min(job.workers.threads()));
    let pipeline = job.into_pipeline(plan, NoSlots)?;
    let mut codecs = codecs.iter_mut();
    pipeline.run_on(pool, (0..plan.lanes).map(|_| codecs.next()));
    finish(pipeline)
}

/// The arguments of [`compress`], without the codecs.
pub(crate) struct CompressJob<'a, S, W> {
    source: S,
    out: W,
    options: WriteOptions,
    workers: Workers<'a>,
}

impl<'a, S: PageSource, W: ArchiveOutput> CompressJob<'a, S, W> {
    /// Starts the archive, and prepares the pipeline that writes it.
    fn into_pipeline<H: HeldSlots>(
        self,
        plan: LanePlan,
        slots: H,
    ) -> Result<Pipeline<'a, Compress<'a, S, W, H>>, Error> {
        let Self { source, out, options, workers: Workers { observer, .. } } = self;
        let out_name = out.name().to_owned();
        let positional = out.positional_file(plan.lanes);
        let archive = ArchiveWriter::new(out, options).map_err(|error| Error::archive(&out_name, error))?;
        let (shape, unit_pages) = (archive.block_shape(), plan.unit_pages);
        let work = Compress { shape, unit_pages, positional, out_name, slots, observer, pages: PhantomData };
        let pipeline = Pipeline::new(work, NumberedSource::new(source), archive, plan.max_units, observer);
        Ok(pipeline.with_hash(options.content_checksum.then(ContentHash::new)))
    }
}

/// The lanes of a pipeline, and the size and number of their units.
#[derive(Clone, Copy)]
struct LanePlan {
    lanes: usize,
    unit_pages: usize,
    max_units: usize,
}

impl LanePlan {
    /// Plans lanes on the CPU. A small source needs few lanes and little memory.
    fn new(source_bytes: Option<u64>, max_lanes: usize) -> Self {
        let pages = source_bytes.map_or(u64::MAX, |len_bytes| len_bytes.div_ceil(PAGE_SIZE as u64));
        let pages = usize::try_from(pages).unwrap_or(usize::MAX).max(1);
        let unit_pages = LANE_PAGES.min(pages);
        let lanes = max_lanes.clamp(1, pages.div_ceil(unit_pages));
        Self { lanes, unit_pages, max_units: lanes * (1 + QUEUED_PER_LANE) }
    }
}

/// Adds the sections of the source and the end of the archive, once all lanes have ended.
fn finish<S: PageSource, W: ArchiveOutput, H: HeldSlots>(
    pipeline: Pipeline<'_, Compress<'_, S, W, H>>,
) -> Result<Compressed<S, W>, S::Error> {
    let done = pipeline.finish()?;
    let (mut source, mut archive) = (done.source.into_source(), done.ordered);
    for (name, bytes) in source.sections()? {
        archive.add_section(name, &bytes).map_err(|error| done.work.archive_error(error))?;
    }
    let (out, summary) = archive.finish(done.hash).map_err(|error| done.work.archive_error(error))?;
    Ok(Compressed { source, out, summary })
}

/// Compresses pages into the blocks of an archive.
struct Compress<'a, S, W, H> {
    shape: BlockShape,
    unit_pages: usize,
    /// The output that lanes write by position; `None` if it is written in order.
    positional: Option<PositionalFile>,
    out_name: String,
    /// The GPU's slots.
    slots: H,
    observer: &'a dyn Observer,
    pages: PhantomData<fn(S) -> W>,
}

/// Pages and their blocks.
struct BlockUnit<Done> {
    first_page: u64,
    /// Pages that a lane compresses itself, or the bytes after the last whole page of a slot.
    buffer: AlignedPages,
    content: UnitContent,
    /// The pages that a GPU has compressed, as long as they are needed.
    slot: Option<Done>,
    blocks: PageBlocks,
    /// The offset of the blocks in the output.
    at: u64,
}

impl<S: PageSource, W: ArchiveOutput, H: HeldSlots> Compress<'_, S, W, H> {
    fn archive_error(&self, error: trueno_zram_archive::Error) -> Error {
        Error::archive(&self.out_name, error)
    }

    /// Compresses the content of a unit.
    fn compress(&self, codec: Option<&mut PageCodec>, unit: &mut BlockUnit<H::Done>) -> Result<(), Error> {
        let BlockUnit { buffer, blocks, content, .. } = unit;
        let failed = |error| self.archive_error(error);
        match content {
            UnitContent::Zeros(pages) => blocks.push_zeros(*pages).map_err(failed)?,
            UnitContent::Bytes(len_bytes) => {
                let (pages, tail) = buffer.as_flattened()[..*len_bytes].as_chunks();
                if let Some(codec) = codec {
                    let mut out = [0; PAGE_SIZE];
                    for page in pages {
                        blocks.push_of(codec.compress(page, &mut out)?, page).map_err(failed)?;
                    }
                    blocks.hash_pages(pages);
                } else {
                    debug_assert!(pages.is_empty(), "only a lane with a codec claims pages for itself");
                }
                blocks.push_tail(tail).map_err(failed)?;
            }
            UnitContent::Range(_) => unreachable!("ranges are read first"),
        }
        blocks.finish();
        Ok(())
    }
}

impl<'a, S: PageSource, W: ArchiveOutput, H: HeldSlots> Work for Compress<'a, S, W, H> {
    type Source = NumberedSource<S>;
    type Unit = BlockUnit<H::Done>;
    type Lane = Option<&'a mut PageCodec>;
    type Ordered = ArchiveWriter<W>;
    type Error = S::Error;

    fn new_unit(&self) -> BlockUnit<H::Done> {
        let (buffer, blocks) = (AlignedPages::new(self.unit_pages), PageBlocks::default());
        BlockUnit { first_page: 0, buffer, content: UnitContent::Bytes(0), slot: None, blocks, at: 0 }
    }

    fn claim(
        &self,
        source: &mut NumberedSource<S>,
        _codec: &mut Self::Lane,
        unit: &mut BlockUnit<H::Done>,
    ) -> Result<bool, S::Error> {
        let content = source.claim(&mut unit.buffer)?;
        Ok(unit.set(content))
    }

    fn run(&self, codec: &mut Self::Lane, unit: &mut BlockUnit<H::Done>) -> Result<(), S::Error> {
        let BlockUnit { buffer, content, .. } = unit;
        content.read(buffer, self.observer)?;
        unit.blocks.start(unit.first_page, self.shape);
        timed(self.observer, Stage::Compress, || self.compress(codec.as_deref_mut(), unit))?;
        Ok(())
    }

    fn coded_bytes(&self, unit: &BlockUnit<H::Done>) -> u64 {
        match unit.content {
            UnitContent::Zeros(_) => 0,
            UnitContent::Bytes(_) | UnitContent::Range(_) => unit.blocks.content_len(),
        }
    }

    fn hash(&self, unit: &BlockUnit<H::Done>, hash: &mut ContentHash) {
        if let Some(done) = &unit.slot {
            hash.update(H::pages(done).as_flattened());
        }
        match &unit.content {
            UnitContent::Zeros(pages) => hash.update_zeros(pages * PAGE_SIZE as u64),
            UnitContent::Bytes(len_bytes) => hash.update(&unit.buffer.as_flattened()[..*len_bytes]),
            UnitContent::Range(_) => unreachable!("ranges are read first"),
        }
    }

    /// Assigns the blocks their offset, or writes them if the output is written in order.
    fn in_order(&self, archive: &mut ArchiveWriter<W>, unit: &mut BlockUnit<H::Done>) -> Result<bool, S::Error> {
        let blocks = &unit.blocks;
        if self.positional.is_none() {
            let written = timed(self.observer, Stage::Write, || archive.write_blocks(blocks));
            written.map_err(|error| self.archive_error(error))?;
        } else {
            unit.at = archive.place_blocks(blocks).map_err(|error| self.archive_error(error))?;
            archive.get_mut().skip(blocks.bytes().len() as u64);
        }
        self.observer.progress(archive.pages().bytes_in(), archive.written());
        Ok(self.positional.is_some())
    }

    fn write(&self, unit: &mut BlockUnit<H::Done>) -> Result<(), S::Error> {
        let file = self.positional.as_ref().expect("the unit has an offset");
        let written = timed(self.observer, Stage::Write, || file.write_at(unit.at, unit.blocks.bytes()));
        Ok(written.map_err(|error| Error::io(&self.out_name, Operation::Write, error))?)
    }

    fn max_writers(&self) -> usize {
        self.positional.as_ref().map_or(0, PositionalFile::writers)
    }

    fn queued_bytes(&self, unit: &BlockUnit<H::Done>) -> usize {
        unit.blocks.bytes().len()
    }

    fn release(&self, unit: &mut BlockUnit<H::Done>) {
        if let Some(done) = unit.slot.take() {
            self.slots.release(done);
        }
    }
}

impl<Done> BlockUnit<Done> {
    /// Keeps the content that was claimed. Returns `false` at the end.
    fn set(&mut self, content: Option<(u64, UnitContent)>) -> bool {
        let Some((first_page, content)) = content else { return false };
        (self.first_page, self.content) = (first_page, content);
        true
    }
}
