//! Results of pure instructions, by the definitions of the PTX ISA: plain, bit by bit, from operands to result.

use trueno_gpu::inst::Op;

fn bit(v: u64, i: u64) -> u64 {
    if i < 64 { v >> i & 1 } else { 0 }
}

fn from_bits(count: u64, f: impl Fn(u64) -> u64) -> u64 {
    (0..count).fold(0, |v, i| v | f(i) << i)
}

/// Returns a 32-bit pattern as a signed number.
fn s32(v: u64) -> i128 {
    let v = i128::from(v);
    if v >= 1 << 31 { v - (1 << 32) } else { v }
}

/// Returns the low bits of a number in two's complement.
fn wrap(v: i128, bits: u32) -> u64 {
    u64::try_from(v.rem_euclid(1 << bits)).expect("below the modulus")
}

fn f(v: u64) -> f32 {
    f32::from_bits(u32::try_from(v).expect("a 32-bit pattern"))
}

fn float(v: f32) -> u64 {
    u64::from(if v.is_nan() { 0x7fff_ffff } else { v.to_bits() })
}

/// Highest set bit of `bits` bits; all ones if there is none ("bfind returns 0xffffffff if no non-sign bit is found").
fn bfind(v: u64, bits: u64) -> u64 {
    (0..bits).rev().find(|&i| bit(v, i) == 1).unwrap_or(0xffff_ffff)
}

fn ones(v: u64, bits: u64) -> u64 {
    (0..bits).map(|i| bit(v, i)).sum()
}

/// bfe: `d[i] = (i < len && pos + i <= 31) ? a[pos + i] : sbit`.
fn bfe(v: &[u64], signed: bool) -> u64 {
    let (a, pos, len) = (v[0], v[1] & 0xff, v[2] & 0xff);
    let sign = if !signed || len == 0 { 0 } else { bit(a, (pos + len - 1).min(31)) };
    from_bits(32, |i| if i < len && pos + i <= 31 { bit(a, pos + i) } else { sign })
}

/// shf: the 64 bits `hi:lo` shifted; `.l` keeps the upper half, `.r` the lower half.
fn shf(v: &[u64], left: bool, amount: u64) -> u64 {
    let both = v[1] << 32 | v[0];
    from_bits(32, |i| if left { bit(both, (32 + i).wrapping_sub(amount)) } else { bit(both, i + amount) })
}

/// prmt: byte `k` of the result is byte `nibble & 7` of `b:a`, or its sign in all bits.
fn prmt_bytes(a: u64, b: u64, nibbles: [u64; 4]) -> u64 {
    let source = b << 32 | a;
    (0..4).fold(0, |result, k: usize| {
        let nibble = nibbles[k];
        let byte = source >> ((nibble & 7) * 8) & 0xff;
        let byte = if nibble < 8 { byte } else { 0xff * (byte >> 7) };
        result | byte << (8 * k)
    })
}

/// cvt.rzi from f32 to an integer range: truncates and clamps; NaN becomes 0.
fn cvt_rzi(v: f32, min: i128, max: i128) -> i128 {
    if v.is_nan() {
        return 0;
    }
    let clamped = f64::from(v).trunc().clamp(-1e12, 1e12);
    #[expect(clippy::cast_possible_truncation, reason = "clamped just above")]
    let whole = clamped as i128;
    whole.clamp(min, max)
}

/// cvt.rn to f32: nearest, ties to even.
fn cvt_rn(v: i128) -> f32 {
    // Exact, since the numbers have 32 bits. Narrowing an f64 rounds to nearest even by IEEE 754.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "see above")]
    let nearest = (v as f64) as f32;
    nearest
}

/// Returns the result of an instruction. Operands are zero-extended to 64 bits; predicates are 0 and 1.
#[expect(clippy::too_many_lines, reason = "one line per instruction")]
pub(super) fn reference(op: Op, v: &[u64]) -> u64 {
    let a = v[0];
    let b = v.get(1).copied().unwrap_or(0);
    let c = v.get(2).copied().unwrap_or(0);
    let (x, y) = (i128::from(a), i128::from(b));
    let flag = |p: bool| u64::from(p);
    match op {
        Op::Mov32 | Op::Mov64 | Op::MovPred | Op::CvtU64U32 => a,
        Op::CvtU32U64 => a % (1 << 32),
        Op::HighHalf => a / (1 << 32),
        Op::Pack => b * (1 << 32) + a,
        Op::CvtF32U32 => float(cvt_rn(x)),
        Op::CvtU32F32 => wrap(cvt_rzi(f(a), 0, (1 << 32) - 1), 32),

        Op::AddU32 => wrap(x + y, 32),
        Op::SubU32 => wrap(x - y, 32),
        Op::MulLoU32 => wrap(x * y, 32),
        Op::MulHiU32 => wrap((x * y) >> 32, 32),
        Op::MadLoU32 => wrap(x * y + i128::from(c), 32),
        Op::AbsS32 => wrap(s32(a).abs(), 32),
        Op::MinU32 => {
            if a < b {
                a
            } else {
                b
            }
        }
        Op::MaxU32 => {
            if a > b {
                a
            } else {
                b
            }
        }
        Op::MinS32 => {
            if s32(a) < s32(b) {
                a
            } else {
                b
            }
        }
        Op::MaxS32 => {
            if s32(a) > s32(b) {
                a
            } else {
                b
            }
        }
        Op::MulWideU32 => wrap(x * y, 64),
        Op::MadWideU32 => wrap(x * y + i128::from(c), 64),

        Op::And32 => from_bits(32, |i| bit(a, i) * bit(b, i)),
        Op::Or32 => from_bits(32, |i| bit(a, i).max(bit(b, i))),
        Op::Xor32 => from_bits(32, |i| u64::from(bit(a, i) != bit(b, i))),
        Op::Not32 => from_bits(32, |i| 1 - bit(a, i)),
        Op::Lop3 => from_bits(32, |i| bit(v[3], bit(a, i) * 4 + bit(b, i) * 2 + bit(c, i))),
        Op::Shl32 => from_bits(32, |i| if b <= i { bit(a, i - b) } else { 0 }),
        Op::ShrU32 => from_bits(32, |i| bit(a, i.saturating_add(b))),
        Op::ShrS32 => from_bits(32, |i| bit(a, i.saturating_add(b).min(31))),
        Op::ShfLWrap => shf(v, true, c & 31),
        Op::ShfLClamp => shf(v, true, c.min(32)),
        Op::ShfRWrap => shf(v, false, c & 31),
        Op::Popc32 => ones(a, 32),
        Op::Brev32 => from_bits(32, |i| bit(a, 31 - i)),
        Op::BfindU32 => bfind(a, 32),
        Op::BfindShiftamtU32 => match bfind(a, 32) {
            0xffff_ffff => 0xffff_ffff,
            found => 31 - found,
        },
        Op::BfeU32 => bfe(v, false),
        Op::Prmt => prmt_bytes(a, b, [c & 15, c >> 4 & 15, c >> 8 & 15, c >> 12 & 15]),

        Op::AddU64 => wrap(x + y, 64),
        Op::SubU64 => wrap(x - y, 64),
        // The product of two 64-bit numbers can exceed 127 bits. The low parts give the same result.
        Op::MulLoU64 => wrap((x % (1 << 32)) * y % (1 << 64) + (((x >> 32) * (y % (1 << 32)) % (1 << 32)) << 32), 64),
        Op::And64 => from_bits(64, |i| bit(a, i) * bit(b, i)),
        Op::Or64 => from_bits(64, |i| bit(a, i).max(bit(b, i))),
        Op::Xor64 => from_bits(64, |i| u64::from(bit(a, i) != bit(b, i))),
        Op::Not64 => from_bits(64, |i| 1 - bit(a, i)),
        Op::Shl64 => from_bits(64, |i| if b <= i { bit(a, i - b) } else { 0 }),
        Op::ShrU64 => from_bits(64, |i| bit(a, i.saturating_add(b))),

        Op::AddF32 => float(f(a) + f(b)),
        Op::SubF32 => float(f(a) - f(b)),
        Op::MulF32 => float(f(a) * f(b)),
        // Exact for the operands of the suite: powers of two, and numbers that flush to zero or infinity.
        Op::RcpApproxF32 => match f(a) {
            v if v.is_subnormal() => float(f32::INFINITY.copysign(v)),
            v => float(1.0 / v),
        },

        Op::Selp32 | Op::Selp64 => {
            if c == 1 {
                a
            } else {
                b
            }
        }
        Op::AndPred => a * b,
        Op::OrPred => a.max(b),
        Op::XorPred => flag(a != b),
        Op::NotPred => 1 - a,

        Op::SetpEqU32 | Op::SetpEqU64 => flag(a == b),
        Op::SetpNeU32 | Op::SetpNeU64 => flag(a != b),
        Op::SetpLtU32 | Op::SetpLtU64 => flag(a < b),
        Op::SetpLeU32 | Op::SetpLeU64 => flag(a <= b),
        Op::SetpGtU32 | Op::SetpGtU64 => flag(a > b),
        Op::SetpGeU32 | Op::SetpGeU64 => flag(a >= b),
        Op::SetpLtS32 => flag(s32(a) < s32(b)),
        Op::SetpLeS32 => flag(s32(a) <= s32(b)),
        Op::SetpGtS32 => flag(s32(a) > s32(b)),
        Op::SetpGeS32 => flag(s32(a) >= s32(b)),
    }
}
