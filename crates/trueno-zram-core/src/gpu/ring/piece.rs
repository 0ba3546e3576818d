//! A piece of a slot: the pages that one worker stages at a time.

use std::ops::Range;

use trueno_gpu::kernels::packed::PackedEntry;

use super::device::RingDevice;
use crate::page::FILL_WORD_BYTES;

/// Pages per piece. This is one megabyte: copies of 256 KiB are a third slower, and a worker that fills more at a time keeps
/// the others waiting.
pub(super) const PIECE_PAGES: usize = 256;

/// A part of a slot's pages, with page-locked memory of its own. It is sent to a worker and back by value, so workers share
/// nothing.
#[derive(Debug)]
pub(super) struct SlotPiece<D: RingDevice> {
    /// Its place among the slot's pieces.
    pub(super) number: usize,
    /// Pages of the batch that it has.
    pub(super) range: Range<usize>,
    /// The number of them that go to the device.
    pub(super) device_pages: usize,
    /// The index of the first of these among those of the slot.
    pub(super) first_place: usize,
    /// Bytes of `memory` that go to the device.
    pub(super) bytes_in: usize,
    /// Pages or packed pages for the device. Made when it is first needed.
    pub(super) memory: Option<D::Pinned>,
    /// For each page: its fill word, if it is same-filled and does not go to the device.
    pub(super) fills: Vec<Option<[u8; FILL_WORD_BYTES]>>,
    /// The kernel's index of packed pages that go to the device.
    pub(super) index: Vec<[u8; PackedEntry::BYTES]>,
}

impl<D: RingDevice> Default for SlotPiece<D> {
    fn default() -> Self {
        Self {
            number: 0,
            range: 0..0,
            device_pages: 0,
            first_place: 0,
            bytes_in: 0,
            memory: None,
            fills: Vec::new(),
            index: Vec::new(),
        }
    }
}

impl<D: RingDevice> SlotPiece<D> {
    /// Assigns pages to the piece, and clears its record of others.
    pub(super) fn claim(&mut self, number: usize, range: Range<usize>) {
        (self.number, self.range) = (number, range);
        (self.device_pages, self.first_place, self.bytes_in) = (0, 0, 0);
        self.fills.clear();
        self.index.clear();
    }

    pub(super) fn memory(&mut self) -> &mut D::Pinned {
        self.memory.as_mut().expect("a call ensures what it uses")
    }
}
