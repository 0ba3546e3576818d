//! The registers that instructions read and write.

use super::{Inst, Operand, PredUse, RegId, Stmt};
use crate::types::{RegClass, StateSpace};

const fn address_class(space: StateSpace) -> RegClass {
    match space {
        StateSpace::Global => RegClass::B64,
        StateSpace::Shared => RegClass::B32,
    }
}

/// Visits the registers written, by reference or by mutable reference.
macro_rules! visit_defs {
    ($inst:expr, $f:expr, $iter:ident) => {
        match $inst {
            Self::Pure { dst, .. }
            | Self::Setp { dst, .. }
            | Self::Arbitrary { dst }
            | Self::Special { dst, .. }
            | Self::Param { dst, .. }
            | Self::SharedBase { dst, .. }
            | Self::Vote { dst, .. }
            | Self::Ballot { dst, .. }
            | Self::MatchAny { dst, .. }
            | Self::Redux { dst, .. }
            | Self::ActiveMask { dst } => $f(dst),
            Self::Load { dst, .. } => dst.$iter().for_each($f),
            Self::Atomic { dst, .. } => dst.$iter().for_each($f),
            Self::Shfl { dst, in_range, .. } => {
                $f(dst);
                in_range.$iter().for_each($f);
            }
            Self::Store { .. } | Self::BarWarp { .. } | Self::BarBlock | Self::Fence { .. } => {}
        }
    };
}

/// Visits the registers read, likewise. `$operand` takes operands, `$reg` registers.
macro_rules! visit_uses {
    ($inst:expr, $operand:ident, $reg:ident, $iter:ident) => {
        match $inst {
            Self::Pure { op, args, .. } => {
                for (arg, class) in args.$iter().zip(op.lanes().signature().1) {
                    $operand!(arg, *class);
                }
            }
            Self::Setp { op, a, b, combine, .. } => {
                let class = op.lanes().signature().1[0];
                $operand!(a, class);
                $operand!(b, class);
                if let Some(combine) = combine {
                    $reg!(combine.with.reg, RegClass::Pred);
                }
            }
            Self::Arbitrary { .. }
            | Self::Special { .. }
            | Self::Param { .. }
            | Self::SharedBase { .. }
            | Self::ActiveMask { .. }
            | Self::BarBlock
            | Self::Fence { .. } => {}
            Self::Load { addr, .. } => $reg!(addr.base, address_class(addr.space)),
            Self::Store { addr, src, ty, .. } => {
                for value in src.$iter() {
                    $operand!(value, ty.class());
                }
                $reg!(addr.base, address_class(addr.space));
            }
            Self::Atomic { addr, value, compare, ty, .. } => {
                $operand!(value, ty.class());
                for compare in compare.$iter() {
                    $operand!(compare, ty.class());
                }
                $reg!(addr.base, address_class(addr.space));
            }
            Self::Shfl { src, lane, mask, .. } => {
                for value in [src, lane, mask] {
                    $operand!(value, RegClass::B32);
                }
            }
            Self::Vote { src, mask, .. } | Self::Ballot { src, mask, .. } => {
                $reg!(src.reg, RegClass::Pred);
                $operand!(mask, RegClass::B32);
            }
            Self::MatchAny { src, class, mask, .. } => {
                $operand!(src, *class);
                $operand!(mask, RegClass::B32);
            }
            Self::Redux { src, mask, .. } => {
                $operand!(src, RegClass::B32);
                $operand!(mask, RegClass::B32);
            }
            Self::BarWarp { mask } => $operand!(mask, RegClass::B32),
        }
    };
}

impl Inst {
    /// Calls `f` with each register that the instruction writes.
    ///
    /// ```
    /// use trueno_gpu::ir::{Inst, RegId};
    /// let mut written = vec![];
    /// Inst::ActiveMask { dst: RegId(4) }.for_each_def(|r| written.push(r));
    /// assert_eq!(written, [RegId(4)]);
    /// ```
    pub fn for_each_def(&self, mut f: impl FnMut(RegId)) {
        let mut f = |r: &RegId| f(*r);
        visit_defs!(self, &mut f, iter);
    }

    /// Calls `f` with each register that the instruction writes, to change it.
    pub(crate) fn for_each_def_mut(&mut self, mut f: impl FnMut(&mut RegId)) {
        visit_defs!(self, &mut f, iter_mut);
    }

    /// Calls `f` with each register that the instruction reads and the class it is read as. The guard belongs to the
    /// statement.
    ///
    /// ```
    /// use trueno_gpu::ir::{Inst, Operand, RegId};
    /// use trueno_gpu::RegClass;
    /// let mut read = vec![];
    /// Inst::BarWarp { mask: Operand::Reg(RegId(1)) }.for_each_use(|r, class| read.push((r, class)));
    /// assert_eq!(read, [(RegId(1), RegClass::B32)]);
    /// ```
    pub fn for_each_use(&self, mut f: impl FnMut(RegId, RegClass)) {
        macro_rules! reg {
            ($reg:expr, $class:expr) => {
                f($reg, $class)
            };
        }
        macro_rules! operand {
            ($operand:expr, $class:expr) => {
                if let Operand::Reg(r) = $operand {
                    f(*r, $class);
                }
            };
        }
        visit_uses!(self, operand, reg, iter);
    }

    /// Calls `f` with each register that the instruction reads, to change it.
    pub(crate) fn for_each_use_mut(&mut self, mut f: impl FnMut(&mut RegId, RegClass)) {
        macro_rules! reg {
            ($reg:expr, $class:expr) => {
                f(&mut $reg, $class)
            };
        }
        macro_rules! operand {
            ($operand:expr, $class:expr) => {
                if let Operand::Reg(r) = $operand {
                    f(r, $class);
                }
            };
        }
        visit_uses!(self, operand, reg, iter_mut);
    }

    /// Returns the member mask of a warp operation or warp barrier.
    ///
    /// ```
    /// use trueno_gpu::ir::{Inst, Operand};
    /// assert_eq!(Inst::BarWarp { mask: Operand::Imm(7) }.member_mask(), Some(Operand::Imm(7)));
    /// assert_eq!(Inst::BarBlock.member_mask(), None);
    /// ```
    #[must_use]
    pub fn member_mask(&self) -> Option<Operand> {
        match self {
            Self::Shfl { mask, .. }
            | Self::Vote { mask, .. }
            | Self::Ballot { mask, .. }
            | Self::MatchAny { mask, .. }
            | Self::Redux { mask, .. }
            | Self::BarWarp { mask } => Some(*mask),
            _ => None,
        }
    }
}

impl Stmt {
    /// Returns the predicate that the statement itself reads: a guard, or the condition of a branch.
    ///
    /// ```
    /// use trueno_gpu::ir::Stmt;
    /// assert_eq!(Stmt::Section("copy out".into()).condition(), None);
    /// ```
    #[must_use]
    pub fn condition(&self) -> Option<PredUse> {
        match self {
            Self::Inst { guard, .. } => *guard,
            Self::If { cond, .. } => Some(*cond),
            Self::Break { cond, .. } | Self::Continue { cond, .. } => *cond,
            Self::Section(_) | Self::Loop { .. } | Self::Scope { .. } => None,
        }
    }

    pub(crate) fn condition_mut(&mut self) -> Option<&mut PredUse> {
        match self {
            Self::Inst { guard, .. } => guard.as_mut(),
            Self::If { cond, .. } => Some(cond),
            Self::Break { cond, .. } | Self::Continue { cond, .. } => cond.as_mut(),
            Self::Section(_) | Self::Loop { .. } | Self::Scope { .. } => None,
        }
    }

    /// Returns the blocks of the statement.
    ///
    /// ```
    /// use trueno_gpu::ir::{LabelId, Stmt};
    /// let scope = Stmt::Scope { label: LabelId(0), body: vec![] };
    /// assert_eq!(scope.blocks().count(), 1);
    /// ```
    pub fn blocks(&self) -> impl Iterator<Item = &Vec<Self>> {
        let (first, second) = match self {
            Self::If { then, otherwise, .. } => (Some(then), Some(otherwise)),
            Self::Loop { body, .. } | Self::Scope { body, .. } => (Some(body), None),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }

    pub(crate) fn blocks_mut(&mut self) -> impl Iterator<Item = &mut Vec<Self>> {
        let (first, second) = match self {
            Self::If { then, otherwise, .. } => (Some(then), Some(otherwise)),
            Self::Loop { body, .. } | Self::Scope { body, .. } => (Some(body), None),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }
}
