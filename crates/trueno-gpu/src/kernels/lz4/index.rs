//! The index of a packed batch: one word of 64 bits a page, written by the compressor, read by the decompressor and the host.
//!
//! | bits | meaning |
//! | --- | --- |
//! | 0 to 31 | where the page starts in the packed output, in units of 16 bytes |
//! | 32 to 44 | its length in bytes |
//! | 45 to 46 | how it is held: [`PageKind`] |
//! | 47 to 61 | zero |
//! | 62 to 63 | what is known so far: nothing, length and kind, or all |

/// Pages start at multiples of this many bytes in the packed output, so that lanes can move 16 bytes at a time.
///
/// ```
/// assert!(trueno_gpu::kernels::lz4::PACK_ALIGN_BYTES.is_power_of_two());
/// ```
pub const PACK_ALIGN_BYTES: u32 = 16;

/// Kind field of a page held as its 8-byte word.
pub(super) const KIND_SAME_FILLED: u32 = 0;
/// Kind field of a page held as an LZ4 block.
pub(super) const KIND_LZ4: u32 = 1;
/// Kind field of a page held as it is.
pub(super) const KIND_RAW: u32 = 3;

/// In the high half: the length's bits.
pub(super) const LEN_MASK: u32 = 0x1fff;
/// In the high half: where the kind starts.
pub(super) const KIND_SHIFT: u32 = 13;
/// In the high half: where the state starts.
pub(super) const STATE_SHIFT: u32 = 30;
/// Length and kind are known, the place is not yet.
pub(super) const STATE_SIZED: u32 = 1;
/// All is known.
pub(super) const STATE_PLACED: u32 = 3;

/// How a packed page is held.
///
/// ```
/// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
/// let entry = PackedEntry::new(48, 1234, PageKind::Lz4);
/// assert_eq!(entry.kind(), Some(PageKind::Lz4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// One 8-byte word, repeated; the word is held.
    SameFilled,
    /// An LZ4 block. The compressor's are shorter than the page; the decompressor takes longer ones, too.
    Lz4,
    /// The page itself.
    Raw,
}

/// One word of the index.
///
/// ```
/// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
/// let entry = PackedEntry::new(48, 1234, PageKind::Lz4);
/// assert_eq!((entry.offset_bytes(), entry.len_bytes(), entry.is_placed()), (48, 1234, true));
/// assert_eq!(PackedEntry::from_bits(entry.bits()), entry);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedEntry(u64);

impl PackedEntry {
    /// An entry that is complete.
    ///
    /// # Panics
    /// If the offset is no multiple of [`PACK_ALIGN_BYTES`] or over 64 GiB, or the length over 8191.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
    /// let raw = PackedEntry::new(0, 4096, PageKind::Raw);
    /// let next = PackedEntry::new(raw.offset_bytes() + 4096, 8, PageKind::SameFilled);
    /// assert!(next.is_placed());
    /// assert_eq!(next.offset_bytes(), 4096);
    /// ```
    #[must_use]
    pub fn new(offset_bytes: u64, len_bytes: u16, kind: PageKind) -> Self {
        let kind = match kind {
            PageKind::SameFilled => KIND_SAME_FILLED,
            PageKind::Lz4 => KIND_LZ4,
            PageKind::Raw => KIND_RAW,
        };
        let len_bytes = u32::from(len_bytes);
        assert!(len_bytes <= LEN_MASK, "a length has 13 bits: {len_bytes}");
        let align = u64::from(PACK_ALIGN_BYTES);
        assert!(offset_bytes.is_multiple_of(align), "pages start at multiples of {align}: {offset_bytes}");
        let place = u32::try_from(offset_bytes / align).expect("a batch has 64 GiB at most");
        let high = len_bytes | kind << KIND_SHIFT | STATE_PLACED << STATE_SHIFT;
        Self(u64::from(place) | u64::from(high) << 32)
    }

    /// An entry as the device stores it; any bits will do.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
    /// let stored = 3 | 1234 << 32 | 1 << 45 | 3 << 62; // place, length, kind, state
    /// assert_eq!(PackedEntry::from_bits(stored), PackedEntry::new(48, 1234, PageKind::Lz4));
    /// ```
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As the device stores it.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
    /// let index = [PackedEntry::new(0, 8, PageKind::SameFilled), PackedEntry::new(16, 900, PageKind::Lz4)];
    /// let for_the_device: Vec<u8> = index.iter().flat_map(|entry| entry.bits().to_le_bytes()).collect();
    /// assert_eq!(for_the_device[8], 1); // in units of 16 bytes
    /// ```
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Where the page starts.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
    /// let packed = [7; 64];
    /// let entry = PackedEntry::new(32, 8, PageKind::SameFilled);
    /// let start = usize::try_from(entry.offset_bytes()).unwrap();
    /// assert_eq!(packed[start..].len(), 32);
    /// ```
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        (self.0 & 0xffff_ffff) * PACK_ALIGN_BYTES as u64
    }

    /// Bytes held.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
    /// let index = [PackedEntry::new(0, 8, PageKind::SameFilled), PackedEntry::new(16, 900, PageKind::Lz4)];
    /// let held: u32 = index.iter().map(|entry| u32::from(entry.len_bytes())).sum();
    /// assert_eq!(held, 908);
    /// ```
    #[must_use]
    pub const fn len_bytes(self) -> u16 {
        let [_, _, _, _, low, high, _, _] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high & 0x1f])
    }

    /// How it is held; `None` for bits that no compressor writes.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
    /// assert_eq!(PackedEntry::new(0, 4096, PageKind::Raw).kind(), Some(PageKind::Raw));
    /// assert_eq!(PackedEntry::from_bits(2 << 45).kind(), None);
    /// ```
    #[must_use]
    pub const fn kind(self) -> Option<PageKind> {
        match (self.0 >> (32 + KIND_SHIFT)) & 3 {
            0 => Some(PageKind::SameFilled),
            1 => Some(PageKind::Lz4),
            3 => Some(PageKind::Raw),
            _ => None,
        }
    }

    /// Whether the compressor is done with it.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::{PackedEntry, PageKind};
    /// let complete = PackedEntry::new(16, 900, PageKind::Lz4);
    /// let only_sized = PackedEntry::from_bits(complete.bits() & !(1 << 63));
    /// assert!(complete.is_placed() && !only_sized.is_placed());
    /// ```
    #[must_use]
    pub const fn is_placed(self) -> bool {
        self.0 >> (32 + STATE_SHIFT) == STATE_PLACED as u64
    }
}
