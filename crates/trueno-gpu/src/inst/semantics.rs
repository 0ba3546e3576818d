//! The results of single lanes, where the PTX ISA has edge cases.

use crate::ir::{AtomOp, ShflMode};

/// Returns the low 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "dropping the high half is the purpose")]
pub(super) const fn low(v: u64) -> u32 {
    v as u32
}

/// Returns the high 32 bits.
pub(super) const fn high(v: u64) -> u32 {
    low(v >> 32)
}

/// Joins two halves.
pub(super) const fn pack(lo: u32, hi: u32) -> u64 {
    (hi as u64) << 32 | lo as u64
}

/// Shifts left. Shifts clamp: an amount of 32 or more shifts all bits out.
pub(super) fn shl32(a: u32, n: u32) -> u32 {
    a.checked_shl(n).unwrap_or(0)
}

pub(super) fn shr32(a: u32, n: u32) -> u32 {
    a.checked_shr(n).unwrap_or(0)
}

pub(super) fn sar32(a: u32, n: u32) -> u32 {
    (a.cast_signed() >> n.min(31)).cast_unsigned()
}

pub(super) fn shl64(a: u64, n: u32) -> u64 {
    a.checked_shl(n).unwrap_or(0)
}

pub(super) fn shr64(a: u64, n: u32) -> u64 {
    a.checked_shr(n).unwrap_or(0)
}

/// `shf.l`: the high half of `hi:lo << n`, for n up to 32.
pub(super) fn funnel_left(lo: u32, hi: u32, n: u32) -> u32 {
    high(pack(lo, hi) << n)
}

/// `shf.r`: the low half of `hi:lo >> n`, for n up to 32.
pub(super) fn funnel_right(lo: u32, hi: u32, n: u32) -> u32 {
    low(pack(lo, hi) >> n)
}

/// Returns the position of the highest set bit; all ones for 0.
pub(super) fn bfind(a: u32) -> u32 {
    31u32.wrapping_sub(a.leading_zeros())
}

/// Like [`bfind`], but returns the left shift that moves the bit to position 31.
pub(super) fn bfind_shiftamt(a: u32) -> u32 {
    if a == 0 { u32::MAX } else { a.leading_zeros() }
}

/// `bfe.u32`: `len` bits from bit `pos`; bits past 31 read as 0. Only the low bytes of `pos` and `len` count.
pub(super) fn bfe(a: u32, pos: u32, len: u32) -> u32 {
    let len = len & 0xff;
    let field = shr32(a, pos & 0xff);
    if len >= 32 { field } else { field & !(u32::MAX << len) }
}

/// `lop3`: bit `a*4 + b*2 + c` of the table for each bit position.
pub(super) fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let row = |index: u32, bits: u32| if table >> index & 1 == 1 { bits } else { 0 };
    row(0, !a & !b & !c)
        | row(1, !a & !b & c)
        | row(2, !a & b & !c)
        | row(3, !a & b & c)
        | row(4, a & !b & !c)
        | row(5, a & !b & c)
        | row(6, a & b & !c)
        | row(7, a & b & c)
}

/// `prmt`: four bytes of `b:a`, chosen by the nibbles of the selector. Bit 3 of a nibble replicates the sign of the
/// byte instead.
pub(super) fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = pack(a, b).to_le_bytes();
    u32::from_le_bytes(std::array::from_fn(|i| {
        let nibble = selector >> (4 * i) & 0xf;
        let byte = bytes[(nibble & 7) as usize];
        match nibble & 8 {
            0 => byte,
            _ if byte & 0x80 != 0 => 0xff,
            _ => 0,
        }
    }))
}

/// Returns the bits of a float result. The hardware returns a single NaN.
fn canonical(v: f32) -> u32 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
}

pub(super) fn float1(a: u32, f: fn(f32) -> f32) -> u32 {
    canonical(f(f32::from_bits(a)))
}

pub(super) fn float2(a: u32, b: u32, f: fn(f32, f32) -> f32) -> u32 {
    canonical(f(f32::from_bits(a), f32::from_bits(b)))
}

/// Flushes subnormals to zero of the same sign.
fn flush(v: f32) -> f32 {
    if v.is_subnormal() { 0f32.copysign(v) } else { v }
}

/// `rcp.approx.ftz.f32`. The error of the hardware is at most one unit in the last place. This function returns the
/// rounded quotient, so results are equal within one unit, and exact for powers of two.
pub(super) fn reciprocal(v: f32) -> f32 {
    flush(1.0 / flush(v))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates and maps NaN to 0, as cvt.rzi does"
)]
pub(super) fn to_u32(a: u32) -> u32 {
    f32::from_bits(a) as u32
}

#[expect(clippy::cast_precision_loss, reason = "`as` rounds to nearest even, as cvt.rn does")]
pub(super) fn from_u32(a: u32) -> u32 {
    (a as f32).to_bits()
}

/// Returns the lane that a shuffle reads, and `true` if it is in range (if not, the lane reads itself). Only the low five
/// bits of `operand` count.
///
/// ```
/// use trueno_gpu::{inst::shfl_source, ir::ShflMode};
/// assert_eq!(shfl_source(ShflMode::Up, 5, 2), (3, true));
/// assert_eq!(shfl_source(ShflMode::Up, 1, 2), (1, false));
/// assert_eq!(shfl_source(ShflMode::Idx, 9, 35), (3, true));
/// ```
#[must_use]
pub fn shfl_source(mode: ShflMode, lane: u32, operand: u32) -> (u32, bool) {
    let step = operand & 31;
    // A source below lane 0 wraps to a large number.
    let source = match mode {
        ShflMode::Idx => step,
        ShflMode::Up => lane.wrapping_sub(step),
        ShflMode::Down => lane + step,
        ShflMode::Bfly => lane ^ step,
    };
    let in_range = source < 32;
    (if in_range { source } else { lane }, in_range)
}

/// Returns the value that an atomic stores.
///
/// ```
/// use trueno_gpu::{inst::atomic_result, ir::AtomOp};
/// assert_eq!(atomic_result(AtomOp::Add, 0xffff_ffff, 2), 1);
/// assert_eq!(atomic_result(AtomOp::Or, 5, 2), 7);
/// ```
#[must_use]
pub const fn atomic_result(op: AtomOp, old: u32, value: u32) -> u32 {
    match op {
        AtomOp::Add => old.wrapping_add(value),
        AtomOp::Or => old | value,
    }
}
