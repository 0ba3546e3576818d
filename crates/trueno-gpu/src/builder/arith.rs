//! Arithmetic, logic and compares on registers.

use crate::inst::Op;
use crate::ir::{self, Inst};
use crate::types::{Integer, Logic, Scalar, Value, Word};
use crate::value::{Operand, Pred, Reg};

impl<'k, T: Value> Reg<'k, T> {
    pub(crate) fn binary(self, op: Op, rhs: impl Operand<'k, T>) -> Self {
        let args = [self.lower(self.k), rhs.lower(self.k)];
        self.k.pure(op, &args)
    }

    fn unary<U: Value>(self, op: Op) -> Reg<'k, U> {
        self.k.pure(op, &[self.lower(self.k)])
    }
}

macro_rules! compares {
    ($($name:ident $field:ident $text:literal;)*) => {
        /// Compares; on `f32`, `ne` holds and the others fail where an operand is NaN.
        impl<'k, T: Scalar> Reg<'k, T> {
            $(
                #[doc = concat!("Whether `self ", $text, " rhs`.\n\n```\n",
                    "let k = trueno_gpu::KernelBuilder::new(\"doc\");\n",
                    "let p = k.lane_id().", stringify!($name), "(5u32); // Pred\n# let _ = p;\n```")]
                #[must_use]
                pub fn $name(self, rhs: impl Operand<'k, T>) -> Pred<'k> {
                    let (a, b) = (self.lower(self.k), rhs.lower(self.k));
                    let dst = self.k.fresh();
                    self.k.push(Inst::Setp { op: T::OPS.$field, dst: dst.id, a, b, combine: None });
                    dst
                }
            )*
        }
    };
}
compares! {
    eq eq "==";
    ne ne "!=";
    lt lt "<";
    le le "<=";
    gt gt ">";
    ge ge ">=";
}

impl<'k> Reg<'k, bool> {
    /// `yes` where the predicate holds, else `no`; one of the two must be typed for the compiler to know the type.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let lane = k.lane_id();
    /// let capped = lane.lt(16).select(lane, 16u32);
    /// # let _ = capped;
    /// ```
    #[must_use]
    pub fn select<T: Scalar>(self, yes: impl Operand<'k, T>, no: impl Operand<'k, T>) -> Reg<'k, T> {
        let (yes, no) = (yes.lower(self.k), no.lower(self.k));
        let (first, second) = if self.negated { (no, yes) } else { (yes, no) };
        self.k.pure(T::OPS.select, &[first, second, ir::Operand::Reg(self.id)])
    }

    /// 1 where the predicate holds, else 0.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let bit = k.lane_id().lt(16).to_u32();
    /// # let _ = bit;
    /// ```
    #[must_use]
    pub fn to_u32(self) -> Reg<'k, u32> {
        self.select(1u32, 0u32)
    }
}

impl<'k, T: Integer> Reg<'k, T> {
    /// The smaller.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().min(7u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn min(self, rhs: impl Operand<'k, T>) -> Self {
        self.binary(T::INT.min, rhs)
    }

    /// The larger.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().max(7u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn max(self, rhs: impl Operand<'k, T>) -> Self {
        self.binary(T::INT.max, rhs)
    }

    /// The number of set bits.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().popc();
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn popc(self) -> Reg<'k, u32> {
        self.unary(T::INT.popc)
    }

    /// The number of leading zeros; the width for 0.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().clz();
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn clz(self) -> Reg<'k, u32> {
        self.unary(T::INT.clz)
    }

    /// The bits in reverse order.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().brev();
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn brev(self) -> Self {
        self.unary(T::INT.brev)
    }

    /// The position of the highest set bit (`i32`: that differs from the sign); all ones if there is none.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().bfind();
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn bfind(self) -> Reg<'k, u32> {
        self.unary(T::INT.bfind)
    }
}

/// Sums and products: named as the PTX instructions are.
impl<'k, T: Integer + Word> Reg<'k, T> {
    /// `self * b + c`, low 32 bits.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().mad(3u32, 1u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn mad(self, b: impl Operand<'k, T>, c: impl Operand<'k, T>) -> Self {
        let args = [self.lower(self.k), b.lower(self.k), c.lower(self.k)];
        self.k.pure(Op::MadLoU32, &args)
    }

    /// Bitwise function of three operands: bit `4a + 2b + c` of `table` for the bits a, b, c.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let lane = k.lane_id();
    /// let odd = lane.lop3(lane << 1, lane << 2, 0x96); // a ^ b ^ c
    /// # let _ = odd;
    /// ```
    #[must_use]
    pub fn lop3(self, b: impl Operand<'k, T>, c: impl Operand<'k, T>, table: u8) -> Self {
        let args = [self.lower(self.k), b.lower(self.k), c.lower(self.k), ir::Operand::Imm(u64::from(table))];
        self.k.pure(Op::Lop3, &args)
    }

    /// Bits of `yes` where this mask has ones, else bits of `no`: one `lop3`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let entry = k.value(0xfffu32).bit_select(k.lane_id(), 0xabcd_e000u32);
    /// # let _ = entry;
    /// ```
    #[must_use]
    pub fn bit_select(self, yes: impl Operand<'k, T>, no: impl Operand<'k, T>) -> Self {
        self.lop3(yes, no, 0xca)
    }

    /// Puts the low `len` bits of `field` into this value at bit `pos`; only the low bytes of `pos` and `len` count.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().bfi(3u32, 8u32, 2u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn bfi(self, field: impl Operand<'k, T>, pos: impl Operand<'k, u32>, len: impl Operand<'k, u32>) -> Self {
        let args = [field.lower(self.k), self.lower(self.k), pos.lower(self.k), len.lower(self.k)];
        self.k.pure(Op::Bfi32, &args)
    }
}

macro_rules! methods {
    ($ty:ty; $($(#[$doc:meta])+ $name:ident($($arg:ident),*) -> $ret:ty = $op:ident, $example:literal;)*) => {
        impl<'k> Reg<'k, $ty> {$(
            $(#[$doc])+
            #[doc = concat!("\n```\nlet k = trueno_gpu::KernelBuilder::new(\"doc\");\nlet x = k.lane_id();\nlet v = ", $example, ";\n# let _ = v;\n```")]
            #[must_use]
            pub fn $name(self, $($arg: impl Operand<'k, u32>),*) -> Reg<'k, $ret> {
                let args = [self.lower(self.k), $($arg.lower(self.k)),*];
                self.k.pure(Op::$op, &args)
            }
        )*}
    };
}
methods! { u32;
    /// High 32 bits of the product.
    mul_hi(b) -> u32 = MulHiU32, "x.mul_hi(x)";
    /// The whole product.
    mul_wide(b) -> u64 = MulWideU32, "x.mul_wide(4096u32)";
    /// Low half of `hi:self >> (n % 32)`: an unaligned word from two aligned ones, for n in bits.
    funnel_shr(hi, n) -> u32 = ShfRWrap, "x.funnel_shr(x + 1, x * 8)";
    /// Low half of `hi:self >> min(n, 32)`.
    funnel_shr_clamp(hi, n) -> u32 = ShfRClamp, "x.funnel_shr_clamp(x + 1, x * 8)";
    /// High half of `hi:self << (n % 32)`.
    funnel_shl(hi, n) -> u32 = ShfLWrap, "x.funnel_shl(x + 1, x * 8)";
    /// High half of `hi:self << min(n, 32)`.
    funnel_shl_clamp(hi, n) -> u32 = ShfLClamp, "x.funnel_shl_clamp(x + 1, x * 8)";
    /// The left shift that brings the highest set bit to position 31; all ones for 0.
    bfind_shiftamt() -> u32 = BfindShiftamtU32, "x.bfind_shiftamt()";
    /// `len` bits from bit `pos`, zero-extended; only the low bytes of `pos` and `len` count.
    bfe(pos, len) -> u32 = BfeU32, "x.bfe(4u32, 8u32)";
    /// `len` ones from bit `self`. Needs PTX 7.6; `1 << n` and `ones >> n` serve older targets.
    bmsk(len) -> u32 = BmskClamp, "x.bmsk(3u32)";
    /// As [`Reg::bmsk`], position and length modulo 32.
    bmsk_wrap(len) -> u32 = BmskWrap, "x.bmsk_wrap(3u32)";
    /// Four bytes of `hi:self` chosen by the nibbles of `selector`; bit 3 of a nibble replicates the sign.
    prmt(hi, selector) -> u32 = Prmt, "x.prmt(0u32, 0x0123u32)";
    /// Four bytes of `hi:self`, forwards from byte `n % 4`.
    prmt_f4e(hi, n) -> u32 = PrmtF4e, "x.prmt_f4e(x + 1, x)";
    /// Four bytes of `hi:self`, backwards from byte `n % 4`.
    prmt_b4e(hi, n) -> u32 = PrmtB4e, "x.prmt_b4e(x + 1, x)";
    /// Byte `n % 4`, four times.
    prmt_rc8(hi, n) -> u32 = PrmtRc8, "x.prmt_rc8(0u32, 1u32)";
    /// Bytes clamped to at least `n % 4`.
    prmt_ecl(hi, n) -> u32 = PrmtEcl, "x.prmt_ecl(0u32, 1u32)";
    /// Bytes clamped to at most `n % 4`.
    prmt_ecr(hi, n) -> u32 = PrmtEcr, "x.prmt_ecr(0u32, 1u32)";
    /// Half `n % 2`, twice.
    prmt_rc16(hi, n) -> u32 = PrmtRc16, "x.prmt_rc16(0u32, 1u32)";
}

impl<'k> Reg<'k, u32> {
    /// `self * b + c`, 64 bits: a global address from an index.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let at = k.lane_id().mad_wide(8u32, k.param_u64("base"));
    /// # let _ = at;
    /// ```
    #[must_use]
    pub fn mad_wide(self, b: impl Operand<'k, u32>, c: impl Operand<'k, u64>) -> Reg<'k, u64> {
        let args = [self.lower(self.k), b.lower(self.k), c.lower(self.k)];
        self.k.pure(Op::MadWideU32, &args)
    }
}

impl<'k> Reg<'k, i32> {
    /// High 32 bits of the signed product.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().as_i32().mul_hi(-3);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn mul_hi(self, b: impl Operand<'k, i32>) -> Self {
        self.binary(Op::MulHiS32, b)
    }

    /// The whole signed product, as bits.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().as_i32().mul_wide(-3);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn mul_wide(self, b: impl Operand<'k, i32>) -> Reg<'k, u64> {
        let args = [self.lower(self.k), b.lower(self.k)];
        self.k.pure(Op::MulWideS32, &args)
    }

    /// The signed product added to `c`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().as_i32().mad_wide(-3, 7u64);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn mad_wide(self, b: impl Operand<'k, i32>, c: impl Operand<'k, u64>) -> Reg<'k, u64> {
        let args = [self.lower(self.k), b.lower(self.k), c.lower(self.k)];
        self.k.pure(Op::MadWideS32, &args)
    }

    /// The magnitude; the smallest number stays itself.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().as_i32().abs();
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn abs(self) -> Self {
        self.unary(Op::AbsS32)
    }

    /// `len` bits from bit `pos`, sign-extended; only the low bytes of `pos` and `len` count.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().as_i32().bfe(4u32, 8u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn bfe(self, pos: impl Operand<'k, u32>, len: impl Operand<'k, u32>) -> Self {
        let args = [self.lower(self.k), pos.lower(self.k), len.lower(self.k)];
        self.k.pure(Op::BfeS32, &args)
    }
}

/// Three-operand logic, one `lop3` each.
impl<'k, T: Integer + Word + Logic> Reg<'k, T> {
    /// `self | b | c`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().or3(8u32, 64u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn or3(self, b: impl Operand<'k, T>, c: impl Operand<'k, T>) -> Self {
        self.lop3(b, c, 0xfe)
    }

    /// `self & b | c`.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().and_or(7u32, 64u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn and_or(self, b: impl Operand<'k, T>, c: impl Operand<'k, T>) -> Self {
        self.lop3(b, c, 0xea)
    }

    /// `(self ^ b) | c`: differences gathered.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().xor_or(7u32, 64u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn xor_or(self, b: impl Operand<'k, T>, c: impl Operand<'k, T>) -> Self {
        self.lop3(b, c, 0xbe)
    }

    /// `(self ^ b) & c`: differences in a field.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().xor_and(7u32, 0xf0u32);
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn xor_and(self, b: impl Operand<'k, T>, c: impl Operand<'k, T>) -> Self {
        self.lop3(b, c, 0x28)
    }
}
