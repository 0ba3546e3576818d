//! Instructions as data: operands, modifiers, and the instructions themselves.

use super::RegId;
use super::few::Few;
use super::shared::RegionId;
use crate::inst::Op;
use crate::types::{MemTy, StateSpace};

/// A source operand.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Inst, Operand, RegId, Stmt}};
/// let k = KernelBuilder::new("doc");
/// let _ = k.lane_id() + 7;
/// let Stmt::Inst { inst: Inst::Pure { args, .. }, .. } = &k.finish().unwrap().body[1] else { unreachable!() };
/// assert_eq!(**args, [Operand::Reg(RegId(0)), Operand::Imm(7)]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// The value of a register.
    Reg(RegId),
    /// The bits of a constant, zero-extended. The instruction determines the width.
    Imm(u64),
}

/// A predicate register, or its negation.
///
/// ```
/// use trueno_gpu::ir::{PredUse, RegId};
/// let first_lane = PredUse { reg: RegId(2), negated: false };
/// let others = !first_lane; // no instruction: `@!p` instead of `@p`
/// assert_eq!((others.reg, others.negated), (RegId(2), true));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredUse {
    /// The predicate register.
    pub reg: RegId,
    /// `true` for the negation of the register.
    pub negated: bool,
}

/// An address: a register plus a constant number of bytes.
///
/// ```
/// use trueno_gpu::{KernelBuilder, StateSpace, ir::{Inst, MemAddr, RegId, Stmt}};
/// let k = KernelBuilder::new("doc");
/// let _ = k.param_ptr::<u32>("input").at(3).load();
/// let Stmt::Inst { inst: Inst::Load { addr, .. }, .. } = k.finish().unwrap().body[1] else { unreachable!() };
/// assert_eq!(addr, MemAddr { space: StateSpace::Global, base: RegId(0), offset: 12 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAddr {
    /// Global (64-bit base register) or shared (32-bit base register).
    pub space: StateSpace,
    /// The register.
    pub base: RegId,
    /// Bytes added to it, wrapping in the width of the base.
    pub offset: i32,
}

/// The combination of a comparison with a third predicate.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{BoolOp, Combine, Inst, Stmt}};
/// let k = KernelBuilder::new("doc");
/// let (lane, n) = (k.lane_id(), k.param_u32("n"));
/// k.if_(lane.gt(0) & lane.lt(n), || k.section("inside")); // two compares, no `and`
/// let Stmt::Inst { inst: Inst::Setp { combine, .. }, .. } = k.finish().unwrap().body[3] else { unreachable!() };
/// assert!(matches!(combine, Some(Combine { op: BoolOp::And, .. })));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Combine {
    /// The operator.
    pub op: BoolOp,
    /// The other operand.
    pub with: PredUse,
}

/// The operator of a [`Combine`].
///
/// ```
/// let k = trueno_gpu::KernelBuilder::new("doc");
/// let lane = k.lane_id();
/// k.if_(lane.eq(0) | lane.eq(31), || k.section("the ends"));
/// let ptx = trueno_gpu::emit(&k.finish().unwrap());
/// assert!(ptx.contains("setp.eq.or.u32")); // BoolOp::Or
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoolOp {
    /// Both hold.
    And,
    /// At least one holds.
    Or,
    /// Exactly one holds.
    Xor,
}

/// The cache hint of a load.
///
/// ```
/// use trueno_gpu::{KernelBuilder, emit, ir::LoadHint};
/// let k = KernelBuilder::new("doc");
/// let _ = k.param_ptr::<u32>("input").load_vec_with::<4>(LoadHint::NonCoherent);
/// assert!(emit(&k.finish().unwrap()).contains("ld.global.nc.v4.u32"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadHint {
    /// No hint.
    #[default]
    Default,
    /// `ld.global.nc`: the memory is read-only for the whole kernel.
    NonCoherent,
    /// `ld.volatile`: never merged or moved.
    Volatile,
}

/// The cache hint of a store.
///
/// ```
/// use trueno_gpu::{KernelBuilder, emit, ir::StoreHint};
/// let k = KernelBuilder::new("doc");
/// let (flags, is_first) = (k.param_ptr::<u32>("flags"), k.lane_id().eq(0));
/// k.when(is_first).store_vec_with(StoreHint::Volatile, flags, [1u32]); // other blocks read it
/// assert!(emit(&k.finish().unwrap()).contains("st.volatile.global.u32"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreHint {
    /// No hint.
    #[default]
    Default,
    /// `st.volatile`: never merged or moved.
    Volatile,
}

/// The treatment of lanes that write the same bytes in one store.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Conflict, Inst, Stmt}};
/// let k = KernelBuilder::new("doc");
/// k.param_ptr::<u32>("winner").store_conflicting(k.lane_id()); // all lanes, one place
/// let kernel = k.finish().unwrap();
/// let Some(Stmt::Inst { inst: Inst::Store { conflict, .. }, .. }) = kernel.body.last() else { unreachable!() };
/// assert_eq!(*conflict, Conflict::Intended);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conflict {
    /// No two lanes of a warp store to the same byte without a barrier between them; otherwise the interpreter reports
    /// a fault.
    #[default]
    Fault,
    /// Lanes may conflict. Any one of them wins.
    Intended,
}

/// The operation of an atomic instruction.
///
/// ```
/// use trueno_gpu::{KernelBuilder, emit, ir::AtomOp};
/// let k = KernelBuilder::new("doc");
/// let next = k.param_ptr::<u32>("next");
/// let _ = next.atomic(AtomOp::Add, 1u32); // returns the old value
/// next.reduce(AtomOp::Or, 9u32); // returns nothing
/// assert!(emit(&k.finish().unwrap()).contains("red.global.or.b32"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomOp {
    /// Wrapping sum.
    Add,
    /// Bitwise or.
    Or,
}

/// The rule by which a shuffle chooses the lane to read from.
///
/// ```
/// use trueno_gpu::{inst::shfl_source, ir::ShflMode};
/// let lane_5_reads = |mode| shfl_source(mode, 5, 4).0;
/// assert_eq!(lane_5_reads(ShflMode::Idx), 4);
/// assert_eq!(lane_5_reads(ShflMode::Up), 1);
/// assert_eq!(lane_5_reads(ShflMode::Down), 9);
/// assert_eq!(lane_5_reads(ShflMode::Bfly), 1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShflMode {
    /// The given lane.
    Idx,
    /// Own lane minus the operand.
    Up,
    /// Own lane plus the operand.
    Down,
    /// Own lane xor the operand.
    Bfly,
}

/// The operation of a warp reduction; values are unsigned.
///
/// ```
/// use trueno_gpu::{KernelBuilder, Target, ir::{Inst, ReduxOp, Stmt}};
/// let k = KernelBuilder::new("doc").with_target(Target::SM_80);
/// let sum = k.lane_id().redux(ReduxOp::Add); // 496
/// # let _ = sum;
/// let Stmt::Inst { inst: Inst::Redux { op, .. }, .. } = k.finish().unwrap().body[1] else { unreachable!() };
/// assert_eq!(op, ReduxOp::Add);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduxOp {
    /// Sum, modulo 2^32.
    Add,
    /// Largest.
    Max,
    /// Bits set in any.
    Or,
}

/// The question that a vote answers about the lanes' predicates.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Inst, Stmt, VoteMode}};
/// let k = KernelBuilder::new("doc");
/// k.if_uniform(k.lane_id().lt(5).any(), || k.section("some lane is below 5"));
/// let Stmt::Inst { inst: Inst::Vote { mode, .. }, .. } = k.finish().unwrap().body[2] else { unreachable!() };
/// assert_eq!(mode, VoteMode::Any);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VoteMode {
    /// True in at least one lane.
    Any,
    /// True in all lanes.
    All,
}

/// A special register (blocks and grids are one-dimensional).
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Inst, SpecialReg, Stmt}};
/// let k = KernelBuilder::new("doc");
/// let _ = k.block_id();
/// let Stmt::Inst { inst: Inst::Special { reg, .. }, .. } = k.finish().unwrap().body[0] else { unreachable!() };
/// assert_eq!((reg, reg.ptx_name()), (SpecialReg::CtaidX, "%ctaid.x"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialReg {
    /// Index of the thread in the block, `%tid.x`.
    TidX,
    /// Number of threads in a block, `%ntid.x`.
    NtidX,
    /// Index of the block in the grid, `%ctaid.x`.
    CtaidX,
    /// Number of blocks in the grid, `%nctaid.x`.
    NctaidX,
    /// Index of the lane in the warp, 0 to 31: `tid.x & 31`.
    LaneId,
    /// Bit of the lane itself.
    LanemaskEq,
    /// Bits of the lane and all lower lanes.
    LanemaskLe,
    /// Bits of all lower lanes.
    LanemaskLt,
    /// Bits of all higher lanes.
    LanemaskGt,
}

/// One instruction. [`Inst::info`] returns its row in the instruction table. Shuffles, votes, matches, reductions and
/// warp barriers involve all 32 lanes, so all must reach them.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Inst, Stmt}};
/// let k = KernelBuilder::new("doc");
/// k.param_ptr::<u32>("output").index(k.lane_id()).store(k.lane_id());
/// let kernel = k.finish().unwrap();
/// let stores = kernel.body.iter().filter(|s| matches!(s, Stmt::Inst { inst: Inst::Store { .. }, .. }));
/// assert_eq!(stores.count(), 1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inst {
    /// `dst = op(args)`, lane by lane and without side effects, as `op.lanes()` defines. Covers all but comparisons.
    Pure {
        /// Row of the table.
        op: Op,
        /// Destination.
        dst: RegId,
        /// Sources, in the number and classes of `op.lanes()`.
        args: Few<Operand>,
    },
    /// `dst = op(a, b) [combine.op combine.with]`: a comparison.
    Setp {
        /// Row of a comparison; its `lanes()` is `Cmp32` or `Cmp64`.
        op: Op,
        /// Destination predicate.
        dst: RegId,
        /// Left operand.
        a: Operand,
        /// Right operand.
        b: Operand,
        /// Another predicate to combine with.
        combine: Option<Combine>,
    },
    /// An arbitrary value, on which no result may depend, so it counts as uniform. Emits nothing; the interpreter fills
    /// in noise.
    Arbitrary {
        /// Destination.
        dst: RegId,
    },
    /// A special register.
    Special {
        /// Destination (B32).
        dst: RegId,
        /// The special register.
        reg: SpecialReg,
    },
    /// A kernel parameter (index into [`super::KernelIr::params`]); pointers arrive as global addresses.
    Param {
        /// Destination, of the parameter's class.
        dst: RegId,
        /// Index of the parameter.
        index: u32,
    },
    /// The shared address of a region. For a region per warp, the part of warp 0; the others follow at `stride` bytes
    /// each.
    SharedBase {
        /// Destination (B32).
        dst: RegId,
        /// The region.
        region: RegionId,
    },
    /// Loads one, two or four consecutive elements.
    Load {
        /// Destinations.
        dst: Few<RegId>,
        /// Element type.
        ty: MemTy,
        /// Address, aligned to all bytes loaded.
        addr: MemAddr,
        /// Cache hint.
        hint: LoadHint,
        /// `true` if the address is the same in all lanes, so that the value is too. The validator checks the address.
        uniform: bool,
    },
    /// Stores one, two or four consecutive elements. For 1 and 2 bytes, stores the low bits of the registers.
    Store {
        /// Values.
        src: Few<Operand>,
        /// Element type.
        ty: MemTy,
        /// Address, aligned to all bytes stored.
        addr: MemAddr,
        /// Cache hint.
        hint: StoreHint,
        /// The treatment of conflicting lanes.
        conflict: Conflict,
    },
    /// Atomic read-modify-write of a `u32`; without a destination, a reduction (`red`). Lanes act one after the other,
    /// in any order.
    Atomic {
        /// Receives the old value.
        dst: Option<RegId>,
        /// Operation.
        op: AtomOp,
        /// Address.
        addr: MemAddr,
        /// Operand.
        value: Operand,
    },
    /// Reads `src` of another lane, which [`crate::inst::shfl_source`] computes.
    Shfl {
        /// The rule that chooses the lane.
        mode: ShflMode,
        /// Destination (B32).
        dst: RegId,
        /// Predicate that is set if the source lane was in range.
        in_range: Option<RegId>,
        /// Value that other lanes read.
        src: Operand,
        /// Lane, distance or xor mask.
        lane: Operand,
    },
    /// `dst` = any or all of the lanes' predicates.
    Vote {
        /// The question.
        mode: VoteMode,
        /// Destination predicate.
        dst: RegId,
        /// Predicate.
        src: PredUse,
    },
    /// `dst` = one bit for each lane whose predicate holds.
    Ballot {
        /// Destination (B32).
        dst: RegId,
        /// Predicate.
        src: PredUse,
    },
    /// `dst` = bits of the lanes that have the same value.
    MatchAny {
        /// Destination (B32).
        dst: RegId,
        /// Value compared (B32).
        src: Operand,
    },
    /// `dst` = the values of all lanes, combined.
    Redux {
        /// The operation.
        op: ReduxOp,
        /// Destination (B32).
        dst: RegId,
        /// The lane's value, unsigned.
        src: Operand,
    },
    /// `bar.warp.sync`: all lanes of the warp wait for each other; memory is ordered among them.
    BarWarp,
    /// `bar.sync 0`: all threads of the block wait for each other; memory is ordered among them.
    BarBlock,
}

impl std::ops::Not for PredUse {
    type Output = Self;
    fn not(self) -> Self {
        Self { negated: !self.negated, ..self }
    }
}
