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
//! [`Flight`](flight::Flight) is the middle of it, the part that calls the device. `submit` queues the copy to the device and
//! the kernel. `poll` asks how far the queues have come, and queues the copy back when the kernel is seen to be done. Neither
//! waits. A slot that stays in one state for longer than the time limit means that the device hangs. Two drivers stand on it:
//!
//! - A **call** ([`Ring::drive`], in `run.rs`) has all of its pages at the start. The calling thread drives; threads of the pool
//!   copy pages into page-locked memory (staging) and results out of it (delivering). Pieces of slots, and slots, are sent to
//!   these threads by value and come back by value, so nothing is shared. A call ends when nothing of it is queued.
//! - A **stream** ([`Session`](session::Session)) gets its pages slot by slot from the caller, who fills page-locked memory and
//!   reads page-locked memory. Slots follow each other without a drain. Whoever waits for a slot or a result drives.
//!
//! # Failures
//!
//! The ring knows nothing of the CPU's codec. When the device fails, the driver stops using it, empties its queues (or gives the
//! device up if it is lost or hangs), and says what is left: a call the number of pages delivered, a stream the slots whose
//! pages the device did not return. `batch` has the CPU do the rest. Panics take the same way and are passed on afterwards.
//! Memory that a copy may still touch is never freed while the device counts as usable.

pub(crate) mod compress;
pub(crate) mod cuda;
mod cuts;
pub(crate) mod decompress;
pub(crate) mod device;
pub(crate) mod entries;
#[cfg(test)]
pub(crate) mod fake;
mod flight;
pub(crate) mod interpreter;
pub(crate) mod into_batch;
pub(crate) mod into_pages;
mod into_pinned;
mod pack;
pub(crate) mod pause;
mod piece;
mod rooms;
mod run;
pub(crate) mod session;
mod slot;
mod stages;
#[cfg(test)]
mod tests;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use super::error::{GpuError, GpuResult};
use device::RingDevice;
pub(crate) use rooms::Lease;
use rooms::Rooms;
pub(crate) use slot::StageTimes;
use slot::{HostMemory, Slot};

/// A device and its slots.
#[derive(Debug)]
pub(crate) struct Ring<D: RingDevice> {
    device: D,
    /// The slots of calls. All are here between two calls.
    free: Vec<Slot<D>>,
    /// The slots of streams.
    rooms: Arc<Rooms<D>>,
    shape: RingShape,
}

/// The dimensions of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    /// The most slots in flight.
    pub(crate) slots: usize,
    /// The most pages per slot of a stream.
    pub(crate) slot_pages: u32,
    /// The most pages per slot of a call.
    pub(crate) call_slot_pages: u32,
    /// How long a slot may stay in one state before the device counts as hung.
    pub(crate) time_limit: Duration,
}

/// How a call ended. The default is that of a call without a device: nothing done, nothing failed.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Pages delivered, from the batch's start.
    pub(crate) pages_done: usize,
    /// The device's times for them.
    pub(crate) times: StageTimes,
    /// Why the remaining pages were not done.
    pub(crate) failure: Option<GpuError>,
}

impl Outcome {
    /// Nothing was done.
    pub(crate) fn failed(error: GpuError) -> Self {
        Self { failure: Some(error), ..Self::default() }
    }
}

impl<D: RingDevice> Ring<D> {
    /// Allocates the slots of calls.
    pub(crate) fn new(device: D, shape: RingShape) -> GpuResult<Self> {
        let (allocator, format) = (device.allocator(), device.format());
        let slot = |_| Slot::new(&allocator, format, shape.call_slot_pages);
        let free = (0..shape.slots).map(slot).collect::<GpuResult<_>>()?;
        Ok(Self { device, free, rooms: shape.rooms(), shape })
    }

    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    pub(crate) fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Gives every slot the page-locked memory that a call uses.
    fn ensure(&mut self, needs: &[HostMemory]) -> GpuResult<()> {
        let (allocator, pages) = (self.device.allocator(), self.shape.call_slot_pages);
        self.free.iter_mut().try_for_each(|slot| slot.ensure(&allocator, pages, needs))
    }

    /// Ends the device's work after a failure: waits for it, or gives the device up if it is lost or hangs.
    fn stop_after(&self, error: &GpuError) {
        if error.poisons_context() || matches!(error, GpuError::TimedOut { .. }) {
            self.device.give_up(&error.to_string());
        } else {
            self.empty_queues(&error.to_string());
        }
    }

    /// Ends the device's work after a panic, which is not the device's fault.
    fn stop_after_panic(&self) {
        if self.device.loss().is_none() {
            self.empty_queues("a run ended in a panic");
        }
    }

    /// Waits until the device has done all queued work. If that takes too long, the device is given up and its memory leaks.
    fn empty_queues(&self, why: &str) {
        if let Err(also) = self.device.drain(self.shape.time_limit) {
            self.device.give_up(&format!("{why}; then the queues could not be emptied: {also}"));
        }
    }
}
