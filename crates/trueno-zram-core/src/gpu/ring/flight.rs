//! Slots in flight on the device: submit and poll.

use std::collections::VecDeque;
use std::time::Duration;

use super::device::{Mark, RingDevice};
use super::slot::{RingSlot, SlotState};
use super::slot_index::build_index;
use super::transfer::{Direction, SlotTransfer};
use crate::gpu::error::{GpuError, GpuResult};

/// Submitted slots, in submission order.
///
/// This is the part of the state machine that touches the device. It never waits: [`start_newest`](Self::start_newest) queues a
/// slot's copy and kernel, [`poll`](Self::poll) asks for marks and queues the copies back. Calls and streams both drive it.
#[derive(Debug)]
pub(crate) struct Flight<'a, D: RingDevice> {
    slots: VecDeque<RingSlot<D>>,
    transfer: SlotTransfer<'a, D>,
    time_limit: Duration,
}

impl<'a, D: RingDevice> Flight<'a, D> {
    pub(super) fn new(transfer: SlotTransfer<'a, D>, time_limit: Duration) -> Self {
        Self { slots: VecDeque::new(), transfer, time_limit }
    }

    /// Creates a flight for slots that the caller of a stream fills.
    pub(crate) fn of_stream(direction: Direction, time_limit: Duration) -> Self {
        Self::new(SlotTransfer::of_stream(direction), time_limit)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds a slot, to be started next.
    pub(crate) fn push(&mut self, slot: RingSlot<D>) {
        self.slots.push_back(slot);
    }

    /// Queues the newest slot's copy to the device and its kernel.
    pub(crate) fn start_newest(&mut self, device: &mut D) -> GpuResult<()> {
        match self.slots.back_mut() {
            // A slot without pages for the device makes no driver call.
            Some(slot) if slot.device_pages > 0 => self.transfer.start(device, slot),
            _ => Ok(()),
        }
    }

    /// Advances every slot that can advance. Returns `true` if any did.
    pub(crate) fn poll(&mut self, device: &mut D) -> GpuResult<bool> {
        let (mut moved, mut is_next) = (false, true);
        for slot in &mut self.slots {
            // Copies back start in order: where one goes may depend on the lengths of those before it.
            if is_next || slot.state() != SlotState::KernelInProgress {
                moved |= advance(device, slot, &mut self.transfer, self.time_limit)?;
            }
            is_next = matches!(slot.state(), SlotState::D2HInProgress | SlotState::Complete);
        }
        Ok(moved)
    }

    /// Returns the oldest slot, if it is complete.
    pub(super) fn complete(&mut self) -> Option<&mut RingSlot<D>> {
        self.slots.front_mut().filter(|slot| slot.state() == SlotState::Complete)
    }

    /// Takes the oldest slot of a stream out, if it is complete, with its result checked and accessible.
    pub(crate) fn pop_checked(&mut self) -> GpuResult<Option<RingSlot<D>>> {
        let (direction, time_limit) = (self.transfer.direction(), self.time_limit);
        let Some(slot) = self.complete() else { return Ok(None) };
        match direction {
            Direction::Compress => drop(build_index(slot)?),
            Direction::Decompress => {
                let entries = std::mem::take(&mut slot.entries);
                let listed = slot.list_unrestored(|page| entries[page].kind);
                slot.entries = entries;
                listed?;
            }
        }
        slot.settle(time_limit)?;
        slot.enter(SlotState::Free);
        Ok(self.slots.pop_front())
    }

    /// Takes the oldest slot out, whatever its state. The device has stopped, or was given up.
    pub(crate) fn pop_stopped(&mut self) -> Option<RingSlot<D>> {
        let mut slot = self.slots.pop_front()?;
        slot.reset();
        // If a copy may still use it, the slot is freed when that is known to have ended, or leaks.
        let _ = slot.settle(self.time_limit);
        Some(slot)
    }

    /// Takes the oldest slot out.
    pub(super) fn pop(&mut self) -> Option<RingSlot<D>> {
        self.slots.pop_front()
    }

    /// Waits until no copy uses the caller's memory.
    pub(super) fn settle(&mut self) -> GpuResult<()> {
        self.transfer.settle(self.time_limit)
    }
}

/// Advances one slot by one state, if the device has reached it.
fn advance<D: RingDevice>(
    device: &mut D,
    slot: &mut RingSlot<D>,
    transfer: &mut SlotTransfer<'_, D>,
    time_limit: Duration,
) -> GpuResult<bool> {
    let (mark, next) = match slot.state() {
        SlotState::H2DInProgress => (Mark::H2dEnd, SlotState::KernelInProgress),
        SlotState::KernelInProgress => (transfer.kernel_done(), SlotState::D2HInProgress),
        SlotState::D2HInProgress => (Mark::D2hEnd, SlotState::Complete),
        SlotState::Complete | SlotState::Free => return Ok(false),
    };
    if slot.device_pages > 0 {
        if !device.is_reached(&slot.device, mark)? {
            let timeout_ms = time_limit.as_millis();
            let hangs = device.hangs(slot.waiting(), time_limit);
            return if hangs { Err(GpuError::TimedOut { timeout_ms }) } else { Ok(false) };
        }
        match next {
            SlotState::D2HInProgress => transfer.finish(device, slot)?,
            SlotState::Complete => slot.read_times(device, transfer.direction())?,
            _ => {}
        }
    }
    slot.enter(next);
    Ok(true)
}
