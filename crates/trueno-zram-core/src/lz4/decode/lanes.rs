//! Operations on 16 bytes at a time: what the decoder needs from an instruction set.
#![forbid(unsafe_code)]

use crate::cpu::Scalar;

/// Bytes per lane, the unit of every wide copy.
pub(super) const LANE: usize = 16;

/// For each offset below 16, the largest multiple that fits in a lane: the distance by which a repeated pattern
/// advances.
pub(super) const STEP: [u8; LANE] = [16, 16, 16, 15, 16, 15, 12, 14, 16, 9, 10, 11, 12, 13, 14, 15];

/// An instruction set's operations, implemented by the token that proves the CPU has it.
///
/// The methods are inlined into a function compiled for those instructions. Neon fits the same trait (`vqtbl1q_u8`
/// provides `repeat` and `skip`).
pub(super) trait LaneOperations: Copy {
    /// 16 bytes in a register.
    type Lane: Copy;

    /// Loads a lane.
    fn load(self, from: &[u8; LANE]) -> Self::Lane;

    /// Stores a lane.
    fn store(self, lane: Self::Lane, to: &mut [u8; LANE]);

    /// Repeats the first `offset` bytes to fill the lane. Returns the whole lane for offsets from 16 on.
    ///
    /// For offset 0, which no caller passes, the result is unspecified.
    fn repeat(self, lane: Self::Lane, offset: usize) -> Self::Lane;

    /// Drops the first `count` bytes, at most 16, and appends unspecified bytes.
    fn skip(self, lane: Self::Lane, count: usize) -> Self::Lane;
}

/// Returns the number of bits in `count` bytes, as a shift count.
#[inline(always)]
fn bits(count: usize) -> u32 {
    u32::try_from(count * 8).unwrap_or(u128::BITS)
}

/// Multiplying a number of `offset` bytes by `ONES[offset]` repeats it across a word.
const ONES: [u64; 8] = [
    0,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0001_0000_0100_0001,
    0x0000_0001_0000_0001,
    0x0000_0100_0000_0001,
    0x0001_0000_0000_0001,
    0x0100_0000_0000_0001,
];

/// Returns the first 8 bytes of a lane.
#[inline(always)]
fn low_word(lane: u128) -> u64 {
    let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = lane.to_le_bytes();
    u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
}

impl LaneOperations for Scalar {
    type Lane = u128;

    #[inline(always)]
    fn load(self, from: &[u8; LANE]) -> u128 {
        u128::from_le_bytes(*from)
    }

    #[inline(always)]
    fn store(self, lane: u128, to: &mut [u8; LANE]) {
        *to = lane.to_le_bytes();
    }

    #[inline(always)]
    fn repeat(self, lane: u128, offset: usize) -> u128 {
        if offset >= LANE {
            return lane;
        }
        let Some(&ones) = ONES.get(offset) else {
            // 8 to 15 bytes: two copies fill the lane.
            let once = lane & !u128::MAX.unbounded_shl(bits(offset));
            return once | once.unbounded_shl(bits(offset));
        };
        let once = low_word(lane) & !u64::MAX.unbounded_shl(bits(offset));
        let low = once.wrapping_mul(ones);
        // The second word continues where the first one ends.
        let phase = 8 % offset.max(1);
        let high = low.unbounded_shr(bits(phase)) | low.unbounded_shl(bits(offset - phase));
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline(always)]
    fn skip(self, lane: u128, count: usize) -> u128 {
        lane.unbounded_shr(bits(count))
    }
}

#[cfg(test)]
mod tests {
    use super::{LANE, LaneOperations, STEP};
    use crate::cpu::Scalar;

    /// Checks every operation against its definition, byte by byte.
    fn check_operations<L: LaneOperations>(lanes: L) {
        let bytes: [u8; LANE] = std::array::from_fn(|byte| 0x31 + 7 * u8::try_from(byte).unwrap());
        let lane = lanes.load(&bytes);
        let read = |lane| {
            let mut bytes = [0; LANE];
            lanes.store(lane, &mut bytes);
            bytes
        };
        assert_eq!(read(lane), bytes);
        for offset in 1..40 {
            let repeated: [u8; LANE] = std::array::from_fn(|byte| bytes[byte % offset]);
            assert_eq!(read(lanes.repeat(lane, offset)), repeated, "offset {offset}");
        }
        for count in 0..=LANE {
            assert_eq!(read(lanes.skip(lane, count))[..LANE - count], bytes[count..], "skip {count}");
        }
    }

    #[test]
    fn scalar_operations_match_their_definitions() {
        check_operations(Scalar);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn avx2_operations_match_their_definitions() {
        if let Some(avx2) = crate::cpu::Avx2::detect() {
            check_operations(avx2);
        }
    }

    #[test]
    fn steps_are_the_largest_multiples() {
        for (offset, &step) in STEP.iter().enumerate().skip(1) {
            assert_eq!(usize::from(step), LANE / offset * offset);
        }
    }
}
