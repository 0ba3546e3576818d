//! A slot of the ring: its state, its memory on host and device, and the pieces that workers fill.

use std::ops::Range;
use std::time::{Duration, Instant};

use trueno_gpu::kernels::packed::PackedEntry;

use super::compressed_pages::{UnrestoredPage, UnrestoredReason};
use super::device::{DeviceAllocator, Mark, PinnedMemory, RingDevice};
use super::piece::{PIECE_PAGES, SlotPiece};
use super::slot_index::packed_bytes;
use super::transfer::{Direction, SlotTransfer, TransferSource};
use crate::arena::IndexEntry;
use crate::codec::nanoseconds;
use crate::gpu::BatchTimes;
use crate::gpu::codec::{PageFormat, STATUS_BYTES};
use crate::gpu::error::{GpuError, GpuResult};
use crate::gpu::pinned::HostCaching;
use crate::page::{PAGE_SIZE, Page, PageKind};

/// The progress of the pages in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The slot has no pages.
    Free,
    /// The pages are being staged or copied to the device.
    H2DInProgress,
    /// The kernel is queued or running.
    KernelInProgress,
    /// The result is being copied to the host.
    D2HInProgress,
    /// The result is on the host.
    Complete,
}

impl SlotState {
    /// Returns the state that follows.
    fn next(self) -> Self {
        match self {
            Self::Free => Self::H2DInProgress,
            Self::H2DInProgress => Self::KernelInProgress,
            Self::KernelInProgress => Self::D2HInProgress,
            Self::D2HInProgress => Self::Complete,
            Self::Complete => Self::Free,
        }
    }
}

/// One slot of the ring.
#[derive(Debug)]
pub(crate) struct RingSlot<D: RingDevice> {
    state: SlotState,
    /// The format of the device's kernels.
    pub(super) format: PageFormat,
    /// The time at which it entered its state.
    since: Instant,
    /// Its pages, as a range of the batch.
    pub(super) range: Range<usize>,
    /// The number of its pages that go to the device. The others need no device.
    pub(super) device_pages: usize,
    /// The length of the packed pages, once known.
    pub(super) packed_bytes: usize,
    /// The device's times for the pages, once complete.
    pub(crate) times: BatchTimes,
    pub(super) device: D::Slot,
    /// The memory that the caller of a stream fills with pages or packed pages. Allocated when a stream first needs it.
    pub(super) input: Option<D::Pinned>,
    /// The memory in which results arrive, unless they go to the caller's memory. Made when it is first needed.
    pub(super) output: Option<D::Pinned>,
    pub(super) index: D::Pinned,
    pub(super) status: D::Pinned,
    /// The pieces that workers fill. Those in use come first, in order, once all are staged.
    pub(super) pieces: Vec<SlotPiece<D>>,
    /// The number of pieces in use; 0 in calls that stage nothing.
    pub(super) pieces_used: usize,
    /// The number of pieces, wherever they are.
    piece_count: usize,
    /// The position of each page in the packed bytes. Kept to reuse its memory.
    pub(super) entries: Vec<IndexEntry>,
    /// The pages that the device did not restore, in order.
    pub(super) unrestored: Vec<UnrestoredPage>,
    /// `true` if a copy may still use the slot's memory and cannot be waited for.
    is_retired: bool,
}

impl<D: RingDevice> RingSlot<D> {
    pub(super) fn new(allocator: &D::Allocator, format: PageFormat, pages: u32) -> GpuResult<Self> {
        // Widening: `usize` has 64 bits wherever CUDA runs.
        let room = |bytes_per_page: usize| allocator.pinned(pages as usize * bytes_per_page, HostCaching::Cached);
        let piece_count = (pages as usize).div_ceil(PIECE_PAGES);
        Ok(Self {
            state: SlotState::Free,
            format,
            since: Instant::now(),
            range: 0..0,
            device_pages: 0,
            packed_bytes: 0,
            times: BatchTimes::default(),
            device: allocator.slot(pages)?,
            input: None,
            output: None,
            index: room(PackedEntry::BYTES)?,
            status: room(STATUS_BYTES)?,
            pieces: (0..piece_count).map(|_| SlotPiece::default()).collect(),
            pieces_used: 0,
            piece_count,
            entries: Vec::new(),
            unrestored: Vec::new(),
            is_retired: false,
        })
    }

    pub(super) fn state(&self) -> SlotState {
        self.state
    }

    /// Returns the time since the slot entered its state.
    pub(super) fn waiting(&self) -> Duration {
        self.since.elapsed()
    }

    /// Assigns pages to the slot. All of them go to the device, unless staging finds otherwise.
    pub(super) fn claim(&mut self, range: Range<usize>) {
        self.enter(SlotState::H2DInProgress);
        (self.device_pages, self.packed_bytes, self.pieces_used) = (range.len(), 0, 0);
        self.times = BatchTimes::default();
        self.range = range;
        self.unrestored.clear();
    }

    /// Takes the pieces out, to be staged.
    pub(super) fn take_pieces(&mut self) -> impl Iterator<Item = SlotPiece<D>> + use<'_, D> {
        let range = self.range.clone();
        self.pieces_used = range.len().div_ceil(PIECE_PAGES);
        self.pieces.drain(..self.pieces_used).enumerate().map(move |(number, mut piece)| {
            let start = range.start + number * PIECE_PAGES;
            piece.claim(number, start..range.end.min(start + PIECE_PAGES));
            piece
        })
    }

    /// Takes a piece back.
    pub(super) fn put_piece(&mut self, piece: SlotPiece<D>) {
        self.pieces.push(piece);
    }

    /// Returns `true` if all pieces are back.
    pub(super) fn has_all_pieces(&self) -> bool {
        self.pieces.len() == self.piece_count
    }

    /// Puts the pieces in order once all are back, and counts the pages that go to the device.
    pub(super) fn finish_staging(&mut self) {
        // Those in use were put back behind the others, in any order.
        self.pieces.rotate_right(self.pieces_used);
        self.pieces[..self.pieces_used].sort_unstable_by_key(|piece| piece.number);
        // The time limit of the device starts here: slow staging is not its fault.
        self.since = Instant::now();
        self.device_pages = 0;
        for piece in &mut self.pieces[..self.pieces_used] {
            piece.first_place = self.device_pages;
            self.device_pages += piece.device_pages;
        }
    }

    /// Enters the next state.
    ///
    /// # Panics
    /// If `state` is not the next one: slots skip nothing.
    pub(super) fn enter(&mut self, state: SlotState) {
        assert_eq!(self.state.next(), state, "a slot goes from one state to the next");
        self.state = state;
        self.since = Instant::now();
    }

    /// Frees the slot, whatever its state. The device must be drained or lost.
    pub(super) fn reset(&mut self) {
        self.state = SlotState::Free;
    }

    /// Returns the memory that the caller of a stream fills.
    pub(super) fn input(&self) -> &D::Pinned {
        self.input.as_ref().expect("slots of streams have it")
    }

    pub(super) fn input_mut(&mut self) -> &mut D::Pinned {
        self.input.as_mut().expect("slots of streams have it")
    }

    /// Returns the device's result for the pages of a stream's slot.
    pub(super) fn output(&self) -> &[u8] {
        let output = self.output.as_ref().expect("slots of streams have it");
        output.bytes().expect("no copy of a slot in use is in progress")
    }

    /// Returns the compressed pages of a stream's slot, those that the device did not restore, and the restored pages.
    pub(super) fn restored_parts(&mut self) -> (&[u8], &[UnrestoredPage], &mut [Page]) {
        let input = self.input.as_ref().expect("slots of streams have it").bytes();
        let output = self.output.as_mut().expect("slots of streams have it").bytes_mut();
        let pages = output.expect("no copy of a slot in use is in progress").as_chunks_mut().0;
        let input = input.expect("a device only reads a slot's input");
        (input, &self.unrestored, &mut pages[..self.range.len()])
    }

    /// Waits until no copy uses the slot's memory, which stays accessible from then on, whatever happens to the device. A
    /// slot for which that fails is not used again.
    pub(super) fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        let Self { input, output, index, status, .. } = self;
        let memory = input.iter_mut().chain(output).chain([index, status]);
        // Each of them, also after one has failed.
        let settled = memory.map(|memory| memory.settle(time_limit)).fold(Ok(()), Result::and);
        self.is_retired |= settled.is_err();
        settled
    }

    /// Returns `true` if the slot's memory can be filled again.
    pub(super) fn is_reusable(&self) -> bool {
        !self.is_retired
    }

    /// Allocates the page-locked memory that a transfer uses and the slot does not have yet.
    pub(super) fn ensure(
        &mut self,
        allocator: &D::Allocator,
        pages: u32,
        use_by: &SlotTransfer<'_, D>,
    ) -> GpuResult<()> {
        // Widening: `usize` has 64 bits wherever CUDA runs.
        let pages = pages as usize;
        let allocate = |place: &mut Option<D::Pinned>, pages: usize, caching| -> GpuResult<()> {
            if place.is_none() {
                *place = Some(allocator.pinned(pages * PAGE_SIZE, caching)?);
            }
            Ok(())
        };
        match use_by.source {
            TransferSource::Input => allocate(&mut self.input, pages, HostCaching::Cached)?,
            // All pieces have the same length, since they change places in the slot. Write-combined: the GPU reads memory that is
            // modified in a core's cache at less than half the speed.
            TransferSource::Pieces => self.pieces.iter_mut().try_for_each(|piece| {
                allocate(&mut piece.memory, PIECE_PAGES.min(pages), HostCaching::WriteCombined)
            })?,
            TransferSource::Pinned(..) => {}
        }
        if use_by.target.is_none() {
            allocate(&mut self.output, pages, HostCaching::Cached)?;
        }
        Ok(())
    }

    /// Lists the pages that the device did not restore. All pages of the slot were on the device.
    pub(super) fn list_unrestored(&mut self, kind_of: impl Fn(usize) -> PageKind) -> GpuResult<()> {
        let status = self.status.bytes()?.as_chunks::<STATUS_BYTES>().0;
        self.unrestored.extend(self.range.clone().zip(status).filter_map(|(page, code)| {
            UnrestoredReason::of(kind_of(page), self.format, *code).map(|reason| UnrestoredPage { page, reason })
        }));
        Ok(())
    }

    /// Reads from the kernel's index how long the packed pages are.
    pub(super) fn read_packed_bytes(&mut self) -> GpuResult<()> {
        let Some(last) = self.device_pages.checked_sub(1) else { return Ok(()) };
        let bits = self.index.bytes()?[last * PackedEntry::BYTES..].first_chunk();
        let bits = bits.expect("the index has an entry for each page of the slot");
        let entry = PackedEntry::from_bits(u64::from_le_bytes(*bits));
        self.packed_bytes = packed_bytes(entry, self.device_pages)
            .ok_or(GpuError::WrongIndex { page: self.range.end - 1, bits: entry.bits() })?;
        Ok(())
    }

    /// Reads the device's times for the pages.
    pub(super) fn read_times(&mut self, device: &D, direction: Direction) -> GpuResult<()> {
        let between = |from, to| device.elapsed(&self.device, from, to).map(nanoseconds);
        let mut d2h_time_ns = between(Mark::D2hStart, Mark::D2hEnd)?;
        if direction == Direction::Compress {
            d2h_time_ns += between(Mark::KernelEnd, Mark::IndexEnd)?;
        }
        self.times = BatchTimes {
            h2d_time_ns: between(Mark::H2dStart, Mark::H2dEnd)?,
            kernel_time_ns: between(Mark::KernelStart, Mark::KernelEnd)?,
            d2h_time_ns,
            total_time_ns: 0,
        };
        Ok(())
    }
}
