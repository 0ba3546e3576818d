//! The operations that the encoder needs from an instruction set, and the portable implementation.

use super::Scratch;
use super::block::BlockWriter;
use super::padded::Padded;
use super::search::{Appended, Match, Search, append};
use super::sketch::Sketch;
use super::strategy::Strategy;
use crate::cpu::Scalar;
use crate::page::Page;

/// Bytes per comparison.
pub(super) const BLOCK: usize = 32;

/// An instruction set of the encoder: a token that proves the CPU has the instructions.
///
/// Each method is the same function for every instruction set, so the encoder's output is the same too. `equal_mask` maps
/// to one 256-bit compare, two 128-bit compares (Neon: `vceqq_u8`, then narrowing the lanes to bits), or arithmetic.
pub(super) trait Compare: Copy {
    /// Returns a mask in which bit `i` is set if `a[i] == b[i]`.
    fn equal_mask(self, a: &[u8; BLOCK], b: &[u8; BLOCK]) -> u32;

    /// Returns the word. The compiler may not compute it together with others, in a vector register or by a shift of one of
    /// them: either lengthens the path from a hit to the next probe.
    fn opaque(self, word: u64) -> u64;

    /// [`append`] in a function of its own: in line, it would take registers from the usual paths.
    fn append(self, block: BlockWriter<'_>, page: &Padded, literals_start: usize, found: Match) -> Appended;
}

/// [`Padded::load`] in plain code.
#[inline(never)]
pub(super) fn load(scalar: Scalar, padded: &mut Padded, page: &Page) -> Sketch {
    padded.load(scalar, page)
}

/// [`Search::encode`] in plain code.
#[inline(never)]
pub(super) fn encode<S: Strategy>(scalar: Scalar, scratch: &mut Scratch, out: &mut Page) -> Option<usize> {
    Search::new(scalar, scratch, out).encode::<S>()
}

impl Compare for Scalar {
    #[inline(always)]
    fn equal_mask(self, a: &[u8; BLOCK], b: &[u8; BLOCK]) -> u32 {
        const LOW_SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        // Bit 0 of byte i of the factor ends up in bit i of the product's top byte: one term per byte, no carries.
        const GATHER: u64 = 0x0102_0408_1020_4080;
        let (a, b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
        a.iter().zip(b).rev().fold(0, |mask, (a, b)| {
            let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
            let zero_bytes = !(((differing & LOW_SEVEN) + LOW_SEVEN) | differing | LOW_SEVEN);
            let bits = (zero_bytes >> 7).wrapping_mul(GATHER).to_le_bytes()[7];
            mask << 8 | u32::from(bits)
        })
    }

    #[inline(always)]
    fn opaque(self, word: u64) -> u64 {
        word
    }

    #[inline(never)]
    fn append(self, block: BlockWriter<'_>, page: &Padded, literals_start: usize, found: Match) -> Appended {
        append(self, block, page, literals_start, found)
    }
}
