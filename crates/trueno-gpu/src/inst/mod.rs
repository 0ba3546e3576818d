//! The instruction table: one row per instruction, with its PTX spelling, its requirements and its meaning.
//!
//! Pure instructions (lane by lane, without side effects) are rows of [`Op`]; [`Inst::info`] covers the others. The
//! emitter takes the spelling from the table, the validator takes operand classes, targets and uniformity from it, and
//! the interpreter runs `op.lanes()` over 32 lanes at a time.

pub(crate) mod by_type;
mod effects;
mod lanes;
mod semantics;
mod table;

pub use lanes::{L32, L64, Lanes, Mask};
pub use semantics::{atomic_result, shfl_source};
pub use table::Op;

use crate::ir::{Inst, SpecialReg};
use crate::target::PtxVersion;

/// The condition under which a result is the same in all lanes of the warp.
///
/// ```
/// use trueno_gpu::inst::{Op, Uniformity};
/// use trueno_gpu::ir::{Inst, PredUse, RegId};
/// let src = PredUse { reg: RegId(0), negated: false };
/// let ballot = Inst::Ballot { dst: RegId(1), src };
/// assert_eq!(ballot.info().uniformity, Uniformity::Always); // a branch may depend on it
/// assert_eq!(Op::AddU32.info().uniformity, Uniformity::Pure);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uniformity {
    /// If all sources are uniform.
    Pure,
    /// Always, as for votes, parameters and the block's index.
    Always,
    /// If the lane operand is uniform, as for a shuffle by index.
    LaneOperand,
    /// Never, as for the lane's own number, memory and neighbours.
    Never,
}

/// The category that counters count an instruction in.
///
/// ```
/// use trueno_gpu::{KernelBuilder, inst::CountKind, interp::{Launch, DeviceMemory}};
/// let k = KernelBuilder::new("meet_twice");
/// k.sync_warp();
/// k.sync_warp();
/// let report = Launch::new(&k.finish().unwrap()).run(&mut DeviceMemory::new()).unwrap();
/// assert_eq!(report.total[CountKind::Barrier], 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CountKind {
    /// Arithmetic, logic, comparisons, selects.
    Alu,
    /// Copies of registers, parameters and special registers, mostly free after register allocation.
    Move,
    /// Load from shared memory.
    SharedLoad,
    /// Store to shared memory.
    SharedStore,
    /// Load from global memory.
    GlobalLoad,
    /// Store to global memory.
    GlobalStore,
    /// Atomic or reduction on shared memory.
    SharedAtomic,
    /// Atomic or reduction on global memory.
    GlobalAtomic,
    /// Vote, shuffle, match, reduction.
    Warp,
    /// Barrier.
    Barrier,
    /// Branch. Branches are control flow statements, not an [`Inst`].
    Branch,
}

/// The properties of an instruction, besides its operands.
///
/// ```
/// use trueno_gpu::inst::InstInfo;
/// use trueno_gpu::ir::{Inst, Operand, ReduxOp, RegId};
/// let src = Operand::Reg(RegId(0));
/// let InstInfo { ptx_name, min_sm, .. } = Inst::Redux { op: ReduxOp::Add, dst: RegId(1), src }.info();
/// assert_eq!((ptx_name, min_sm), ("redux.sync", 80)); // older devices do not have it
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstInfo {
    /// PTX spelling, up to the modifiers that the operands determine.
    pub ptx_name: &'static str,
    /// PTX version that introduced the instruction.
    pub min_ptx: PtxVersion,
    /// First SM that has the instruction.
    pub min_sm: u32,
    /// The condition under which the result is uniform.
    pub uniformity: Uniformity,
    /// Category in which it is counted.
    pub count: CountKind,
}

impl InstInfo {
    /// Returns the row of an instruction that every target has.
    const fn everywhere(ptx_name: &'static str, uniformity: Uniformity, count: CountKind) -> Self {
        Self { ptx_name, min_ptx: PtxVersion(6, 0), min_sm: 70, uniformity, count }
    }
}

impl Inst {
    /// Returns the row of the instruction.
    ///
    /// ```
    /// use trueno_gpu::inst::{CountKind, Uniformity};
    /// use trueno_gpu::ir::{Inst, RegId, SpecialReg};
    /// let lane = Inst::Special { dst: RegId(0), reg: SpecialReg::LaneId };
    /// assert_eq!(lane.info().uniformity, Uniformity::Never);
    /// assert_eq!(Inst::BarBlock.info().count, CountKind::Barrier);
    /// ```
    #[must_use]
    pub fn info(&self) -> InstInfo {
        effects::info(self)
    }
}

impl SpecialReg {
    /// Returns the PTX name.
    ///
    /// ```
    /// assert_eq!(trueno_gpu::ir::SpecialReg::LaneId.ptx_name(), "%laneid");
    /// ```
    #[must_use]
    pub const fn ptx_name(self) -> &'static str {
        effects::special(self).0
    }

    /// Returns `true` if all lanes of a warp read the same value.
    ///
    /// ```
    /// use trueno_gpu::ir::SpecialReg;
    /// assert!(SpecialReg::CtaidX.is_uniform());
    /// assert!(!SpecialReg::TidX.is_uniform());
    /// ```
    #[must_use]
    pub const fn is_uniform(self) -> bool {
        effects::special(self).1
    }
}

#[cfg(test)]
mod tests;
