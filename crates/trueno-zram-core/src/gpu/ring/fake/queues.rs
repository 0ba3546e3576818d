//! Queued work: what it touches, what it may not race with, and how it runs.

use std::ops::Range;
use std::sync::Arc;

use trueno_gpu::kernels::packed::PackedEntry;

use super::faults::IndexDamage;
use super::kernels::{self, Reach};
use super::{FakeSlot, FakeState};
use crate::gpu::codec::STATUS_BYTES;
use crate::gpu::error::GpuResult;
use crate::gpu::memory::check_part;
use crate::gpu::ring::device::{DeviceQueue, Mark, SlotBuffer};
use crate::page::PAGE_SIZE;

/// An operation in a queue.
#[derive(Clone, Debug)]
pub(super) struct QueuedOperation {
    pub(super) slot: usize,
    /// When it was queued.
    pub(super) tick: u64,
    pub(super) work: QueuedWork,
}

#[derive(Clone, Debug)]
pub(super) enum QueuedWork {
    Mark(Mark),
    /// Until the slot's uploads that were queued before that tick have run.
    WaitForUploads {
        until: u64,
    },
    Upload {
        to: SlotBuffer,
        at: usize,
        host: usize,
        part: Range<usize>,
    },
    Download {
        from: SlotBuffer,
        at: usize,
        host: usize,
        part: Range<usize>,
    },
    Compress {
        pages: usize,
        damage: Option<IndexDamage>,
    },
    Decompress {
        packed_bytes: usize,
        pages: usize,
        wrong_status: bool,
    },
}

/// A read or a write of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryAccess {
    Read,
    Write,
}

/// A buffer of a slot, the bytes of it, and what is done to them.
type Touch = (SlotBuffer, Range<usize>, MemoryAccess);

impl QueuedWork {
    pub(super) fn is_kernel(&self) -> bool {
        matches!(self, Self::Compress { .. } | Self::Decompress { .. })
    }

    /// Returns the device memory that it touches.
    fn touches(&self) -> Vec<Touch> {
        use MemoryAccess::{Read, Write};
        let index = |pages: usize| 0..pages * PackedEntry::BYTES;
        match self {
            Self::Mark(_) | Self::WaitForUploads { .. } => vec![],
            Self::Upload { to, at, part, .. } => vec![(*to, *at..at + part.len(), Write)],
            Self::Download { from, at, part, .. } => vec![(*from, *at..at + part.len(), Read)],
            Self::Compress { pages, .. } => vec![
                (SlotBuffer::Pages, 0..pages * PAGE_SIZE, Read),
                (SlotBuffer::Packed, 0..pages * PAGE_SIZE, Write),
                (SlotBuffer::Index, index(*pages), Write),
            ],
            Self::Decompress { packed_bytes, pages, .. } => vec![
                (SlotBuffer::Packed, 0..*packed_bytes, Read),
                (SlotBuffer::Index, index(*pages), Read),
                (SlotBuffer::Pages, 0..pages * PAGE_SIZE, Write),
                (SlotBuffer::Status, 0..pages * STATUS_BYTES, Write),
            ],
        }
    }

    /// Returns the host memory that it touches.
    pub(super) fn host(&self) -> Option<(usize, &Range<usize>, MemoryAccess)> {
        match self {
            Self::Upload { host, part, .. } => Some((*host, part, MemoryAccess::Read)),
            Self::Download { host, part, .. } => Some((*host, part, MemoryAccess::Write)),
            _ => None,
        }
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl FakeState {
    /// Describes the queued work that new work would race with, if any.
    pub(super) fn race(&self, queue: DeviceQueue, new: &QueuedOperation) -> Option<String> {
        let uploads_end = self.slots.get(&new.slot)?.marks[Mark::H2dEnd as usize].queued;
        // The order of a queue; in the compute queue, that of one slot.
        let is_behind = |other: usize, old: &QueuedOperation| {
            other == queue as usize && (queue != DeviceQueue::Compute || old.slot == new.slot)
        };
        let races = |other: usize, old: &QueuedOperation| {
            // A kernel waits for the uploads before the newest mark.
            let ordered = new.work.is_kernel() && other == DeviceQueue::H2d as usize && old.tick < uploads_end;
            let writes = |a: MemoryAccess, b: MemoryAccess| a == MemoryAccess::Write || b == MemoryAccess::Write;
            let on_device = !ordered
                && old.slot == new.slot
                && new.work.touches().iter().any(|(buffer, bytes, access)| {
                    let meets = |(b, r, a): &Touch| b == buffer && overlap(r, bytes) && writes(*a, *access);
                    old.work.touches().iter().any(meets)
                });
            let on_host =
                new.work.host().zip(old.work.host()).is_some_and(|((h, r, a), (host, range, access))| {
                    h == host && overlap(r, range) && writes(a, access)
                });
            on_device || on_host
        };
        (0..self.queues.len())
            .flat_map(|other| self.queues[other].iter().map(move |old| (other, old)))
            .find(|(other, old)| !is_behind(*other, old) && races(*other, old))
            .map(|(_, old)| format!("{:?} races with {:?} in slot {}", new.work, old.work, new.slot))
    }

    /// Checks that a copy stays within its host memory and its device buffer.
    pub(super) fn check_part(
        &self,
        host: usize,
        part: &Range<usize>,
        slot: &FakeSlot,
        buffer: SlotBuffer,
        at: usize,
    ) -> GpuResult<()> {
        let host_len = self.hosts[&host].len_bytes();
        let device_len = self.slots[&slot.id].buffer(buffer).len();
        check_part(part.start, part.len(), host_len)?;
        check_part(at, part.len(), device_len).map(drop)
    }

    /// Runs the first operation of a queue. Returns `false` if none could run.
    pub(super) fn run_next(&mut self, queue: DeviceQueue) -> bool {
        self.run_of_slot(queue, 0)
    }

    /// Like `run_next`. Of the slots with work in the compute queue, the one with this number comes first, or the last one.
    pub(super) fn run_of_slot(&mut self, queue: DeviceQueue, number: usize) -> bool {
        if !self.is_working() || self.hung[queue as usize] {
            return false;
        }
        let mut next = self.next_of_each_slot(queue);
        let last = next.len().saturating_sub(1);
        next.rotate_left(number.min(last));
        let Some(at) = next.into_iter().find(|at| self.can_run(&self.queues[queue as usize][*at])) else {
            return false;
        };
        let operation = self.queues[queue as usize].remove(at).expect("it was found there");
        self.ticks += 1;
        if let Some(misuse) = self.execute(&operation) {
            self.misuse(misuse);
        }
        true
    }

    /// Returns the positions of the operations that may run next: the first one, and in the compute queue the first one of each slot.
    fn next_of_each_slot(&self, queue: DeviceQueue) -> Vec<usize> {
        let operations = &self.queues[queue as usize];
        let is_next = |at: &usize| {
            let of_slot = |operation: &QueuedOperation| operation.slot == operations[*at].slot;
            *at == 0 || queue == DeviceQueue::Compute && !operations.iter().take(*at).any(of_slot)
        };
        (0..operations.len()).filter(is_next).collect()
    }

    fn can_run(&self, operation: &QueuedOperation) -> bool {
        match operation.work {
            QueuedWork::WaitForUploads { until } => {
                self.slots[&operation.slot].marks[Mark::H2dEnd as usize].reached_tick >= until
            }
            _ => true,
        }
    }

    /// Runs an operation. Returns a description of the misuse, if any.
    fn execute(&mut self, operation: &QueuedOperation) -> Option<String> {
        let ticks = self.ticks;
        let slot = self.slots.get_mut(&operation.slot)?;
        let misuse = match &operation.work {
            QueuedWork::Mark(mark) => {
                let mark = &mut slot.marks[*mark as usize];
                (mark.reached, mark.reached_tick) = (ticks, operation.tick);
                None
            }
            QueuedWork::WaitForUploads { .. } => None,
            QueuedWork::Upload { to, at, host, part } => {
                let from = self.hosts[host].data();
                slot.buffer_mut(*to)[*at..at + part.len()].copy_from_slice(&from[part.clone()]);
                slot.fresh.push((*to, *at..at + part.len()));
                None
            }
            QueuedWork::Download { from, at, host, part } => {
                let bytes = *at..at + part.len();
                let made = slot.made(*from);
                let host = self.hosts.get_mut(host).expect("host memory lives while copies are queued");
                let data = Arc::get_mut(host.data_mut()).expect("who lends it keeps no copy");
                data[part.clone()].copy_from_slice(&slot.buffer(*from)[bytes.clone()]);
                match made {
                    Reach::Known(end) if bytes.end > end => Some(format!("{from:?} has {end} bytes, not {bytes:?}")),
                    _ => None,
                }
            }
            QueuedWork::Compress { pages, damage } => {
                self.seen.pages += pages;
                kernels::compress(slot, *pages, *damage)
            }
            QueuedWork::Decompress { packed_bytes, pages, wrong_status } => {
                self.seen.pages += pages;
                kernels::decompress(slot, *packed_bytes, *pages, *wrong_status)
            }
        };
        misuse.map(|what| format!("{what} (slot {})", operation.slot))
    }

    /// Returns `true` if copies of that host memory have not run.
    pub(super) fn has_copies(&self, host: usize) -> bool {
        self.queues.iter().flatten().filter_map(|operation| operation.work.host()).any(|(id, _, _)| id == host)
    }
}
