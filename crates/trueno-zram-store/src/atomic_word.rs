//! The 64-bit atomics of table entries and spare slots, in a form that loom can check: tests use loom's atomics in their place.

use std::sync::atomic::{AtomicU64, Ordering};

/// The operations of a 64-bit atomic that generic code uses. Loom checks that code with the same orderings.
pub(crate) trait AtomicWord {
    fn load(&self, ordering: Ordering) -> u64;
    fn store(&self, word: u64, ordering: Ordering);
    fn swap(&self, word: u64, ordering: Ordering) -> u64;
    /// A sequentially consistent fence.
    fn fence();
    /// Replaces `from` by `to`. Returns `false` if the word is another one.
    fn replace(&self, from: u64, to: u64, ordering: Ordering) -> bool;
}

macro_rules! impl_atomic_word {
    ($atomic:ty, $fence:path) => {
        impl AtomicWord for $atomic {
            fn load(&self, ordering: Ordering) -> u64 {
                Self::load(self, ordering)
            }

            fn store(&self, word: u64, ordering: Ordering) {
                Self::store(self, word, ordering);
            }

            fn swap(&self, word: u64, ordering: Ordering) -> u64 {
                Self::swap(self, word, ordering)
            }

            fn fence() {
                $fence(Ordering::SeqCst);
            }

            fn replace(&self, from: u64, to: u64, ordering: Ordering) -> bool {
                self.compare_exchange(from, to, ordering, Ordering::Relaxed).is_ok()
            }
        }
    };
}

impl_atomic_word!(AtomicU64, std::sync::atomic::fence);
#[cfg(test)]
impl_atomic_word!(loom::sync::atomic::AtomicU64, loom::sync::atomic::fence);
