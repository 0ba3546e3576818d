//! Selects the table row for an operation on a Rust type.

use super::Op;

/// The rows for a number type.
#[derive(Debug, Clone, Copy)]
pub struct ScalarOps {
    pub(crate) select: Op,
    pub(crate) add: Op,
    pub(crate) sub: Op,
    pub(crate) mul: Op,
}

/// The additional rows for an integer type.
#[derive(Debug, Clone, Copy)]
pub struct IntegerOps {
    pub(crate) shl: Op,
    pub(crate) shr: Op,
    pub(crate) eq: Op,
    pub(crate) ne: Op,
    pub(crate) lt: Op,
    pub(crate) le: Op,
    pub(crate) gt: Op,
    pub(crate) ge: Op,
}

/// The rows for a type with bitwise logic. A predicate has no `not`: its uses are negated instead.
#[derive(Debug, Clone, Copy)]
pub struct LogicOps {
    pub(crate) and: Op,
    pub(crate) or: Op,
    pub(crate) xor: Op,
    pub(crate) not: Option<Op>,
}

// Wrapping sums and low products have the same bits for both signs.
pub(crate) const WORD: ScalarOps =
    ScalarOps { select: Op::Selp32, add: Op::AddU32, sub: Op::SubU32, mul: Op::MulLoU32 };

pub(crate) const U64: ScalarOps = ScalarOps { select: Op::Selp64, add: Op::AddU64, sub: Op::SubU64, mul: Op::MulLoU64 };

pub(crate) const F32: ScalarOps = ScalarOps { select: Op::Selp32, add: Op::AddF32, sub: Op::SubF32, mul: Op::MulF32 };

pub(crate) const INT_U32: IntegerOps = IntegerOps {
    shl: Op::Shl32,
    shr: Op::ShrU32,
    eq: Op::SetpEqU32,
    ne: Op::SetpNeU32,
    lt: Op::SetpLtU32,
    le: Op::SetpLeU32,
    gt: Op::SetpGtU32,
    ge: Op::SetpGeU32,
};

pub(crate) const INT_I32: IntegerOps = IntegerOps {
    shr: Op::ShrS32,
    lt: Op::SetpLtS32,
    le: Op::SetpLeS32,
    gt: Op::SetpGtS32,
    ge: Op::SetpGeS32,
    ..INT_U32
};

pub(crate) const INT_U64: IntegerOps = IntegerOps {
    shl: Op::Shl64,
    shr: Op::ShrU64,
    eq: Op::SetpEqU64,
    ne: Op::SetpNeU64,
    lt: Op::SetpLtU64,
    le: Op::SetpLeU64,
    gt: Op::SetpGtU64,
    ge: Op::SetpGeU64,
};

pub(crate) const LOGIC_32: LogicOps = LogicOps { and: Op::And32, or: Op::Or32, xor: Op::Xor32, not: Some(Op::Not32) };
pub(crate) const LOGIC_64: LogicOps = LogicOps { and: Op::And64, or: Op::Or64, xor: Op::Xor64, not: Some(Op::Not64) };
pub(crate) const LOGIC_PRED: LogicOps = LogicOps { and: Op::AndPred, or: Op::OrPred, xor: Op::XorPred, not: None };
