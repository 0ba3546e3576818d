//! An archive back into its content: lanes read, check, restore and write groups side by side.
//!
//! With a GPU, lanes fill its slots with the pages of groups, and write what it restores.

use std::marker::PhantomData;
use std::sync::Mutex;

use rayon::ThreadPool;
use trueno_zram_archive::{
    Archive, ArchiveInfo, ContentHash, ContentSpan, GroupBuffer, GroupRun, GroupTotals, ReadSummary,
};
use trueno_zram_core::gpu::{BatchDevice, Cuda, GpuBatchCompressor, PackedSlot, PageStream, RestoredSlot};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, PageData};

use super::placed::PlacedContent;
use super::{Decoders, Sink};
use crate::Observer;
use crate::compress::Gpu;
use crate::error::Error;
use crate::pipeline::gpu_lane::{GpuLane, SharedSlots, SlotWork, Slots};
use crate::pipeline::in_order::lock;
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{Pipeline, Work};

/// Pages that are restored before they are written: they stay in the core's cache.
const CACHED_PAGES: usize = 64;

/// Groups in memory if their content has to be taken in order: up to 8 MiB each.
const MAX_ORDERED: usize = 6;

/// The result of restoring by groups.
pub(super) enum Restored {
    /// All content is where it belongs.
    All(Box<ReadSummary>),
    /// The archive has to be read as a stream. The sink has taken this many bytes in order.
    FallBackToStream { taken: u64 },
}

/// Why lanes stop before the end.
pub(super) enum Stop {
    /// A group is not what the index says.
    IndexMismatch,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Restores the groups of an archive into `sink`.
pub(super) fn restore_groups<K: Sink>(
    archive: Archive,
    sink: &mut K,
    decoders: &mut Decoders<'_>,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Restored, Error> {
    match decoders {
        Decoders::Cpu => restore_on::<_, Cuda>(archive, sink, None, true, pool, observer),
        Decoders::Gpu { gpu: Gpu::Cuda(gpu), helps } => restore_on(archive, sink, Some(gpu), *helps, pool, observer),
        Decoders::Gpu { gpu: Gpu::Interpreter(gpu), helps } => {
            restore_on(archive, sink, Some(gpu), *helps, pool, observer)
        }
    }
}

fn restore_on<K: Sink, D: BatchDevice>(
    archive: Archive,
    sink: &mut K,
    gpu: Option<&mut GpuBatchCompressor<D>>,
    helps: bool,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Restored, Error> {
    let stream = gpu.map(GpuBatchCompressor::decompress_stream).transpose()?;
    let slots = Mutex::new(Slots::new(stream.as_ref().map_or(0, PageStream::max_slots)));
    let threads = pool.current_num_threads();
    let content = PlacedContent::new(sink.write_mode(threads)?, sink.name(), observer);
    let info = archive.info();
    let hash = info.content_checksum.then(ContentHash::new);
    let lanes = threads.min(usize::try_from(info.group_count).unwrap_or(usize::MAX));
    let totals = Mutex::new(GroupTotals::default());
    let work = Restore { archive, info, content: &content, totals, helps, slots: &slots, observer, sink: PhantomData };
    let max_units = match &stream {
        Some(_) => usize::MAX,
        None if work.is_ordered() => MAX_ORDERED.min(2 * lanes),
        None => lanes,
    };
    let pipeline = Pipeline::new(work, 0, &mut *sink, hash, max_units, observer);
    match &stream {
        Some(stream) => GpuLane::run(&pipeline, stream, &slots, (0..threads).map(|_| Lane::new()).collect())?,
        None => pipeline.run_on(pool, (0..lanes).map(|_| Lane::new())),
    }
    let summary = pipeline.finish().and_then(|done| {
        let totals = *lock(&done.work.totals);
        done.work.archive.finish(totals, done.hash.as_ref()).map_err(|_| Stop::IndexMismatch)
    });
    match summary {
        Ok(summary) => {
            if !content.is_in_order() {
                sink.set_written(summary.content_len);
            }
            Ok(Restored::All(Box::new(summary)))
        }
        Err(Stop::IndexMismatch) => {
            let taken = if content.is_in_order() { content.done() } else { 0 };
            // What was written at its place is written again.
            drop(content);
            sink.restart()?;
            Ok(Restored::FallBackToStream { taken })
        }
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// Groups of an archive into content.
struct Restore<'a, K, D: BatchDevice> {
    archive: Archive,
    info: ArchiveInfo,
    content: &'a PlacedContent<'a>,
    totals: Mutex<GroupTotals>,
    /// Lanes restore groups that a GPU could.
    helps: bool,
    /// The GPU's slots.
    slots: &'a SharedSlots<PackedSlot<D>, RestoredSlot<D>, Unit<D>>,
    observer: &'a dyn Observer,
    sink: PhantomData<fn(&'a mut K)>,
}

/// A group and its pages.
struct Unit<D: BatchDevice> {
    number: u64,
    group: GroupBuffer,
    is_read: bool,
    /// Pages that a lane restored.
    pages: Vec<Page>,
    /// Pages that a GPU restored.
    slot: Option<RestoredSlot<D>>,
}

/// The codec of a lane, and pages that are in its core's cache.
struct Lane {
    codec: PageCodec,
    cached: Vec<Page>,
}

impl Lane {
    fn new() -> Self {
        Self { codec: PageCodec::default(), cached: vec![[0; PAGE_SIZE]; CACHED_PAGES] }
    }
}

impl<D: BatchDevice> Unit<D> {
    fn spans(&self) -> impl Iterator<Item = ContentSpan<'_>> {
        self.group.spans(self.slot.as_ref().map_or(&self.pages, RestoredSlot::pages))
    }
}

impl<'a, K: Sink, D: BatchDevice> Restore<'a, K, D> {
    fn claim_group(&self, next: &mut u64, unit: &mut Unit<D>) -> bool {
        (unit.number, unit.is_read) = (*next, false);
        *next += 1;
        unit.number < self.info.group_count
    }

    /// Reads a group and compares it with the index.
    fn read(&self, unit: &mut Unit<D>) -> Result<(), Stop> {
        if !unit.is_read {
            let read = timed(self.observer, Stage::Read, || self.archive.read_group(unit.number, &mut unit.group));
            *lock(&self.totals) += read.map_err(|_| Stop::IndexMismatch)?;
            unit.is_read = true;
        }
        Ok(())
    }

    /// Restores the pages of a group a few at a time, and writes them at their place.
    fn restore_in_place(&self, lane: &mut Lane, group: &GroupBuffer) -> Result<(), Stop> {
        let (mut at, mut pages) = (group.content_start(), group.pages());
        for run in group.runs() {
            match run {
                GroupRun::Zeros(len_bytes) => self.content.write(at, std::iter::once(ContentSpan::Zeros(len_bytes)))?,
                GroupRun::Tail(bytes) => self.content.write(at, std::iter::once(ContentSpan::Data(bytes)))?,
                GroupRun::Pages(count) => {
                    let place = self.content.prepare(at, count * PAGE_SIZE)?;
                    for first in (0..count).step_by(CACHED_PAGES) {
                        let cached = &mut lane.cached[..CACHED_PAGES.min(count - first)];
                        self.decode(&mut lane.codec, pages.by_ref().take(cached.len()), cached)?;
                        let at = at + (first * PAGE_SIZE) as u64;
                        self.content.write_prepared(place.as_ref(), at, cached.as_flattened())?;
                    }
                }
            }
            at += run_len(run);
        }
        Ok(())
    }

    fn decode<'p>(
        &self,
        codec: &mut PageCodec,
        mut pages: impl Iterator<Item = PageData<'p>>,
        into: &mut [Page],
    ) -> Result<(), Stop> {
        let decoded = timed(self.observer, Stage::Decode, || {
            into.iter_mut().zip(&mut pages).try_for_each(|(into, page)| codec.decompress(page, into))
        });
        decoded.map_err(|_| Stop::IndexMismatch)
    }
}

/// The bytes of content of a run.
fn run_len(run: GroupRun<'_>) -> u64 {
    match run {
        GroupRun::Zeros(len_bytes) => len_bytes,
        GroupRun::Pages(pages) => (pages * PAGE_SIZE) as u64,
        GroupRun::Tail(bytes) => bytes.len() as u64,
    }
}

impl<'a, K: Sink, D: BatchDevice> Work for Restore<'a, K, D> {
    /// The number of the next group.
    type Source = u64;
    type Unit = Unit<D>;
    type Lane = Lane;
    type Ordered = &'a mut K;
    type Error = Stop;

    fn unit(&self) -> Unit<D> {
        Unit { number: 0, group: GroupBuffer::new(), is_read: false, pages: Vec::new(), slot: None }
    }

    fn claim(&self, next: &mut u64, _lane: &mut Lane, unit: &mut Unit<D>) -> Result<bool, Stop> {
        Ok(self.claim_group(next, unit))
    }

    fn run(&self, lane: &mut Lane, unit: &mut Unit<D>) -> Result<(), Stop> {
        self.read(unit)?;
        if !self.is_ordered() {
            return self.restore_in_place(lane, &unit.group);
        }
        let Unit { group, pages, .. } = &mut *unit;
        if pages.len() < group.data_pages() {
            pages.resize(group.data_pages(), [0; PAGE_SIZE]);
        }
        self.decode(&mut lane.codec, group.pages(), pages)?;
        Ok(self.content.write(unit.group.content_start(), unit.spans())?)
    }

    fn content_len(&self, unit: &Unit<D>) -> u64 {
        unit.group.content_len()
    }

    fn is_ordered(&self) -> bool {
        self.content.is_in_order() || self.info.content_checksum
    }

    fn hash(&self, unit: &Unit<D>, hash: &mut ContentHash) {
        unit.spans().for_each(|span| match span {
            ContentSpan::Data(bytes) => hash.update(bytes),
            ContentSpan::Zeros(len_bytes) => hash.update_zeros(len_bytes),
        });
    }

    fn in_order(&self, sink: &mut &'a mut K, unit: &mut Unit<D>) -> Result<bool, Stop> {
        if self.content.is_in_order() {
            timed(self.observer, Stage::Write, || unit.spans().try_for_each(|span| sink.take(span)))?;
            self.content.count(unit.group.content_len());
        }
        Ok(false)
    }

    fn release(&self, unit: &mut Unit<D>) {
        if let Some(done) = unit.slot.take() {
            lock(self.slots).put_free(done.into_slot());
        }
    }
}

impl<K: Sink, D: BatchDevice> SlotWork for Restore<'_, K, D> {
    type Slot = PackedSlot<D>;
    type Done = RestoredSlot<D>;

    fn claim_for(&self, next: &mut u64, _slot: &mut PackedSlot<D>, unit: &mut Unit<D>) -> Result<bool, Stop> {
        Ok(self.claim_group(next, unit))
    }

    /// Reads a group and copies its pages into a slot.
    fn fill(&self, unit: &mut Unit<D>, slot: &mut PackedSlot<D>) -> Result<bool, Stop> {
        self.read(unit)?;
        if !(1..=slot.capacity()).contains(&unit.group.data_pages()) {
            return Ok(false);
        }
        let pushed = timed(self.observer, Stage::GpuSlots, || unit.group.pages().try_for_each(|page| slot.push(page)));
        pushed.map_err(Error::Codec)?;
        Ok(true)
    }

    fn collect(&self, unit: &mut Unit<D>, done: RestoredSlot<D>) -> Result<(), Stop> {
        if done.check().is_err() {
            return Err(Stop::IndexMismatch);
        }
        unit.slot = Some(done);
        Ok(self.content.write(unit.group.content_start(), unit.spans())?)
    }

    fn can_help(&self, _lane: &Lane) -> bool {
        self.helps
    }
}
