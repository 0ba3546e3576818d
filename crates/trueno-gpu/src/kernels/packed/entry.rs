//! The index of a packed batch: one 64-bit word per page, written by compressors and read by decompressors and the
//! host.
//!
//! | bits | meaning |
//! | --- | --- |
//! | 0 to 31 | start of the page in the packed output, in units of 16 bytes |
//! | 32 to 44 | length in bytes |
//! | 45 to 46 | form of the page: the number of its [`PageKind`] |
//! | 47 to 61 | zero |
//! | 62 to 63 | state: 0 if nothing is known, 1 if length and kind are known, 3 if the entry is complete |

use crate::Reg;
use trueno_page::PageKind;

/// Alignment of pages in the packed output, so that lanes can move 16 bytes at a time.
///
/// ```
/// assert!(trueno_gpu::kernels::packed::PACK_ALIGN_BYTES.is_power_of_two());
/// ```
pub const PACK_ALIGN_BYTES: u32 = 16;

/// Bits of the length in the high half.
pub(super) const LEN_MASK: u32 = 0x1fff;
/// Position of the kind in the high half.
pub(super) const KIND_SHIFT: u32 = 13;
/// Position of the state in the high half.
pub(super) const STATE_SHIFT: u32 = 30;
/// State of an entry whose length and kind are known, but not its place.
pub(super) const STATE_SIZED: u32 = 1;
/// State of a complete entry.
pub(super) const STATE_PLACED: u32 = 3;

/// Returns the number of a kind in the index.
pub(super) const fn kind_code(kind: PageKind) -> u32 {
    kind as u32
}

/// Rounds a length up to the alignment of packed pages.
pub(in crate::kernels) fn align_up(len: Reg<'_, u32>) -> Reg<'_, u32> {
    (len + (PACK_ALIGN_BYTES - 1)) & !(PACK_ALIGN_BYTES - 1)
}

/// One entry of the index.
///
/// ```
/// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
/// let entry = PackedEntry::new(48, 1234, PageKind::Lz4);
/// assert_eq!((entry.offset_bytes(), entry.len_bytes(), entry.is_placed()), (48, 1234, true));
/// assert_eq!(PackedEntry::from_bits(entry.bits()), entry);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedEntry(u64);

impl PackedEntry {
    /// Number of bytes in an entry, as the device stores it.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::PackedEntry;
    /// let index = vec![0; 1000 * PackedEntry::BYTES]; // for a batch of 1000 pages
    /// assert_eq!(index.len(), 8000);
    /// ```
    pub const BYTES: usize = size_of::<u64>();

    /// Makes a complete entry.
    ///
    /// # Panics
    /// If the offset is not a multiple of [`PACK_ALIGN_BYTES`] or is above 64 GiB, or if the length is above 8191.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// let raw = PackedEntry::new(0, 4096, PageKind::Raw);
    /// let next = PackedEntry::new(raw.offset_bytes() + 4096, 8, PageKind::SameFilled);
    /// assert!(next.is_placed());
    /// assert_eq!(next.offset_bytes(), 4096);
    /// ```
    #[must_use]
    pub fn new(offset_bytes: u64, len_bytes: u16, kind: PageKind) -> Self {
        let len_bytes = u32::from(len_bytes);
        assert!(len_bytes <= LEN_MASK, "a length of {len_bytes} bytes does not fit 13 bits");
        let align = u64::from(PACK_ALIGN_BYTES);
        assert!(offset_bytes.is_multiple_of(align), "offset {offset_bytes} is not a multiple of {align}");
        let place = u32::try_from(offset_bytes / align).expect("a batch has at most 64 GiB");
        let high = len_bytes | kind_code(kind) << KIND_SHIFT | STATE_PLACED << STATE_SHIFT;
        Self(u64::from(place) | u64::from(high) << 32)
    }

    /// Takes an entry as the device stores it. Any bits are accepted.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// let stored = 3 | 1234 << 32 | 1 << 45 | 3 << 62; // place, length, kind, state
    /// assert_eq!(PackedEntry::from_bits(stored), PackedEntry::new(48, 1234, PageKind::Lz4));
    /// ```
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the entry as the device stores it.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// let index = [PackedEntry::new(0, 8, PageKind::SameFilled), PackedEntry::new(16, 900, PageKind::Lz4)];
    /// let for_the_device: Vec<u8> = index.iter().flat_map(|entry| entry.bits().to_le_bytes()).collect();
    /// assert_eq!(for_the_device[8], 1); // in units of 16 bytes
    /// ```
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the start of the page in the packed output, in bytes.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// let packed = [7; 64];
    /// let entry = PackedEntry::new(32, 8, PageKind::SameFilled);
    /// let start = usize::try_from(entry.offset_bytes()).unwrap();
    /// assert_eq!(packed[start..].len(), 32);
    /// ```
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        (self.0 & 0xffff_ffff) * PACK_ALIGN_BYTES as u64
    }

    /// Returns the number of bytes that hold the page.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// let index = [PackedEntry::new(0, 8, PageKind::SameFilled), PackedEntry::new(16, 900, PageKind::Lz4)];
    /// let held: u32 = index.iter().map(|entry| u32::from(entry.len_bytes())).sum();
    /// assert_eq!(held, 908);
    /// ```
    #[must_use]
    pub const fn len_bytes(self) -> u16 {
        let [_, _, _, _, low, high, _, _] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high & 0x1f])
    }

    /// Returns the form in which the page is held.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// assert_eq!(PackedEntry::new(0, 4096, PageKind::Raw).kind(), PageKind::Raw);
    /// ```
    #[must_use]
    pub const fn kind(self) -> PageKind {
        match (self.0 >> (32 + KIND_SHIFT)) & 3 {
            0 => PageKind::SameFilled,
            1 => PageKind::Lz4,
            2 => PageKind::Zstd,
            _ => PageKind::Raw,
        }
    }

    /// Returns `true` if the entry is complete.
    ///
    /// ```
    /// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
    /// let complete = PackedEntry::new(16, 900, PageKind::Lz4);
    /// let only_sized = PackedEntry::from_bits(complete.bits() & !(1 << 63));
    /// assert!(complete.is_placed() && !only_sized.is_placed());
    /// ```
    #[must_use]
    pub const fn is_placed(self) -> bool {
        self.0 >> (32 + STATE_SHIFT) == STATE_PLACED as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_with_its_own_number() {
        for kind in [PageKind::SameFilled, PageKind::Lz4, PageKind::Zstd, PageKind::Raw] {
            let entry = PackedEntry::new(48, 1234, kind);
            assert_eq!((entry.kind(), entry.offset_bytes(), entry.len_bytes()), (kind, 48, 1234));
            assert_eq!(entry.bits() >> 45 & 3, kind as u64, "{kind}");
        }
    }
}
