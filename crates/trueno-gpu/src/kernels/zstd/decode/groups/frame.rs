//! Reads frames in global memory, one per lane.

use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Var};

/// Registers for loads that only some lanes do. What is loaded under a guard occupies its register from its last
/// assignment in all lanes on, so the first stage assigns a few at its start and uses them throughout.
#[derive(Clone, Copy)]
pub(super) struct GuardedLoads<'k> {
    /// Words of a frame.
    pub(super) words: [Var<'k, u32>; 2],
    /// Words of a frame on their way to shared memory.
    pub(super) chunk: [Var<'k, u32>; 4],
    /// Entries of tables.
    pub(super) entries: [Var<'k, u32>; 3],
    /// Codes of lengths.
    pub(super) codes: [Var<'k, u32>; 2],
}

impl<'k> GuardedLoads<'k> {
    pub(super) fn new(k: &'k KernelBuilder) -> Self {
        let zero = |()| k.var(0u32);
        Self {
            words: [(); 2].map(zero),
            chunk: [(); 4].map(zero),
            entries: [(); 3].map(zero),
            codes: [(); 2].map(zero),
        }
    }
}

/// The lane's frame. Lanes that have none, or are done with theirs, read nothing.
#[derive(Clone, Copy)]
pub(super) struct LaneFrame<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) words: Addr<'k, Global, u32>,
    /// Index of the last word, which may lie partly past the end.
    pub(super) last_word: Reg<'k, u32>,
    pub(super) loads: GuardedLoads<'k>,
}

impl<'k> LaneFrame<'k> {
    /// Loads a word into one of two registers.
    fn word<const I: usize>(self, wanted: Pred<'k>, index: Reg<'k, u32>) -> Reg<'k, u32> {
        let word = self.loads.words[I];
        self.k.when(wanted).load(word, self.words.index(index));
        word.get()
    }

    /// Returns 32 bits from bit `bit` on, for any `bit`. Those past the last word have no meaning.
    pub(super) fn window(self, wanted: Pred<'k>, bit: Reg<'k, u32>) -> Reg<'k, u32> {
        let index = bit >> 5;
        let low = self.word::<0>(wanted, index.min(self.last_word));
        let high = self.word::<1>(wanted, (index + 1).min(self.last_word));
        low.funnel_shr(high, bit)
    }

    /// Returns the 32 bits below bit `end`, which is inside the frame or before it. Below bit 32 they have no meaning.
    pub(super) fn window_below(self, wanted: Pred<'k>, end: Reg<'k, i32>) -> Reg<'k, u32> {
        let end = end.max(32i32).as_u32();
        let index = end >> 5;
        let (low, high) = (self.word::<0>(wanted, index - 1), self.word::<1>(wanted, index));
        low.funnel_shr(high, end)
    }

    /// Returns the byte at `at`, which is inside the frame.
    pub(super) fn byte(self, wanted: Pred<'k>, at: Reg<'k, u32>) -> Reg<'k, u32> {
        self.word::<0>(wanted, (at >> 2).min(self.last_word)).bfe((at & 3) * 8, 8u32)
    }
}
