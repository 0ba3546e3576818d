//! A source of pages into an archive: lanes that read, compress, assemble blocks and write side by side.
//!
//! A lane reads a few pages, compresses them while they are in its core's cache, and assembles their blocks with
//! checksums. With a GPU, lanes read into its slots and assemble blocks from its results. Only the place of the blocks in the
//! archive follows the order of the input. Then the blocks are written: at their place by any lane, or in order where the output
//! has no positions.
//!
//! Stages with a thread each (read, hash, compress on a pool, write) took a sixth to a third more time on two cores,
//! depending on the size of their batches.

mod claims;
mod delta;
#[cfg_attr(not(feature = "gpu"), path = "compress/gpu_absent.rs")]
mod gpu;

use std::marker::PhantomData;

use trueno_zram_archive::{ArchiveWriter, BlockShape, ContentHash, PageBlocks, WriteOptions, WriteSummary};
use trueno_zram_core::{AlignedPages, PAGE_SIZE, PageCodec};

use crate::error::{Error, Operation};
use crate::input::page_source::PageSource;
use crate::output::ArchiveOutput;
use crate::output::positional_file::PositionalFile;
use crate::pipeline::held_slots::{HeldSlots, NoSlots};
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{Pipeline, Work};
use crate::workers::{Observer, Workers};
use claims::{Claimed, PageClaims};

pub use delta::{Base, CompressedDelta, DeltaOptions, compress_delta};
pub use gpu::Gpu;

/// Pages that a lane takes at a time: together with their compressed form they stay in the core's cache.
const LANE_PAGES: usize = 64;

/// Units beyond one per lane, which wait for their turn.
const WAITING_PER_LANE: usize = 2;

/// The codecs that compress pages.
#[derive(Debug)]
pub enum Compressors<'a> {
    /// One codec per lane. The lanes run on the pool's workers.
    Lanes(&'a mut [PageCodec]),
    /// A GPU, which takes the feature `gpu`. Lanes read into its slots and assemble blocks from its results. They run on
    /// threads of their own, as many as the pool has, since the GPU's compressor may need the pool.
    Gpu {
        /// Compresses slots.
        gpu: Gpu<'a>,
        /// Codecs for lanes that find the GPU busy: one per lane, or none to leave everything to the GPU.
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
    match compressors {
        Compressors::Lanes(codecs) => {
            let (lanes, unit_pages) = lanes_for(source.len_bytes(), codecs.len().min(workers.threads()));
            let (work, archive) = Compress::new(out, options, lanes, unit_pages, NoSlots, workers.observer)?;
            let pipeline = pipeline_of(source, work, archive, options, lanes * (1 + WAITING_PER_LANE));
            let mut codecs = codecs.iter_mut();
            pipeline.run_on(workers.pool, (0..lanes).map(|_| codecs.next()));
            finish(pipeline)
        }
        Compressors::Gpu { gpu, helpers } => gpu::compress(source, out, options, gpu, helpers, workers),
    }
}

fn pipeline_of<'a, S: PageSource, W: ArchiveOutput, H: HeldSlots>(
    source: S,
    work: Compress<'a, S, W, H>,
    archive: ArchiveWriter<W>,
    options: WriteOptions,
    max_units: usize,
) -> Pipeline<'a, Compress<'a, S, W, H>> {
    let (hash, observer) = (options.content_checksum.then(ContentHash::new), work.observer);
    Pipeline::new(work, PageClaims::new(source), archive, max_units, observer).with_hash(hash)
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

/// The number of lanes on the CPU, and of pages that each takes at a time. A small input needs few lanes and little memory.
fn lanes_for(source_bytes: Option<u64>, max_lanes: usize) -> (usize, usize) {
    let pages = source_bytes.map_or(u64::MAX, |len_bytes| len_bytes.div_ceil(PAGE_SIZE as u64));
    let pages = usize::try_from(pages).unwrap_or(usize::MAX).max(1);
    let unit_pages = LANE_PAGES.min(pages);
    (max_lanes.clamp(1, pages.div_ceil(unit_pages)), unit_pages)
}

/// Pages into the blocks of an archive.
struct Compress<'a, S, W, H> {
    shape: BlockShape,
    unit_pages: usize,
    /// None: the output is written in order.
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
    /// Pages that a lane compresses itself, or the bytes behind the last page of a slot.
    room: AlignedPages,
    claimed: Claimed,
    /// The pages that a GPU has compressed, as long as they are needed.
    slot: Option<Done>,
    blocks: PageBlocks,
    /// The offset of the blocks in the output.
    at: u64,
}

impl<'a, S: PageSource, W: ArchiveOutput, H: HeldSlots> Compress<'a, S, W, H> {
    /// Starts an archive that `lanes` lanes write.
    fn new(
        out: W,
        options: WriteOptions,
        lanes: usize,
        unit_pages: usize,
        slots: H,
        observer: &'a dyn Observer,
    ) -> Result<(Self, ArchiveWriter<W>), Error> {
        let out_name = out.name().to_owned();
        // One lane writes in order anyway.
        let positional = if lanes > 1 { out.positional_file(lanes) } else { None };
        let archive = ArchiveWriter::new(out, options).map_err(|error| Error::archive(&out_name, error))?;
        let shape = archive.block_shape();
        Ok((Self { shape, unit_pages, positional, out_name, slots, observer, pages: PhantomData }, archive))
    }

    fn archive_error(&self, error: trueno_zram_archive::Error) -> Error {
        Error::archive(&self.out_name, error)
    }

    /// Compresses what a unit has in its room.
    fn compress(&self, codec: Option<&mut PageCodec>, unit: &mut BlockUnit<H::Done>) -> Result<(), Error> {
        let BlockUnit { room, blocks, claimed, .. } = unit;
        let failed = |error| self.archive_error(error);
        match claimed {
            Claimed::Zeros(pages) => blocks.push_zeros(*pages).map_err(failed)?,
            Claimed::Bytes(len_bytes) => {
                let (pages, tail) = room.as_flattened()[..*len_bytes].as_chunks();
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
            Claimed::Range(_) => unreachable!("ranges are read first"),
        }
        blocks.finish();
        Ok(())
    }
}

impl<'a, S: PageSource, W: ArchiveOutput, H: HeldSlots> Work for Compress<'a, S, W, H> {
    type Source = PageClaims<S>;
    type Unit = BlockUnit<H::Done>;
    type Lane = Option<&'a mut PageCodec>;
    type Ordered = ArchiveWriter<W>;
    type Error = S::Error;

    fn unit(&self) -> BlockUnit<H::Done> {
        let (room, blocks) = (AlignedPages::new(self.unit_pages), PageBlocks::default());
        BlockUnit { first_page: 0, room, claimed: Claimed::Bytes(0), slot: None, blocks, at: 0 }
    }

    fn claim(
        &self,
        source: &mut PageClaims<S>,
        _codec: &mut Self::Lane,
        unit: &mut BlockUnit<H::Done>,
    ) -> Result<bool, S::Error> {
        let claimed = source.claim(&mut unit.room)?;
        Ok(unit.set(claimed))
    }

    fn run(&self, codec: &mut Self::Lane, unit: &mut BlockUnit<H::Done>) -> Result<(), S::Error> {
        let BlockUnit { room, claimed, .. } = unit;
        claimed.read(room, self.observer)?;
        unit.blocks.start(unit.first_page, self.shape);
        timed(self.observer, Stage::Compress, || self.compress(codec.as_deref_mut(), unit))?;
        Ok(())
    }

    fn content_len(&self, unit: &BlockUnit<H::Done>) -> u64 {
        unit.blocks.content_len()
    }

    fn hash(&self, unit: &BlockUnit<H::Done>, hash: &mut ContentHash) {
        if let Some(done) = &unit.slot {
            hash.update(H::pages(done).as_flattened());
        }
        match &unit.claimed {
            Claimed::Zeros(pages) => hash.update_zeros(pages * PAGE_SIZE as u64),
            Claimed::Bytes(len_bytes) => hash.update(&unit.room.as_flattened()[..*len_bytes]),
            Claimed::Range(_) => unreachable!("ranges are read first"),
        }
    }

    /// Gives the blocks their place, or writes them if the output is written in order.
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

    fn place(&self, unit: &mut BlockUnit<H::Done>) -> Result<(), S::Error> {
        let file = self.positional.as_ref().expect("a unit has a place");
        let written = timed(self.observer, Stage::Write, || file.write_at(unit.at, unit.blocks.bytes()));
        Ok(written.map_err(|error| Error::io(&self.out_name, Operation::Write, error))?)
    }

    fn max_placing(&self) -> usize {
        self.positional.as_ref().map_or(0, PositionalFile::writers)
    }

    fn waiting_bytes(&self, unit: &BlockUnit<H::Done>) -> usize {
        unit.blocks.bytes().len()
    }

    fn release(&self, unit: &mut BlockUnit<H::Done>) {
        if let Some(done) = unit.slot.take() {
            self.slots.release(done);
        }
    }
}

impl<Done> BlockUnit<Done> {
    /// Keeps what was claimed. Returns `false` at the end.
    fn set(&mut self, claimed: Option<(u64, Claimed)>) -> bool {
        let Some((first_page, claimed)) = claimed else { return false };
        (self.first_page, self.claimed) = (first_page, claimed);
        true
    }
}
