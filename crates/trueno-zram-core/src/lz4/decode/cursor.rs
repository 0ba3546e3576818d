//! A place in a block, for reads whose bounds were checked beforehand.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::lanes::LANE;

/// A place in a block.
///
/// One pointer instead of a slice: with the length to keep up to date as well, the fast loop runs
/// out of registers and is a tenth slower.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    at: *const u8,
    block: PhantomData<&'a [u8]>,
}

impl<'a> Cursor<'a> {
    /// The start of `rest`, the end part of a block.
    #[inline(always)]
    pub(super) fn at_start(rest: &'a [u8]) -> Self {
        Self { at: rest.as_ptr(), block: PhantomData }
    }

    /// The last place with `left` bytes after it; `None` if the block is shorter.
    #[inline(always)]
    pub(super) fn before_end(block: &'a [u8], left: usize) -> Option<Self> {
        let at = block.len().checked_sub(left)?;
        Some(Self::at_start(block.get(at..)?))
    }

    /// Whether this place is `limit` or before it.
    #[inline(always)]
    pub(super) fn is_up_to(self, limit: Self) -> bool {
        self.at <= limit.at
    }

    /// The bytes from here to the end of `block`, which the cursor must come from.
    #[inline(always)]
    pub(super) fn rest(self, block: &'a [u8]) -> Option<&'a [u8]> {
        block.get(self.at.addr().wrapping_sub(block.as_ptr().addr())..)
    }

    /// The 16 bytes `ahead` of here.
    ///
    /// # Safety
    ///
    /// The block has `ahead + 16` bytes from here on.
    #[inline(always)]
    pub(super) unsafe fn lane(self, ahead: usize) -> &'a [u8; LANE] {
        // SAFETY: the caller says the bytes are there, `'a` keeps them, and bytes need no alignment.
        unsafe { &*self.at.wrapping_add(ahead).cast() }
    }

    /// Skips `literals` bytes; takes a match offset and the byte after it.
    ///
    /// # Safety
    ///
    /// The block has `literals + 3` bytes from here on.
    #[inline(always)]
    pub(super) unsafe fn take_offset_and_token(&mut self, literals: usize) -> (usize, usize) {
        // SAFETY: the caller says the bytes are there.
        let offset = unsafe { self.at.wrapping_add(literals).cast::<[u8; 2]>().read() };
        // SAFETY: the caller says the bytes are there.
        let token = unsafe { self.at.wrapping_add(literals + 2).read() };
        self.at = self.at.wrapping_add(literals + 3);
        (usize::from(u16::from_le_bytes(offset)), usize::from(token))
    }
}
