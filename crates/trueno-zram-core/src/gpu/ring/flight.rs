//! Slots on their way through the device: submit and poll.

use std::collections::VecDeque;
use std::time::Duration;

use super::device::{Mark, RingDevice};
use super::slot::{IndexCopy, Slot, SlotState};
use super::stages::Submit;
use crate::gpu::error::{GpuError, GpuResult};

/// Submitted slots, in submission order.
///
/// This is the part of the state machine that touches the device. It never waits: [`submit`](Self::submit) queues a slot's
/// copy and kernel, [`poll`](Self::poll) asks for marks and queues the copies back. Calls and streams both drive it.
#[derive(Debug)]
pub(super) struct Flight<D: RingDevice> {
    slots: VecDeque<Slot<D>>,
    time_limit: Duration,
}

impl<D: RingDevice> Flight<D> {
    pub(super) fn new(time_limit: Duration) -> Self {
        Self { slots: VecDeque::new(), time_limit }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Queues a slot's copy to the device and its kernel. The slot joins the flight even if that fails.
    pub(super) fn submit<Q: Submit<D>>(&mut self, device: &mut D, slot: Slot<D>, path: &mut Q) -> GpuResult<()> {
        self.push(slot);
        self.start_newest(device, path)
    }

    /// Adds a slot, to be started next.
    pub(super) fn push(&mut self, slot: Slot<D>) {
        self.slots.push_back(slot);
    }

    pub(super) fn start_newest<Q: Submit<D>>(&mut self, device: &mut D, path: &mut Q) -> GpuResult<()> {
        match self.slots.back_mut() {
            // A slot without pages for the device makes no driver call.
            Some(slot) if slot.crossing > 0 => path.start(device, slot),
            _ => Ok(()),
        }
    }

    /// Moves every slot on that can move. Returns whether any did.
    pub(super) fn poll<Q: Submit<D>>(&mut self, device: &mut D, path: &mut Q) -> GpuResult<bool> {
        let (mut moved, mut is_next) = (false, true);
        for slot in &mut self.slots {
            // Copies back start in order: where one goes may depend on the lengths of those before it.
            if is_next || slot.state() != SlotState::KernelInProgress {
                moved |= advance(device, slot, path, self.time_limit)?;
            }
            is_next = matches!(slot.state(), SlotState::D2HInProgress | SlotState::Complete);
        }
        Ok(moved)
    }

    /// The oldest slot, if it is complete.
    pub(super) fn complete(&mut self) -> Option<&mut Slot<D>> {
        self.slots.front_mut().filter(|slot| slot.state() == SlotState::Complete)
    }

    /// Takes the oldest slot out.
    pub(super) fn pop(&mut self) -> Option<Slot<D>> {
        self.slots.pop_front()
    }
}

/// Moves one slot on by one state, if it has come that far.
fn advance<D: RingDevice, Q: Submit<D>>(
    device: &mut D,
    slot: &mut Slot<D>,
    path: &mut Q,
    time_limit: Duration,
) -> GpuResult<bool> {
    let kernel_done = match path.index_copy() {
        IndexCopy::First => Mark::IndexEnd,
        IndexCopy::None => Mark::KernelEnd,
    };
    let (mark, next) = match slot.state() {
        SlotState::H2DInProgress => (Mark::H2dEnd, SlotState::KernelInProgress),
        SlotState::KernelInProgress => (kernel_done, SlotState::D2HInProgress),
        SlotState::D2HInProgress => (Mark::D2hEnd, SlotState::Complete),
        SlotState::Complete | SlotState::Free => return Ok(false),
    };
    if slot.crossing > 0 {
        if !device.is_reached(&slot.device, mark)? {
            let timeout_ms = time_limit.as_millis();
            let hangs = device.hangs(slot.waiting(), time_limit);
            return if hangs { Err(GpuError::TimedOut { timeout_ms }) } else { Ok(false) };
        }
        match next {
            SlotState::D2HInProgress => path.finish(device, slot)?,
            SlotState::Complete => slot.read_times(device, path.index_copy())?,
            _ => {}
        }
    }
    slot.enter(next);
    Ok(true)
}
