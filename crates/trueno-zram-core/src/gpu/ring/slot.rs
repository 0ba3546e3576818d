//! A slot of the ring: its state, its memory on host and device, and the pieces that workers fill.

use std::ops::Range;
use std::time::{Duration, Instant};

use trueno_gpu::kernels::packed::PackedEntry;

use super::decompress::LeftPage;
use super::device::{Allocator, Buffer, HostRole, Mark, PinnedMemory, Queue, RingDevice};
use super::entries::packed_bytes;
use super::piece::{PIECE_PAGES, Piece, PieceMemory};
use crate::arena::IndexEntry;
use crate::gpu::codec::PageFormat;
use crate::gpu::error::{GpuError, GpuResult};
use crate::page::{PAGE_SIZE, Page};

pub(super) const STATUS_BYTES: usize = size_of::<u32>();

/// How far the pages in a slot have come.
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
    /// The state that follows.
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

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot<D: RingDevice> {
    state: SlotState,
    /// The format of the device's kernels.
    pub(super) format: PageFormat,
    /// When it entered its state.
    since: Instant,
    /// Pages of the batch that it has.
    pub(super) range: Range<usize>,
    /// The number of its pages that go to the device. The others need no device.
    pub(super) crossing: usize,
    /// The length of the packed pages, once known.
    pub(super) packed_bytes: usize,
    /// Their offset in the caller's page-locked memory, in calls that put them there.
    pub(super) packed_at: usize,
    /// The device's times for the pages, once complete.
    pub(super) times: StageTimes,
    pub(super) device: D::Slot,
    /// What the caller of a stream fills: pages, or packed ones. Made when a stream first needs it.
    input: Option<D::Pinned>,
    /// Where packed pages of calls and all results of streams arrive. Made when it is first needed.
    pub(super) output: Option<D::Pinned>,
    pub(super) index: D::Pinned,
    pub(super) status: D::Pinned,
    /// What workers fill and empty. Those in use come first, in order, once all are staged.
    pub(super) pieces: Vec<Piece<D>>,
    /// The number of pieces in use; 0 in calls that stage nothing.
    pub(super) pieces_used: usize,
    /// The number of pieces, wherever they are.
    piece_count: usize,
    /// Where each page is held, from the start of the packed bytes. Kept to be used again.
    pub(super) entries: Vec<IndexEntry>,
    /// In streams: the pages that the device did not restore, in order.
    pub(super) left: Vec<LeftPage>,
    /// In streams: when the caller submitted it.
    pub(super) submitted: Instant,
    /// Whether a copy may still use its memory, with nothing to wait for it by.
    is_retired: bool,
}

impl<D: RingDevice> Slot<D> {
    pub(super) fn new(allocator: &D::Allocator, format: PageFormat, pages: u32) -> GpuResult<Self> {
        // Widening: `usize` has 64 bits wherever CUDA runs.
        let room = |bytes_per_page: usize| allocator.pinned(pages as usize * bytes_per_page, HostRole::Shared);
        let piece_count = (pages as usize).div_ceil(PIECE_PAGES);
        Ok(Self {
            state: SlotState::Free,
            format,
            since: Instant::now(),
            range: 0..0,
            crossing: 0,
            packed_bytes: 0,
            packed_at: 0,
            times: StageTimes::default(),
            device: allocator.slot(pages)?,
            input: None,
            output: None,
            index: room(PackedEntry::BYTES)?,
            status: room(STATUS_BYTES)?,
            pieces: (0..piece_count).map(|_| Piece::default()).collect(),
            pieces_used: 0,
            piece_count,
            entries: Vec::new(),
            left: Vec::new(),
            submitted: Instant::now(),
            is_retired: false,
        })
    }

    pub(super) fn state(&self) -> SlotState {
        self.state
    }

    /// How long it has been in its state.
    pub(super) fn waiting(&self) -> Duration {
        self.since.elapsed()
    }

    /// Assigns pages to the slot. All of them go to the device, unless staging finds otherwise.
    pub(super) fn claim(&mut self, range: Range<usize>) {
        self.enter(SlotState::H2DInProgress);
        (self.crossing, self.packed_bytes, self.pieces_used) = (range.len(), 0, 0);
        self.times = StageTimes::default();
        self.range = range;
    }

    /// Takes the pieces out, to be staged.
    pub(super) fn take_pieces(&mut self) -> impl Iterator<Item = Piece<D>> + use<'_, D> {
        let range = self.range.clone();
        self.pieces_used = range.len().div_ceil(PIECE_PAGES);
        self.pieces.drain(..self.pieces_used).enumerate().map(move |(number, mut piece)| {
            let start = range.start + number * PIECE_PAGES;
            piece.claim(number, start..range.end.min(start + PIECE_PAGES));
            piece
        })
    }

    /// Takes a piece back.
    pub(super) fn put_piece(&mut self, piece: Piece<D>) {
        self.pieces.push(piece);
    }

    /// Whether all pieces are back.
    pub(super) fn is_whole(&self) -> bool {
        self.pieces.len() == self.piece_count
    }

    /// The pieces in use, and the device's side of the slot.
    pub(super) fn pieces(&mut self) -> (&mut [Piece<D>], &D::Slot) {
        (&mut self.pieces[..self.pieces_used], &self.device)
    }

    /// Puts the pieces in order once all are back, and counts the pages that go to the device.
    pub(super) fn staged(&mut self) {
        // Those in use were put back behind the others, in any order.
        self.pieces.rotate_right(self.pieces_used);
        self.pieces[..self.pieces_used].sort_unstable_by_key(|piece| piece.number);
        // The time limit of the device starts here: slow staging is not its fault.
        self.since = Instant::now();
        self.crossing = 0;
        for piece in &mut self.pieces[..self.pieces_used] {
            piece.first_place = self.crossing;
            self.crossing += piece.crossing;
        }
    }

    /// Goes on to the next state.
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

    /// What the caller of a stream fills.
    pub(super) fn input(&self) -> &D::Pinned {
        self.input.as_ref().expect("slots of streams have it")
    }

    pub(super) fn input_mut(&mut self) -> &mut D::Pinned {
        self.input.as_mut().expect("slots of streams have it")
    }

    /// Queues the copy of the first bytes of the input to the start of a device buffer.
    pub(super) fn upload_input(&mut self, device: &D, to: Buffer, len_bytes: usize) -> GpuResult<()> {
        let input = self.input.as_mut().expect("slots of streams have it");
        device.upload(&self.device, to, 0, input, 0..len_bytes)
    }

    /// The compressed pages of a stream's slot, where they lie, which of them are left, and the restored pages.
    pub(super) fn restored_parts(&mut self) -> (&[u8], &[IndexEntry], &[LeftPage], &mut [Page]) {
        let input = self.input.as_ref().expect("slots of streams have it").bytes();
        let output = self.output.as_mut().expect("slots of streams have it").bytes_mut();
        let pages = output.expect("no copy of a slot in use is in progress").as_chunks_mut().0;
        let input = input.expect("a device only reads a slot's input");
        (input, &self.entries, &self.left, &mut pages[..self.range.len()])
    }

    /// Waits until no copy uses the slot's memory, which is within reach from then on, whatever happens to the device. A
    /// slot for which that fails is not used again.
    pub(super) fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        let Self { input, output, index, status, .. } = self;
        let memory = input.iter_mut().chain(output).chain([index, status]);
        // Each of them, also after one has failed.
        let settled = memory.map(|memory| memory.settle(time_limit)).fold(Ok(()), Result::and);
        self.is_retired |= settled.is_err();
        settled
    }

    /// Whether its memory can be filled again.
    pub(super) fn is_reusable(&self) -> bool {
        !self.is_retired
    }

    /// The number of pages that go to the device.
    pub(super) fn crossing_u32(&self) -> u32 {
        u32::try_from(self.crossing).expect("a slot is made for a u32 of pages")
    }

    /// Allocates page-locked memory that is needed and not there yet.
    pub(super) fn ensure(&mut self, allocator: &D::Allocator, pages: u32, needs: &[HostMemory]) -> GpuResult<()> {
        for need in needs {
            match need {
                HostMemory::Input if self.input.is_none() => {
                    self.input = Some(allocator.pinned(pages as usize * PAGE_SIZE, HostRole::Shared)?);
                }
                HostMemory::Output if self.output.is_none() => {
                    self.output = Some(allocator.pinned(pages as usize * PAGE_SIZE, HostRole::Shared)?);
                }
                HostMemory::Input | HostMemory::Output => {}
                HostMemory::Pieces(which) => {
                    // Alike, since they change places.
                    let pages = PIECE_PAGES.min(pages as usize);
                    self.pieces.iter_mut().try_for_each(|piece| piece.ensure(allocator, *which, pages))?;
                }
            }
        }
        Ok(())
    }

    /// Queues the copy of the kernel's index, behind the kernel.
    pub(super) fn download_index(&mut self, device: &D) -> GpuResult<()> {
        let part = 0..self.crossing * PackedEntry::BYTES;
        device.download(Queue::Compute, &self.device, Buffer::Index, 0, &mut self.index, part)?;
        device.mark(&self.device, Mark::IndexEnd)
    }

    /// Reads from the kernel's index how long the packed pages are.
    pub(super) fn read_packed_bytes(&mut self) -> GpuResult<()> {
        let Some(last) = self.crossing.checked_sub(1) else { return Ok(()) };
        let bits = self.index.bytes()?[last * PackedEntry::BYTES..].first_chunk();
        let bits = bits.expect("the index has an entry for each page of the slot");
        let entry = PackedEntry::from_bits(u64::from_le_bytes(*bits));
        self.packed_bytes = packed_bytes(entry, self.crossing)
            .ok_or(GpuError::WrongIndex { page: self.range.end - 1, bits: entry.bits() })?;
        Ok(())
    }

    /// Reads the device's times for the pages.
    pub(super) fn read_times(&mut self, device: &D, index: IndexCopy) -> GpuResult<()> {
        let between = |from, to| device.elapsed(&self.device, from, to);
        let mut d2h = between(Mark::D2hStart, Mark::D2hEnd)?;
        if index == IndexCopy::First {
            d2h += between(Mark::KernelEnd, Mark::IndexEnd)?;
        }
        self.times = StageTimes {
            h2d: between(Mark::H2dStart, Mark::H2dEnd)?,
            kernel: between(Mark::KernelStart, Mark::KernelEnd)?,
            d2h,
        };
        Ok(())
    }
}

/// Page-locked memory of a slot. Calls to and from the caller's own page-locked memory need less of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostMemory {
    /// What the caller of a stream fills.
    Input,
    /// Where results arrive.
    Output,
    /// Of the pieces.
    Pieces(PieceMemory),
}

/// Whether the kernel's index is copied to the host before the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexCopy {
    /// It is: the length of the rest is in it.
    First,
    /// There is no index to copy.
    None,
}

/// The device's time for each stage, summed over slots, which overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageTimes {
    pub(crate) h2d: Duration,
    pub(crate) kernel: Duration,
    pub(crate) d2h: Duration,
}

impl std::ops::AddAssign for StageTimes {
    fn add_assign(&mut self, other: Self) {
        self.h2d += other.h2d;
        self.kernel += other.kernel;
        self.d2h += other.d2h;
    }
}
