//! Lanes before a GPU: they read into its slots and assemble blocks from its results.
//!
//! One more thread drives the GPU, and a few make its slots. A lane does what is due: it writes, assembles a result, or
//! reads into a free slot. One that finds nothing to do waits, or compresses a few pages itself if it has a codec. So
//! the GPU comes first once it is known to pay, and no core idles behind a GPU that is slower than the CPU.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rayon::ThreadPool;
use trueno_zram_archive::{ContentHash, PageBlocks, WriteOptions};
use trueno_zram_core::gpu::{CompressStream, CompressedSlot, Cuda, Interpreter, PageSlot};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, Result as CodecResult};

use super::lanes::Pages;
use super::{Claimed, Compressed, Content, Job, Parcel, Shared, Ticket};
use crate::Observer;
use crate::choice::Choice;
use crate::driver::{self, GpuStream, SlotsOf};
use crate::error::Error;
use crate::ordered::lock;
use crate::output::ArchiveOutput;
use crate::slots::Slots;
use crate::source::PageSource;
use crate::timeline::{Stage, timed};

/// Pages that a lane compresses itself before it looks at the GPU again.
const HELP_PAGES: usize = 16;

/// Slots of pages on their way through a GPU.
pub(super) trait SlotStream: GpuStream {
    fn room(slot: &mut Self::Slot) -> &mut [Page];
    fn set_len(slot: &mut Self::Slot, pages: usize);
    fn pages(done: &Self::Done) -> &[Page];
    fn push_to(done: &Self::Done, blocks: &mut PageBlocks) -> trueno_zram_archive::Result<()>;
    fn into_slot(done: Self::Done) -> Self::Slot;
}

/// The streams of both devices have the same methods, and no trait that other crates can name.
macro_rules! slot_stream {
    ($device:ty) => {
        impl GpuStream for CompressStream<'_, $device> {
            type Slot = PageSlot<$device>;
            type Done = CompressedSlot<$device>;

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

        impl SlotStream for CompressStream<'_, $device> {
            fn room(slot: &mut Self::Slot) -> &mut [Page] {
                slot.pages_mut()
            }

            fn set_len(slot: &mut Self::Slot, pages: usize) {
                slot.set_len(pages);
            }

            fn pages(done: &Self::Done) -> &[Page] {
                done.pages()
            }

            fn push_to(done: &Self::Done, blocks: &mut PageBlocks) -> trueno_zram_archive::Result<()> {
                done.iter().zip(done.pages()).try_for_each(|(page, plain)| blocks.push_of(page, plain))
            }

            fn into_slot(done: Self::Done) -> Self::Slot {
                done.into_slot()
            }
        }
    };
}

slot_stream!(Cuda);
slot_stream!(Interpreter);

/// What a parcel keeps until it is hashed.
enum RingContent<Done> {
    /// Nothing any more.
    Empty,
    /// Whole pages in a slot, and the bytes after them.
    Slot(Done, Vec<u8>),
    /// Bytes that are less than a page.
    Tail(Vec<u8>),
    /// Pages that a lane compressed itself.
    Helped(Pages),
    Zeros(u64),
}

/// The content of a ring's parcel, and where its slot goes when it is free again.
struct SlotContent<'a, St: SlotStream> {
    content: RingContent<St::Done>,
    slots: &'a Mutex<SlotsOf<St, Pending>>,
}

impl<St: SlotStream> Content for SlotContent<'_, St> {
    fn hash_into(&self, hash: &mut ContentHash) {
        match &self.content {
            RingContent::Empty => {}
            RingContent::Slot(done, tail) => {
                hash.update(St::pages(done).as_flattened());
                hash.update(tail);
            }
            RingContent::Tail(tail) => hash.update(tail),
            RingContent::Helped(pages) => pages.hash_into(hash),
            RingContent::Zeros(pages) => hash.update_zeros(pages * PAGE_SIZE as u64),
        }
    }

    /// Frees the slot.
    fn release(&mut self) -> bool {
        if matches!(self.content, RingContent::Helped(_)) {
            return true;
        }
        if let RingContent::Slot(done, _) = std::mem::replace(&mut self.content, RingContent::Empty) {
            lock(self.slots).put_free(St::into_slot(done));
        }
        false
    }
}

/// What a slot holds.
struct Pending {
    number: u64,
    first_page: u64,
    /// Bytes after the last whole page.
    tail: Vec<u8>,
}

/// What a lane found when it was to fill a slot.
enum Read<Done> {
    /// Pages, which are in the slot.
    Pages(Pending),
    /// Blocks that need no GPU.
    Apart(u64, RingContent<Done>, PageBlocks),
    End,
}

/// What a lane does next.
enum Task<Slot, Done> {
    Write(Job),
    Assemble(Pending, Done),
    Fill(Slot),
    Help,
    Stop,
}

struct Ring<'a, S: PageSource, W: ArchiveOutput, St: SlotStream> {
    shared: Shared<'a, S, W, SlotContent<'a, St>>,
    slots: &'a Mutex<SlotsOf<St, Pending>>,
    lanes: usize,
    choice: Choice,
}

/// Compresses all of `source` with the slots of `stream`, of which there are `slots`.
pub(super) fn compress<S: PageSource, W: ArchiveOutput, St: SlotStream>(
    source: S,
    out: (W, &str),
    options: WriteOptions,
    (stream, slots): (&St, usize),
    helpers: &mut [PageCodec],
    pool: &ThreadPool,
    observer: &dyn Observer,
) -> Result<Compressed<S, W>, S::Error> {
    let slots = Mutex::new(Slots::new(slots));
    let lane_count = pool.current_num_threads();
    let shared = Shared::new(source, out, options, lane_count, observer)?;
    let (has_ended, choice) = (AtomicBool::new(false), Choice::default());
    let ring: Ring<'_, S, W, St> = Ring { shared, slots: &slots, lanes: lane_count, choice };
    // Without helpers, everything waits for the GPU.
    let has_helpers = !helpers.is_empty();
    let wanted = || if has_helpers { ring.choice.most_slots() } else { usize::MAX };
    let drive = || driver::drive(stream, &slots, &has_ended, || ring.notify());
    let make = || driver::make_slots(stream, &slots, &has_ended, wanted, || ring.notify(), observer);
    let mut helpers = helpers.iter_mut();
    let lanes = (0..lane_count).map(|_| {
        let (ring, helper) = (&ring, helpers.next());
        move || ring.shared.run(|| ring.run_lane(helper))
    });
    let run = |result: CodecResult<()>| Ok(result.map_err(Error::Codec)?);
    driver::run_beside(|| ring.shared.run(|| run(drive())), || ring.shared.run(|| run(make())), lanes, &has_ended)?;
    ring.shared.finish()
}

impl<'a, S: PageSource, W: ArchiveOutput, St: SlotStream> Ring<'a, S, W, St> {
    /// Wakes a lane for a slot or a result. No lane is between its look at the slots and its wait.
    fn notify(&self) {
        drop(lock(&self.shared.state));
        self.shared.changed.notify_one();
    }

    /// Wakes all lanes, to see whether they can stop.
    fn notify_all(&self) {
        drop(lock(&self.shared.state));
        self.shared.changed.notify_all();
    }

    fn run_lane(&self, mut helper: Option<&mut PageCodec>) -> Result<(), S::Error> {
        loop {
            match self.next_task(helper.is_some()) {
                Task::Stop => {
                    self.notify_all();
                    return Ok(());
                }
                Task::Write(job) => self.shared.write(job)?,
                Task::Assemble(pending, done) => self.assemble(pending, done)?,
                Task::Fill(slot) => self.fill(slot)?,
                Task::Help => {
                    let codec = helper.as_deref_mut().expect("only a lane with a codec helps");
                    let pages = lock(&self.shared.state).free.pop().and_then(|free| match free.content {
                        RingContent::Helped(pages) => Some(pages),
                        _ => None,
                    });
                    let pages = pages.unwrap_or_else(|| Pages::new(HELP_PAGES));
                    let into = |pages| self.content(RingContent::Helped(pages));
                    let start = Instant::now();
                    let helped = self.shared.fill(pages, codec, into)?;
                    self.choice.helped(helped, start.elapsed());
                }
            }
        }
    }

    fn content(&self, content: RingContent<St::Done>) -> SlotContent<'a, St> {
        SlotContent { content, slots: self.slots }
    }

    fn next_task(&self, can_help: bool) -> Task<St::Slot, St::Done> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        loop {
            if state.has_failed {
                return Task::Stop;
            }
            if let Some(job) = shared.take_job(&mut state) {
                return Task::Write(job);
            }
            let may_claim = !state.has_ended && state.has_room();
            let mut slots = lock(self.slots);
            if let Some((pending, done)) = slots.take_result() {
                if state.has_ended {
                    // The other lanes look whether this was the last one.
                    shared.changed.notify_all();
                }
                return Task::Assemble(pending, done);
            }
            let most_slots = if can_help { self.choice.most_slots() } else { usize::MAX };
            if may_claim && let Some(slot) = slots.take(most_slots) {
                return Task::Fill(slot);
            }
            if may_claim && can_help && state.waiting >= self.choice.reserve(self.lanes) {
                return Task::Help;
            }
            if state.has_ended && slots.is_empty() {
                return Task::Stop;
            }
            drop(slots);
            state.waiting += 1;
            state = timed(shared.observer, Stage::Wait, || shared.changed.wait(state))
                .unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }

    /// Reads what comes next into a slot, for the GPU.
    fn fill(&self, mut slot: St::Slot) -> Result<(), S::Error> {
        let start = Instant::now();
        match self.read_into(&mut slot) {
            Ok(Read::Pages(pending)) => {
                lock(self.slots).put_filled(slot, pending);
                self.choice.filled(start.elapsed());
                Ok(())
            }
            Ok(Read::End) => {
                lock(self.slots).put_back(slot);
                self.notify_all();
                Ok(())
            }
            Ok(Read::Apart(number, content, blocks)) => {
                lock(self.slots).put_back(slot);
                self.notify_all();
                self.deliver(number, content, blocks)
            }
            Err(error) => {
                lock(self.slots).put_nothing();
                Err(error)
            }
        }
    }

    /// Claims what comes next, and reads it into a slot if it is pages.
    fn read_into(&self, slot: &mut St::Slot) -> Result<Read<St::Done>, S::Error> {
        let Some(Ticket { number, first_page, claimed }) = self.shared.claim(St::room(slot))? else {
            return Ok(Read::End);
        };
        let len_bytes = match claimed {
            Claimed::Range(range) => self.shared.read(&range, St::room(slot))?,
            Claimed::Filled(len_bytes) => len_bytes,
            Claimed::Zeros(pages) => {
                let mut blocks = self.shared.blocks(first_page);
                blocks.push_zeros(pages).map_err(|error| self.archive_error(error))?;
                blocks.finish();
                return Ok(Read::Apart(number, RingContent::Zeros(pages), blocks));
            }
        };
        let (pages, tail) = St::room(slot).as_flattened()[..len_bytes].as_chunks::<PAGE_SIZE>();
        let (pages, tail) = (pages.len(), tail.to_vec());
        if pages == 0 {
            let mut blocks = self.shared.blocks(first_page);
            blocks.push_tail(&tail).map_err(|error| self.archive_error(error))?;
            return Ok(Read::Apart(number, RingContent::Tail(tail), blocks));
        }
        St::set_len(slot, pages);
        Ok(Read::Pages(Pending { number, first_page, tail }))
    }

    /// Assembles blocks from a result.
    fn assemble(&self, pending: Pending, done: St::Done) -> Result<(), S::Error> {
        let Pending { number, first_page, tail } = pending;
        let start = Instant::now();
        let mut blocks = self.shared.blocks(first_page);
        let assembled = timed(self.shared.observer, Stage::Slot, || {
            St::push_to(&done, &mut blocks)?;
            blocks.hash_pages(St::pages(&done));
            blocks.push_tail(&tail)?;
            blocks.finish();
            Ok(())
        });
        assembled.map_err(|error| self.archive_error(error))?;
        let bytes = blocks.content_len();
        self.deliver(number, RingContent::Slot(done, tail), blocks)?;
        self.choice.taken(bytes, start.elapsed());
        Ok(())
    }

    fn deliver(&self, number: u64, content: RingContent<St::Done>, blocks: PageBlocks) -> Result<(), S::Error> {
        let mut content = self.content(content);
        if !self.shared.hashes {
            let _ = content.release();
            self.notify();
        }
        self.shared.deliver(Parcel { number, content, blocks })
    }

    fn archive_error(&self, error: trueno_zram_archive::Error) -> Error {
        Error::archive(self.shared.out_name, error)
    }
}
