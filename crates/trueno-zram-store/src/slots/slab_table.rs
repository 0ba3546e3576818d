//! The state of all slabs, in segments: more are added while threads use those that are there.

use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::slots::slab::Slab;

/// Segments beyond the first. Each has as many slabs as all before it, so there is room for all numbers below 2^32.
const SEGMENTS: usize = 32;

/// Slabs by number. Those of the start are one array; others are found with a few more instructions.
#[derive(Debug)]
pub(crate) struct SlabTable {
    first: Box<[Slab]>,
    /// Segment `k` has the slabs from `first.len() << k` to twice that number.
    segments: [OnceLock<Box<[Slab]>>; SEGMENTS],
    count: AtomicU32,
}

impl SlabTable {
    /// Creates a table of `count` slabs, at least one.
    pub(crate) fn new(count: u32) -> Self {
        let first = (0..count.max(1)).map(|_| Slab::new()).collect();
        Self { first, segments: [const { OnceLock::new() }; SEGMENTS], count: AtomicU32::new(count) }
    }

    /// Returns the number of slabs.
    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Adds slabs until there are `count`. Only one thread may do this at a time.
    pub(crate) fn grow_to(&self, count: u32) {
        let mut end = self.first.len() as u64;
        for segment in &self.segments {
            if end >= u64::from(count) {
                break;
            }
            segment.get_or_init(|| (0..end).map(|_| Slab::new()).collect());
            end *= 2;
        }
        self.count.fetch_max(count, Ordering::Release);
    }

    /// Returns a slab, or `None` for a number that no slab has.
    pub(crate) fn get(&self, number: u32) -> Option<&Slab> {
        match self.first.get(number as usize) {
            Some(slab) => Some(slab),
            None => self.get_later(number),
        }
    }

    #[cold]
    fn get_later(&self, number: u32) -> Option<&Slab> {
        let segment = (number as usize / self.first.len()).ilog2() as usize;
        let slabs = self.segments.get(segment)?.get()?;
        slabs.get(number as usize - (self.first.len() << segment))
    }
}

impl Index<u32> for SlabTable {
    type Output = Slab;

    fn index(&self, number: u32) -> &Slab {
        self.get(number).expect("slabs are used after they were added")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::slots::slab::NIL;

    #[test]
    fn every_number_has_one_slab_whenever_it_was_added() {
        for first in [1, 3, 64] {
            let slabs = SlabTable::new(first);
            let mut numbered = 0;
            for count in [first, first + 1, 2 * first, 2 * first + 1, 7 * first, 1000] {
                slabs.grow_to(count);
                assert_eq!(slabs.len(), count.max(numbered));
                (numbered..count).for_each(|number| slabs[number].next.store(number, Relaxed));
                numbered = numbered.max(count);
                assert!((0..numbered).all(|number| slabs[number].next.load(Relaxed) == number), "{first}, {count}");
            }
            assert!(slabs.get(NIL).is_none() && slabs.get(1 << 20).is_none());
        }
        assert_eq!(SlabTable::new(0).len(), 0);
    }
}
