//! The encoder's only vector primitive, and its portable implementation.

use crate::cpu::Scalar;

/// Bytes per comparison.
pub(super) const BLOCK: usize = 32;

/// An instruction set of the encoder: a token that proves the CPU has the instructions.
///
/// The primitive is the same function for every instruction set, so the encoder's output is the same too. It maps to
/// one 256-bit compare, two 128-bit compares (Neon: `vceqq_u8`, then narrowing the lanes to bits), or arithmetic.
pub(super) trait Compare: Copy {
    /// Returns a mask in which bit `i` is set if `a[i] == b[i]`.
    fn equal_mask(self, a: &[u8; BLOCK], b: &[u8; BLOCK]) -> u32;
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
}
