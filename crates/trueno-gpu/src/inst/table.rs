//! The rows of the pure instructions.

use super::lanes::{Lanes, cmp32, cmp64, d1, d1w1, d2, narrow1, w1, w2, w3, w4, widen1, widen2, widen3};
use super::semantics as s;
use super::{CountKind, InstInfo, Uniformity};

macro_rules! table {
    ($($(#[$doc:meta])* $op:ident $name:literal $count:ident $lanes:expr;)*) => {
        /// A pure instruction. Its result depends only on its sources, lane by lane.
        ///
        /// ```
        /// use trueno_gpu::inst::{Lanes, Op};
        /// assert_eq!(Op::BfindU32.info().ptx_name, "bfind.u32");
        /// let Lanes::W1(bfind) = Op::BfindU32.lanes() else { unreachable!() };
        /// assert_eq!(bfind(&[0; 32]), [u32::MAX; 32]);
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op {
            $($(#[$doc])* #[doc = concat!("`", $name, "`")] $op,)*
        }

        impl Op {
            /// All pure instructions.
            ///
            /// ```
            /// assert!(trueno_gpu::inst::Op::ALL.contains(&trueno_gpu::inst::Op::AddU32));
            /// ```
            pub const ALL: &'static [Self] = &[$(Self::$op),*];

            /// Returns the row, except for the meaning.
            ///
            /// ```
            /// use trueno_gpu::inst::{CountKind, Op};
            /// assert_eq!(Op::AddU32.info().count, CountKind::Alu);
            /// ```
            #[must_use]
            pub const fn info(self) -> InstInfo {
                let (ptx_name, count) = match self {
                    $(Self::$op => ($name, CountKind::$count),)*
                };
                InstInfo::everywhere(ptx_name, Uniformity::Pure, count)
            }

            /// Returns the meaning. Its variant is also the signature.
            ///
            /// ```
            /// use trueno_gpu::inst::{Lanes, Op};
            /// assert!(matches!(Op::SetpLtU32.lanes(), Lanes::Cmp32(_)));
            /// ```
            #[must_use]
            pub const fn lanes(self) -> Lanes {
                match self { $(Self::$op => $lanes,)* }
            }
        }
    };
}

macro_rules! signed {
    ($a:ident, $b:ident, $e:expr) => {{
        let ($a, $b) = ($a.cast_signed(), $b.cast_signed());
        $e
    }};
}

table! {
    // Copies and conversions
    Mov32 "mov.b32" Move w1!(|a| a);
    Mov64 "mov.b64" Move d1!(|a| a);
    MovPred "mov.pred" Move Lanes::P1(|p| p);
    /// Zero-extends.
    CvtU64U32 "cvt.u64.u32" Alu widen1!(u64::from);
    /// Low half.
    CvtU32U64 "cvt.u32.u64" Move narrow1!(s::low);
    /// High half, spelt as an unpacking move.
    HighHalf "mov.b64" Move narrow1!(s::high);
    /// Joins the low and high half, spelt as a packing move.
    Pack "mov.b64" Move widen2!(s::pack);
    CvtF32U32 "cvt.rn.f32.u32" Alu w1!(s::from_u32);
    CvtU32F32 "cvt.rzi.u32.f32" Alu w1!(s::to_u32);

    // 32-bit arithmetic
    AddU32 "add.u32" Alu w2!(u32::wrapping_add);
    SubU32 "sub.u32" Alu w2!(u32::wrapping_sub);
    MulLoU32 "mul.lo.u32" Alu w2!(u32::wrapping_mul);
    MulHiU32 "mul.hi.u32" Alu w2!(|a, b| s::high(u64::from(a) * u64::from(b)));
    MadLoU32 "mad.lo.u32" Alu w3!(|a, b, c| a.wrapping_mul(b).wrapping_add(c));
    AbsS32 "abs.s32" Alu w1!(|a| a.cast_signed().unsigned_abs());
    MinU32 "min.u32" Alu w2!(|a, b| a.min(b));
    MaxU32 "max.u32" Alu w2!(|a, b| a.max(b));
    MinS32 "min.s32" Alu w2!(|a, b| signed!(a, b, a.min(b).cast_unsigned()));
    MaxS32 "max.s32" Alu w2!(|a, b| signed!(a, b, a.max(b).cast_unsigned()));
    MulWideU32 "mul.wide.u32" Alu widen2!(|a, b| u64::from(a) * u64::from(b));
    MadWideU32 "mad.wide.u32" Alu widen3!(|a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c));

    // 32-bit logic and bits
    And32 "and.b32" Alu w2!(|a, b| a & b);
    Or32 "or.b32" Alu w2!(|a, b| a | b);
    Xor32 "xor.b32" Alu w2!(|a, b| a ^ b);
    Not32 "not.b32" Alu w1!(|a| !a);
    /// The fourth operand, a constant, is the truth table.
    Lop3 "lop3.b32" Alu w4!(s::lop3);
    Shl32 "shl.b32" Alu w2!(s::shl32);
    ShrU32 "shr.u32" Alu w2!(s::shr32);
    ShrS32 "shr.s32" Alu w2!(s::sar32);
    /// Sources: low, high, amount modulo 32.
    ShfLWrap "shf.l.wrap.b32" Alu w3!(|lo, hi, n| s::funnel_left(lo, hi, n & 31));
    /// Sources: low, high, amount up to 32.
    ShfLClamp "shf.l.clamp.b32" Alu w3!(|lo, hi, n| s::funnel_left(lo, hi, n.min(32)));
    /// Sources: low, high, amount modulo 32.
    ShfRWrap "shf.r.wrap.b32" Alu w3!(|lo, hi, n| s::funnel_right(lo, hi, n & 31));
    Popc32 "popc.b32" Alu w1!(u32::count_ones);
    Brev32 "brev.b32" Alu w1!(u32::reverse_bits);
    BfindU32 "bfind.u32" Alu w1!(s::bfind);
    BfindShiftamtU32 "bfind.shiftamt.u32" Alu w1!(s::bfind_shiftamt);
    /// Sources: value, position, length.
    BfeU32 "bfe.u32" Alu w3!(s::bfe);
    Prmt "prmt.b32" Alu w3!(s::prmt);

    // 64-bit
    AddU64 "add.u64" Alu d2!(u64::wrapping_add);
    SubU64 "sub.u64" Alu d2!(u64::wrapping_sub);
    MulLoU64 "mul.lo.u64" Alu d2!(u64::wrapping_mul);
    And64 "and.b64" Alu d2!(|a, b| a & b);
    Or64 "or.b64" Alu d2!(|a, b| a | b);
    Xor64 "xor.b64" Alu d2!(|a, b| a ^ b);
    Not64 "not.b64" Alu d1!(|a| !a);
    Shl64 "shl.b64" Alu d1w1!(s::shl64);
    ShrU64 "shr.u64" Alu d1w1!(s::shr64);

    // Single precision. The rounding mode is explicit, so that the compiler cannot fuse a product and a sum.
    AddF32 "add.rn.f32" Alu w2!(|a, b| s::float2(a, b, |a, b| a + b));
    SubF32 "sub.rn.f32" Alu w2!(|a, b| s::float2(a, b, |a, b| a - b));
    MulF32 "mul.rn.f32" Alu w2!(|a, b| s::float2(a, b, |a, b| a * b));
    /// Within one unit in the last place. Subnormals count as zero.
    RcpApproxF32 "rcp.approx.ftz.f32" Alu w1!(|a| s::float1(a, s::reciprocal));

    // Selects: first source where the predicate holds, else second
    Selp32 "selp.b32" Alu Lanes::Sel32(|a, b, p| std::array::from_fn(|i| if p >> i & 1 == 1 { a[i] } else { b[i] }));
    Selp64 "selp.b64" Alu Lanes::Sel64(|a, b, p| std::array::from_fn(|i| if p >> i & 1 == 1 { a[i] } else { b[i] }));

    // Predicates
    AndPred "and.pred" Alu Lanes::P2(|a, b| a & b);
    OrPred "or.pred" Alu Lanes::P2(|a, b| a | b);
    XorPred "xor.pred" Alu Lanes::P2(|a, b| a ^ b);
    NotPred "not.pred" Alu Lanes::P1(|a| !a);

    // Comparisons
    SetpEqU32 "setp.eq.u32" Alu cmp32!(|a, b| a == b);
    SetpNeU32 "setp.ne.u32" Alu cmp32!(|a, b| a != b);
    SetpLtU32 "setp.lt.u32" Alu cmp32!(|a, b| a < b);
    SetpLeU32 "setp.le.u32" Alu cmp32!(|a, b| a <= b);
    SetpGtU32 "setp.gt.u32" Alu cmp32!(|a, b| a > b);
    SetpGeU32 "setp.ge.u32" Alu cmp32!(|a, b| a >= b);
    SetpLtS32 "setp.lt.s32" Alu cmp32!(|a, b| signed!(a, b, a < b));
    SetpLeS32 "setp.le.s32" Alu cmp32!(|a, b| signed!(a, b, a <= b));
    SetpGtS32 "setp.gt.s32" Alu cmp32!(|a, b| signed!(a, b, a > b));
    SetpGeS32 "setp.ge.s32" Alu cmp32!(|a, b| signed!(a, b, a >= b));
    SetpEqU64 "setp.eq.u64" Alu cmp64!(|a, b| a == b);
    SetpNeU64 "setp.ne.u64" Alu cmp64!(|a, b| a != b);
    SetpLtU64 "setp.lt.u64" Alu cmp64!(|a, b| a < b);
    SetpLeU64 "setp.le.u64" Alu cmp64!(|a, b| a <= b);
    SetpGtU64 "setp.gt.u64" Alu cmp64!(|a, b| a > b);
    SetpGeU64 "setp.ge.u64" Alu cmp64!(|a, b| a >= b);
}

impl Op {
    /// Returns the comparison that holds exactly where this one does not; `None` for other instructions.
    pub(crate) const fn inverse(self) -> Option<Self> {
        Some(match self {
            Self::SetpEqU32 => Self::SetpNeU32,
            Self::SetpNeU32 => Self::SetpEqU32,
            Self::SetpLtU32 => Self::SetpGeU32,
            Self::SetpGeU32 => Self::SetpLtU32,
            Self::SetpGtU32 => Self::SetpLeU32,
            Self::SetpLeU32 => Self::SetpGtU32,
            Self::SetpLtS32 => Self::SetpGeS32,
            Self::SetpGeS32 => Self::SetpLtS32,
            Self::SetpGtS32 => Self::SetpLeS32,
            Self::SetpLeS32 => Self::SetpGtS32,
            Self::SetpEqU64 => Self::SetpNeU64,
            Self::SetpNeU64 => Self::SetpEqU64,
            Self::SetpLtU64 => Self::SetpGeU64,
            Self::SetpGeU64 => Self::SetpLtU64,
            Self::SetpGtU64 => Self::SetpLeU64,
            Self::SetpLeU64 => Self::SetpGtU64,
            _ => return None,
        })
    }
}
