//! Packed pages as values of their own, which share the arena of their slot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use super::Deliver;
use super::device::Device;
use super::entries::listed;
use super::slot::Slot;
use crate::gpu::error::GpuResult;
use crate::page::{CompressedPage, PageData, PageKind};
use crate::storage::{HUGE_PAGE_BYTES, Storage};

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

impl<D: Device> Deliver<D> for IntoPages<'_> {
    type Share = Self;

    fn share(&mut self, slot: &Slot<D>) -> Option<Self> {
        self.places.split_off_mut(..slot.range.len()).map(|places| Self::new(places, self.arenas))
    }

    fn deliver(share: &mut Self, slot: &mut Slot<D>) -> GpuResult<()> {
        let packed_bytes = slot.packed_bytes;
        let (bytes, entries) = listed(slot)?;
        // Fill words, which lie behind the packed pages, need no arena.
        let arena = share.arenas.hold(&bytes[..packed_bytes]);
        for (place, entry) in share.places.iter_mut().zip(entries) {
            let start = usize::try_from(entry.offset).expect("checked against the slot's length");
            let data = PageData::trusted(entry.kind, &bytes[start..start + usize::from(entry.len_bytes)]);
            *place = match entry.kind {
                PageKind::SameFilled => data.into(),
                _ => CompressedPage::in_arena(&arena, start, data),
            };
            share.held_bytes += u64::from(entry.len_bytes);
        }
        Ok(())
    }

    fn give_back(&mut self, share: Self) {
        self.held_bytes += share.held_bytes;
    }
}

/// The arenas of the last batch. Those whose pages are all gone are used again: fresh memory takes longer to come by than
/// to fill.
#[derive(Debug, Default)]
pub(crate) struct Arenas {
    /// Of the batch before, with no page left.
    free: Mutex<Vec<Arc<Storage>>>,
    /// Of this batch.
    used: Mutex<Vec<Arc<Storage>>>,
}

impl Arenas {
    /// A new batch starts. Arenas that still have pages are theirs alone from here on.
    pub(crate) fn start(&mut self) {
        let used = self.used.get_mut().unwrap_or_else(PoisonError::into_inner);
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        free.clear();
        free.extend(used.drain(..).filter(|arena| Arc::strong_count(arena) == 1));
    }

    /// An arena that starts with those bytes, which all threads put there.
    fn hold(&self, bytes: &[u8]) -> Arc<Storage> {
        const CUT_BYTES: usize = 128 * 1024;
        // A huge page comes zeroed to each thread that is among the first to touch it: one thread is to be the first.
        let (mut arena, cut_bytes) = match self.take(bytes.len()) {
            Some(used_before) => (used_before, CUT_BYTES),
            None => (Arc::new(Storage::zeroed(bytes.len())), HUGE_PAGE_BYTES),
        };
        let storage = Arc::get_mut(&mut arena).expect("shared with no one yet");
        let cuts = storage[..bytes.len()].par_chunks_mut(cut_bytes).zip(bytes.par_chunks(cut_bytes));
        cuts.for_each(|(place, bytes)| place.copy_from_slice(bytes));
        lock(&self.used).push(Arc::clone(&arena));
        arena
    }

    /// An arena for so many bytes whose pages are all gone, if there is one.
    fn take(&self, len_bytes: usize) -> Option<Arc<Storage>> {
        let free = &mut *lock(&self.free);
        let fitting = free.iter().rposition(|arena| arena.len() >= len_bytes)?;
        Some(free.swap_remove(fitting))
    }
}

fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists are whole between any two of their operations, whatever panicked.
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
