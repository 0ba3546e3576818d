//! The kernel as plain data: registers, instructions, and a tree of statements.
//!
//! # Meaning of the nodes
//! A kernel runs as warps of 32 lanes in lockstep; a statement acts on the lanes that are *active* there.
//!
//! - [`Stmt::Inst`] runs its instruction on the active lanes; with a guard, only on those where the guard holds. In all
//!   other lanes the destination keeps its value and no memory is accessed. Warp operations and
//!   barriers need all lanes.
//! - [`Stmt::If`] splits the active lanes by its condition. They join again after it.
//! - [`Stmt::Loop`] repeats its body until all lanes have left. Lanes leave by [`Stmt::Break`] with the loop's label,
//!   and start the next iteration early by [`Stmt::Continue`]. When no lane is left inside, the lanes that broke out
//!   continue after the loop.
//! - [`Stmt::Scope`] runs its body once. `Break` with its label goes to its end.
//! - A [`Branch::Uniform`] branch promises that all active lanes agree. [`crate::validate`] checks it.
//!
//! Registers that are not [`RegInfo::mutable`] are assigned by exactly one statement. Kernels from
//! [`crate::KernelBuilder::finish`] are valid. [`crate::validate::validate`] checks hand-made trees.

mod few;
mod inst;
mod path;
pub(crate) mod shared;
mod visit;

pub use few::Few;
pub use inst::{
    AtomOp, BoolOp, Combine, Conflict, Inst, LoadHint, MemAddr, Operand, PredUse, ReduxOp, ShflMode, SpecialReg,
    StoreHint, VoteMode,
};
pub use path::{BlockKind, Path};
pub use shared::{RegionId, RegionInfo, RegionScope, SharedLayout};

use crate::target::Target;
use crate::types::{MemTy, RegClass};

/// A virtual register: an index into [`KernelIr::regs`].
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Inst, RegId, Stmt}};
/// let k = KernelBuilder::new("doc");
/// k.lane_id().named("lane");
/// let kernel = k.finish().unwrap();
/// let Stmt::Inst { inst: Inst::Special { dst: RegId(i), .. }, .. } = kernel.body[0] else { unreachable!() };
/// assert_eq!(kernel.regs[i as usize].name.as_deref(), Some("lane"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegId(pub u32);

/// The label of a loop or scope, unique in its kernel.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{LabelId, Stmt}};
/// let k = KernelBuilder::new("doc");
/// k.block_uniform(|outer| k.block_uniform(|_| outer.exit()));
/// let Stmt::Scope { label: LabelId(outer), body } = &k.finish().unwrap().body[0] else { unreachable!() };
/// let Stmt::Scope { label: LabelId(inner), body } = &body[0] else { unreachable!() };
/// assert!(outer != inner && matches!(body[0], Stmt::Break { target: LabelId(to), .. } if to == *outer));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(pub u32);

/// The properties of a register.
///
/// ```
/// use trueno_gpu::{KernelBuilder, RegClass, ir::RegInfo};
/// let k = KernelBuilder::new("doc");
/// k.var(0u32).named("count");
/// let count = RegInfo { class: RegClass::B32, name: Some("count".into()), mutable: true };
/// assert_eq!(k.finish().unwrap().regs, [count]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegInfo {
    /// Class of the register.
    pub class: RegClass,
    /// The given name, for readable PTX and errors.
    pub name: Option<String>,
    /// `true` for a variable (assigned any number of times), `false` for a value (assigned once).
    pub mutable: bool,
}

/// The agreement of active lanes on a branch.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Branch, Stmt}};
/// let k = KernelBuilder::new("doc");
/// k.if_(k.lane_id().lt(7), || k.section("some lanes"));
/// let kernel = k.finish().unwrap();
/// assert!(matches!(kernel.body.last(), Some(Stmt::If { branch: Branch::Divergent, .. })));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Branch {
    /// All lanes agree, as the validator checked; emitted as `bra.uni`.
    Uniform,
    /// Lanes may diverge.
    Divergent,
}

/// A sequence of statements.
///
/// ```
/// use trueno_gpu::ir::{Block, Inst, Stmt};
/// fn instructions(block: &Block) -> usize {
///     let here = block.iter().filter(|s| matches!(s, Stmt::Inst { .. })).count();
///     here + block.iter().flat_map(Stmt::blocks).map(instructions).sum::<usize>()
/// }
/// let body = vec![Stmt::Section("meet".into()), Stmt::Inst { inst: Inst::BarBlock, guard: None }];
/// assert_eq!(instructions(&body), 1);
/// ```
pub type Block = Vec<Stmt>;

/// A statement.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{Inst, Stmt}};
/// let k = KernelBuilder::new("doc");
/// k.section("wait for the others");
/// k.sync_block();
/// let wait = Stmt::Inst { inst: Inst::BarBlock, guard: None };
/// assert_eq!(k.finish().unwrap().body, [Stmt::Section("wait for the others".into()), wait]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stmt {
    /// An instruction, for the lanes where the guard holds.
    Inst {
        /// The instruction.
        inst: Inst,
        /// The guard (`@p`, `@!p`).
        guard: Option<PredUse>,
    },
    /// A comment in the PTX.
    Section(String),
    /// Two-way branch.
    If {
        /// Condition.
        cond: PredUse,
        /// Uniform or not.
        branch: Branch,
        /// Statements for the lanes where the condition holds.
        then: Block,
        /// Statements for the other lanes; may be empty.
        otherwise: Block,
    },
    /// A loop, left by `Break`.
    Loop {
        /// Label of the loop.
        label: LabelId,
        /// Kind of the branch back.
        branch: Branch,
        /// Body.
        body: Block,
    },
    /// A body that `Break` can leave early.
    Scope {
        /// Label of the scope.
        label: LabelId,
        /// Body.
        body: Block,
    },
    /// Leaves the loop or scope `target`, at any depth inside it.
    Break {
        /// Loop or scope.
        target: LabelId,
        /// Lanes that leave; all lanes if `None`.
        cond: Option<PredUse>,
        /// Uniform or not.
        branch: Branch,
    },
    /// Starts the next iteration of the loop `target`, at any depth inside it.
    Continue {
        /// Loop.
        target: LabelId,
        /// Lanes that continue; all lanes if `None`.
        cond: Option<PredUse>,
        /// Uniform or not.
        branch: Branch,
    },
}

/// Returns the condition under which a loop continues, if its last statement is a conditional `Break` of itself. The
/// emitter then writes one branch back (`@!cond bra top`) for both the test and the repetition, and counters count it
/// once.
///
/// ```
/// use trueno_gpu::ir::{loop_tail_test, Branch, LabelId, PredUse, RegId, Stmt};
/// let label = LabelId(0);
/// let cond = PredUse { reg: RegId(3), negated: false };
/// let body = vec![Stmt::Break { target: label, cond: Some(cond), branch: Branch::Uniform }];
/// assert_eq!(loop_tail_test(label, &body), Some(PredUse { reg: RegId(3), negated: true }));
/// ```
#[must_use]
pub fn loop_tail_test(label: LabelId, body: &[Stmt]) -> Option<PredUse> {
    match body.last() {
        Some(Stmt::Break { target, cond: Some(cond), .. }) if *target == label => Some(!*cond),
        _ => None,
    }
}

/// Type of a kernel parameter.
///
/// ```
/// use trueno_gpu::{KernelBuilder, MemTy, ir::ParamTy};
/// let k = KernelBuilder::new("doc");
/// let _ = (k.param_ptr::<u8>("pages"), k.param_u32("page_count"));
/// let types: Vec<_> = k.finish().unwrap().params.iter().map(|p| p.ty).collect();
/// assert_eq!(types, [ParamTy::Pointer(MemTy::U8), ParamTy::U32]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamTy {
    /// A 32-bit number.
    U32,
    /// A 64-bit number.
    U64,
    /// A device pointer to elements of the given type; 8 bytes.
    Pointer(MemTy),
}

impl ParamTy {
    /// Returns the class of the register that it is loaded into.
    ///
    /// ```
    /// use trueno_gpu::{ir::ParamTy, MemTy, RegClass};
    /// assert_eq!(ParamTy::Pointer(MemTy::U8).class(), RegClass::B64);
    /// ```
    #[must_use]
    pub const fn class(self) -> RegClass {
        match self {
            Self::U32 => RegClass::B32,
            Self::U64 | Self::Pointer(_) => RegClass::B64,
        }
    }
}

/// A kernel parameter.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::{ParamInfo, ParamTy}};
/// let k = KernelBuilder::new("doc");
/// let _ = k.param_u64("total");
/// let ParamInfo { name, ty } = &k.finish().unwrap().params[0];
/// assert_eq!((name.as_str(), *ty), ("total", ParamTy::U64));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamInfo {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: ParamTy,
}

/// A complete kernel.
///
/// ```
/// use trueno_gpu::{KernelBuilder, ir::KernelIr};
/// let k = KernelBuilder::new("mark").with_warps_per_block(4);
/// k.param_ptr::<u32>("flags").index(k.thread_id()).store(1u32);
/// let KernelIr { name, warps_per_block, params, .. } = k.finish().unwrap().into_ir();
/// assert_eq!((name.as_str(), warps_per_block * 32, params.len()), ("mark", 128, 1));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelIr {
    /// Name of the entry point.
    pub name: String,
    /// Target that the kernel is built and validated for; the default of the emitter.
    pub target: Target,
    /// Warps per block. A block has 32 times as many threads (`.maxntid`), in one dimension.
    pub warps_per_block: u32,
    /// Minimum number of blocks per SM (`.minnctapersm`).
    pub min_blocks_per_sm: Option<u32>,
    /// Parameters, in order.
    pub params: Vec<ParamInfo>,
    /// Registers, by [`RegId`].
    pub regs: Vec<RegInfo>,
    /// Shared memory.
    pub shared: SharedLayout,
    /// Statements.
    pub body: Block,
}

impl KernelIr {
    /// Returns the entry of a register.
    ///
    /// # Panics
    /// If the register is not part of this kernel.
    ///
    /// ```
    /// let k = trueno_gpu::KernelBuilder::new("empty");
    /// let lane = k.lane_id().named("lane");
    /// let kernel = k.finish()?;
    /// assert_eq!(kernel.reg(trueno_gpu::ir::RegId(0)).name.as_deref(), Some("lane"));
    /// # Ok::<(), trueno_gpu::ValidateError>(())
    /// ```
    #[must_use]
    pub fn reg(&self, id: RegId) -> &RegInfo {
        &self.regs[id.index()]
    }
}

impl RegId {
    /// Returns the index into [`KernelIr::regs`].
    ///
    /// ```
    /// assert_eq!(trueno_gpu::ir::RegId(3).index(), 3);
    /// ```
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
