//! A position in a block, for reads whose bounds are checked beforehand.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::lanes::LANE;

/// A position in a block.
///
/// A single pointer instead of a slice: keeping the length up to date as well makes the fast loop run out of registers
/// and costs a tenth of its speed.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockCursor<'a> {
    at: *const u8,
    block: PhantomData<&'a [u8]>,
}

impl<'a> BlockCursor<'a> {
    /// Creates a cursor at the start of `rest`, a suffix of a block.
    #[inline(always)]
    pub(super) fn at_start(rest: &'a [u8]) -> Self {
        Self { at: rest.as_ptr(), block: PhantomData }
    }

    /// Creates a cursor at the last position with `left` bytes after it. Returns `None` if the block is shorter.
    #[inline(always)]
    pub(super) fn before_end(block: &'a [u8], left: usize) -> Option<Self> {
        let at = block.len().checked_sub(left)?;
        Some(Self::at_start(block.get(at..)?))
    }

    /// Returns `true` if this position is at or before `limit`.
    #[inline(always)]
    pub(super) fn is_up_to(self, limit: Self) -> bool {
        self.at <= limit.at
    }

    /// Returns the bytes from here to the end of `block`, which must be the cursor's block.
    #[inline(always)]
    pub(super) fn rest(self, block: &'a [u8]) -> Option<&'a [u8]> {
        block.get(self.at.addr().wrapping_sub(block.as_ptr().addr())..)
    }

    /// Returns the 16 bytes that start `ahead` bytes past this position.
    ///
    /// # Safety
    ///
    /// The block has `ahead + 16` bytes from here on.
    #[inline(always)]
    pub(super) unsafe fn lane(self, ahead: usize) -> &'a [u8; LANE] {
        // SAFETY: the caller guarantees the bytes, `'a` keeps them alive, and bytes need no alignment.
        unsafe { &*self.at.wrapping_add(ahead).cast() }
    }

    /// Skips `literals` bytes, then reads a match offset and the byte after it.
    ///
    /// # Safety
    ///
    /// The block has `literals + 3` bytes from here on.
    #[inline(always)]
    pub(super) unsafe fn take_offset_and_token(&mut self, literals: usize) -> (usize, usize) {
        // SAFETY: the caller guarantees `literals + 3` bytes.
        let offset = unsafe { self.at.wrapping_add(literals).cast::<[u8; 2]>().read() };
        // SAFETY: the caller guarantees `literals + 3` bytes.
        let token = unsafe { self.at.wrapping_add(literals + 2).read() };
        self.at = self.at.wrapping_add(literals + 3);
        (usize::from(u16::from_le_bytes(offset)), usize::from(token))
    }

    /// Reads the byte at this position and moves past it.
    ///
    /// # Safety
    ///
    /// The block has a byte from here on.
    #[inline(always)]
    pub(super) unsafe fn take_token(&mut self) -> usize {
        // SAFETY: the caller guarantees the byte.
        let token = unsafe { self.at.read() };
        self.at = self.at.wrapping_add(1);
        usize::from(token)
    }
}
