//! Lanes before a GPU: they read and check groups, fill its slots with their pages, and write what it restores.
//!
//! One more thread drives the GPU, and a few make its slots. A lane writes a result, or fills a free slot with a group. One that
//! finds neither waits, or restores a group itself if it may help.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use rayon::ThreadPool;
use trueno_zram_archive::{Groups, PageGroup};
use trueno_zram_core::gpu::{Cuda, DecompressStream, Interpreter, PackedSlot, RestoredSlot};
use trueno_zram_core::{Page, PageData, Result as CodecResult};

use super::Sink;
use super::groups::{GroupContent, Restored, Restoring};
use super::lanes::{Content, CpuPages};
use crate::Observer;
use crate::choice::Choice;
use crate::driver::{self, GpuStream, SlotsOf};
use crate::error::Result;
use crate::ordered::lock;
use crate::slots::Slots;
use crate::timeline::{Stage, timed};

/// Slots of compressed pages on their way through a GPU.
pub(super) trait SlotStream: GpuStream {
    fn capacity(slot: &Self::Slot) -> usize;
    fn push(slot: &mut Self::Slot, page: PageData<'_>) -> CodecResult<()>;
    fn is_sound(done: &Self::Done) -> bool;
    fn pages(done: &Self::Done) -> &[Page];
    fn into_slot(done: Self::Done) -> Self::Slot;
}

/// The streams of both devices have the same methods, and no trait that other crates can name.
macro_rules! slot_stream {
    ($device:ty) => {
        impl GpuStream for DecompressStream<'_, $device> {
            type Slot = PackedSlot<$device>;
            type Done = RestoredSlot<$device>;

            fn try_slot(&self) -> CodecResult<Option<Self::Slot>> {
                self.try_slot()
            }

            fn submit(&self, slot: Self::Slot) -> CodecResult<()> {
                self.submit(slot)
            }

            fn try_next(&self) -> CodecResult<Option<Self::Done>> {
                self.try_next()
            }
        }

        impl SlotStream for DecompressStream<'_, $device> {
            fn capacity(slot: &Self::Slot) -> usize {
                slot.capacity()
            }

            fn push(slot: &mut Self::Slot, page: PageData<'_>) -> CodecResult<()> {
                slot.push(page)
            }

            fn is_sound(done: &Self::Done) -> bool {
                done.check().is_ok()
            }

            fn pages(done: &Self::Done) -> &[Page] {
                done.pages()
            }

            fn into_slot(done: Self::Done) -> Self::Slot {
                done.into_slot()
            }
        }
    };
}

slot_stream!(Cuda);
slot_stream!(Interpreter);

/// The content of a group.
enum RingContent<St: SlotStream> {
    /// In a slot. None: the group has no page to restore.
    Slot(PageGroup, Option<St::Done>),
    /// Restored by a lane.
    Cpu(Content),
}

impl<St: SlotStream> GroupContent for RingContent<St> {
    fn group(&self) -> &PageGroup {
        match self {
            Self::Slot(group, _) => group,
            Self::Cpu(content) => content.group(),
        }
    }

    fn pages(&self) -> &[Page] {
        match self {
            Self::Slot(_, done) => done.as_ref().map_or(&[], St::pages),
            Self::Cpu(content) => content.pages(),
        }
    }
}

/// What a slot holds: a group and its number.
type Tag = (u64, PageGroup);

enum Task<Slot, Done> {
    Write(u64, PageGroup, Done),
    Fill(Slot, PageGroup),
    Help(PageGroup),
    Stop,
}

struct Ring<'a, K: Sink, St: SlotStream> {
    restoring: Restoring<'a, K, RingContent<St>>,
    slots: Mutex<SlotsOf<St, Tag>>,
    changed: Condvar,
    /// Memory for groups.
    spare: Mutex<Vec<PageGroup>>,
    lanes: usize,
    /// Lanes that wait for work. Changed under the lock of the slots.
    waiting: AtomicUsize,
    helps: bool,
    choice: Choice,
}

/// Stops the other lanes when dropped.
struct StopOthers<'a, 'b, K: Sink, St: SlotStream>(&'a Ring<'b, K, St>);

impl<K: Sink, St: SlotStream> Drop for StopOthers<'_, '_, K, St> {
    fn drop(&mut self) {
        self.0.restoring.stop();
        self.0.notify();
    }
}

/// Restores an archive with the slots of `stream`, of which there are `slots`.
pub(super) fn restore_groups<K: Sink, St: SlotStream>(
    (groups, file): (Groups, &File),
    sink: &mut K,
    (stream, slots): (&St, usize),
    helps: bool,
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Restored> {
    let lane_count = pool.current_num_threads();
    let ring: Ring<'_, K, St> = Ring {
        restoring: Restoring::new(groups, file, sink, lane_count, observer)?,
        slots: Mutex::new(Slots::new(slots)),
        changed: Condvar::new(),
        spare: Mutex::new(Vec::new()),
        lanes: lane_count,
        waiting: AtomicUsize::new(0),
        helps,
        choice: Choice::default(),
    };
    let has_ended = AtomicBool::new(false);
    let wanted = || if helps { ring.choice.most_slots() } else { usize::MAX };
    let drive = || driver::drive(stream, &ring.slots, &has_ended, || ring.notify_one());
    let make = || driver::make_slots(stream, &ring.slots, &has_ended, wanted, || ring.notify_one(), observer);
    let lanes = (0..lane_count).map(|_| || ring.run(|| ring.run_lane()));
    driver::run_beside(|| ring.run(|| Ok(drive()?)), || ring.run(|| Ok(make()?)), lanes, &has_ended)?;
    ring.restoring.finish()
}

impl<K: Sink, St: SlotStream> Ring<'_, K, St> {
    fn run(&self, work: impl FnOnce() -> Result<()>) {
        let stop_others = StopOthers(self);
        match work() {
            Ok(()) => std::mem::forget(stop_others),
            Err(error) => self.restoring.fail(error),
        }
    }

    fn notify(&self) {
        drop(lock(&self.slots));
        self.changed.notify_all();
    }

    /// Wakes a lane for a slot or a result.
    fn notify_one(&self) {
        drop(lock(&self.slots));
        self.changed.notify_one();
    }

    fn run_lane(&self) -> Result<()> {
        let mut cpu = CpuPages::new();
        loop {
            match self.next_task() {
                Task::Stop => {
                    // Others may wait for what made this one stop.
                    self.notify();
                    return Ok(());
                }
                Task::Write(number, group, done) => self.write(number, group, done)?,
                Task::Fill(slot, group) => self.fill(slot, group)?,
                Task::Help(group) => self.help(group, &mut cpu)?,
            }
        }
    }

    fn next_task(&self) -> Task<St::Slot, St::Done> {
        let mut slots = lock(&self.slots);
        loop {
            if self.restoring.has_stopped() {
                return Task::Stop;
            }
            if let Some(((number, group), done)) = slots.take_result() {
                if self.restoring.has_ended() {
                    // The other lanes look whether this was the last one.
                    self.changed.notify_all();
                }
                return Task::Write(number, group, done);
            }
            let has_ended = self.restoring.has_ended();
            let most_slots = if self.helps { self.choice.most_slots() } else { usize::MAX };
            if !has_ended && let Some(slot) = slots.take(most_slots) {
                return Task::Fill(slot, self.spare_group());
            }
            let has_reserve = self.waiting.load(Ordering::Relaxed) >= self.choice.reserve(self.lanes);
            if !has_ended && self.helps && has_reserve {
                return Task::Help(self.spare_group());
            }
            if has_ended && slots.is_empty() {
                return Task::Stop;
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            slots = timed(self.restoring.observer, Stage::Wait, || self.changed.wait(slots))
                .unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn spare_group(&self) -> PageGroup {
        lock(&self.spare).pop().unwrap_or_default()
    }

    /// Reads a group and copies its pages into a slot, for the GPU.
    fn fill(&self, mut slot: St::Slot, mut group: PageGroup) -> Result<()> {
        let start = Instant::now();
        let number = self.restoring.claim().filter(|number| self.restoring.read(*number, &mut group));
        let fits = |group: &PageGroup| (1..=St::capacity(&slot)).contains(&group.data_pages());
        let Some(number) = number.filter(|_| fits(&group)) else {
            lock(&self.slots).put_back(slot);
            self.notify();
            return match number {
                Some(number) if group.data_pages() > 0 => self.restore_on_cpu(number, group, &mut CpuPages::new()),
                Some(number) => self.restoring.give(number, RingContent::Slot(group, None), |used| self.reuse(used)),
                None => Ok(()),
            };
        };
        let pushed = timed(self.restoring.observer, Stage::Slot, || {
            group.pages().try_for_each(|page| St::push(&mut slot, page))
        });
        if let Err(error) = pushed {
            lock(&self.slots).put_nothing();
            return Err(error.into());
        }
        lock(&self.slots).put_filled(slot, (number, group));
        self.choice.filled(start.elapsed());
        Ok(())
    }

    /// Writes what the GPU restored.
    fn write(&self, number: u64, group: PageGroup, done: St::Done) -> Result<()> {
        if !St::is_sound(&done) {
            self.restoring.doubt();
            self.notify();
            return Ok(());
        }
        let (bytes, start) = (group.content_len(), Instant::now());
        self.restoring.give(number, RingContent::Slot(group, Some(done)), |used| self.reuse(used))?;
        self.choice.taken(bytes, start.elapsed());
        Ok(())
    }

    /// Restores a group without the GPU.
    fn help(&self, mut group: PageGroup, cpu: &mut CpuPages) -> Result<()> {
        let start = Instant::now();
        let number = self.restoring.claim().filter(|number| self.restoring.read(*number, &mut group));
        let Some(number) = number else { return Ok(()) };
        let bytes = group.content_len();
        self.restore_on_cpu(number, group, cpu)?;
        self.choice.helped(bytes, start.elapsed());
        Ok(())
    }

    fn restore_on_cpu(&self, number: u64, group: PageGroup, cpu: &mut CpuPages) -> Result<()> {
        if !self.restoring.is_ordered() {
            cpu.restore_in_place(&group, &self.restoring)?;
            self.reuse(RingContent::Slot(group, None));
            return Ok(());
        }
        let mut content = Content::new(group);
        if timed(self.restoring.observer, Stage::Decode, || cpu.restore_all(&mut content)) {
            return self.restoring.give(number, RingContent::Cpu(content), |used| self.reuse(used));
        }
        self.restoring.doubt();
        self.notify();
        Ok(())
    }

    /// Frees the slot of content that was taken, and keeps the memory of its group.
    fn reuse(&self, content: RingContent<St>) {
        let group = match content {
            RingContent::Slot(group, Some(done)) => {
                lock(&self.slots).put_free(St::into_slot(done));
                group
            }
            RingContent::Slot(group, None) => group,
            RingContent::Cpu(content) => content.group,
        };
        lock(&self.spare).push(group);
        // Also without a free slot: a lane that stays at hand for the GPU may be wanted elsewhere by now.
        self.changed.notify_one();
    }
}
