//! Reads bits and bytes of a frame in global memory, and refuses frames.

use crate::kernels::packed::{PackedPage, PageStatus, align_up};
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, ScopeLabel, Var};

/// The relation between the positions that the lanes read.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum LaneAccess {
    /// All lanes read the same place, so the result is uniform.
    Uniform,
    /// Each lane reads its own place.
    PerLane,
}

/// A frame in global memory, and the way out if it is refused.
#[derive(Clone, Copy)]
pub(super) struct Frame<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) lane: Reg<'k, u32>,
    /// All lanes read this frame, or each lane reads its own.
    pub(super) lanes: LaneAccess,
    pub(super) words: Addr<'k, Global, u32>,
    /// Number of bytes.
    pub(super) len: Reg<'k, u32>,
    /// Index of the last word, which may lie partly past the end.
    pub(super) last_word: Reg<'k, u32>,
    /// A register of 0, for shifts that take two words.
    pub(super) zero: Reg<'k, u32>,
    /// Left when the frame is refused.
    pub(super) refuse: ScopeLabel<'k>,
    /// Status of the page if it is refused; at first [`PageStatus::BadBlock`].
    pub(super) refused_as: Var<'k, u32>,
}

impl<'k> Frame<'k> {
    /// The frame of a page that all lanes restore together.
    pub(super) fn of_warp(
        k: &'k KernelBuilder,
        lane: Reg<'k, u32>,
        page: &PackedPage<'k>,
        refuse: ScopeLabel<'k>,
        refused_as: Var<'k, u32>,
    ) -> Self {
        let last_word = (align_up(page.len) >> 2) - 1;
        let (words, zero) = (page.start(), k.value(0u32));
        Self { k, lane, lanes: LaneAccess::Uniform, words, len: page.len, last_word, zero, refuse, refused_as }
    }

    /// Refuses the frame as malformed if `p` holds, which all lanes of a frame that they share must agree on.
    pub(super) fn malformed_if(self, p: Pred<'k>) {
        self.refuse.exit_if(p);
    }

    /// Leaves the frame to the CPU if `p` holds, which all lanes of a frame that they share must agree on.
    pub(super) fn unsupported_if(self, p: Pred<'k>) {
        self.k.when(p).set(self.refused_as, PageStatus::Unsupported as u32);
        self.refuse.exit_if(p);
    }

    pub(super) fn load(addr: Addr<'k, Global, u32>, lanes: LaneAccess) -> Reg<'k, u32> {
        match lanes {
            LaneAccess::Uniform => addr.load_uniform(),
            LaneAccess::PerLane => addr.load(),
        }
    }

    /// Returns 32 bits from bit `bit` on, for any `bit`. Those past the last word have no meaning.
    pub(super) fn window(self, bit: Reg<'k, u32>, lanes: LaneAccess) -> Reg<'k, u32> {
        let word = bit >> 5;
        let low = Self::load(self.words.index(word.min(self.last_word)), lanes);
        let high = Self::load(self.words.index((word + 1).min(self.last_word)), lanes);
        low.funnel_shr(high, bit)
    }

    /// Returns the 32 bits below bit `end`, which is at least 32 and inside the frame.
    pub(super) fn window_below(self, end: Reg<'k, u32>, lanes: LaneAccess) -> Reg<'k, u32> {
        let word = self.words.index(end >> 5);
        Self::load(word.at(-1), lanes).funnel_shr(Self::load(word, lanes), end)
    }

    /// Returns the bits after the top `count` bits, moved up, where only the low five bits of `count` matter.
    pub(super) fn after_top(self, bits: Reg<'k, u32>, count: Reg<'k, u32>) -> Reg<'k, u32> {
        self.zero.funnel_shl(bits, count)
    }

    /// Returns the byte at `at`, for any `at`. Past the last word it has no meaning.
    pub(super) fn byte(self, at: Reg<'k, u32>, lanes: LaneAccess) -> Reg<'k, u32> {
        Self::load(self.words.index((at >> 2).min(self.last_word)), lanes).bfe((at & 3) * 8, 8u32)
    }
}

/// 32 words of a frame, one per lane, in the lane of their index modulo 32.
#[derive(Clone, Copy)]
pub(super) struct FrameChunk<'k> {
    held: Reg<'k, u32>,
}

impl<'k> Frame<'k> {
    /// Loads the 32 words from that of bit `bit` on. Those past the last word have no meaning.
    pub(super) fn chunk(self, bit: Reg<'k, u32>) -> FrameChunk<'k> {
        let first = bit >> 5;
        let word = first + ((self.lane - first) & 31);
        FrameChunk { held: Self::load(self.words.index(word.min(self.last_word)), LaneAccess::PerLane) }
    }
}

impl<'k> FrameChunk<'k> {
    /// The number of bits from the first on that a window may start at.
    pub(super) const BITS: u32 = 30 * 32;

    /// Returns 32 bits from bit `bit` of the frame on; uniform, as `bit` must be.
    pub(super) fn window(self, bit: Reg<'k, u32>) -> Reg<'k, u32> {
        let word = bit >> 5;
        self.held.shfl(word).funnel_shr(self.held.shfl(word + 1), bit)
    }
}

/// Returns the top `count` bits of `bits`, where only the low five bits of `count` matter.
pub(super) fn top_bits<'k>(bits: Reg<'k, u32>, count: Reg<'k, u32>) -> Reg<'k, u32> {
    bits.funnel_shl(0u32, count)
}
