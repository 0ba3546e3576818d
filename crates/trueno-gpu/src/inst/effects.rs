//! The rows of instructions that do more than compute: memory, warp operations and barriers.

use super::{CountKind, InstInfo, Uniformity};
use crate::ir::{Inst, ShflMode, SpecialReg};
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
        SpecialReg::LanemaskGt => ("%lanemask_gt", false),
    }
}

pub(super) fn info(inst: &Inst) -> InstInfo {
    use CountKind as C;
    use Uniformity::{Always, LaneOperand, Never, Pure};
    let row = InstInfo::everywhere;
    match inst {
        Inst::Pure { op, .. } | Inst::Setp { op, .. } => op.info(),
        // Nothing may depend on it, so it cannot make lanes diverge.
        Inst::Arbitrary { .. } => row("", Always, C::Move),
        Inst::Special { reg, .. } => row("mov.u32", if reg.is_uniform() { Always } else { Never }, C::Move),
        Inst::Param { .. } => row("ld.param", Always, C::Move),
        Inst::SharedBase { .. } => row("mov.u32", Always, C::Move),
        Inst::Load { addr, uniform, .. } => {
            let count = match addr.space {
                Global => C::GlobalLoad,
                Shared => C::SharedLoad,
            };
            row("ld", if *uniform { Always } else { Never }, count)
        }
        Inst::Store { addr, .. } => {
            let count = match addr.space {
                Global => C::GlobalStore,
                Shared => C::SharedStore,
            };
            row("st", Never, count)
        }
        Inst::Atomic { dst, addr, .. } => {
            let count = match addr.space {
                Global => C::GlobalAtomic,
                Shared => C::SharedAtomic,
            };
            row(if dst.is_some() { "atom" } else { "red" }, Never, count)
        }
        Inst::Shfl { mode: ShflMode::Idx, .. } => row("shfl.sync.idx.b32", LaneOperand, C::Warp),
        Inst::Shfl { mode: ShflMode::Up, .. } => row("shfl.sync.up.b32", Never, C::Warp),
        Inst::Shfl { mode: ShflMode::Down, .. } => row("shfl.sync.down.b32", Never, C::Warp),
        Inst::Shfl { mode: ShflMode::Bfly, .. } => row("shfl.sync.bfly.b32", Never, C::Warp),
        Inst::Vote { .. } => row("vote.sync", Always, C::Warp),
        Inst::Ballot { .. } => row("vote.sync.ballot.b32", Always, C::Warp),
        Inst::MatchAny { .. } => row("match.any.sync.b32", Never, C::Warp),
        Inst::Redux { .. } => InstInfo { min_ptx: PtxVersion(7, 0), min_sm: 80, ..row("redux.sync", Always, C::Warp) },
        Inst::BarWarp => row("bar.warp.sync", Pure, C::Barrier),
        Inst::BarBlock => row("bar.sync", Pure, C::Barrier),
    }
}
