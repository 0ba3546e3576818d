//! Tables of the format that all warps of a block share: codes of lengths and offsets, and predefined counts.

use super::format::CODE_KINDS;
use crate::types::Shared;
use crate::{Addr, KernelBuilder, Pred, Reg};

/// Position of the number of extra bits in a code's word. The baseline is below.
pub(super) const EXTRA_SHIFT: u32 = 24;

/// Number of words with two counts each, one per lane.
const COUNT_WORDS: u32 = 32;

/// Numbers of codes before each kind's.
const CODES_BEFORE: [u32; 3] = [0, code_count(0), code_count(0) + code_count(1)];
const CODE_WORDS: u32 = (CODES_BEFORE[2] + code_count(2)).next_multiple_of(4);

pub(super) const CONSTANT_BYTES: u32 = 4 * (CODE_WORDS + 3 * COUNT_WORDS);

const fn code_count(kind: usize) -> u32 {
    CODE_KINDS[kind].limits.max_symbol + 1
}

/// The tables in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Constants<'k> {
    base: Addr<'k, Shared, u32>,
}

impl<'k> Constants<'k> {
    /// Declares the tables and fills them. All warps of a block must call it.
    pub(super) fn fill(k: &'k KernelBuilder, lane: Reg<'k, u32>) -> Self {
        let constants = Self { base: k.shared_per_block("constants", CONSTANT_BYTES, 16).base::<u32>() };
        constants.store(k, k.thread_id().eq(lane) & lane.eq(0));
        k.sync_block();
        constants
    }

    /// Fills tables at shared address `at`, which are one warp's own.
    pub(super) fn fill_for_warp(k: &'k KernelBuilder, lane: Reg<'k, u32>, at: Reg<'k, u32>) -> Self {
        let constants = Self { base: at.shared() };
        constants.store(k, lane.eq(0));
        k.sync_warp();
        constants
    }

    fn store(self, k: &'k KernelBuilder, is_first: Pred<'k>) {
        k.section("constants");
        for (at, words) in (0..).zip(words().as_chunks::<4>().0) {
            k.when(is_first).store_vec(self.base.at(4 * at), *words);
        }
    }

    /// Returns the words of a kind's codes, by number: literal lengths, offsets, match lengths.
    pub(super) fn codes(self, kind: usize) -> Addr<'k, Shared, u32> {
        self.base.at(CODES_BEFORE[kind].cast_signed())
    }

    /// Returns the words of the codes of a kind that is only known at run time.
    pub(super) fn codes_of(self, kind: Reg<'k, u32>) -> Addr<'k, Shared, u32> {
        let before = kind.eq(2).select(CODES_BEFORE[2], CODES_BEFORE[1]);
        self.base.index(kind.eq(0).select(0u32, before))
    }

    /// Returns the lane's two predefined counts of a kind that is only known at run time.
    pub(super) fn counts_of(self, kind: Reg<'k, u32>, lane: Reg<'k, u32>) -> Reg<'k, u32> {
        self.base.at(CODE_WORDS.cast_signed()).index(kind * COUNT_WORDS + lane).load()
    }
}

fn words() -> Vec<u32> {
    let codes = CODE_KINDS.iter().flat_map(|kind| kind.codes.iter());
    let mut words: Vec<u32> = codes.map(|(base, extra)| (base & 0xff_ffff) | extra << EXTRA_SHIFT).collect();
    words.resize(CODE_WORDS as usize, 0);
    for kind in CODE_KINDS {
        let mut counts = [0u16; 64];
        counts.iter_mut().zip(kind.predefined).for_each(|(slot, count)| *slot = count.cast_unsigned());
        words.extend(counts.as_chunks().0.iter().map(|[low, high]| u32::from(*low) | u32::from(*high) << 16));
    }
    words
}
