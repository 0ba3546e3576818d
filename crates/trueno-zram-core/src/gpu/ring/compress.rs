//! Compression through the ring: pages in, packed pages out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rayon::ThreadPool;
use rayon::prelude::*;
use trueno_gpu::kernels::lz4::{PACK_ALIGN_BYTES, PackedEntry, PageKind as PackedKind};

use super::device::{Buffer, Device, Mark, PinnedMemory, Queue};
use super::piece::{Piece, PieceMemory};
use super::slot::{HostMemory, IndexCopy, Slot};
use super::{Deliver, NoStage, Outcome, Ring, Stage, Submit};
use crate::arena::{CompressedBatch, IndexEntry};
use crate::gpu::error::{GpuError, GpuResult};
use crate::page::{CompressedPage, FILL_WORD_BYTES, PAGE_SIZE, Page, PageData, PageKind};
use crate::progress::Progress;
use crate::samefill::same_filled;

/// The length of a fill word, as an index has it.
const FILL_LEN_BYTES: u16 = 8;
const _: () = assert!(FILL_LEN_BYTES as usize == FILL_WORD_BYTES);

/// Takes packed pages as they come, in order.
pub(crate) trait PackedSink: Send {
    /// `entries` say where each page lies in `bytes`.
    fn take(&mut self, bytes: &[u8], entries: &[IndexEntry]);
}

impl<D: Device> Ring<D> {
    /// Compresses pages that lie anywhere: all cores copy them to page-locked memory first.
    pub(crate) fn compress(
        &mut self,
        pool: &ThreadPool,
        pages: &[Page],
        sink: &mut impl PackedSink,
        progress: &dyn Progress,
    ) -> Outcome {
        if let Err(error) = self.ensure(&[HostMemory::Pieces(PieceMemory::In), HostMemory::PackedOut]) {
            return Outcome::failed(error);
        }
        self.drive(pool, pages.len(), Some(&StagePages(pages)), &mut Staged, &mut Taking(sink), progress)
    }

    /// Compresses pages that lie in page-locked memory already.
    pub(crate) fn compress_pinned(
        &mut self,
        pool: &ThreadPool,
        pages: &mut D::Pinned,
        len: usize,
        sink: &mut impl PackedSink,
        progress: &dyn Progress,
    ) -> Outcome {
        if let Err(error) = self.ensure(&[HostMemory::PackedOut]) {
            return Outcome::failed(error);
        }
        self.drive(pool, len, None::<&NoStage>, &mut FromPinned(pages), &mut Taking(sink), progress)
    }
}

/// Copies pages into page-locked memory, but for those that are same-filled.
struct StagePages<'a>(&'a [Page]);

impl<D: Device> Stage<D> for StagePages<'_> {
    fn stage(&self, piece: &mut Piece<D>) -> GpuResult<()> {
        let pages = &self.0[piece.range.clone()];
        // Most pages differ in their first words: this reads little, and what it reads is copied next.
        piece.fills.extend(pages.iter().map(same_filled));
        piece.crossing = piece.fills.iter().filter(|fill| fill.is_none()).count();
        piece.bytes_in = piece.crossing * PAGE_SIZE;
        if piece.crossing == pages.len() {
            let bytes = pages.as_flattened();
            piece.memory_in().bytes_mut()?[..bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let fills = std::mem::take(&mut piece.fills);
        let places = piece.memory_in().bytes_mut()?.as_chunks_mut::<PAGE_SIZE>().0.iter_mut();
        let crossing = pages.iter().zip(&fills).filter(|(_, fill)| fill.is_none());
        places.zip(crossing).for_each(|(place, (page, _))| *place = *page);
        piece.fills = fills;
        Ok(())
    }
}

/// Queues a compression from a slot's own memory.
struct Staged;

/// Queues a compression from the caller's page-locked memory.
struct FromPinned<'a, P>(&'a mut P);

impl<D: Device> Submit<D> for Staged {
    const INDEX_COPY: IndexCopy = IndexCopy::Apart;

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        device.mark(&slot.device, Mark::H2dStart)?;
        let (pieces, on_device) = slot.pieces();
        for piece in pieces.iter_mut().filter(|piece| piece.crossing > 0) {
            let (at, part) = (piece.first_place * PAGE_SIZE, 0..piece.bytes_in);
            device.upload(on_device, Buffer::Pages, at, piece.memory_in(), part)?;
        }
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        download_packed(device, slot)
    }
}

impl<D: Device> Submit<D> for FromPinned<'_, D::Pinned> {
    const INDEX_COPY: IndexCopy = IndexCopy::Apart;

    fn start(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        let part = slot.range.start * PAGE_SIZE..slot.range.end * PAGE_SIZE;
        device.mark(&slot.device, Mark::H2dStart)?;
        device.upload(&slot.device, Buffer::Pages, 0, self.0, part)?;
        start_kernel(device, slot)
    }

    fn finish(&mut self, device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
        download_packed(device, slot)
    }

    fn settle(&mut self, time_limit: Duration) -> GpuResult<()> {
        self.0.settle(time_limit)
    }
}

fn start_kernel<D: Device>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    device.mark(&slot.device, Mark::H2dEnd)?;
    device.compress(&slot.device, slot.crossing_u32())?;
    slot.download_index(device)
}

fn download_packed<D: Device>(device: &mut D, slot: &mut Slot<D>) -> GpuResult<()> {
    slot.read_packed_bytes()?;
    let part = 0..slot.packed_bytes;
    device.mark(&slot.device, Mark::D2hStart)?;
    let to = slot.packed_out.as_mut().expect("a run ensures what it uses");
    device.download(Queue::D2h, &slot.device, Buffer::Packed, 0, to, part)?;
    device.mark(&slot.device, Mark::D2hEnd)
}

/// Checks a slot's index and hands the slot's pages on.
struct Taking<'a, K>(&'a mut K);

impl<D: Device, K: PackedSink> Deliver<D> for Taking<'_, K> {
    fn deliver(&mut self, slot: &mut Slot<D>) -> GpuResult<()> {
        let used = list_entries(slot)?;
        let packed = slot.packed_out.as_ref().expect("a run ensures what it uses");
        self.0.take(&packed.bytes()?[..used], &slot.entries);
        Ok(())
    }
}

/// Makes index entries of what the kernel wrote and of the fill words, which are put behind the packed pages: each of
/// their pages left 4096 bytes of room. The bytes that hold all of them.
fn list_entries<D: Device>(slot: &mut Slot<D>) -> GpuResult<usize> {
    let Slot { entries, index, packed_out, pieces, .. } = slot;
    let packed_out = packed_out.as_mut().expect("a run ensures what it uses").bytes_mut()?;
    let (packed, words) = packed_out.split_at_mut(slot.packed_bytes);
    let mut words = words.as_chunks_mut::<FILL_WORD_BYTES>().0.iter_mut();
    let mut placed = index.bytes()?.as_chunks().0.iter().map(|bits| PackedEntry::from_bits(u64::from_le_bytes(*bits)));
    // Runs that stage nothing have no pieces: all their pages are on the device.
    let fills = pieces[..slot.pieces_used].iter().flat_map(|piece| &piece.fills).chain(std::iter::repeat(&None));
    let (mut end, mut used) = (0, packed.len());
    entries.clear();
    for (page, fill) in slot.range.clone().zip(fills) {
        if let Some(word) = fill {
            *words.next().expect("a page that is not packed left room for a word") = *word;
            entries.push(IndexEntry { offset: used as u64, len_bytes: FILL_LEN_BYTES, kind: PageKind::SameFilled });
            used += FILL_WORD_BYTES;
        } else {
            let entry = placed.next().expect("the index has an entry for each page on the device");
            let checked = checked_entry(entry, end, packed.len());
            let checked = checked.ok_or(GpuError::WrongIndex { page, bits: entry.bits() })?;
            end = (checked.offset + u64::from(checked.len_bytes)).next_multiple_of(PACK_ALIGN_BYTES.into());
            entries.push(checked);
        }
    }
    Ok(used)
}

/// An entry that the kernel wrote. It must start where the one before ended: what a device says is not trusted.
pub(crate) fn checked_entry(entry: PackedEntry, expected_offset: u64, packed_bytes: usize) -> Option<IndexEntry> {
    let (offset, len_bytes) = (entry.offset_bytes(), entry.len_bytes());
    let kind = match entry.kind()? {
        PackedKind::SameFilled => PageKind::SameFilled,
        PackedKind::Lz4 => PageKind::Lz4,
        PackedKind::Raw => PageKind::Raw,
    };
    let fits = entry.is_placed()
        && offset == expected_offset
        && kind.held_len_bytes().contains(&usize::from(len_bytes))
        && offset + u64::from(len_bytes) <= packed_bytes as u64;
    fits.then_some(IndexEntry { offset, len_bytes, kind })
}

/// Packed pages into a caller's batch.
pub(crate) struct IntoBatch<'a> {
    pub(crate) batch: &'a mut CompressedBatch,
    /// How many there will be, to reserve for.
    pub(crate) pages_in_all: usize,
}

impl PackedSink for IntoBatch<'_> {
    fn take(&mut self, bytes: &[u8], entries: &[IndexEntry]) {
        self.batch.append_piece(bytes, entries, self.pages_in_all);
    }
}

/// Packed pages as values of their own, each few of them in an arena.
pub(crate) struct IntoPages<'a> {
    pub(crate) pages: &'a mut Vec<CompressedPage>,
    pub(crate) arenas: &'a Arenas,
}

/// Pages that share an arena: few enough that each core can make one by itself, and that a page which is kept does not
/// keep many others.
const ARENA_PAGES: usize = 28;
/// Room for all of them, so that each arena fits in the place of any other; what is not used is never touched. Less than
/// what the system's allocator maps anew each time.
const ARENA_BYTES: usize = ARENA_PAGES * PAGE_SIZE;

/// The arenas of the last batch. Those whose pages are all gone are used again: fresh memory comes from the system a page
/// at a time, which takes longer than to fill it.
#[derive(Debug, Default)]
pub(crate) struct Arenas {
    /// Of the batch before, with no page left.
    free: Mutex<Vec<Arc<Vec<u8>>>>,
    /// Of this batch.
    used: Mutex<Vec<Arc<Vec<u8>>>>,
}

impl Arenas {
    /// A new batch starts. Arenas that still have pages are theirs alone from here on.
    pub(crate) fn start(&mut self) {
        let used = self.used.get_mut().unwrap_or_else(PoisonError::into_inner);
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        free.clear();
        free.extend(used.drain(..).filter(|arena| Arc::strong_count(arena) == 1));
    }

    /// An arena with those bytes.
    fn hold(&self, bytes: &[u8]) -> Arc<Vec<u8>> {
        let mut arena = lock(&self.free).pop().unwrap_or_default();
        if Arc::get_mut(&mut arena).is_none() {
            arena = Arc::default();
        }
        let storage = Arc::get_mut(&mut arena).expect("shared with no one yet");
        storage.clear();
        storage.reserve_exact(ARENA_BYTES);
        storage.extend_from_slice(bytes);
        lock(&self.used).push(Arc::clone(&arena));
        arena
    }
}

fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists are whole between any two of their operations, whatever panicked.
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PackedSink for IntoPages<'_> {
    fn take(&mut self, bytes: &[u8], entries: &[IndexEntry]) {
        let arenas = self.arenas;
        let groups: Vec<Vec<CompressedPage>> =
            entries.par_chunks(ARENA_PAGES).map(|entries| in_one_arena(arenas, bytes, entries)).collect();
        self.pages.extend(groups.into_iter().flatten());
    }
}

/// Copies pages that lie one after the other to an arena of their own.
fn in_one_arena(arenas: &Arenas, bytes: &[u8], entries: &[IndexEntry]) -> Vec<CompressedPage> {
    let place = |entry: &IndexEntry| {
        let start = usize::try_from(entry.offset).expect("checked against the slot's length");
        start..start + usize::from(entry.len_bytes)
    };
    // Same-filled pages need no arena; their words may lie far behind.
    let stored = || entries.iter().filter(|entry| entry.kind != PageKind::SameFilled).map(place);
    let start = stored().next().map_or(0, |first| first.start);
    let end = stored().next_back().map_or(0, |last| last.end);
    // Same-filled pages alone take no arena.
    let arena = if start == end { Arc::default() } else { arenas.hold(&bytes[start..end]) };
    let page = |entry: &IndexEntry| {
        let held = place(entry);
        let data = PageData::trusted(entry.kind, &bytes[held.clone()]);
        match entry.kind {
            PageKind::SameFilled => CompressedPage::from(data),
            _ => CompressedPage::in_arena(&arena, held.start - start, data),
        }
    };
    entries.iter().map(page).collect()
}
