//! Restores an archive by groups: lanes read, check, restore and write groups in parallel.
//!
//! With a GPU, lanes fill its slots with the pages of groups, and write what it restores.

use std::marker::PhantomData;
use std::sync::Mutex;

use trueno_zram_archive::{
    Archive, ArchiveInfo, ContentHash, ContentSpan, GroupBuffer, GroupRun, GroupTotals, ReadSummary,
};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, PageData};

use super::content_writer::ContentWriter;
use super::{Decoders, Sink};
use crate::error::Error;
use crate::lock::lock;
use crate::pipeline::held_slots::{HeldSlots, NoSlots};
use crate::pipeline::timeline::{Stage, timed};
use crate::pipeline::{Pipeline, Work};
use crate::workers::Workers;

/// Pages that are restored before they are written: they stay in the core's cache.
const CACHED_PAGES: usize = 64;

/// Groups in memory if their content has to be taken in order: up to 8 MiB each.
const MAX_ORDERED: usize = 6;

/// The result of restoring by groups.
pub(super) enum GroupsOutcome {
    /// All content was restored.
    All(Box<ReadSummary>),
    /// The archive has to be read as a stream. The sink has taken this many bytes in order.
    FallBackToStream { taken: u64 },
}

/// The reason why lanes stop before the end.
pub(crate) enum GroupFailure {
    /// A group is not what the index says.
    IndexMismatch,
    Failed(Error),
}

impl From<Error> for GroupFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Restores the groups of an archive into `sink`.
pub(super) fn restore_groups<K: Sink>(
    archive: Archive,
    sink: &mut K,
    decoders: &mut Decoders<'_>,
    workers: Workers<'_>,
) -> Result<GroupsOutcome, Error> {
    let content = ContentWriter::new(sink.write_mode(workers.threads()), sink.name(), workers.observer);
    let job = GroupsJob { archive, sink: &mut *sink, content: &content, workers };
    let restored = match decoders {
        Decoders::Cpu => restore_on_cpu(job),
        Decoders::Gpu { gpu, cpu_helps } => gpu.restore_groups(job, *cpu_helps),
    };
    match restored {
        Ok(summary) => {
            if !content.is_in_order() {
                sink.set_written(summary.content_len);
            }
            Ok(GroupsOutcome::All(Box::new(summary)))
        }
        Err(GroupFailure::IndexMismatch) => {
            let taken = if content.is_in_order() { content.written() } else { 0 };
            // The stream writes all content again.
            drop(content);
            sink.restart()?;
            Ok(GroupsOutcome::FallBackToStream { taken })
        }
        Err(GroupFailure::Failed(error)) => Err(error),
    }
}

/// An archive to restore, and the sink that takes its content.
pub(crate) struct GroupsJob<'a, K> {
    pub(super) archive: Archive,
    pub(super) sink: &'a mut K,
    pub(super) content: &'a ContentWriter<'a>,
    pub(super) workers: Workers<'a>,
}

impl<'a, K: Sink> GroupsJob<'a, K> {
    /// Plans a lane per worker, or fewer for an archive of few groups.
    pub(super) fn plan(&self) -> GroupPlan {
        let info = self.archive.info();
        let lanes = self.workers.threads().min(usize::try_from(info.group_count).unwrap_or(usize::MAX));
        let max_units = if is_ordered(&info, self.content) { MAX_ORDERED.min(2 * lanes) } else { lanes };
        GroupPlan { lanes, max_units }
    }

    /// Prepares the pipeline that restores the archive, with at most `max_units` groups in memory.
    pub(super) fn into_pipeline<H: HeldSlots>(
        self,
        slots: H,
        max_units: usize,
    ) -> Pipeline<'a, RestoreGroups<'a, K, H>> {
        let Self { archive, sink, content, .. } = self;
        let (info, totals) = (archive.info(), Mutex::new(GroupTotals::default()));
        let hash = info.content_checksum.then(ContentHash::new);
        let work = RestoreGroups { archive, info, content, totals, slots, sink: PhantomData };
        Pipeline::new(work, 0, sink, max_units, content.observer).with_hash(hash)
    }
}

pub(super) fn restore_on_cpu<K: Sink>(job: GroupsJob<'_, K>) -> Result<ReadSummary, GroupFailure> {
    let (pool, plan) = (job.workers.pool, job.plan());
    let pipeline = job.into_pipeline(NoSlots, plan.max_units);
    pipeline.run_on(pool, plan.new_lanes().into_iter());
    finish(pipeline)
}

/// The lanes of a pipeline, and the most groups in memory.
#[derive(Clone, Copy)]
pub(super) struct GroupPlan {
    pub(super) lanes: usize,
    pub(super) max_units: usize,
}

impl GroupPlan {
    pub(super) fn new_lanes(self) -> Vec<GroupLane> {
        (0..self.lanes).map(|_| GroupLane::new()).collect()
    }
}

/// Returns `true` if groups are written or hashed in order.
fn is_ordered(info: &ArchiveInfo, content: &ContentWriter<'_>) -> bool {
    content.is_in_order() || info.content_checksum
}

/// Compares the totals of all groups with the index, once all lanes have ended.
pub(super) fn finish<K: Sink, H: HeldSlots>(
    pipeline: Pipeline<'_, RestoreGroups<'_, K, H>>,
) -> Result<ReadSummary, GroupFailure> {
    let done = pipeline.finish()?;
    let totals = *lock(&done.work.totals);
    done.work.archive.finish(totals, done.hash.as_ref()).map_err(|_| GroupFailure::IndexMismatch)
}

/// Restores groups of an archive into content.
pub(super) struct RestoreGroups<'a, K, H> {
    archive: Archive,
    info: ArchiveInfo,
    pub(super) content: &'a ContentWriter<'a>,
    totals: Mutex<GroupTotals>,
    /// The GPU's slots.
    pub(super) slots: H,
    sink: PhantomData<fn(&'a mut K)>,
}

/// A group and its pages.
pub(super) struct GroupUnit<Done> {
    number: u64,
    pub(super) group: GroupBuffer,
    is_read: bool,
    /// Pages that a lane restored.
    pages: Vec<Page>,
    /// Pages that a GPU restored.
    pub(super) slot: Option<Done>,
}

/// The codec of a lane, and pages that are in its core's cache.
pub(super) struct GroupLane {
    codec: PageCodec,
    cached: Vec<Page>,
}

impl GroupLane {
    pub(super) fn new() -> Self {
        Self { codec: PageCodec::default(), cached: vec![[0; PAGE_SIZE]; CACHED_PAGES] }
    }
}

impl<K: Sink, H: HeldSlots> RestoreGroups<'_, K, H> {
    /// Returns the content of a unit.
    pub(super) fn spans<'u>(&self, unit: &'u GroupUnit<H::Done>) -> impl Iterator<Item = ContentSpan<'u>> {
        unit.group.spans(unit.slot.as_ref().map_or(&unit.pages, H::pages))
    }

    pub(super) fn claim_group(&self, next: &mut u64, unit: &mut GroupUnit<H::Done>) -> bool {
        (unit.number, unit.is_read) = (*next, false);
        *next += 1;
        unit.number < self.info.group_count
    }

    /// Reads a group and compares it with the index.
    pub(super) fn read(&self, unit: &mut GroupUnit<H::Done>) -> Result<(), GroupFailure> {
        if !unit.is_read {
            let read =
                timed(self.content.observer, Stage::Read, || self.archive.read_group(unit.number, &mut unit.group));
            *lock(&self.totals) += read.map_err(|_| GroupFailure::IndexMismatch)?;
            unit.is_read = true;
        }
        Ok(())
    }

    /// Restores the pages of a group a few at a time, and writes them at their offset.
    fn restore_at_offset(&self, lane: &mut GroupLane, group: &GroupBuffer) -> Result<(), GroupFailure> {
        let (mut at, mut pages) = (group.content_start(), group.pages());
        for run in group.runs() {
            match run {
                GroupRun::Zeros(len_bytes) => self.content.write(at, std::iter::once(ContentSpan::Zeros(len_bytes)))?,
                GroupRun::Tail(bytes) => self.content.write(at, std::iter::once(ContentSpan::Data(bytes)))?,
                GroupRun::Pages(count) => {
                    let prepared = self.content.prepare(at, count * PAGE_SIZE)?;
                    for first in (0..count).step_by(CACHED_PAGES) {
                        let cached = &mut lane.cached[..CACHED_PAGES.min(count - first)];
                        self.decode(&mut lane.codec, pages.by_ref().take(cached.len()), cached)?;
                        let at = at + (first * PAGE_SIZE) as u64;
                        self.content.write_prepared(prepared.as_ref(), at, cached.as_flattened())?;
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
    ) -> Result<(), GroupFailure> {
        let decoded = timed(self.content.observer, Stage::Decode, || {
            into.iter_mut().zip(&mut pages).try_for_each(|(into, page)| codec.decompress(page, into))
        });
        decoded.map_err(|_| GroupFailure::IndexMismatch)
    }
}

/// Returns the bytes of content of a run.
fn run_len(run: GroupRun<'_>) -> u64 {
    match run {
        GroupRun::Zeros(len_bytes) => len_bytes,
        GroupRun::Pages(pages) => (pages * PAGE_SIZE) as u64,
        GroupRun::Tail(bytes) => bytes.len() as u64,
    }
}

impl<'a, K: Sink, H: HeldSlots> Work for RestoreGroups<'a, K, H> {
    /// The number of the next group.
    type Source = u64;
    type Unit = GroupUnit<H::Done>;
    type Lane = GroupLane;
    type Ordered = &'a mut K;
    type Error = GroupFailure;

    fn new_unit(&self) -> GroupUnit<H::Done> {
        GroupUnit { number: 0, group: GroupBuffer::new(), is_read: false, pages: Vec::new(), slot: None }
    }

    fn claim(
        &self,
        next: &mut u64,
        _lane: &mut GroupLane,
        unit: &mut GroupUnit<H::Done>,
    ) -> Result<bool, GroupFailure> {
        Ok(self.claim_group(next, unit))
    }

    fn run(&self, lane: &mut GroupLane, unit: &mut GroupUnit<H::Done>) -> Result<(), GroupFailure> {
        self.read(unit)?;
        if !self.is_ordered() {
            return self.restore_at_offset(lane, &unit.group);
        }
        let GroupUnit { group, pages, .. } = &mut *unit;
        if pages.len() < group.data_pages() {
            pages.resize(group.data_pages(), [0; PAGE_SIZE]);
        }
        self.decode(&mut lane.codec, group.pages(), pages)?;
        Ok(self.content.write(unit.group.content_start(), self.spans(unit))?)
    }

    fn coded_bytes(&self, unit: &GroupUnit<H::Done>) -> u64 {
        (unit.group.data_pages() * PAGE_SIZE) as u64
    }

    fn is_ordered(&self) -> bool {
        is_ordered(&self.info, self.content)
    }

    fn hash(&self, unit: &GroupUnit<H::Done>, hash: &mut ContentHash) {
        self.spans(unit).for_each(|span| match span {
            ContentSpan::Data(bytes) => hash.update(bytes),
            ContentSpan::Zeros(len_bytes) => hash.update_zeros(len_bytes),
        });
    }

    fn in_order(&self, sink: &mut &'a mut K, unit: &mut GroupUnit<H::Done>) -> Result<bool, GroupFailure> {
        if self.content.is_in_order() {
            timed(self.content.observer, Stage::Write, || self.spans(unit).try_for_each(|span| sink.take(span)))?;
            self.content.count(unit.group.content_len());
        }
        Ok(false)
    }

    fn release(&self, unit: &mut GroupUnit<H::Done>) {
        if let Some(done) = unit.slot.take() {
            self.slots.release(done);
        }
    }
}
