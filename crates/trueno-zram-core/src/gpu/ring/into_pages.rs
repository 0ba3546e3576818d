//! Packed pages as values of their own, each few of them in an arena.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use super::Deliver;
use super::device::Device;
use super::entries::listed;
use super::slot::Slot;
use crate::arena::IndexEntry;
use crate::gpu::error::GpuResult;
use crate::page::{CompressedPage, PAGE_SIZE, PageData, PageKind};

/// Fills places for pages, several slots' at a time.
pub(crate) struct IntoPages<'a> {
    /// Those that no slot has.
    places: &'a mut [CompressedPage],
    arenas: &'a Arenas,
    /// Bytes that hold the pages which were delivered.
    pub(crate) held_bytes: u64,
}

impl<'a> IntoPages<'a> {
    pub(crate) fn new(places: &'a mut [CompressedPage], arenas: &'a Arenas) -> Self {
        Self { places, arenas, held_bytes: 0 }
    }
}

impl<'a, D: Device> Deliver<D> for IntoPages<'a> {
    type Share = Self;

    fn share(&mut self, slot: &Slot<D>) -> Option<Self> {
        self.places.split_off_mut(..slot.range.len()).map(|places| Self::new(places, self.arenas))
    }

    fn deliver(share: &mut Self, slot: &mut Slot<D>) -> GpuResult<()> {
        let (bytes, entries) = listed(slot)?;
        let arenas = share.arenas;
        let groups = share.places.par_chunks_mut(ARENA_PAGES).zip(entries.par_chunks(ARENA_PAGES));
        groups.for_each(|(places, entries)| fill_one_arena(arenas, bytes, entries, places));
        share.held_bytes = entries.iter().map(|entry| u64::from(entry.len_bytes)).sum();
        Ok(())
    }

    fn give_back(&mut self, share: Self) {
        self.held_bytes += share.held_bytes;
    }
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

/// Copies pages that lie one after the other to an arena of their own.
fn fill_one_arena(arenas: &Arenas, bytes: &[u8], entries: &[IndexEntry], places: &mut [CompressedPage]) {
    let range = |entry: &IndexEntry| {
        let start = usize::try_from(entry.offset).expect("checked against the slot's length");
        start..start + usize::from(entry.len_bytes)
    };
    // Same-filled pages need no arena; their words may lie far behind.
    let stored = || entries.iter().filter(|entry| entry.kind != PageKind::SameFilled).map(range);
    let start = stored().next().map_or(0, |first| first.start);
    let end = stored().next_back().map_or(0, |last| last.end);
    // Same-filled pages alone take no arena.
    let arena = if start == end { Arc::default() } else { arenas.hold(&bytes[start..end]) };
    for (place, entry) in places.iter_mut().zip(entries) {
        let held = range(entry);
        let data = PageData::trusted(entry.kind, &bytes[held.clone()]);
        *place = match entry.kind {
            PageKind::SameFilled => CompressedPage::from(data),
            _ => CompressedPage::in_arena(&arena, held.start - start, data),
        };
    }
}
