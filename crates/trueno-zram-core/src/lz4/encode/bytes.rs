//! Fixed-size reads of a page. The encoder reads the page only through these.

use crate::page::Page;

/// A page, with the reads that the encoder makes.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(pub(super) &'a Page);

impl<'a> Bytes<'a> {
    /// Returns the `N` bytes from `at` on.
    #[inline(always)]
    pub(super) fn chunk<const N: usize>(self, at: usize) -> &'a [u8; N] {
        self.0.get(at..).and_then(<[u8]>::first_chunk).expect("the search reads within the page")
    }

    #[inline(always)]
    pub(super) fn u32_at(self, at: usize) -> u32 {
        u32::from_le_bytes(*self.chunk(at))
    }

    #[inline(always)]
    pub(super) fn u64_at(self, at: usize) -> u64 {
        u64::from_le_bytes(*self.chunk(at))
    }
}
