//! The ring: pages go through a device in slots, which are filled, copied, worked on and emptied at the same time.
//!
//! # The state machine
//!
//! A slot owns memory on the host, memory on the device, and marks in the device's queues. It goes through these states, one
//! after the other and without exception:
//!
//! ```text
//! Free -> H2DInProgress -> KernelInProgress -> D2HInProgress -> Complete -> Free
//!      fill, submit     poll               poll             poll        take the result
//! ```
//!
//! [`Flight`](flight::Flight) is the middle of it, the part that calls the device. `start_newest` queues the copy to the device and
//! the kernel. `poll` asks how far the queues have come, and queues the copy back when the kernel is seen to be done. Neither
//! waits. A slot that stays in one state for longer than the time limit means that the device hangs. It has two drivers:
//!
//! - A **call** ([`Ring::drive`], in `active_call.rs`) has all of its pages at the start. The calling thread drives; threads of the pool
//!   copy pages into page-locked memory (staging) and results out of it (delivering). Pieces of slots, and slots, are sent to
//!   these threads by value and come back by value, so nothing is shared. A call ends when nothing of it is queued.
//! - A **stream** ([`SlotStream`](crate::gpu::SlotStream)) gets its pages slot by slot from the caller, who fills page-locked memory and
//!   reads page-locked memory. Slots follow each other without a drain. A thread that waits for a slot or a result drives.
//!
//! # Failures
//!
//! The ring does not use the CPU's codec. When the device fails, the driver stops using it, empties its queues (or gives the
//! device up if it is lost or hangs), and reports the rest: a call the number of pages delivered, a stream the slots whose
//! pages the device did not return. `batch` does the rest on the CPU. Panics are handled alike and passed on afterwards.
//! Memory that a copy may still touch is never freed while the device counts as usable.

mod active_call;
pub(crate) mod arenas;
pub(crate) mod calls;
pub(crate) mod compressed_pages;
pub(crate) mod cuda;
pub(crate) mod deliver;
pub(crate) mod device;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod flight;
pub(crate) mod interpreter;
pub(crate) mod pause;
mod piece;
mod shape;
mod slot;
pub(crate) mod slot_index;
mod slot_sizes;
mod stage;
pub(crate) mod stream_slots;
#[cfg(test)]
mod tests;
pub(crate) mod transfer;
mod workers;

use std::sync::Arc;

use super::BatchTimes;
use super::error::{GpuError, GpuResult};
use compressed_pages::UnrestoredPage;
use device::RingDevice;
pub(crate) use shape::RingShape;
use slot::RingSlot;
use stream_slots::StreamSlots;

/// A device and its slots.
#[derive(Debug)]
pub(crate) struct Ring<D: RingDevice> {
    pub(crate) device: D,
    /// The slots of calls. All are here between two calls.
    free: Vec<RingSlot<D>>,
    /// The slots of streams.
    pub(crate) stream_slots: Arc<StreamSlots<D>>,
    shape: RingShape,
}

/// The result of a call. The default is that of a call without a device: no pages done, no failure.
#[derive(Debug, Default)]
pub(crate) struct CallOutcome {
    /// Pages delivered, from the batch's start.
    pub(crate) pages_done: usize,
    /// The device's times for them.
    pub(crate) times: BatchTimes,
    /// Those of them that the device did not restore, in any order.
    pub(crate) unrestored: Vec<UnrestoredPage>,
    /// Why the remaining pages were not done.
    pub(crate) failure: Option<GpuError>,
}

impl CallOutcome {
    /// Returns the result of a call that failed before any page was done.
    pub(crate) fn failed(error: GpuError) -> Self {
        Self { failure: Some(error), ..Self::default() }
    }
}

impl<D: RingDevice> Ring<D> {
    /// Allocates the slots of calls.
    pub(crate) fn new(device: D, shape: RingShape) -> GpuResult<Self> {
        let (allocator, format) = (device.allocator(), device.format());
        let slot = |_| RingSlot::new(&allocator, format, shape.call_slot_pages);
        let free = (0..shape.slots).map(slot).collect::<GpuResult<_>>()?;
        let stream_slots = StreamSlots::new(shape, Some(&device));
        Ok(Self { device, free, stream_slots, shape })
    }

    /// Ends the device's work after a failure: waits for it, or gives the device up if it is lost or hangs.
    pub(crate) fn stop_after(&self, error: &GpuError) {
        if error.poisons_context() || matches!(error, GpuError::TimedOut { .. }) {
            self.device.give_up(&error.to_string());
        } else {
            self.empty_queues(&error.to_string());
        }
    }

    /// Ends the device's work for a reason that is not the device's fault.
    pub(crate) fn stop(&self, why: &str) {
        if self.device.loss().is_none() {
            self.empty_queues(why);
        }
    }

    /// Waits until the device has done all queued work. If that takes too long, the device is given up and its memory leaks.
    fn empty_queues(&self, why: &str) {
        if let Err(also) = self.device.drain(self.shape.time_limit) {
            self.device.give_up(&format!("{why}; then the queues could not be emptied: {also}"));
        }
    }
}
