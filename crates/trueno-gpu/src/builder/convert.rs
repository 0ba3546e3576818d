//! Conversions. Casts of the same bits are free; changes of width or kind are instructions.

use crate::inst::Op;
use crate::ir;
use crate::types::Word;
use crate::value::{Operand, Reg};
use std::marker::PhantomData;

impl<'k, T: Word> Reg<'k, T> {
    fn reinterpret<U: Word>(self) -> Reg<'k, U> {
        let Reg { k, id, negated, .. } = self.settled();
        Reg { k, id, negated, ty: PhantomData }
    }

    /// Returns the same bits as `u32`, without an instruction.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = (k.lane_id().as_i32() - 5).as_u32();
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn as_u32(self) -> Reg<'k, u32> {
        self.reinterpret()
    }

    /// Returns the same bits as `i32`, without an instruction.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let negative = (k.lane_id() - 5).as_i32().lt(0);
    /// # let _ = negative;
    /// ```
    #[must_use]
    pub fn as_i32(self) -> Reg<'k, i32> {
        self.reinterpret()
    }
}

macro_rules! conversions {
    ($($from:ty: $(#[$doc:meta])+ $name:ident -> $to:ty = $op:ident, $example:literal;)*) => {$(
        impl<'k> Reg<'k, $from> {
            $(#[$doc])+
            #[doc = concat!("\n```\nlet k = trueno_gpu::KernelBuilder::new(\"doc\");\nlet x = k.lane_id();\nlet v = ", $example, ";\n# let _ = v;\n```")]
            #[must_use]
            pub fn $name(self) -> Reg<'k, $to> {
                self.k.pure(Op::$op, &[self.lower(self.k)])
            }
        }
    )*};
}
conversions! {
    u32: /// Zero-extends to 64 bits.
        to_u64 -> u64 = CvtU64U32, "x.to_u64()";
    u64: /// Returns the low half.
        lo -> u32 = CvtU32U64, "x.to_u64().lo()";
    u64: /// Returns the high half.
        hi -> u32 = HighHalf, "x.to_u64().hi()";
    u32: /// Returns the nearest float, ties to even.
        to_f32 -> f32 = CvtF32U32, "x.to_f32()";
    f32: /// Rounds towards zero. Saturates out of range; NaN becomes 0.
        to_u32 -> u32 = CvtU32F32, "x.to_f32().to_u32()";
    f32: /// Approximates `1 / x`, within one unit in the last place. Subnormals count as zero.
        rcp_approx -> f32 = RcpApproxF32, "x.to_f32().rcp_approx()";
}

impl<'k> Reg<'k, u32> {
    /// Returns the 64-bit number with this low half and the given high half.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("doc");
    /// let v = k.lane_id().pack(1u32); // 1 << 32 | lane
    /// # let _ = v;
    /// ```
    #[must_use]
    pub fn pack(self, high: impl Operand<'k, u32>) -> Reg<'k, u64> {
        let args: [ir::Operand; 2] = [self.lower(self.k), high.lower(self.k)];
        self.k.pure(Op::Pack, &args)
    }
}
