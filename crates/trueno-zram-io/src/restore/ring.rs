//! Lanes before a GPU: they read and check groups, fill its slots with their pages, and write what it restores.
//!
//! One more thread drives the GPU and hands its results on. A lane writes a result, or fills a free slot with a group.
//! One that finds neither waits, or restores a group itself if it may help.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
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
use crate::driver;
use crate::error::Result;
use crate::ordered::lock;
use crate::slots::{SlotCounts, SlotToFill};
use crate::timeline::{Stage, timed};

/// Slots of compressed pages on their way through a GPU.
pub(super) trait SlotStream: Sync {
    type Slot: Send;
    type Done: Send;

    fn try_slot(&self) -> CodecResult<Option<Self::Slot>>;
    fn capacity(slot: &Self::Slot) -> usize;
    fn push(slot: &mut Self::Slot, page: PageData<'_>) -> CodecResult<()>;
    fn submit(&self, slot: Self::Slot) -> CodecResult<()>;
    fn try_next(&self) -> CodecResult<Option<Self::Done>>;
    fn pending(&self) -> usize;
    fn is_sound(done: &Self::Done) -> bool;
    fn pages(done: &Self::Done) -> &[Page];
}

/// The streams of both devices have the same methods, and no trait that other crates can name.
macro_rules! slot_stream {
    ($device:ty) => {
        impl SlotStream for DecompressStream<'_, $device> {
            type Slot = PackedSlot<$device>;
            type Done = RestoredSlot<$device>;

            fn try_slot(&self) -> CodecResult<Option<Self::Slot>> {
                self.try_slot()
            }

            fn capacity(slot: &Self::Slot) -> usize {
                slot.capacity()
            }

            fn push(slot: &mut Self::Slot, page: PageData<'_>) -> CodecResult<()> {
                slot.push(page)
            }

            fn submit(&self, slot: Self::Slot) -> CodecResult<()> {
                self.submit(slot)
            }

            fn try_next(&self) -> CodecResult<Option<Self::Done>> {
                self.try_next()
            }

            fn pending(&self) -> usize {
                self.pending()
            }

            fn is_sound(done: &Self::Done) -> bool {
                done.check().is_ok()
            }

            fn pages(done: &Self::Done) -> &[Page] {
                done.pages()
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

/// Slots on their way.
struct Flight<St: SlotStream> {
    /// Slots that were submitted and whose results no lane has taken.
    in_flight: usize,
    /// Results that no lane has taken.
    results: VecDeque<(u64, PageGroup, St::Done)>,
    slots: SlotCounts,
    /// Memory for groups.
    spare: Vec<PageGroup>,
}

enum Task<Done> {
    Write(u64, PageGroup, Done),
    Fill(SlotToFill, PageGroup),
    Help(PageGroup),
    Stop,
}

struct Ring<'a, K: Sink, St: SlotStream> {
    restoring: Restoring<'a, K, RingContent<St>>,
    stream: &'a St,
    flight: Mutex<Flight<St>>,
    changed: Condvar,
    /// Slots that were submitted, in that order. Held while a slot is submitted.
    submitted: Mutex<VecDeque<(u64, PageGroup)>>,
    /// Whether all lanes have stopped.
    has_ended: AtomicBool,
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
    let ring = Ring {
        restoring: Restoring::new(groups, file, sink, lane_count, observer)?,
        stream,
        flight: Mutex::new(Flight {
            in_flight: 0,
            results: VecDeque::new(),
            slots: SlotCounts::new(slots),
            spare: Vec::new(),
        }),
        changed: Condvar::new(),
        submitted: Mutex::new(VecDeque::new()),
        has_ended: AtomicBool::new(false),
        helps,
        choice: Choice::new(lane_count),
    };
    let lanes = (0..lane_count).map(|_| || ring.run(|| ring.run_lane()));
    driver::run_beside(|| ring.run(|| ring.drive()), lanes, &ring.has_ended)?;
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

    /// Takes results from the GPU until all lanes have stopped.
    fn drive(&self) -> Result<()> {
        let take = |done| {
            let (number, group) = lock(&self.submitted).pop_front().expect("a result was submitted");
            lock(&self.flight).results.push_back((number, group, done));
            self.changed.notify_all();
            Ok(())
        };
        driver::drive(|| self.stream.try_next(), || self.stream.pending(), &self.has_ended, take)
    }

    fn notify(&self) {
        drop(lock(&self.flight));
        self.changed.notify_all();
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
                Task::Fill(slots, group) => {
                    let filled = self.fill(slots, group);
                    lock(&self.flight).slots.filling -= 1;
                    self.changed.notify_all();
                    filled?;
                }
                Task::Help(group) => self.help(group, &mut cpu)?,
            }
        }
    }

    fn next_task(&self) -> Task<St::Done> {
        let mut flight = lock(&self.flight);
        loop {
            if self.restoring.has_stopped() {
                return Task::Stop;
            }
            if let Some((number, group, done)) = flight.results.pop_front() {
                flight.in_flight -= 1;
                self.changed.notify_all();
                return Task::Write(number, group, done);
            }
            let has_ended = self.restoring.has_ended();
            let helps_first = self.helps && !(self.choice.uses_gpu() && self.choice.knows_lanes());
            if !has_ended
                && !helps_first
                && let Some(slots) = flight.slots.take()
            {
                return Task::Fill(slots, flight.spare.pop().unwrap_or_default());
            }
            if !has_ended && self.helps {
                return Task::Help(flight.spare.pop().unwrap_or_default());
            }
            if has_ended && flight.slots.filling == 0 && flight.in_flight == 0 {
                return Task::Stop;
            }
            flight = self.wait(flight);
        }
    }

    fn wait<'f>(&self, flight: MutexGuard<'f, Flight<St>>) -> MutexGuard<'f, Flight<St>> {
        timed(self.restoring.observer, Stage::Wait, || self.changed.wait(flight))
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a group, copies its pages into a slot, and submits it.
    fn fill(&self, slot_to_fill: SlotToFill, mut group: PageGroup) -> Result<()> {
        // Without memory for another slot, there is one fewer from now on.
        let slot = timed(self.restoring.observer, Stage::Wait, || self.stream.try_slot());
        if slot_to_fill == SlotToFill::Made {
            lock(&self.flight).slots.is_making = false;
            self.changed.notify_all();
        }
        let Some(mut slot) = slot? else { return Ok(()) };
        let number = self.restoring.claim().filter(|number| self.restoring.read(*number, &mut group));
        let Some(number) = number.filter(|_| group.data_pages() > 0) else {
            drop(slot);
            lock(&self.flight).slots.idle += 1;
            return match number {
                Some(number) => self.restoring.give(number, RingContent::Slot(group, None), |used| self.reuse(used)),
                None => Ok(()),
            };
        };
        if group.data_pages() > St::capacity(&slot) {
            drop(slot);
            lock(&self.flight).slots.idle += 1;
            return self.restore_on_cpu(number, group, &mut CpuPages::new());
        }
        timed(self.restoring.observer, Stage::Slot, || group.pages().try_for_each(|page| St::push(&mut slot, page)))?;
        // Both at once: results come in the order of submission.
        timed(self.restoring.observer, Stage::Wait, || {
            let mut submitted = lock(&self.submitted);
            lock(&self.flight).in_flight += 1;
            self.stream.submit(slot)?;
            submitted.push_back((number, group));
            Ok(())
        })
    }

    /// Writes what the GPU restored.
    fn write(&self, number: u64, group: PageGroup, done: St::Done) -> Result<()> {
        if !St::is_sound(&done) {
            self.restoring.doubt();
            self.notify();
            return Ok(());
        }
        let bytes = group.content_len();
        self.restoring.give(number, RingContent::Slot(group, Some(done)), |used| self.reuse(used))?;
        self.choice.done(bytes, Instant::now());
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
        self.choice.done(bytes, Instant::now());
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
        let (group, freed) = match content {
            RingContent::Slot(group, done) => {
                let freed = usize::from(done.is_some());
                drop(done);
                (group, freed)
            }
            RingContent::Cpu(content) => (content.group, 0),
        };
        let mut flight = lock(&self.flight);
        flight.slots.idle += freed;
        flight.spare.push(group);
        drop(flight);
        self.changed.notify_all();
    }
}
