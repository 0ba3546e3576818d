//! Memory of compressed pages that are values, used again from batch to batch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::storage::Storage;

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
    pub(super) fn hold(&self, bytes: &[u8]) -> Arc<Storage> {
        if bytes.is_empty() {
            return Arc::default();
        }
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
