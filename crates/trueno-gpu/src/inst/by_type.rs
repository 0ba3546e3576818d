//! Selects the table row for an operation on a Rust type.

use super::Op;

/// The rows for a number type.
#[derive(Debug, Clone, Copy)]
pub struct ScalarOps {
    pub(crate) select: Op,
    pub(crate) add: Op,
    pub(crate) sub: Op,
    pub(crate) mul: Op,
    pub(crate) eq: Op,
    pub(crate) ne: Op,
    pub(crate) lt: Op,
    pub(crate) le: Op,
    pub(crate) gt: Op,
    pub(crate) ge: Op,
}

/// The additional rows for an integer type.
#[derive(Debug, Clone, Copy)]
pub struct IntegerOps {
    pub(crate) min: Op,
    pub(crate) max: Op,
    pub(crate) shl: Op,
    pub(crate) shr: Op,
    pub(crate) popc: Op,
    pub(crate) brev: Op,
    pub(crate) bfind: Op,
}

/// The rows for a type with bitwise logic. A predicate has no `not`: its uses are negated instead.
#[derive(Debug, Clone, Copy)]
pub struct LogicOps {
    pub(crate) and: Op,
    pub(crate) or: Op,
    pub(crate) xor: Op,
    pub(crate) not: Option<Op>,
}

pub(crate) const U32: ScalarOps = ScalarOps {
    select: Op::Selp32,
    add: Op::AddU32,
    sub: Op::SubU32,
    mul: Op::MulLoU32,
    eq: Op::SetpEqU32,
    ne: Op::SetpNeU32,
    lt: Op::SetpLtU32,
    le: Op::SetpLeU32,
    gt: Op::SetpGtU32,
    ge: Op::SetpGeU32,
};
// Wrapping sums and low products have the same bits for both signs.
pub(crate) const I32: ScalarOps =
    ScalarOps { lt: Op::SetpLtS32, le: Op::SetpLeS32, gt: Op::SetpGtS32, ge: Op::SetpGeS32, ..U32 };
pub(crate) const U64: ScalarOps = ScalarOps {
    select: Op::Selp64,
    add: Op::AddU64,
    sub: Op::SubU64,
    mul: Op::MulLoU64,
    eq: Op::SetpEqU64,
    ne: Op::SetpNeU64,
    lt: Op::SetpLtU64,
    le: Op::SetpLeU64,
    gt: Op::SetpGtU64,
    ge: Op::SetpGeU64,
};
pub(crate) const F32: ScalarOps = ScalarOps {
    select: Op::Selp32,
    add: Op::AddF32,
    sub: Op::SubF32,
    mul: Op::MulF32,
    eq: Op::SetpEqF32,
    ne: Op::SetpNeuF32,
    lt: Op::SetpLtF32,
    le: Op::SetpLeF32,
    gt: Op::SetpGtF32,
    ge: Op::SetpGeF32,
};

pub(crate) const INT_U32: IntegerOps = IntegerOps {
    min: Op::MinU32,
    max: Op::MaxU32,
    shl: Op::Shl32,
    shr: Op::ShrU32,
    popc: Op::Popc32,
    brev: Op::Brev32,
    bfind: Op::BfindU32,
};
pub(crate) const INT_I32: IntegerOps =
    IntegerOps { min: Op::MinS32, max: Op::MaxS32, shr: Op::ShrS32, bfind: Op::BfindS32, ..INT_U32 };
pub(crate) const INT_U64: IntegerOps = IntegerOps {
    min: Op::MinU64,
    max: Op::MaxU64,
    shl: Op::Shl64,
    shr: Op::ShrU64,
    popc: Op::Popc64,
    brev: Op::Brev64,
    bfind: Op::BfindU64,
};

pub(crate) const LOGIC_32: LogicOps = LogicOps { and: Op::And32, or: Op::Or32, xor: Op::Xor32, not: Some(Op::Not32) };
pub(crate) const LOGIC_64: LogicOps = LogicOps { and: Op::And64, or: Op::Or64, xor: Op::Xor64, not: Some(Op::Not64) };
pub(crate) const LOGIC_PRED: LogicOps = LogicOps { and: Op::AndPred, or: Op::OrPred, xor: Op::XorPred, not: None };
