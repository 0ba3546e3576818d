//! Compression with a GPU: lanes read pages into its slots, and assemble blocks from its results.

use trueno_zram_core::gpu::{BatchDevice, CompressedSlot, GpuBatchCompressor, LazyGpu, PageSlot};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec};

use super::numbered_source::{NumberedSource, UnitContent};
use super::{BlockUnit, Compress, CompressJob, Compressed, LanePlan, compress_on_cpu, finish};
use crate::input::page_source::PageSource;
use crate::lock::lock;
use crate::output::ArchiveOutput;
use crate::pipeline::Work;
use crate::pipeline::gpu_lane::{GpuLane, SharedSlots, SlotWork};
use crate::pipeline::held_slots::HeldSlots;
use crate::pipeline::timeline::{Stage, timed};

/// Pages that a lane compresses itself before it checks the GPU again.
const HELP_PAGES: usize = 16;

/// Like [`compress`](super::compress), on a GPU.
pub(crate) fn compress_on<S: PageSource, W: ArchiveOutput, D: BatchDevice>(
    gpu: &mut GpuBatchCompressor<D>,
    job: CompressJob<'_, S, W>,
    helpers: &mut [PageCodec],
) -> Result<Compressed<S, W>, S::Error> {
    let (slots, lanes) = (SharedSlots::default(), job.workers.threads());
    let held = GpuSlots { slots: &slots, keeps_pages: job.options.content_checksum };
    let pipeline = job.into_pipeline(LanePlan { unit_pages: HELP_PAGES, ..LanePlan::new(None, lanes) }, held)?;
    let mut helpers = helpers.iter_mut();
    GpuLane::run(&pipeline, &slots, (0..lanes).map(|_| helpers.next()).collect(), |lane| {
        lane.drive(&gpu.compress_stream()?);
        Ok(())
    })?;
    finish(pipeline)
}

/// Like [`compress`](super::compress), on the lanes at once, and on a GPU as well if opening it pays.
pub(crate) fn compress_lazily<S: PageSource, W: ArchiveOutput, D: BatchDevice>(
    gpu: &mut LazyGpu<D>,
    job: CompressJob<'_, S, W>,
    codecs: &mut [PageCodec],
) -> Result<Compressed<S, W>, S::Error> {
    let data_bytes = job.source.data_bytes();
    let plan = LanePlan::new(job.source.len_bytes(), codecs.len().min(job.workers.threads()));
    if plan.lanes < codecs.len() {
        // Too little for all lanes.
        return compress_on_cpu(job, codecs);
    }
    let slots = SharedSlots::default();
    let held = GpuSlots { slots: &slots, keeps_pages: job.options.content_checksum };
    let pipeline = job.into_pipeline(plan, held)?;
    GpuLane::run(&pipeline, &slots, codecs.iter_mut().map(Some).collect(), |lane| {
        if let Some(gpu) = lane.open(gpu, data_bytes) {
            lane.drive(&gpu.compress_stream()?);
        }
        Ok(())
    })?;
    finish(pipeline)
}

/// The slots of a GPU that compresses.
struct GpuSlots<'a, D: BatchDevice> {
    slots: &'a SharedSlots<PageSlot<D>, CompressedSlot<D>, BlockUnit<CompressedSlot<D>>>,
    /// Units keep the pages of their slots to hash them, once they are compressed.
    keeps_pages: bool,
}

impl<D: BatchDevice> HeldSlots for GpuSlots<'_, D> {
    type Done = CompressedSlot<D>;

    fn pages(done: &CompressedSlot<D>) -> &[Page] {
        done.pages()
    }

    fn release(&self, done: CompressedSlot<D>) {
        lock(self.slots).release(done.into_slot());
    }
}

impl<S: PageSource, W: ArchiveOutput, D: BatchDevice> SlotWork for Compress<'_, S, W, GpuSlots<'_, D>> {
    type Slot = PageSlot<D>;
    type Done = CompressedSlot<D>;

    fn claim_for(
        &self,
        source: &mut NumberedSource<S>,
        slot: &mut PageSlot<D>,
        unit: &mut BlockUnit<CompressedSlot<D>>,
    ) -> Result<bool, S::Error> {
        let content = source.claim(slot.pages_mut())?;
        Ok(unit.set(content))
    }

    /// Reads whole pages into the slot. The bytes after them stay with the unit.
    fn fill(&self, unit: &mut BlockUnit<CompressedSlot<D>>, slot: &mut PageSlot<D>) -> Result<bool, S::Error> {
        unit.content.read(slot.pages_mut(), self.observer)?;
        let UnitContent::Bytes(len_bytes) = unit.content else { return Ok(false) };
        let (pages, tail) = slot.pages_mut().as_flattened()[..len_bytes].as_chunks::<PAGE_SIZE>();
        unit.buffer.as_flattened_mut()[..tail.len()].copy_from_slice(tail);
        unit.content = UnitContent::Bytes(tail.len());
        let pages = pages.len();
        slot.set_len(pages);
        Ok(pages > 0)
    }

    /// Assembles blocks from a result.
    fn collect(&self, unit: &mut BlockUnit<CompressedSlot<D>>, done: CompressedSlot<D>) -> Result<(), S::Error> {
        let BlockUnit { first_page, buffer, content, blocks, .. } = unit;
        let UnitContent::Bytes(tail_bytes) = *content else { unreachable!("a slot was filled") };
        let assembled = timed(self.observer, Stage::GpuSlots, || {
            blocks.start(*first_page, self.shape);
            done.iter().zip(done.pages()).try_for_each(|(page, plain)| blocks.push_of(page, plain))?;
            blocks.hash_pages(done.pages());
            blocks.push_tail(&buffer.as_flattened()[..tail_bytes])?;
            blocks.finish();
            Ok(())
        });
        assembled.map_err(|error| self.archive_error(error))?;
        unit.slot = Some(done);
        if !self.slots.keeps_pages {
            self.release(unit);
        }
        Ok(())
    }

    fn can_help(&self, codec: &Self::Lane) -> bool {
        codec.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use trueno_zram_archive::{Pages, WriteOptions};
    use trueno_zram_core::Algorithm;
    use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions, Interpreter};

    use super::*;
    use crate::{Compressors, Gpu, Input, Workers, compress};

    /// 400 pages, a hole and a tail.
    fn image() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut bytes: Vec<u8> = (0..200 * 1024_u32).flat_map(|i| (i / 37).to_le_bytes()).collect();
        bytes.resize(bytes.len() + (1 << 20), 0);
        bytes.extend((0..200 * 1024_u32).flat_map(|i| (i / 11).to_le_bytes()));
        bytes.extend(b"a tail");
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn codecs() -> Vec<PageCodec> {
        (0..2).map(|_| PageCodec::new(Algorithm::Lz4).unwrap()).collect()
    }

    /// A GPU that is open, and has room for two slots of eight pages.
    fn opened() -> LazyGpu<Interpreter> {
        let config = GpuBatchConfig { batch_size: 8, ring_buffer_slots: 2, ..GpuBatchConfig::default() };
        GpuBatchCompressor::interpreted(config, &GpuOptions::default()).unwrap().into()
    }

    fn content(archive: Vec<u8>) -> Vec<u8> {
        let archive = trueno_zram_archive::Archive::read_from(std::sync::Arc::new(archive)).unwrap().unwrap();
        let mut content = vec![1; usize::try_from(archive.len_bytes()).unwrap()];
        assert_eq!(archive.read_at(0, &mut content).unwrap(), content.len());
        content
    }

    #[test]
    fn lanes_and_a_gpu_that_joins_them_make_an_archive_of_the_same_content() {
        let (_folder, path) = image();
        let (image, pool) = (fs::read(&path).unwrap(), rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap());
        for content_checksum in [false, true] {
            let options = WriteOptions::default().with_content_checksum(content_checksum);
            let (source, workers) = (Input::open(&path).unwrap().into_pages(), Workers::new(&pool));
            let job = CompressJob { source, out: Vec::new(), options, workers };
            let done = compress_lazily(&mut opened(), job, &mut codecs()).unwrap();
            assert_eq!(done.summary.content_len, image.len() as u64);
            assert!(content(done.out) == image, "checksum {content_checksum}");
        }
    }

    #[test]
    fn a_gpu_that_nobody_opens_changes_no_byte() {
        let (_folder, path) = image();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let (mut gpu, options) =
            (LazyGpu::new(GpuBatchConfig::default(), &GpuOptions::default()).unwrap(), WriteOptions::default());
        let run = |compressors: Compressors<'_>| {
            let source = Input::open(&path).unwrap().into_pages();
            compress(source, Vec::new(), options, compressors, Workers::new(&pool)).unwrap().out
        };
        let on_cpu = run(Compressors::Cpu(&mut codecs()));
        let lazily = run(Compressors::Gpu { gpu: Gpu::Lazy(&mut gpu), helpers: &mut codecs() });
        assert!(on_cpu == lazily && !gpu.was_opened());
    }
}
