//! Delivery of packed pages as values, which share the arena of their slot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::RingDevice;
use super::entries::listed;
use super::slot::Slot;
use super::stages::Deliver;
use crate::gpu::error::GpuResult;
use crate::page::{CompressedPage, PageData, PageKind};
use crate::storage::Storage;

/// Fills places for pages, several slots at a time.
pub(crate) struct IntoPages<'a> {
    /// Places not yet given to a slot.
    places: &'a mut [CompressedPage],
    arenas: &'a Arenas,
    /// Bytes of the delivered pages.
    pub(crate) held_bytes: u64,
}

impl<'a> IntoPages<'a> {
    pub(crate) fn new(places: &'a mut [CompressedPage], arenas: &'a Arenas) -> Self {
        Self { places, arenas, held_bytes: 0 }
    }
}

impl<D: RingDevice> Deliver<D> for IntoPages<'_> {
    type Share = Self;

    fn share(&mut self, slot: &Slot<D>) -> Option<Self> {
        self.places.split_off_mut(..slot.range.len()).map(|places| Self::new(places, self.arenas))
    }

    fn deliver(share: &mut Self, slot: &mut Slot<D>) -> GpuResult<()> {
        let packed_bytes = slot.packed_bytes;
        let (bytes, entries) = listed(slot)?;
        // Fill words, which lie behind the packed pages, need no arena.
        let arena = if packed_bytes == 0 { Arc::default() } else { share.arenas.hold(&bytes[..packed_bytes]) };
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

/// The arenas of the last batch. Those whose pages are all dropped are used again: getting fresh memory takes longer than
/// filling it.
#[derive(Debug, Default)]
pub(crate) struct Arenas {
    /// Arenas of the batch before, with no page left.
    free: Mutex<Vec<Arc<Storage>>>,
    /// Arenas of this batch.
    used: Mutex<Vec<Arc<Storage>>>,
}

impl Arenas {
    /// Starts a new batch. Arenas that still have pages belong to those pages from here on.
    pub(crate) fn start(&mut self) {
        let used = self.used.get_mut().unwrap_or_else(PoisonError::into_inner);
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        free.clear();
        free.extend(used.drain(..).filter(|arena| Arc::strong_count(arena) == 1));
    }

    /// Returns an arena that starts with `bytes`, copied by all threads.
    fn hold(&self, bytes: &[u8]) -> Arc<Storage> {
        let arena = match self.take(bytes.len()) {
            Some(mut used_before) => {
                Arc::get_mut(&mut used_before).expect("no page has it").put(bytes);
                used_before
            }
            None => {
                let mut storage = Storage::zeroed(bytes.len());
                storage.put_fresh(bytes);
                Arc::new(storage)
            }
        };
        lock(&self.used).push(Arc::clone(&arena));
        arena
    }

    /// Takes the smallest free arena of at least `len_bytes`. One of more than twice that is not taken: a page that is kept
    /// would keep all of it.
    fn take(&self, len_bytes: usize) -> Option<Arc<Storage>> {
        let free = &mut *lock(&self.free);
        let fitting = free.iter().enumerate().filter(|(_, arena)| (len_bytes..=2 * len_bytes).contains(&arena.len()));
        let (smallest, _) = fitting.min_by_key(|(_, arena)| arena.len())?;
        Some(free.swap_remove(smallest))
    }
}

fn lock<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists are consistent even after a panic.
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds `len_bytes` bytes as a batch would. Returns the arena and its length.
    fn hold(arenas: &Arenas, len_bytes: usize) -> (Arc<Storage>, usize) {
        let bytes: Vec<u8> = (0..len_bytes).map(|i| i.to_le_bytes()[0]).collect();
        let arena = arenas.hold(&bytes);
        assert!(arena[..len_bytes] == bytes);
        let arena_len = arena.len();
        (arena, arena_len)
    }

    #[test]
    fn arenas_without_pages_are_used_again_unless_they_are_much_too_large() {
        let mut arenas = Arenas::default();
        let kept = hold(&arenas, 5000).0;
        let gone = [hold(&arenas, 1000).0, hold(&arenas, 4000).0, hold(&arenas, 3000).0].map(|arena| arena.as_ptr());
        arenas.start();
        let (arena, len_bytes) = hold(&arenas, 2500);
        assert_eq!((arena.as_ptr(), len_bytes), (gone[2], 3000), "the smallest that fits");
        assert_eq!(hold(&arenas, 1900).1, 1900, "a page of it may be kept for long");
        assert_eq!(hold(&arenas, 4500).1, 4500, "a page of the one for 5000 is still there");
        assert_eq!(hold(&arenas, 3999).0.as_ptr(), gone[1]);
        assert_eq!(kept[4999], 4999usize.to_le_bytes()[0]);
    }
}
