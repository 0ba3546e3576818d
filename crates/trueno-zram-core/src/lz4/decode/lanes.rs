//! Operations on 16 bytes at a time: what a back end of the decoder must provide.
#![forbid(unsafe_code)]

use crate::cpu::Scalar;

/// Bytes in a lane, the unit of every wide copy.
pub(super) const LANE: usize = 16;

/// The largest multiple of an offset below 16 that fits in a lane: how far a repeated pattern moves on.
pub(super) const STEP: [u8; LANE] = [16, 16, 16, 15, 16, 15, 12, 14, 16, 9, 10, 11, 12, 13, 14, 15];

/// A back end: a token that proves the CPU has its instructions.
///
/// The methods are inlined into a function compiled for those instructions. Neon fits the same
/// shape (`vqtbl1q_u8` is `repeat` and both shifts).
pub(super) trait Lanes: Copy {
    /// 16 bytes in a register.
    type Lane: Copy;

    /// Reads a lane.
    fn load(self, from: &[u8; LANE]) -> Self::Lane;

    /// Writes a lane.
    fn store(self, lane: Self::Lane, to: &mut [u8; LANE]);

    /// The first `offset` bytes repeated to fill the lane; the whole lane from offset 16 on.
    ///
    /// For offset 0, which no caller passes, the lane is unspecified.
    fn repeat(self, lane: Self::Lane, offset: usize) -> Self::Lane;

    /// The lane without its first `count` bytes, then unspecified bytes; `count` is at most 16.
    fn skip(self, lane: Self::Lane, count: usize) -> Self::Lane;

    /// The first `count` bytes of `head`, then `tail` as far as it fits; `count` is at most 16.
    fn join(self, head: Self::Lane, count: usize, tail: Self::Lane) -> Self::Lane;
}

/// Bits in `count` bytes, as a shift count.
#[inline(always)]
fn bits(count: usize) -> u32 {
    u32::try_from(count * 8).unwrap_or(u128::BITS)
}

/// `ONES[offset]` repeats a number of `offset` bytes over a word when multiplied with it.
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

/// The first 8 bytes of a lane.
#[inline(always)]
fn low_word(lane: u128) -> u64 {
    let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = lane.to_le_bytes();
    u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
}

impl Lanes for Scalar {
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
            // 8 to 15 bytes: twice fills the lane.
            let once = lane & !u128::MAX.unbounded_shl(bits(offset));
            return once | once.unbounded_shl(bits(offset));
        };
        let once = low_word(lane) & !u64::MAX.unbounded_shl(bits(offset));
        let low = once.wrapping_mul(ones);
        // The second word starts where the first one broke off.
        let phase = 8 % offset.max(1);
        let high = low.unbounded_shr(bits(phase)) | low.unbounded_shl(bits(offset - phase));
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline(always)]
    fn skip(self, lane: u128, count: usize) -> u128 {
        lane.unbounded_shr(bits(count))
    }

    #[inline(always)]
    fn join(self, head: u128, count: usize, tail: u128) -> u128 {
        let shift = bits(count);
        head & !u128::MAX.unbounded_shl(shift) | tail.unbounded_shl(shift)
    }
}

#[cfg(test)]
mod tests {
    use super::{LANE, Lanes, STEP};
    use crate::cpu::Scalar;

    /// Every operation against its definition, byte by byte.
    fn keeps_its_promises<L: Lanes>(lanes: L) {
        let bytes: [u8; LANE] = std::array::from_fn(|byte| 0x31 + 7 * u8::try_from(byte).unwrap());
        let other = bytes.map(|byte| byte ^ 0x80);
        let (lane, tail) = (lanes.load(&bytes), lanes.load(&other));
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
            let joined = read(lanes.join(lane, count, tail));
            assert_eq!(joined[..count], bytes[..count], "join {count}");
            assert_eq!(joined[count..], other[..LANE - count], "join {count}");
        }
    }

    #[test]
    fn scalar_keeps_its_promises() {
        keeps_its_promises(Scalar);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn avx2_keeps_its_promises() {
        if let Some(avx2) = crate::cpu::Avx2::detect() {
            keeps_its_promises(avx2);
        }
    }

    #[test]
    fn steps_are_the_largest_multiples() {
        for (offset, &step) in STEP.iter().enumerate().skip(1) {
            assert_eq!(usize::from(step), LANE / offset * offset);
        }
    }
}
