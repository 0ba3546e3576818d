//! Arithmetic, logic and comparisons on registers.

use crate::inst::Op;
use crate::ir::{self, Inst};
use crate::types::{Integer, Scalar, Value, Word};
use crate::value::{Operand, Pred, Reg};

impl<'k, T: Value> Reg<'k, T> {
    pub(crate) fn binary(self, op: Op, rhs: impl Operand<'k, T>) -> Self {
        let args = [self.lower(self.k), rhs.lower(self.k)];
        self.k.pure(op, &args)
    }
}

macro_rules! compares {
    ($($name:ident $text:literal;)*) => {
        /// Comparisons.
        impl<'k, T: Integer> Reg<'k, T> {
            $(
                #[doc = concat!("Returns a predicate that holds where `self ", $text, " rhs`.\n\n```\n",
                    "let k = trueno_gpu::KernelBuilder::new(\"doc\");\n",
                    "let p = k.lane_id().", stringify!($name), "(5u32); // Pred\n# let _ = p;\n```")]
                #[must_use]
                pub fn $name(self, rhs: impl Operand<'k, T>) -> Pred<'k> {
                    let (a, b) = (self.lower(self.k), rhs.lower(self.k));
                    let dst = self.k.fresh();
                    self.k.push(Inst::Setp { op: T::INT.$name, dst: dst.id, a, b, combine: None });
                    dst
                }
            )*
        }
    };
}
compares! {
    eq "==";
    ne "!=";
    lt "<";
    le "<=";
    gt ">";
    ge ">=";
}

impl<'k> Reg<'k, bool> {
    /// Returns `yes` where the predicate holds, else `no`. One of the two must have a type that the compiler can infer.
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

    /// Returns 1 where the predicate holds, else 0.
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

/// Sums, products and bit operations, named after the PTX instructions.
impl<'k, T: Integer + Word> Reg<'k, T> {
    /// Returns the low 32 bits of `self * b + c`.
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

    /// Applies a bitwise function of three operands: bit `4a + 2b + c` of `table`, for the bits a, b and c.
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

    /// Returns the bits of `yes` where this mask has ones, else those of `no`, with one `lop3`.
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
}

macro_rules! methods {
    ($ty:ty; $($(#[$doc:meta])+ $name:ident($($arg:ident),*) -> $ret:ty = $op:ident, $example:literal;)*) => {
        impl<'k> Reg<'k, $ty> {$(
            $(#[$doc])+
            #[doc = concat!("\n```\nlet k = trueno_gpu::KernelBuilder::new(\"doc\");\nlet x = k.lane_id();\nlet v = ", $example, ";\n# let _ = v;\n```")]
            #[must_use]
            pub fn $name(self, $($arg: impl Operand<'k, $ty>),*) -> Reg<'k, $ret> {
                let args = [self.lower(self.k), $($arg.lower(self.k)),*];
                self.k.pure(Op::$op, &args)
            }
        )*}
    };
}
methods! { u32;
    /// Returns the smaller of two values.
    min(b) -> u32 = MinU32, "x.min(7u32)";
    /// Returns the larger of two values.
    max(b) -> u32 = MaxU32, "x.max(7u32)";
    /// Returns the number of set bits.
    popc() -> u32 = Popc32, "x.popc()";
    /// Returns the bits in reverse order.
    brev() -> u32 = Brev32, "x.brev()";
    /// Returns the position of the highest set bit; all ones for 0.
    bfind() -> u32 = BfindU32, "x.bfind()";
    /// Returns the high 32 bits of the product.
    mul_hi(b) -> u32 = MulHiU32, "x.mul_hi(x)";
    /// Returns the full product.
    mul_wide(b) -> u64 = MulWideU32, "x.mul_wide(4096u32)";
    /// Returns the low half of `hi:self >> (n % 32)`: an unaligned word from two aligned ones, with n in bits.
    funnel_shr(hi, n) -> u32 = ShfRWrap, "x.funnel_shr(x + 1, x * 8)";
    /// Returns the high half of `hi:self << (n % 32)`.
    funnel_shl(hi, n) -> u32 = ShfLWrap, "x.funnel_shl(x + 1, x * 8)";
    /// Returns the high half of `hi:self << min(n, 32)`.
    funnel_shl_clamp(hi, n) -> u32 = ShfLClamp, "x.funnel_shl_clamp(x + 1, x * 8)";
    /// Returns the left shift that moves the highest set bit to position 31; all ones for 0.
    bfind_shiftamt() -> u32 = BfindShiftamtU32, "x.bfind_shiftamt()";
    /// Returns `len` bits from bit `pos`, zero-extended. Only the low bytes of `pos` and `len` count.
    bfe(pos, len) -> u32 = BfeU32, "x.bfe(4u32, 8u32)";
    /// Returns four bytes of `hi:self`, chosen by the nibbles of `selector`. Bit 3 of a nibble replicates the sign.
    prmt(hi, selector) -> u32 = Prmt, "x.prmt(0u32, 0x0123u32)";
}

methods! { i32;
    /// Returns the smaller of two values.
    min(b) -> i32 = MinS32, "x.as_i32().min(-7)";
    /// Returns the larger of two values.
    max(b) -> i32 = MaxS32, "x.as_i32().max(-7)";
    /// Returns the magnitude. The smallest number stays unchanged.
    abs() -> i32 = AbsS32, "x.as_i32().abs()";
}

/// Logic of three operands, with one `lop3` each.
impl<'k, T: Integer + Word> Reg<'k, T> {
    /// Returns `self | b | c`.
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

    /// Returns `self & b | c`.
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

    /// Returns `(self ^ b) | c`, which collects differences.
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

    /// Returns `(self ^ b) & c`, which masks differences.
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
