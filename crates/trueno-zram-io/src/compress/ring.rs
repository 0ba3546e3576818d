//! Lanes before a GPU: they read into its slots and assemble blocks from its results.
//!
//! One more thread drives the GPU and hands its results on. A lane does what is due: it writes, assembles a result, or
//! reads into a free slot. One that finds nothing to do waits, or compresses a few pages itself if it has a codec. So
//! the GPU always comes first, and no core idles behind a GPU that is slower than the CPU.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rayon::ThreadPool;
use trueno_zram_archive::{ContentHash, PageBlocks, WriteOptions};
use trueno_zram_core::gpu::{CompressStream, CompressedSlot, Cuda, Interpreter, PageSlot};
use trueno_zram_core::{PAGE_SIZE, Page, PageCodec, Result as CodecResult};

use super::lanes::{LANE_PAGES, Pages};
use super::{Claimed, Compressed, Content, Job, Parcel, Shared, Ticket};
use crate::Observer;
use crate::choice::Choice;
use crate::driver;
use crate::error::Error;
use crate::ordered::lock;
use crate::output::ArchiveOutput;
use crate::slots::{SlotCounts, SlotToFill};
use crate::source::PageSource;
use crate::timeline::{Stage, timed};

/// Slots of pages on their way through a GPU.
pub(super) trait SlotStream: Sync {
    type Slot: Send;
    type Done: Send;

    fn try_slot(&self) -> CodecResult<Option<Self::Slot>>;
    fn submit(&self, slot: Self::Slot, pages: usize) -> CodecResult<()>;
    fn try_next(&self) -> CodecResult<Option<Self::Done>>;
    fn pending(&self) -> usize;
    fn room(slot: &mut Self::Slot) -> &mut [Page];
    fn pages(done: &Self::Done) -> &[Page];
    fn push_to(done: &Self::Done, blocks: &mut PageBlocks) -> trueno_zram_archive::Result<()>;
}

/// The streams of both devices have the same methods, and no trait that other crates can name.
macro_rules! slot_stream {
    ($device:ty) => {
        impl SlotStream for CompressStream<'_, $device> {
            type Slot = PageSlot<$device>;
            type Done = CompressedSlot<$device>;

            fn try_slot(&self) -> CodecResult<Option<Self::Slot>> {
                self.try_slot()
            }

            fn submit(&self, mut slot: Self::Slot, pages: usize) -> CodecResult<()> {
                slot.set_len(pages);
                self.submit(slot)
            }

            fn try_next(&self) -> CodecResult<Option<Self::Done>> {
                self.try_next()
            }

            fn pending(&self) -> usize {
                self.pending()
            }

            fn room(slot: &mut Self::Slot) -> &mut [Page] {
                slot.pages_mut()
            }

            fn pages(done: &Self::Done) -> &[Page] {
                done.pages()
            }

            fn push_to(done: &Self::Done, blocks: &mut PageBlocks) -> trueno_zram_archive::Result<()> {
                done.iter().zip(done.pages()).try_for_each(|(page, plain)| blocks.push_of(page, plain))
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

/// The content of a ring's parcel, and where its slot is counted when it is free again.
struct SlotContent<'a, St: SlotStream> {
    content: RingContent<St::Done>,
    flight: &'a Mutex<Flight<St>>,
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
            drop(done);
            lock(self.flight).slots.idle += 1;
        }
        false
    }
}

/// Slots on their way.
struct Flight<St: SlotStream> {
    /// Slots that were submitted and whose results no lane has taken.
    in_flight: usize,
    /// Results that no lane has taken.
    results: VecDeque<(Pending, St::Done)>,
    slots: SlotCounts,
}

/// A slot that was submitted.
struct Pending {
    number: u64,
    first_page: u64,
    /// Bytes after the last whole page.
    tail: Vec<u8>,
}

/// What a lane does next.
enum Task<Done> {
    Write(Job),
    Assemble(Pending, Done),
    Fill(SlotToFill),
    Help,
    Stop,
}

struct Ring<'a, S: PageSource, W: ArchiveOutput, St: SlotStream> {
    shared: Shared<'a, S, W, SlotContent<'a, St>>,
    flight: &'a Mutex<Flight<St>>,
    stream: &'a St,
    /// Slots that were submitted, in that order. Held while a slot is submitted.
    submitted: Mutex<VecDeque<Pending>>,
    /// Whether all lanes have stopped.
    has_ended: AtomicBool,
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
    let flight = Mutex::new(Flight { in_flight: 0, results: VecDeque::new(), slots: SlotCounts::new(slots) });
    let lane_count = pool.current_num_threads();
    let shared = Shared::new(source, out, options, lane_count, observer)?;
    let ring = Ring {
        shared,
        flight: &flight,
        stream,
        submitted: Mutex::new(VecDeque::new()),
        has_ended: AtomicBool::new(false),
        choice: Choice::new(lane_count),
    };
    let mut helpers = helpers.iter_mut();
    let lanes = (0..lane_count).map(|_| {
        let (ring, helper) = (&ring, helpers.next());
        move || ring.shared.run(|| ring.run_lane(helper))
    });
    driver::run_beside(|| ring.shared.run(|| Ok(ring.drive()?)), lanes, &ring.has_ended)?;
    ring.shared.finish()
}

impl<'a, S: PageSource, W: ArchiveOutput, St: SlotStream> Ring<'a, S, W, St> {
    /// Takes results from the GPU until all lanes have stopped.
    fn drive(&self) -> Result<(), Error> {
        let take = |done| {
            let pending = lock(&self.submitted).pop_front().expect("a result was submitted");
            lock(self.flight).results.push_back((pending, done));
            self.notify();
            Ok(())
        };
        driver::drive(|| self.stream.try_next(), || self.stream.pending(), &self.has_ended, take)
    }

    /// Wakes the lanes, none of which is between its look at the flight and its wait.
    fn notify(&self) {
        drop(lock(&self.shared.state));
        self.shared.changed.notify_all();
    }

    fn run_lane(&self, mut helper: Option<&mut PageCodec>) -> Result<(), S::Error> {
        loop {
            match self.next_task(helper.is_some()) {
                Task::Stop => return Ok(()),
                Task::Write(job) => self.shared.write(job)?,
                Task::Assemble(pending, done) => self.assemble(pending, done)?,
                Task::Fill(slots) => self.fill(slots)?,
                Task::Help => {
                    let codec = helper.as_deref_mut().expect("only a lane with a codec helps");
                    let pages = lock(&self.shared.state).free.pop().and_then(|free| match free.content {
                        RingContent::Helped(pages) => Some(pages),
                        _ => None,
                    });
                    let pages = pages.unwrap_or_else(|| Pages::new(LANE_PAGES));
                    let into = |pages| self.content(RingContent::Helped(pages));
                    let start = Instant::now();
                    let helped = self.shared.fill(pages, codec, into)?;
                    self.choice.helped(helped, start.elapsed());
                    self.choice.done(helped, Instant::now());
                }
            }
        }
    }

    fn content(&self, content: RingContent<St::Done>) -> SlotContent<'a, St> {
        SlotContent { content, flight: self.flight }
    }

    fn next_task(&self, can_help: bool) -> Task<St::Done> {
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
            let mut flight = lock(self.flight);
            if let Some((pending, done)) = flight.results.pop_front() {
                flight.in_flight -= 1;
                if state.has_ended {
                    // The other lanes look whether this was the last one.
                    shared.changed.notify_all();
                }
                return Task::Assemble(pending, done);
            }
            let helps_first = can_help && !(self.choice.uses_gpu() && self.choice.knows_lanes());
            if may_claim
                && !helps_first
                && let Some(slots) = flight.slots.take()
            {
                return Task::Fill(slots);
            }
            if may_claim && can_help {
                return Task::Help;
            }
            if state.has_ended && flight.slots.filling == 0 && flight.in_flight == 0 {
                return Task::Stop;
            }
            drop(flight);
            state = timed(shared.observer, Stage::Wait, || shared.changed.wait(state))
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads what comes next into a slot, and submits it.
    fn fill(&self, slot_to_fill: SlotToFill) -> Result<(), S::Error> {
        let filled = self.try_fill(slot_to_fill);
        lock(self.flight).slots.filling -= 1;
        self.notify();
        filled
    }

    fn try_fill(&self, slot_to_fill: SlotToFill) -> Result<(), S::Error> {
        // Without memory for another slot, there is one fewer from now on.
        let slot = timed(self.shared.observer, Stage::Wait, || self.stream.try_slot());
        if slot_to_fill == SlotToFill::Made {
            lock(self.flight).slots.is_making = false;
            self.notify();
        }
        let Some(mut slot) = slot.map_err(Error::Codec)? else { return Ok(()) };
        let ticket = self.shared.claim(St::room(&mut slot))?;
        let Some(Ticket { number, first_page, claimed }) = ticket else {
            drop(slot);
            lock(self.flight).slots.idle += 1;
            return Ok(());
        };
        let len_bytes = match claimed {
            Claimed::Range(range) => self.shared.read(&range, St::room(&mut slot))?,
            Claimed::Filled(len_bytes) => len_bytes,
            Claimed::Zeros(pages) => {
                drop(slot);
                lock(self.flight).slots.idle += 1;
                let mut blocks = self.shared.blocks(first_page);
                blocks.push_zeros(pages).map_err(|error| self.archive_error(error))?;
                blocks.finish();
                return self.deliver(number, RingContent::Zeros(pages), blocks);
            }
        };
        let (pages, tail) = St::room(&mut slot).as_flattened()[..len_bytes].as_chunks::<PAGE_SIZE>();
        let (pages, tail) = (pages.len(), tail.to_vec());
        if pages == 0 {
            drop(slot);
            lock(self.flight).slots.idle += 1;
            let mut blocks = self.shared.blocks(first_page);
            blocks.push_tail(&tail).map_err(|error| self.archive_error(error))?;
            return self.deliver(number, RingContent::Tail(tail), blocks);
        }
        // Both at once: results come in the order of submission.
        timed(self.shared.observer, Stage::Wait, || {
            let mut submitted = lock(&self.submitted);
            lock(self.flight).in_flight += 1;
            self.stream.submit(slot, pages).map_err(Error::Codec)?;
            submitted.push_back(Pending { number, first_page, tail });
            Ok(())
        })
    }

    /// Assembles blocks from a result.
    fn assemble(&self, pending: Pending, done: St::Done) -> Result<(), S::Error> {
        let Pending { number, first_page, tail } = pending;
        let mut blocks = self.shared.blocks(first_page);
        let assembled = timed(self.shared.observer, Stage::Slot, || {
            St::push_to(&done, &mut blocks)?;
            blocks.hash_pages(St::pages(&done));
            blocks.push_tail(&tail)?;
            blocks.finish();
            Ok(())
        });
        assembled.map_err(|error| self.archive_error(error))?;
        self.choice.done(blocks.content_len(), Instant::now());
        self.deliver(number, RingContent::Slot(done, tail), blocks)
    }

    fn deliver(&self, number: u64, content: RingContent<St::Done>, blocks: PageBlocks) -> Result<(), S::Error> {
        let mut content = self.content(content);
        if !self.shared.hashes {
            let _ = content.release();
        }
        self.shared.deliver(Parcel { number, content, blocks })
    }

    fn archive_error(&self, error: trueno_zram_archive::Error) -> Error {
        Error::archive(self.shared.out_name, error)
    }
}
