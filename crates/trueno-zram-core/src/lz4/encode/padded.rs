//! The page between zeros, so that the search may read past both ends of it.

use super::compare::{BLOCK, Compare};
use super::sketch::{GROUP, GROUPS_PER_PART, Sketch, SketchPart};
use super::smaller;
use crate::page::{PAGE_SIZE, Page};

/// Zeros before the page: matches are extended backwards eight bytes at a time.
const BEFORE: usize = 64;

/// Zeros after the page: more than any probe or comparison that starts inside it can reach.
const AFTER: usize = 128;

const LEN: usize = BEFORE + PAGE_SIZE + AFTER;

/// A copy of a page with zeros on both sides. Positions count from the start of the page.
#[repr(align(64))]
pub(super) struct Padded([u8; LEN]);

impl Padded {
    pub(super) const fn new() -> Self {
        Self([0; LEN])
    }

    /// Copies a page in and looks at a quarter of it.
    #[inline(always)]
    pub(super) fn load(&mut self, compare: impl Compare, page: &Page) -> Sketch {
        let copies = self.0[BEFORE..BEFORE + PAGE_SIZE].as_chunks_mut::<GROUP>().0.chunks_exact_mut(GROUPS_PER_PART);
        let parts = page.as_chunks::<GROUP>().0.chunks_exact(GROUPS_PER_PART);
        let mut sketch = Sketch::EMPTY;
        for (copies, groups) in copies.zip(parts) {
            let mut part = SketchPart::EMPTY;
            for (copy, group) in copies.iter_mut().zip(groups) {
                *copy = *group;
                part.add(compare.equal_mask(group.first_chunk().expect("a group is longer than a block"), &[0; BLOCK]));
            }
            sketch.add(part);
        }
        sketch
    }

    /// Returns the `N` bytes from `at` on.
    #[inline(always)]
    pub(super) fn chunk<const N: usize>(&self, at: usize) -> &[u8; N] {
        self.0.get(at + BEFORE..).and_then(<[u8]>::first_chunk).expect("the search reads within the padding")
    }

    #[inline(always)]
    pub(super) fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(*self.chunk(at))
    }

    #[inline(always)]
    pub(super) fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(*self.chunk(at))
    }

    /// Returns how many bytes before `position` equal those before `candidate`: at most eight, at most `limit`, and no more
    /// than the page has before `candidate`.
    #[inline(always)]
    pub(super) fn equal_before(&self, position: usize, candidate: usize, limit: usize) -> usize {
        let differing = self.u64_before(position) ^ self.u64_before(candidate);
        smaller(smaller(differing.leading_zeros() as usize / 8, limit), candidate)
    }

    #[inline(always)]
    fn u64_before(&self, at: usize) -> u64 {
        let chunk = self.0.get(at + BEFORE - 8..).and_then(<[u8]>::first_chunk);
        u64::from_le_bytes(*chunk.expect("the search reads within the padding"))
    }

    /// Returns the whole blocks from `at` on. They reach past the page.
    #[inline(always)]
    pub(super) fn blocks_from(&self, at: usize) -> &[[u8; BLOCK]] {
        self.0[at + BEFORE..].as_chunks().0
    }

    /// Returns the bytes of the page from `from` up to `to`.
    pub(super) fn range(&self, from: usize, to: usize) -> &[u8] {
        &self.0[BEFORE + from..BEFORE + to]
    }
}
