//! Intended narrowing conversions.
#![expect(clippy::cast_possible_truncation, reason = "dropping the high part is the purpose")]

#[inline]
pub(super) const fn low32(v: u64) -> u32 {
    v as u32
}

#[inline]
pub(super) const fn low32_of(v: u128) -> u32 {
    v as u32
}

#[inline]
pub(super) const fn low64_of(v: u128) -> u64 {
    v as u64
}

#[inline]
pub(super) const fn low8(v: u32) -> u8 {
    v as u8
}

/// Returns the number of a lane, or of one of at most 32 things.
#[inline]
pub(super) const fn lane_u32(lane: usize) -> u32 {
    lane as u32
}

#[inline]
pub(super) const fn lane_u8(lane: usize) -> u8 {
    lane as u8
}
