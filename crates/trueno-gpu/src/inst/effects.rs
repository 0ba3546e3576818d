//! The rows of instructions that do more than compute: memory, warp operations and barriers.

use super::{CountKind, InstInfo, Uniformity};
use crate::ir::{AtomOp, Inst, ShflMode, SpecialReg};
use crate::target::PtxVersion;
use crate::types::StateSpace::{Global, Shared};

/// Returns the name, and `true` if the value is the same in all lanes.
pub(super) const fn special(reg: SpecialReg) -> (&'static str, bool) {
    match reg {
        SpecialReg::TidX => ("%tid.x", false),
        SpecialReg::NtidX => ("%ntid.x", true),
        SpecialReg::CtaidX => ("%ctaid.x", true),
        SpecialReg::NctaidX => ("%nctaid.x", true),
        SpecialReg::LaneId => ("%laneid", false),
        SpecialReg::LanemaskEq => ("%lanemask_eq", false),
        SpecialReg::LanemaskLe => ("%lanemask_le", false),
        SpecialReg::LanemaskLt => ("%lanemask_lt", false),
        SpecialReg::LanemaskGe => ("%lanemask_ge", false),
        SpecialReg::LanemaskGt => ("%lanemask_gt", false),
    }
}

const fn row(ptx_name: &'static str, major: u8, minor: u8, uniformity: Uniformity, count: CountKind) -> InstInfo {
    InstInfo { ptx_name, min_ptx: PtxVersion(major, minor), min_sm: 70, uniformity, count }
}

pub(super) fn info(inst: &Inst) -> InstInfo {
    use CountKind as C;
    use Uniformity::{Always, LaneOperand, Never, Pure};
    match inst {
        Inst::Pure { op, .. } | Inst::Setp { op, .. } => op.info(),
        // Nothing may depend on it, so it cannot make lanes diverge.
        Inst::Arbitrary { .. } => row("", 6, 0, Always, C::Move),
        Inst::Special { reg, .. } => row("mov.u32", 6, 0, if reg.is_uniform() { Always } else { Never }, C::Move),
        Inst::Param { .. } => row("ld.param", 6, 0, Always, C::Move),
        Inst::SharedBase { .. } => row("mov.u32", 6, 0, Always, C::Move),
        Inst::Load { addr, uniform, .. } => {
            let count = match addr.space {
                Global => C::GlobalLoad,
                Shared => C::SharedLoad,
            };
            row("ld", 6, 0, if *uniform { Always } else { Never }, count)
        }
        Inst::Store { addr, .. } => {
            let count = match addr.space {
                Global => C::GlobalStore,
                Shared => C::SharedStore,
            };
            row("st", 6, 0, Never, count)
        }
        Inst::Atomic { dst, addr, .. } => {
            let count = match addr.space {
                Global => C::GlobalAtomic,
                Shared => C::SharedAtomic,
            };
            row(if dst.is_some() { "atom" } else { "red" }, 6, 0, Never, count)
        }
        Inst::Shfl { mode: ShflMode::Idx, .. } => row("shfl.sync.idx.b32", 6, 0, LaneOperand, C::Warp),
        Inst::Shfl { mode: ShflMode::Up, .. } => row("shfl.sync.up.b32", 6, 0, Never, C::Warp),
        Inst::Shfl { mode: ShflMode::Down, .. } => row("shfl.sync.down.b32", 6, 0, Never, C::Warp),
        Inst::Shfl { mode: ShflMode::Bfly, .. } => row("shfl.sync.bfly.b32", 6, 0, Never, C::Warp),
        Inst::Vote { .. } => row("vote.sync", 6, 0, Always, C::Warp),
        Inst::Ballot { .. } => row("vote.sync.ballot.b32", 6, 0, Always, C::Warp),
        Inst::MatchAny { .. } => row("match.any.sync", 6, 0, Never, C::Warp),
        Inst::Redux { .. } => InstInfo { min_sm: 80, ..row("redux.sync", 7, 0, Always, C::Warp) },
        Inst::ActiveMask { .. } => row("activemask.b32", 6, 2, Never, C::Warp),
        Inst::BarWarp { .. } => row("bar.warp.sync", 6, 0, Pure, C::Barrier),
        Inst::BarBlock => row("bar.sync", 6, 0, Pure, C::Barrier),
        Inst::Fence { .. } => row("membar", 6, 0, Pure, C::Barrier),
    }
}

impl AtomOp {
    /// Returns `true` if the operation exists as a reduction (`red`), which does not return the old value.
    pub(crate) const fn has_reduction(self) -> bool {
        !matches!(self, Self::Exch | Self::Cas)
    }
}
