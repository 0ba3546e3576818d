//! The flat program that a kernel is lowered to: steps with jump targets and register slots.
//!
//! Constants, parameters and special registers are slots too. They are filled before a warp starts, so that all
//! operands are read the same way. Structures in which lanes can diverge have a frame with a fixed number; a uniform
//! `If` needs none. Lanes that leave a structure early drop out of the active set and return at the end of the frame.
//! When no lane is left, execution continues at the step's `skip` target, the end of the innermost frame.

use crate::inst::{CountKind, L32, L64, Lanes, Mask};
use crate::ir::{AtomOp, BoolOp, Path, ReduxOp, SharedLayout, ShflMode, VoteMode};
use crate::types::{MemTy, RegClass};

/// Index into the register file of the operand's class.
pub(super) type RegSlot = u32;
/// Index of a step.
pub(super) type Pc = u32;
/// Index of a frame.
pub(super) type FrameId = u32;

/// A predicate slot, possibly negated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cond {
    pub(super) slot: RegSlot,
    /// 0, or all ones for the negation.
    pub(super) flip: u32,
}

/// Operands of a load or store: one, two or four registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemOp {
    pub(super) regs: [RegSlot; 4],
    pub(super) count: u8,
    pub(super) ty: MemTy,
    pub(super) base: RegSlot,
    pub(super) offset: i32,
}

impl MemOp {
    /// Returns the number of bytes per lane.
    pub(super) fn bytes(&self) -> u32 {
        self.ty.bytes() * u32::from(self.count)
    }
}

/// Operands of an atomic.
#[derive(Debug, Clone, Copy)]
pub(super) struct AtomicOp {
    pub(super) dst: Option<RegSlot>,
    pub(super) op: AtomOp,
    pub(super) base: RegSlot,
    pub(super) offset: i32,
    pub(super) value: RegSlot,
}

/// Operands of a shuffle.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShflOp {
    pub(super) mode: ShflMode,
    pub(super) dst: RegSlot,
    pub(super) in_range: Option<RegSlot>,
    pub(super) src: RegSlot,
    pub(super) lane: RegSlot,
}

/// Operands of a pure instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct PureOp {
    pub(super) lanes: Lanes,
    pub(super) dst: RegSlot,
    /// As many as `lanes` takes, then zeros.
    pub(super) args: [RegSlot; 4],
    /// The predicate that a comparison is combined with.
    pub(super) combine: Option<(BoolOp, Cond)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum StepCode {
    Pure(PureOp),
    Noise {
        class: RegClass,
        dst: RegSlot,
    },
    SharedLoad {
        op: MemOp,
        uniform: bool,
    },
    SharedStore {
        op: MemOp,
        conflicting: bool,
    },
    GlobalLoad {
        op: MemOp,
        uniform: bool,
    },
    GlobalStore {
        op: MemOp,
        conflicting: bool,
    },
    SharedAtomic(AtomicOp),
    GlobalAtomic(AtomicOp),
    Shfl(ShflOp),
    Vote {
        mode: VoteMode,
        dst: RegSlot,
        src: Cond,
    },
    Ballot {
        dst: RegSlot,
        src: Cond,
    },
    MatchAny {
        dst: RegSlot,
        src: RegSlot,
    },
    Redux {
        op: ReduxOp,
        dst: RegSlot,
        src: RegSlot,
    },
    BarWarp,
    BarBlock,

    /// Continues at `otherwise` unless the condition holds in all active lanes.
    UniformIf {
        cond: Cond,
        otherwise: Pc,
    },
    /// Keeps the lanes whose condition holds. The others wait in the frame.
    Split {
        cond: Cond,
        frame: FrameId,
        otherwise: Pc,
    },
    /// Switches to the waiting lanes.
    Else {
        frame: FrameId,
        end: Pc,
    },
    /// Continues with all remaining lanes.
    Merge {
        frame: FrameId,
        skip: Pc,
    },
    Jump {
        to: Pc,
    },
    Enter {
        frame: FrameId,
    },
    LoopEnd {
        frame: FrameId,
        top: Pc,
        skip: Pc,
    },
    ScopeEnd {
        frame: FrameId,
        skip: Pc,
    },
    Break {
        cond: Cond,
        uniform: bool,
        frame: FrameId,
        skip: Pc,
    },
    Continue {
        cond: Cond,
        uniform: bool,
        frame: FrameId,
        skip: Pc,
    },
    End,
}

/// A step, executed by the lanes where the guard holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProgramLine {
    pub(super) code: StepCode,
    pub(super) guard: Cond,
    /// Category in which it is counted; `None` if it is not an instruction.
    pub(super) kind: Option<CountKind>,
    /// Index into [`Program::origins`].
    pub(super) origin: u32,
}

/// The statement that a step came from.
#[derive(Debug, Clone)]
pub(super) struct StepOrigin {
    pub(super) path: Path,
    /// Index into [`Program::sections`].
    pub(super) section: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) lines: Vec<ProgramLine>,
    pub(super) origins: Vec<StepOrigin>,
    pub(super) sections: Vec<String>,
    pub(super) frames: u32,
    /// Initial register files of a warp: registers first, then constants.
    pub(super) w: RegisterFile<L32>,
    pub(super) d: RegisterFile<L64>,
    pub(super) p: RegisterFile<Mask>,
    /// Slots to fill for each warp: values of the launch that the kernel reads.
    pub(super) specials: Vec<(WarpValue, RegSlot)>,
    pub(super) params: Vec<ParamSlot>,
    pub(super) has_block_barrier: bool,
    pub(super) shared: SharedLayout,
    pub(super) shared_base: u32,
}

/// The value of a special register that depends on the launch.
#[derive(Debug, Clone, Copy)]
pub(super) enum WarpValue {
    Thread,
    Block,
    ThreadsPerBlock,
    Blocks,
}

/// The slot of a parameter.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParamSlot {
    pub(super) index: u32,
    pub(super) class: RegClass,
    pub(super) slot: RegSlot,
}

/// A register file before the start: the names of the registers, then constants.
#[derive(Debug, Default)]
pub(super) struct RegisterFile<T> {
    pub(super) names: Vec<String>,
    pub(super) constants: Vec<T>,
}

impl<T> RegisterFile<T> {
    /// Adds a constant. All registers must be there already.
    pub(super) fn add(&mut self, value: T) -> RegSlot {
        self.constants.push(value);
        count(self.names.len() + self.constants.len() - 1)
    }
}

/// Returns a number of registers, steps or statements.
pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a kernel has fewer than 2^32 registers and statements")
}
