//! A stack of free slabs that threads share without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::slots::slab::NIL;
use crate::slots::slab_table::SlabTable;

/// A stack of slab numbers, linked through [`Slab::next`](crate::slots::slab::Slab::next).
///
/// The head holds the number of the top slab and a count of all changes. With the count, a thread that paused between
/// reading the head and replacing it notices that the stack has changed, even if the same slab is on top again.
///
/// It has a cache line of its own: its neighbours are read with every request.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct FreeSlabs {
    head: AtomicU64,
    len: AtomicU32,
}

impl FreeSlabs {
    pub(crate) fn new() -> Self {
        Self { head: AtomicU64::new(u64::from(NIL)), len: AtomicU32::new(0) }
    }

    /// Number of slabs in the stack. Exact only while no other thread uses it.
    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    pub(crate) fn push(&self, slabs: &SlabTable, slab: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            slabs[slab].next.store(top(head), Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, next_head(head, slab), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(changed) => head = changed,
            }
        }
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn pop(&self, slabs: &SlabTable) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let slab = top(head);
            // The link may already be another stack's. Then the count has changed, and the exchange fails.
            let next = slabs.get(slab)?.next.load(Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, next_head(head, next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                    return Some(slab);
                }
                Err(changed) => head = changed,
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn top(head: u64) -> u32 {
    head as u32
}

/// The head that follows `head`, with `slab` on top.
fn next_head(head: u64, slab: u32) -> u64 {
    (head >> 32).wrapping_add(1) << 32 | u64::from(slab)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn gives_back_what_was_put_in_last_first() {
        let slabs = SlabTable::new(3);
        let stack = FreeSlabs::new();
        assert_eq!(stack.pop(&slabs), None);
        (0..3).for_each(|slab| stack.push(&slabs, slab));
        assert_eq!(stack.len(), 3);
        assert_eq!([(); 4].map(|()| stack.pop(&slabs)), [Some(2), Some(1), Some(0), None]);
    }

    #[test]
    fn a_stack_that_has_changed_never_has_the_same_head() {
        let slabs = SlabTable::new(2);
        let stack = FreeSlabs::new();
        let mut heads = std::collections::HashSet::new();
        for _ in 0..100 {
            stack.push(&slabs, 0);
            assert!(heads.insert(stack.head.load(Ordering::Relaxed)));
            assert_eq!(stack.pop(&slabs), Some(0));
            assert!(heads.insert(stack.head.load(Ordering::Relaxed)));
        }
    }

    #[test]
    fn threads_never_hold_the_same_slab() {
        const SLABS: u32 = 5;
        let slabs = SlabTable::new(SLABS);
        let held: Vec<_> = (0..SLABS).map(|_| AtomicBool::new(false)).collect();
        let stack = FreeSlabs::new();
        (0..SLABS).for_each(|slab| stack.push(&slabs, slab));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let Some(slab) = stack.pop(&slabs) else { continue };
                        assert!(!held[slab as usize].swap(true, Ordering::AcqRel), "slab {slab} was given twice");
                        held[slab as usize].store(false, Ordering::Release);
                        stack.push(&slabs, slab);
                    }
                });
            }
        });
        assert_eq!(stack.len(), SLABS);
    }
}
