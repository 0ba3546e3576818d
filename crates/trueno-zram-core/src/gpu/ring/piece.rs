//! A piece of a slot: what one worker stages by itself.

use std::ops::Range;

use trueno_gpu::kernels::packed::PackedEntry;

use super::device::{Allocator, HostRole, RingDevice};
use crate::gpu::error::GpuResult;
use crate::page::{FILL_WORD_BYTES, PAGE_SIZE};

/// Pages per piece. This is one megabyte: copies of 256 KiB are a third slower, and a worker that fills more at a time keeps
/// the others waiting.
pub(super) const PIECE_PAGES: usize = 256;

/// A part of a slot's pages, with page-locked memory of its own. It is sent to a worker and back by value, so workers share
/// nothing.
#[derive(Debug)]
pub(super) struct Piece<D: RingDevice> {
    /// Its place among the slot's pieces.
    pub(super) number: usize,
    /// Pages of the batch that it has.
    pub(super) range: Range<usize>,
    /// The number of them that go to the device.
    pub(super) crossing: usize,
    /// The index of the first of these among those of the slot.
    pub(super) first_place: usize,
    /// Bytes of `memory_in` that go to the device.
    pub(super) bytes_in: usize,
    memory_in: Option<D::Pinned>,
    memory_out: Option<D::Pinned>,
    /// For each page: its fill word, if it is same-filled and does not go to the device.
    pub(super) fills: Vec<Option<[u8; FILL_WORD_BYTES]>>,
    /// For each page: its index among those of the piece that go to the device.
    pub(super) places: Vec<Option<u32>>,
    /// The kernel's index of those.
    pub(super) index: Vec<[u8; PackedEntry::BYTES]>,
}

/// The two kinds of page-locked memory of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceMemory {
    /// What goes to the device: pages or packed pages.
    In,
    /// What comes from it: pages.
    Out,
}

impl<D: RingDevice> Default for Piece<D> {
    fn default() -> Self {
        Self {
            number: 0,
            range: 0..0,
            crossing: 0,
            first_place: 0,
            bytes_in: 0,
            memory_in: None,
            memory_out: None,
            fills: Vec::new(),
            places: Vec::new(),
            index: Vec::new(),
        }
    }
}

impl<D: RingDevice> Piece<D> {
    /// Assigns pages to the piece, and clears what it knew of others.
    pub(super) fn claim(&mut self, number: usize, range: Range<usize>) {
        (self.number, self.range) = (number, range);
        (self.crossing, self.first_place, self.bytes_in) = (0, 0, 0);
        self.fills.clear();
        self.places.clear();
        self.index.clear();
    }

    /// Allocates memory for `pages` pages if there is none.
    pub(super) fn ensure(&mut self, allocator: &D::Allocator, which: PieceMemory, pages: usize) -> GpuResult<()> {
        let (place, role) = match which {
            PieceMemory::In => (&mut self.memory_in, HostRole::Staging),
            PieceMemory::Out => (&mut self.memory_out, HostRole::Shared),
        };
        if place.is_none() {
            *place = Some(allocator.pinned(pages * PAGE_SIZE, role)?);
        }
        Ok(())
    }

    /// What goes to the device.
    pub(super) fn memory_in(&mut self) -> &mut D::Pinned {
        self.memory_in.as_mut().expect("a run ensures what it uses")
    }

    /// What comes from it.
    pub(super) fn memory_out(&mut self) -> &mut D::Pinned {
        self.memory_out.as_mut().expect("a run ensures what it uses")
    }
}
