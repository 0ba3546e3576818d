//! Streams of slots through a GPU, with the CPU as its fallback.

mod compress;
mod decompress;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

pub use compress::{CompressStream, CompressedSlot, PageSlot};
pub use decompress::{DecompressStream, PackedSlot, RestoredSlot};

use super::gpu_batch_compressor::{GpuBatchCompressor, check_process};
use super::result::BatchTimes;
use super::stats::GpuBatchStats;
use crate::codec::sealed;
use crate::error::Result;
use crate::gpu::GpuError;
use crate::gpu::error::GpuResult;
use crate::gpu::ring::device::RingDevice;
use crate::gpu::ring::flight::Flight;
use crate::gpu::ring::pause::Pause;
use crate::gpu::ring::stream_slots::{SlotLease, SlotOffer, StreamSlots};
use crate::gpu::ring::transfer::Direction;
use crate::gpu::ring::{CallOutcome, RingShape};

/// A stream of slots through a GPU: [`CompressStream`] or [`DecompressStream`], on any device.
///
/// Results come in the order in which slots were submitted, each with the tag of its slot. All methods take `&self`: several
/// threads may fill and submit slots while another takes results. The trait is sealed.
///
/// If the GPU fails, hangs or is lost, the CPU processes the pages of all slots that were submitted and not returned, and counts
/// them as the calls do; no page is lost. Dropping the stream waits for slots in flight, no longer than the time limit, and
/// drops their results. Slots and results may outlive it.
///
/// ```
/// use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
///
/// /// Works for streams in both directions.
/// fn drain(stream: &impl PageStream) -> trueno_zram_core::Result<usize> {
///     stream.close();
///     let mut results = 0;
///     while stream.next()?.is_some() {
///         results += 1;
///     }
///     Ok(results)
/// }
///
/// let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
/// assert_eq!(drain(&compressor.compress_stream::<()>()?)?, 0);
/// # Ok::<(), trueno_zram_core::Error>(())
/// ```
pub trait PageStream: Sync + sealed::Sealed {
    /// Memory to fill. Dropping it returns it unused.
    type Slot: Send;
    /// The result of a slot. Dropping it frees the slot to be filled again.
    type Done: Send;
    /// A value that comes back with the result of a slot.
    type Tag: Send;

    /// Returns a slot to fill, and waits until one is free.
    ///
    /// A slot is free when its result is dropped. A single thread that fills all slots and takes no result would wait for
    /// ever; it uses [`try_slot`](Self::try_slot), and [`next`](Self::next) if that returns `None`.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{CompressStream, GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let mut compressor = GpuBatchCompressor::interpreted(GpuBatchConfig::default(), &GpuOptions::default())?;
    /// let stream: CompressStream<_> = compressor.compress_stream()?;
    /// assert_eq!(stream.slot()?.pages_mut().len(), 1000);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GpuError::OtherProcess`] in a forked child. A device failure is not an error: the CPU takes over.
    fn slot(&self) -> Result<Self::Slot>;

    /// Returns a slot to fill, or `None` if all are in use.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ring_buffer_slots: 1, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// let (mut filled, mut taken) = (0, 0);
    /// while taken < 100 {
    ///     match stream.try_slot()? {
    ///         Some(slot) if filled < 100 => {
    ///             stream.submit(slot, filled)?;
    ///             filled += 1;
    ///         }
    ///         _ => {
    ///             let (_compressed, tag) = stream.next()?.expect("more was submitted than taken");
    ///             assert_eq!(tag, taken);
    ///             taken += 1;
    ///         }
    ///     }
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`slot`](Self::slot).
    fn try_slot(&self) -> Result<Option<Self::Slot>>;

    /// Submits a slot.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// let mut slot = stream.slot()?;
    /// slot.pages_mut().fill([7; 4096]);
    /// stream.submit(slot, "from file A")?;
    /// assert_eq!(stream.next()?.map(|(compressed, tag)| (compressed.len(), tag)), Some((2, "from file A")));
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`slot`](Self::slot).
    fn submit(&self, slot: Self::Slot, tag: Self::Tag) -> Result<()>;

    /// Returns the result and the tag of the oldest slot that was submitted and not taken, and waits for it. Returns `None`
    /// when the stream is [closed](Self::close) and nothing is left.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// for number in 0..5 {
    ///     stream.submit(stream.slot()?, number)?;
    /// }
    /// stream.close();
    /// let mut tags = Vec::new();
    /// while let Some((_compressed, tag)) = stream.next()? {
    ///     tags.push(tag);
    /// }
    /// assert_eq!(tags, [0, 1, 2, 3, 4]);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`slot`](Self::slot). Corrupt pages are errors of the [result](RestoredSlot::check).
    fn next(&self) -> Result<Option<(Self::Done, Self::Tag)>>;

    /// Returns the result and the tag of the oldest slot that was submitted and not taken, or `None` if it is not ready.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// stream.submit(stream.slot()?, ())?;
    /// while stream.try_next()?.is_none() {
    ///     std::thread::yield_now(); // or do other work
    /// }
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`next`](Self::next).
    fn try_next(&self) -> Result<Option<(Self::Done, Self::Tag)>>;

    /// Returns the number of slots that were submitted and not taken.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream()?;
    /// stream.submit(stream.slot()?, ())?;
    /// assert_eq!(stream.pending(), 1);
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    fn pending(&self) -> usize;

    /// Ends the submissions: [`next`](Self::next) returns `None` after the last one.
    ///
    /// ```
    /// # use trueno_zram_core::gpu::{GpuBatchCompressor, GpuBatchConfig, GpuOptions, PageStream};
    /// # let config = GpuBatchConfig { batch_size: 2, ..GpuBatchConfig::default() };
    /// # let mut compressor = GpuBatchCompressor::interpreted(config, &GpuOptions::default())?;
    /// let stream = compressor.compress_stream::<()>()?;
    /// stream.close();
    /// assert!(stream.next()?.is_none());
    /// # Ok::<(), trueno_zram_core::Error>(())
    /// ```
    fn close(&self);

    /// Returns the number of pages per slot.
    fn slot_pages(&self) -> usize;

    /// Returns the maximum number of slots: three times
    /// [`ring_buffer_slots`](crate::gpu::GpuBatchConfig::ring_buffer_slots).
    fn max_slots(&self) -> usize;
}

/// A stream whose slots are `S` and whose tags are `T`.
///
/// There is no thread behind it. Every thread that waits takes the lock for a moment, advances the slots, and polls again. Its
/// methods are those of [`PageStream`].
///
/// ```
/// use trueno_zram_core::gpu::{CompressStream, PageSlot, SlotStream};
/// fn same_type<'a>(stream: CompressStream<'a>) -> SlotStream<'a, PageSlot, ()> {
///     stream
/// }
/// ```
#[derive(Debug)]
pub struct SlotStream<'a, S: StreamSlot, T> {
    state: Mutex<StreamState<'a, S::Device, T>>,
    stream_slots: Arc<StreamSlots<S::Device>>,
    shape: RingShape,
    /// The process that started it.
    process: u32,
}

/// A slot of one direction: its memory, and its conversion to a result.
pub trait StreamSlot: Send + Sized {
    /// The device that the slot belongs to.
    type Device: RingDevice;
    /// Its result.
    type Done: Send;
    /// The direction of its slots.
    const DIRECTION: Direction;

    /// Creates a slot in leased memory.
    fn new(lease: SlotLease<Self::Device>) -> Self;
    /// Returns the slot's memory with its pages.
    fn into_lease(self) -> SlotLease<Self::Device>;
    /// Makes the result, from the device's output or on the CPU.
    fn finish(compressor: &mut GpuBatchCompressor<Self::Device>, lease: SlotLease<Self::Device>) -> Result<Self::Done>;
    /// Sets and counts the times of a result.
    fn count(done: &mut Self::Done, times: BatchTimes, stats: &mut GpuBatchStats);
}

#[derive(Debug)]
struct StreamState<'a, D: RingDevice, T> {
    compressor: &'a mut GpuBatchCompressor<D>,
    stream_slots: Arc<StreamSlots<D>>,
    flight: Flight<'static, D>,
    /// Slots that were submitted and not taken, in order.
    submitted: VecDeque<Submitted<D, T>>,
    is_closed: bool,
    /// The time at which the previous result was ready.
    last_done: Option<Instant>,
}

/// A slot that was submitted and not taken.
#[derive(Debug)]
struct Submitted<D: RingDevice, T> {
    /// The slot, if it is for the CPU. Those that are not here are in flight, in the same order.
    for_cpu: Option<SlotLease<D>>,
    at: Instant,
    tag: T,
}

impl<'a, S: StreamSlot, T> SlotStream<'a, S, T> {
    fn new(compressor: &'a mut GpuBatchCompressor<S::Device>) -> Result<Self> {
        compressor.check_process()?;
        let (shape, process) = (compressor.shape, compressor.process);
        let stream_slots = match &compressor.ring {
            Some(ring) => Arc::clone(&ring.stream_slots),
            None => StreamSlots::new(shape, None),
        };
        let state = StreamState {
            compressor,
            stream_slots: Arc::clone(&stream_slots),
            flight: Flight::of_stream(S::DIRECTION, shape.time_limit),
            submitted: VecDeque::new(),
            is_closed: false,
            last_done: None,
        };
        Ok(Self { state: Mutex::new(state), stream_slots, shape, process })
    }

    /// Refuses to work in a forked child. Another thread may have held the lock when the process forked, so this comes first.
    fn check_process(&self) -> Result<()> {
        check_process(self.process)
    }

    fn lock(&self) -> MutexGuard<'_, StreamState<'a, S::Device, T>> {
        // Every slot is in one place between any two operations: the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls until `look` has an answer. While another thread has the lock, that one advances the slots.
    fn wait_for<A>(&self, mut look: impl FnMut(&mut StreamState<'a, S::Device, T>) -> Option<A>) -> A {
        let mut pause = Pause::default();
        loop {
            let answer = match self.state.try_lock() {
                Ok(mut state) => look(&mut state),
                Err(TryLockError::Poisoned(state)) => look(&mut state.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(answer) = answer {
                return answer;
            }
            pause.after(false);
        }
    }

    /// Takes an offered slot. A new one is allocated without the lock. Returns `None` if that failed: then there are
    /// others, or there is no device.
    fn accept(&self, offer: SlotOffer<S::Device>) -> Option<S> {
        match offer {
            SlotOffer::Ready(lease) => Some(S::new(lease)),
            SlotOffer::Allocate => match self.stream_slots.allocate() {
                Ok(Ok(lease)) => Some(S::new(lease)),
                Ok(Err(error)) => {
                    self.lock().allocation_failed(error);
                    None
                }
                Err(panic) => self.lock().pass_on(panic),
            },
        }
    }
}

impl<S: StreamSlot, T> sealed::Sealed for SlotStream<'_, S, T> {}

impl<S: StreamSlot, T: Send> PageStream for SlotStream<'_, S, T> {
    type Slot = S;
    type Done = S::Done;
    type Tag = T;

    fn slot(&self) -> Result<S> {
        self.check_process()?;
        loop {
            let offer = self.wait_for(StreamState::slot);
            if let Some(slot) = self.accept(offer) {
                return Ok(slot);
            }
        }
    }

    fn try_slot(&self) -> Result<Option<S>> {
        self.check_process()?;
        loop {
            let Some(offer) = self.lock().slot() else { return Ok(None) };
            if let Some(slot) = self.accept(offer) {
                return Ok(Some(slot));
            }
        }
    }

    fn submit(&self, slot: S, tag: T) -> Result<()> {
        self.check_process()?;
        let at = Instant::now();
        self.lock().submit(slot.into_lease(), at, tag);
        Ok(())
    }

    fn next(&self) -> Result<Option<(S::Done, T)>> {
        self.check_process()?;
        self.wait_for(|state| match state.next::<S>() {
            Ok(None) if !(state.is_closed && state.submitted.is_empty()) => None,
            next => Some(next),
        })
    }

    fn try_next(&self) -> Result<Option<(S::Done, T)>> {
        self.check_process()?;
        self.lock().next::<S>()
    }

    fn pending(&self) -> usize {
        self.lock().submitted.len()
    }

    fn close(&self) {
        self.lock().is_closed = true;
    }

    fn slot_pages(&self) -> usize {
        self.shape.slot_pages as usize
    }

    fn max_slots(&self) -> usize {
        self.shape.stream_slots()
    }
}

impl<D: RingDevice, T> StreamState<'_, D, T> {
    /// Returns a slot to fill, or the permission to allocate one. If there is neither, polls the slots in flight.
    fn slot(&mut self) -> Option<SlotOffer<D>> {
        // A device that is lost is not asked for memory.
        self.attempt(|_, _| Ok(()));
        if !self.compressor.uses_device() {
            self.stream_slots.leave_device();
        }
        let offer = self.stream_slots.take();
        if offer.is_none() && !self.flight.is_empty() {
            self.attempt(advance);
        }
        offer
    }

    /// Handles a failed allocation of a slot. It counts as a failure of the device only if there are no other slots.
    fn allocation_failed(&mut self, error: GpuError) {
        if self.compressor.uses_device() && (error.poisons_context() || !self.stream_slots.stop_growing()) {
            self.fail(error);
        }
    }

    fn submit(&mut self, lease: SlotLease<D>, at: Instant, tag: T) {
        let pages = lease.pages;
        let slot = if self.compressor.uses_device() { lease.into_slot(&self.stream_slots) } else { Err(lease) };
        match slot {
            Ok(slot) => {
                self.submitted.push_back(Submitted { for_cpu: None, at, tag });
                self.flight.push(slot);
                self.attempt(|flight, device| {
                    flight.start_newest(device)?;
                    flight.poll(device)
                });
            }
            Err(lease) => {
                // Memory that is not the device's, or there is no device.
                self.compressor.note_outcome(&CallOutcome::default(), pages);
                self.submitted.push_back(Submitted { for_cpu: Some(lease), at, tag });
            }
        }
    }

    /// Polls the slots. Returns the next result and its tag, if it is ready.
    fn next<S: StreamSlot<Device = D>>(&mut self) -> Result<Option<(S::Done, T)>> {
        let Some(lease) = self.poll() else { return Ok(None) };
        let Some(Submitted { at, tag, .. }) = self.submitted.pop_front() else { return Ok(None) };
        let stages = lease.device_times.unwrap_or_default();
        let mut done = S::finish(self.compressor, lease)?;
        // Slots overlap, so a slot's total starts no earlier than the result before it.
        let now = Instant::now();
        let start = self.last_done.replace(now).map_or(at, |last| last.max(at));
        let times = stages.with_total(now.saturating_duration_since(start));
        S::count(&mut done, times, &mut self.compressor.stats);
        Ok(Some((done, tag)))
    }

    /// Returns the oldest slot, if the device has done it or the CPU is to do it.
    fn poll(&mut self) -> Option<SlotLease<D>> {
        while self.submitted.front()?.for_cpu.is_none() {
            assert!(self.compressor.uses_device(), "slots are in flight on a device");
            let done = self.attempt(|flight, device| {
                advance(flight, device)?;
                flight.pop_checked()
            });
            // After a failure, the CPU has the slot.
            let Some(done) = done else { continue };
            let slot = done?;
            // The device works: failures are counted from here again.
            self.compressor.note_outcome(&CallOutcome::default(), 0);
            let device_times = Some(slot.times);
            let mut lease = self.stream_slots.lease(slot);
            lease.device_times = device_times;
            return Some(lease);
        }
        self.submitted.front_mut()?.for_cpu.take()
    }

    /// Runs `work` on the device. If that fails or panics, or the device is lost, nothing stays in flight and the result is `None`,
    /// as it is without a device.
    fn attempt<A>(&mut self, work: impl FnOnce(&mut Flight<'static, D>, &mut D) -> GpuResult<A>) -> Option<A> {
        let device = &mut self.compressor.ring.as_mut()?.device;
        let done = match device.loss() {
            Some(reason) => Ok(Err(GpuError::ContextLost { reason })),
            None => catch_unwind(AssertUnwindSafe(|| work(&mut self.flight, device))),
        };
        match done {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) => {
                self.fail(error);
                None
            }
            Err(panic) => self.pass_on(panic),
        }
    }

    /// Leaves the slots that were in flight to the CPU after a failure of the device, and counts that.
    fn fail(&mut self, error: GpuError) {
        if let Some(ring) = &self.compressor.ring {
            ring.stop_after(&error);
            let pages = self.empty_flight();
            self.compressor.note_outcome(&CallOutcome::failed(error), pages);
        }
    }

    /// Like `fail`, after a panic, which is passed on.
    fn pass_on(&mut self, panic: Box<dyn Any + Send>) -> ! {
        if let Some(ring) = &self.compressor.ring {
            ring.stop("a run ended in a panic");
            let pages = self.empty_flight();
            self.compressor.note_panic(pages);
        }
        resume_unwind(panic)
    }

    /// Takes all slots out of the flight and leaves them to the CPU. Returns the number of their pages.
    fn empty_flight(&mut self) -> usize {
        let mut pages = 0;
        for slot in self.submitted.iter_mut().filter(|slot| slot.for_cpu.is_none()) {
            slot.for_cpu = self.flight.pop_stopped().map(|slot| self.stream_slots.lease(slot));
            pages += slot.for_cpu.as_ref().map_or(0, |lease| lease.pages);
        }
        pages
    }
}

impl<S: StreamSlot, T> Drop for SlotStream<'_, S, T> {
    /// Waits for slots in flight, no longer than the time limit. Their results are lost.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = &state.compressor.ring
            && !state.flight.is_empty()
        {
            ring.stop("a stream was dropped");
            state.empty_flight();
        }
    }
}

/// Advances all slots as far as possible.
fn advance<D: RingDevice>(flight: &mut Flight<'static, D>, device: &mut D) -> GpuResult<()> {
    while flight.poll(device)? {}
    Ok(())
}
