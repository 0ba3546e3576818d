//! Restoring with a GPU: lanes fill its slots with the pages of groups, and write what it restores.

use trueno_zram_archive::ReadSummary;
use trueno_zram_core::gpu::{BatchDevice, GpuBatchCompressor, LazyGpu, PackedSlot, RestoredSlot};
use trueno_zram_core::{PAGE_SIZE, Page};

use super::Sink;
use super::groups::{GroupFailure, GroupLane, GroupUnit, GroupsJob, RestoreGroups, finish, restore_on_cpu};
use crate::error::Error;
use crate::lock::lock;
use crate::pipeline::gpu_lane::{GpuLane, SharedSlots, SlotWork};
use crate::pipeline::held_slots::HeldSlots;
use crate::pipeline::timeline::{Stage, timed};

/// Restores the groups of an archive on a GPU. With `cpu_helps`, lanes restore groups as well.
pub(crate) fn restore_on<K: Sink, D: BatchDevice>(
    gpu: &mut GpuBatchCompressor<D>,
    job: GroupsJob<'_, K>,
    cpu_helps: bool,
) -> Result<ReadSummary, GroupFailure> {
    let (slots, plan) = (SharedSlots::default(), job.plan());
    let pipeline = job.into_pipeline(GpuSlots { slots: &slots, cpu_helps }, plan.max_units);
    GpuLane::run(&pipeline, &slots, plan.new_lanes(), |lane| {
        lane.drive(&gpu.decompress_stream()?);
        Ok(())
    })?;
    finish(pipeline)
}

/// Restores the groups of an archive on the lanes at once, and on a GPU as well if opening it pays.
pub(crate) fn restore_lazily<K: Sink, D: BatchDevice>(
    gpu: &mut LazyGpu<D>,
    job: GroupsJob<'_, K>,
) -> Result<ReadSummary, GroupFailure> {
    let (slots, plan, pages) = (SharedSlots::default(), job.plan(), job.archive.info().pages);
    let data_bytes = (pages.pages() - pages.zero) * PAGE_SIZE as u64;
    if plan.lanes < job.workers.threads() {
        // Too little for all lanes.
        return restore_on_cpu(job);
    }
    let pipeline = job.into_pipeline(GpuSlots { slots: &slots, cpu_helps: true }, plan.max_units);
    GpuLane::run(&pipeline, &slots, plan.new_lanes(), |lane| {
        if let Some(gpu) = lane.open(gpu, Some(data_bytes)) {
            lane.drive(&gpu.decompress_stream()?);
        }
        Ok(())
    })?;
    finish(pipeline)
}

/// The slots of a GPU that restores.
struct GpuSlots<'a, D: BatchDevice> {
    slots: &'a SharedSlots<PackedSlot<D>, RestoredSlot<D>, GroupUnit<RestoredSlot<D>>>,
    /// Lanes restore groups that the GPU could.
    cpu_helps: bool,
}

impl<D: BatchDevice> HeldSlots for GpuSlots<'_, D> {
    type Done = RestoredSlot<D>;

    fn pages(done: &RestoredSlot<D>) -> &[Page] {
        done.pages()
    }

    fn release(&self, done: RestoredSlot<D>) {
        lock(self.slots).release(done.into_slot());
    }
}

impl<K: Sink, D: BatchDevice> SlotWork for RestoreGroups<'_, K, GpuSlots<'_, D>> {
    type Slot = PackedSlot<D>;
    type Done = RestoredSlot<D>;

    fn claim_for(
        &self,
        next: &mut u64,
        _slot: &mut PackedSlot<D>,
        unit: &mut GroupUnit<RestoredSlot<D>>,
    ) -> Result<bool, GroupFailure> {
        Ok(self.claim_group(next, unit))
    }

    /// Reads a group and copies its pages into a slot.
    fn fill(&self, unit: &mut GroupUnit<RestoredSlot<D>>, slot: &mut PackedSlot<D>) -> Result<bool, GroupFailure> {
        self.read(unit)?;
        if !(1..=slot.capacity()).contains(&unit.group.data_pages()) {
            return Ok(false);
        }
        let pushed =
            timed(self.content.observer, Stage::GpuSlots, || unit.group.pages().try_for_each(|page| slot.push(page)));
        pushed.map_err(Error::Codec)?;
        Ok(true)
    }

    fn collect(&self, unit: &mut GroupUnit<RestoredSlot<D>>, done: RestoredSlot<D>) -> Result<(), GroupFailure> {
        if done.check().is_err() {
            return Err(GroupFailure::IndexMismatch);
        }
        unit.slot = Some(done);
        Ok(self.content.write(unit.group.content_start(), self.spans(unit))?)
    }

    fn can_help(&self, _lane: &GroupLane) -> bool {
        self.slots.cpu_helps
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trueno_zram_archive::{Archive, ContentSpan, WriteOptions};
    use trueno_zram_core::gpu::{GpuBatchConfig, GpuOptions, Interpreter};

    use super::*;
    use crate::Workers;
    use crate::restore::content_writer::ContentWriter;

    #[derive(Default)]
    struct Memory(Vec<u8>);

    impl Sink for Memory {
        fn take(&mut self, span: ContentSpan<'_>) -> Result<(), Error> {
            match span {
                ContentSpan::Data(bytes) => self.0.extend_from_slice(bytes),
                ContentSpan::Zeros(zeros) => self.0.resize(self.0.len() + usize::try_from(zeros).unwrap(), 0),
            }
            Ok(())
        }

        fn restart(&mut self) -> Result<(), Error> {
            self.0.clear();
            Ok(())
        }

        fn name(&self) -> &str {
            "memory"
        }
    }

    #[test]
    fn lanes_and_a_gpu_that_joins_them_restore_all_groups() {
        // Three groups, and a part of one.
        let image: Vec<u8> = (0..3200 * 1024_u32).flat_map(|i| (i / 37).to_le_bytes()).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for content_checksum in [false, true] {
            let options = WriteOptions::default().with_content_checksum(content_checksum);
            let mut archive = Vec::new();
            trueno_zram_archive::compress(&image[..], &mut archive, &options).unwrap();
            let archive = Archive::read_from(Arc::new(archive)).unwrap().unwrap();
            let config = GpuBatchConfig { batch_size: 1024, ring_buffer_slots: 2, ..GpuBatchConfig::default() };
            let gpu = GpuBatchCompressor::<Interpreter>::interpreted(config, &GpuOptions::default()).unwrap();
            let (mut sink, workers) = (Memory::default(), Workers::new(&pool));
            let content = ContentWriter::new(sink.write_mode(2), "memory", workers.observer);
            let job = GroupsJob { archive, sink: &mut sink, content: &content, workers };
            let summary = restore_lazily(&mut gpu.into(), job).unwrap_or_else(|_| panic!("it is intact"));
            assert_eq!(summary.content_len, image.len() as u64);
            assert!(sink.0 == image, "checksum {content_checksum}");
        }
    }
}
