//! A rough picture of a page's content, from a quarter of its bytes.

/// Bytes of the page per sample. The first [`BLOCK`](super::compare::BLOCK) of them are looked at.
pub(super) const GROUP: usize = 128;

/// Samples that are compared with each other: a quarter of a page.
pub(super) const GROUPS_PER_PART: usize = 8;

/// A rough picture of a page's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sketch {
    /// Sampled 64-bit words with their upper 16 bits clear: pointers, counters, lengths.
    pub(super) small_words: u32,
    /// `true` if a part of the page is an array of records, of a length that divides [`GROUP`]: its zeros are in the same
    /// places of almost every sample.
    pub(super) has_records: bool,
}

impl Sketch {
    /// The number of sampled words.
    pub(super) const WORDS: u32 = 128;

    pub(super) const EMPTY: Self = Self { small_words: 0, has_records: false };

    #[inline(always)]
    pub(super) fn add(&mut self, part: SketchPart) {
        self.small_words += part.small_words;
        self.has_records |= part.is_array();
    }
}

/// The samples of a part of the page.
pub(super) struct SketchPart {
    small_words: u32,
    /// A bit per byte of a sample: zero in all samples.
    always_zero: u32,
    /// A bit per byte of a sample: zero in any sample.
    ever_zero: u32,
}

impl SketchPart {
    pub(super) const EMPTY: Self = Self { small_words: 0, always_zero: u32::MAX, ever_zero: 0 };

    /// Adds a sample, given as a mask of its bytes that are zero.
    #[inline(always)]
    pub(super) fn add(&mut self, zero: u32) {
        /// The last byte but one of each word.
        const UPPER: u32 = 0x4040_4040;
        self.small_words += (zero & zero >> 1 & UPPER).count_ones();
        self.always_zero &= zero;
        self.ever_zero |= zero;
    }

    /// Returns `true` if the zeros of the samples are in the same places. At least an eighth of the bytes must be zero in all samples
    /// and an eighth in none; at most a quarter may vary.
    #[inline(always)]
    fn is_array(&self) -> bool {
        let varying = self.ever_zero & !self.always_zero;
        // Without short circuits: their branches would be mispredicted.
        (self.always_zero.count_ones() >= 4) & (self.ever_zero.count_zeros() >= 4) & (varying.count_ones() <= 8)
    }
}
