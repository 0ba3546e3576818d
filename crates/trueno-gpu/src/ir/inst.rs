//! Instructions as data: operands, modifiers, and the instructions themselves.

use super::RegId;
use super::few::Few;
use super::shared::RegionId;
use crate::inst::Op;
use crate::types::{MemTy, RegClass, StateSpace};

/// A source operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A register's value.
    Reg(RegId),
    /// A constant's bits, zero-extended; the operand's width is the instruction's.
    Imm(u64),
}

/// A predicate register, or its negation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredUse {
    /// The predicate register.
    pub reg: RegId,
    /// Whether its negation is meant.
    pub negated: bool,
}

/// An address: register plus constant bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAddr {
    /// Global (64-bit base register) or shared (32-bit base register).
    pub space: StateSpace,
    /// The register.
    pub base: RegId,
    /// Bytes added to it (wrapping in the width of the base).
    pub offset: i32,
}

/// How a compare is combined with a third predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Combine {
    /// The operator.
    pub op: BoolOp,
    /// The other operand.
    pub with: PredUse,
}

/// The operator of a [`Combine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoolOp {
    /// Both.
    And,
    /// Either.
    Or,
    /// Exactly one.
    Xor,
}

/// Cache hint of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadHint {
    /// None.
    #[default]
    Default,
    /// `ld.global.nc`: the memory is read-only for the whole kernel.
    NonCoherent,
    /// `.cg`: cached in L2 only.
    L2,
    /// `.cs`: streaming, likely read once.
    Streaming,
    /// `ld.volatile`: never merged or moved.
    Volatile,
}

/// Cache hint of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreHint {
    /// None.
    #[default]
    Default,
    /// `.cg`: cached in L2 only.
    L2,
    /// `.cs`: streaming, likely not read again.
    Streaming,
    /// `st.volatile`: never merged or moved.
    Volatile,
}

/// Whether lanes may hit the same bytes in one store on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conflict {
    /// No two lanes of a warp store to the same byte without a barrier between: the interpreter faults otherwise.
    #[default]
    Fault,
    /// They may; any one of them wins.
    Intended,
}

/// Operation of an atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomOp {
    /// Wrapping sum.
    Add,
    /// Minimum, signed for `I32`.
    Min,
    /// Maximum, signed for `I32`.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Replace.
    Exch,
    /// Replace if equal to `compare`.
    Cas,
}

/// Which lane a shuffle reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShflMode {
    /// The given lane.
    Idx,
    /// Own lane minus the operand.
    Up,
    /// Own lane plus the operand.
    Down,
    /// Own lane exclusive-or the operand.
    Bfly,
}

/// What a vote asks of the lanes' predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VoteMode {
    /// True in at least one lane.
    Any,
    /// True in all lanes.
    All,
    /// The same in all lanes.
    Uni,
}

/// A special register (blocks and grids are one-dimensional).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialReg {
    /// Thread in the block, `%tid.x`.
    TidX,
    /// Threads in a block, `%ntid.x`.
    NtidX,
    /// Block in the grid, `%ctaid.x`.
    CtaidX,
    /// Blocks in the grid, `%nctaid.x`.
    NctaidX,
    /// Lane in the warp, 0 to 31: `tid.x & 31`.
    LaneId,
    /// Bit of the own lane.
    LanemaskEq,
    /// Bits up to and with the own lane.
    LanemaskLe,
    /// Bits below the own lane.
    LanemaskLt,
    /// Bits from the own lane up.
    LanemaskGe,
    /// Bits above the own lane.
    LanemaskGt,
}

/// Who sees the memory order of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FenceScope {
    /// The block.
    Block,
    /// The device.
    Device,
    /// The device and the host.
    System,
}

/// One instruction. [`Inst::info`] gives its row in the instruction table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inst {
    /// `dst = op(args)`, lane by lane, no side effect: `op.lanes()` is the meaning. All but the compares.
    Pure {
        /// Row of the table.
        op: Op,
        /// Destination.
        dst: RegId,
        /// Sources, as many and of such classes as `op.lanes()` says.
        args: Few<Operand>,
    },
    /// `dst = op(a, b) [combine.op combine.with]`: a compare.
    Setp {
        /// A compare's row: its `lanes()` is `Cmp32` or `Cmp64`.
        op: Op,
        /// Destination predicate.
        dst: RegId,
        /// Left.
        a: Operand,
        /// Right.
        b: Operand,
        /// Combined with a further predicate.
        combine: Option<Combine>,
    },
    /// An arbitrary value, on which no result may depend (so it counts as uniform). Emits nothing; an interpreter fills in
    /// noise.
    Arbitrary {
        /// Destination.
        dst: RegId,
    },
    /// A special register.
    Special {
        /// Destination (B32).
        dst: RegId,
        /// Which.
        reg: SpecialReg,
    },
    /// A kernel parameter (index into [`super::KernelIr::params`]); pointers arrive as global addresses.
    Param {
        /// Destination, of the parameter's class.
        dst: RegId,
        /// Which.
        index: u32,
    },
    /// The shared address of a region: warp 0's part if it is per warp (others follow at `stride` bytes each).
    SharedBase {
        /// Destination (B32).
        dst: RegId,
        /// Which.
        region: RegionId,
    },
    /// Loads one, two or four consecutive elements.
    Load {
        /// Destinations.
        dst: Few<RegId>,
        /// Element.
        ty: MemTy,
        /// Address, aligned to all the bytes loaded.
        addr: MemAddr,
        /// Cache hint.
        hint: LoadHint,
        /// The address is the same in all lanes, so the value is too (the validator proves the former).
        uniform: bool,
    },
    /// Stores one, two or four consecutive elements (low bits of the registers for 1 and 2 bytes).
    Store {
        /// Values.
        src: Few<Operand>,
        /// Element.
        ty: MemTy,
        /// Address, aligned to all the bytes stored.
        addr: MemAddr,
        /// Cache hint.
        hint: StoreHint,
        /// Whether lanes may conflict.
        conflict: Conflict,
    },
    /// Atomic read-modify-write; with no destination a reduction (`red`). Lanes act one after the other, in any order.
    Atomic {
        /// Receives the old value.
        dst: Option<RegId>,
        /// Operation.
        op: AtomOp,
        /// `U32`, `I32` or `U64`.
        ty: MemTy,
        /// Address.
        addr: MemAddr,
        /// Operand.
        value: Operand,
        /// For `Cas`: what the old value must equal.
        compare: Option<Operand>,
    },
    /// Reads `src` of another lane: [`crate::inst::shfl_source`] says which.
    Shfl {
        /// Which lane.
        mode: ShflMode,
        /// Destination (B32).
        dst: RegId,
        /// Receives whether the source lane was in range.
        in_range: Option<RegId>,
        /// Value offered to the others.
        src: Operand,
        /// Lane, distance or xor mask.
        lane: Operand,
        /// The `c` operand: segment mask in bits 8 to 12, clamp in bits 0 to 4.
        clamp: u32,
        /// Member lanes; each executing lane must be in it.
        mask: Operand,
    },
    /// `dst` = any / all / uniform of the members' predicates.
    Vote {
        /// Question.
        mode: VoteMode,
        /// Destination predicate.
        dst: RegId,
        /// Predicate.
        src: PredUse,
        /// Member lanes.
        mask: Operand,
    },
    /// `dst` = one bit for each member whose predicate holds.
    Ballot {
        /// Destination (B32).
        dst: RegId,
        /// Predicate.
        src: PredUse,
        /// Member lanes.
        mask: Operand,
    },
    /// `dst` = bits of the members that have the same value.
    MatchAny {
        /// Destination (B32).
        dst: RegId,
        /// Value compared.
        src: Operand,
        /// Its class: B32 or B64.
        class: RegClass,
        /// Member lanes.
        mask: Operand,
    },
    /// `dst` = bits of the lanes that execute this.
    ActiveMask {
        /// Destination (B32).
        dst: RegId,
    },
    /// `bar.warp.sync`: the members meet; memory is ordered among them.
    BarWarp {
        /// Member lanes.
        mask: Operand,
    },
    /// `bar.sync 0`: all threads of the block meet; memory is ordered among them.
    BarBlock,
    /// Orders the thread's memory accesses before and after it (`membar`).
    Fence {
        /// Who sees the order.
        scope: FenceScope,
    },
}

impl std::ops::Not for PredUse {
    type Output = Self;
    fn not(self) -> Self {
        Self { negated: !self.negated, ..self }
    }
}
