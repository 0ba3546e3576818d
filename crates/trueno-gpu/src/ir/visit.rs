//! The registers that instructions read and write.

use super::{Inst, Operand, PredUse, RegId, Stmt};
use crate::types::{RegClass, StateSpace};

const fn address_class(space: StateSpace) -> RegClass {
    match space {
        StateSpace::Global => RegClass::B64,
        StateSpace::Shared => RegClass::B32,
    }
}

impl Inst {
    /// Calls `f` with each register that the instruction writes.
    ///
    /// ```
    /// use trueno_gpu::ir::{Inst, RegId, RegionId};
    /// let mut written = vec![];
    /// Inst::SharedBase { dst: RegId(4), region: RegionId(0) }.for_each_def(|r| written.push(r));
    /// assert_eq!(written, [RegId(4)]);
    /// ```
    pub fn for_each_def(mut self, mut f: impl FnMut(RegId)) {
        self.for_each_def_mut(|r| f(*r));
    }

    /// Calls `f` with each register that the instruction writes, to change it.
    pub(crate) fn for_each_def_mut(&mut self, mut f: impl FnMut(&mut RegId)) {
        match self {
            Self::Pure { dst, .. }
            | Self::Setp { dst, .. }
            | Self::Arbitrary { dst }
            | Self::Special { dst, .. }
            | Self::Param { dst, .. }
            | Self::SharedBase { dst, .. }
            | Self::Vote { dst, .. }
            | Self::Ballot { dst, .. }
            | Self::MatchAny { dst, .. }
            | Self::Redux { dst, .. } => f(dst),
            Self::Load { dst, .. } => dst.iter_mut().for_each(f),
            Self::Atomic { dst, .. } => dst.iter_mut().for_each(f),
            Self::Shfl { dst, in_range, .. } => {
                f(dst);
                in_range.iter_mut().for_each(f);
            }
            Self::Store { .. } | Self::BarWarp | Self::BarBlock => {}
        }
    }

    /// Calls `f` with each register that the instruction reads and the class it is read as. The guard belongs to the
    /// statement.
    ///
    /// ```
    /// use trueno_gpu::ir::{Inst, Operand, RegId};
    /// use trueno_gpu::RegClass;
    /// let mut read = vec![];
    /// Inst::MatchAny { dst: RegId(0), src: Operand::Reg(RegId(1)) }.for_each_use(|r, class| read.push((r, class)));
    /// assert_eq!(read, [(RegId(1), RegClass::B32)]);
    /// ```
    pub fn for_each_use(mut self, mut f: impl FnMut(RegId, RegClass)) {
        self.for_each_use_mut(|r, class| f(*r, class));
    }

    /// Calls `f` with each register that the instruction reads, to change it.
    pub(crate) fn for_each_use_mut(&mut self, mut f: impl FnMut(&mut RegId, RegClass)) {
        let mut operand = |operand: &mut Operand, class| {
            if let Operand::Reg(reg) = operand {
                f(reg, class);
            }
        };
        match self {
            Self::Pure { op, args, .. } => {
                for (arg, class) in args.iter_mut().zip(op.lanes().signature().1) {
                    operand(arg, *class);
                }
            }
            Self::Setp { op, a, b, combine, .. } => {
                let class = op.lanes().signature().1[0];
                operand(a, class);
                operand(b, class);
                if let Some(combine) = combine {
                    f(&mut combine.with.reg, RegClass::Pred);
                }
            }
            Self::Arbitrary { .. }
            | Self::Special { .. }
            | Self::Param { .. }
            | Self::SharedBase { .. }
            | Self::BarWarp
            | Self::BarBlock => {}
            Self::Load { addr, .. } => f(&mut addr.base, address_class(addr.space)),
            Self::Store { addr, src, ty, .. } => {
                for value in src.iter_mut() {
                    operand(value, ty.class());
                }
                f(&mut addr.base, address_class(addr.space));
            }
            Self::Atomic { addr, value, .. } => {
                operand(value, RegClass::B32);
                f(&mut addr.base, address_class(addr.space));
            }
            Self::Shfl { src, lane, .. } => {
                operand(src, RegClass::B32);
                operand(lane, RegClass::B32);
            }
            Self::Vote { src, .. } | Self::Ballot { src, .. } => f(&mut src.reg, RegClass::Pred),
            Self::MatchAny { src, .. } | Self::Redux { src, .. } => operand(src, RegClass::B32),
        }
    }

    /// Returns `true` if the instruction involves all lanes of the warp, so that each of them must reach it.
    ///
    /// ```
    /// use trueno_gpu::ir::Inst;
    /// assert!(Inst::BarWarp.is_warp_wide());
    /// ```
    #[must_use]
    pub const fn is_warp_wide(self) -> bool {
        matches!(
            self,
            Self::Shfl { .. }
                | Self::Vote { .. }
                | Self::Ballot { .. }
                | Self::MatchAny { .. }
                | Self::Redux { .. }
                | Self::BarWarp
        )
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
