//! One warp: its registers, its active lanes, and the loop that runs its steps.

use super::fault::{FaultKind, LaneSet, StepResult, trap};
use super::memory::DeviceMemory;
use super::narrow::{lane_u32, low32};
use super::order::{LaneOrder, SplitMix64};
use super::program::{Cond, Program, PureOp, RegSlot, RegisterFile, StepCode, WarpValue};
use super::shared::SharedMemory;
use super::warp_ops::need_all_lanes;
use crate::inst::{L32, L64, Lanes, Mask};
use crate::ir::BoolOp;
use crate::types::RegClass;

/// Number of steps after which a warp lets other threads run.
const STEPS_BETWEEN_YIELDS: u32 = 1 << 14;

pub(super) const ALL: u32 = u32::MAX;

/// The values of a launch that kernels read.
#[derive(Debug, Clone, Copy)]
pub(super) struct GridShape<'a> {
    pub(super) blocks: u32,
    pub(super) warps_per_block: u32,
    /// Bits of the parameters.
    pub(super) params: &'a [u64],
}

/// The launch, as all its warps share it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchContext<'a> {
    pub(super) program: &'a Program,
    pub(super) shape: GridShape<'a>,
    pub(super) memory: &'a DeviceMemory,
    pub(super) order: LaneOrder,
    pub(super) step_limit: u32,
}

/// The registers of one class: values, and which lanes have written each.
#[derive(Debug, Default)]
pub(super) struct RegisterBank<T> {
    pub(super) value: Vec<T>,
    pub(super) written: Vec<u32>,
    registers: usize,
}

impl<T: Copy + Default> RegisterBank<T> {
    fn new(file: &RegisterFile<T>, blank: T) -> Self {
        let registers = file.names.len();
        let mut value = vec![blank; registers];
        value.extend_from_slice(&file.constants);
        let mut written = vec![0; registers];
        written.resize(value.len(), ALL);
        Self { value, written, registers }
    }

    /// Clears the registers and keeps the constants.
    fn reset(&mut self) {
        self.written[..self.registers].fill(0);
    }
}

/// Lanes that wait in a structure.
#[derive(Debug, Clone, Copy, Default)]
struct DivergenceFrame {
    /// Lanes of the other side of an `If`.
    waiting: u32,
    /// Lanes that finished their side of an `If`, or left the loop or scope.
    done: u32,
    /// Lanes that wait for the next iteration of the loop.
    next_round: u32,
}

/// The reason that [`Warp::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WarpStop {
    Ended,
    BlockBarrier,
}

#[derive(Debug)]
pub(super) struct Warp {
    pub(super) index: u32,
    pub(super) w: RegisterBank<L32>,
    pub(super) d: RegisterBank<L64>,
    pub(super) p: RegisterBank<Mask>,
    /// The step of the last barrier. Shared accesses up to it are ordered before those after it.
    pub(super) floor: u32,
    pub(super) random: SplitMix64,
    /// The current step.
    pub(super) pc: usize,
    pub(super) steps: u32,
    active: u32,
    frames: Vec<DivergenceFrame>,
    /// Per step: how often it ran, and its wavefronts or sectors.
    pub(super) hits: Vec<u64>,
    pub(super) traffic: Vec<u64>,
}

impl Warp {
    pub(super) fn new(program: &Program) -> Self {
        Self {
            index: 0,
            w: RegisterBank::new(&program.w, [0; 32]),
            d: RegisterBank::new(&program.d, [0; 32]),
            p: RegisterBank::new(&program.p, 0),
            floor: 0,
            random: SplitMix64::new(0),
            pc: 0,
            steps: 0,
            active: ALL,
            frames: vec![DivergenceFrame::default(); program.frames as usize],
            hits: vec![0; program.lines.len()],
            traffic: vec![0; program.lines.len()],
        }
    }

    /// Turns it into warp `index` of a block, at its start.
    pub(super) fn reset(&mut self, cx: &LaunchContext<'_>, block: u32, index: u32) {
        self.index = index;
        self.w.reset();
        self.d.reset();
        self.p.reset();
        for (value, slot) in &cx.program.specials {
            self.w.value[*slot as usize] = match value {
                WarpValue::Thread => std::array::from_fn(|lane| index * 32 + lane_u32(lane)),
                WarpValue::Block => [block; 32],
                WarpValue::ThreadsPerBlock => [cx.shape.warps_per_block * 32; 32],
                WarpValue::Blocks => [cx.shape.blocks; 32],
            };
        }
        for param in &cx.program.params {
            let (bits, slot) = (cx.shape.params[param.index as usize], param.slot as usize);
            match param.class {
                RegClass::B64 => self.d.value[slot] = [bits; 32],
                _ => self.w.value[slot] = [low32(bits); 32],
            }
        }
        self.floor = 0;
        self.random = SplitMix64::new(cx.order.seed(block, index));
        self.pc = 0;
        self.steps = 0;
        self.active = ALL;
        self.hits.fill(0);
        self.traffic.fill(0);
    }

    /// Runs from the current step to the end or the next block barrier. After a fault, `pc` is the faulting step.
    pub(super) fn run(&mut self, cx: &LaunchContext<'_>, shared: &mut SharedMemory) -> StepResult<WarpStop> {
        let lines = &cx.program.lines[..];
        // Functions of one to four registers, by the classes of their operands.
        macro_rules! pure {
            ($exec:ident, $bank:ident[$dst:ident] = $f:ident($($from:ident[$src:ident]),*)) => {{
                let written = ALL $(& self.$from.written[$src as usize])*;
                if $exec & !written != 0 {
                    $(self.need($from!(class), $src, $exec, cx.program)?;)*
                }
                let result = $f($(arg!($from, self.$from.value[$src as usize])),*);
                self.$bank.set($dst, $exec, &result);
            }};
        }
        macro_rules! w {
            (class) => {
                RegClass::B32
            };
        }
        macro_rules! d {
            (class) => {
                RegClass::B64
            };
        }
        macro_rules! p {
            (class) => {
                RegClass::Pred
            };
        }
        macro_rules! arg {
            (p, $value:expr) => {
                $value
            };
            ($bank:ident, $value:expr) => {
                &$value
            };
        }
        loop {
            let line = &lines[self.pc];
            if self.steps == cx.step_limit {
                return trap(self.active, FaultKind::StepLimit { limit: u64::from(cx.step_limit) });
            }
            self.steps += 1;
            // The warp may be waiting for a block of another thread, which needs a core.
            if self.steps.is_multiple_of(STEPS_BETWEEN_YIELDS) {
                std::thread::yield_now();
            }
            self.hits[self.pc] += 1;
            let guard = self.condition(line.guard, self.active, cx.program)?;
            let exec = self.active & guard;
            let mut next = self.pc + 1;
            match line.code {
                StepCode::Pure(PureOp { lanes, dst, args: [a, b, c, d], combine }) => match lanes {
                    Lanes::W1(f) => pure!(exec, w[dst] = f(w[a])),
                    Lanes::W2(f) => pure!(exec, w[dst] = f(w[a], w[b])),
                    Lanes::W3(f) => pure!(exec, w[dst] = f(w[a], w[b], w[c])),
                    Lanes::W4(f) => pure!(exec, w[dst] = f(w[a], w[b], w[c], w[d])),
                    Lanes::D1(f) => pure!(exec, d[dst] = f(d[a])),
                    Lanes::D2(f) => pure!(exec, d[dst] = f(d[a], d[b])),
                    Lanes::D1W1(f) => pure!(exec, d[dst] = f(d[a], w[b])),
                    Lanes::Widen1(f) => pure!(exec, d[dst] = f(w[a])),
                    Lanes::Widen2(f) => pure!(exec, d[dst] = f(w[a], w[b])),
                    Lanes::Widen3(f) => pure!(exec, d[dst] = f(w[a], w[b], d[c])),
                    Lanes::Narrow1(f) => pure!(exec, w[dst] = f(d[a])),
                    Lanes::Sel32(f) => pure!(exec, w[dst] = f(w[a], w[b], p[c])),
                    Lanes::Sel64(f) => pure!(exec, d[dst] = f(d[a], d[b], p[c])),
                    Lanes::P1(f) => pure!(exec, p[dst] = f(p[a])),
                    Lanes::P2(f) => pure!(exec, p[dst] = f(p[a], p[b])),
                    Lanes::Cmp32(f) => {
                        // Read first: this may be the old value of the destination.
                        let combine = self.combined(combine, exec, cx.program)?;
                        pure!(exec, p[dst] = f(w[a], w[b]));
                        self.combine(dst, combine, exec);
                    }
                    Lanes::Cmp64(f) => {
                        let combine = self.combined(combine, exec, cx.program)?;
                        pure!(exec, p[dst] = f(d[a], d[b]));
                        self.combine(dst, combine, exec);
                    }
                },
                StepCode::Noise { class, dst } => self.noise(class, dst, exec),

                StepCode::UniformIf { cond, otherwise } => {
                    if self.decide(cond, true, cx.program)? == 0 {
                        next = otherwise as usize;
                    }
                }
                StepCode::Split { cond, frame, otherwise } => {
                    let taking = self.decide(cond, false, cx.program)?;
                    self.frames[frame as usize] =
                        DivergenceFrame { waiting: self.active & !taking, ..DivergenceFrame::default() };
                    self.go_on(taking, otherwise, &mut next);
                }
                StepCode::Else { frame, end } => {
                    let frame = &mut self.frames[frame as usize];
                    frame.done = self.active;
                    let waiting = std::mem::take(&mut frame.waiting);
                    self.go_on(waiting, end, &mut next);
                }
                StepCode::Merge { frame, skip } => {
                    let DivergenceFrame { waiting, done, .. } = self.frames[frame as usize];
                    self.go_on(self.active | waiting | done, skip, &mut next);
                }
                StepCode::Jump { to } => next = to as usize,
                StepCode::Enter { frame } => self.frames[frame as usize] = DivergenceFrame::default(),
                StepCode::LoopEnd { frame, top, skip } => {
                    let frame = &mut self.frames[frame as usize];
                    let again = self.active | std::mem::take(&mut frame.next_round);
                    let done = frame.done;
                    if again == 0 {
                        self.go_on(done, skip, &mut next);
                    } else {
                        self.active = again;
                        next = top as usize;
                    }
                }
                StepCode::ScopeEnd { frame, skip } => {
                    let done = self.frames[frame as usize].done;
                    self.go_on(self.active | done, skip, &mut next);
                }
                StepCode::Break { cond, uniform, frame, skip } => {
                    let leaving = self.decide(cond, uniform, cx.program)?;
                    self.frames[frame as usize].done |= leaving;
                    self.go_on(self.active & !leaving, skip, &mut next);
                }
                StepCode::Continue { cond, uniform, frame, skip } => {
                    let leaving = self.decide(cond, uniform, cx.program)?;
                    self.frames[frame as usize].next_round |= leaving;
                    self.go_on(self.active & !leaving, skip, &mut next);
                }
                StepCode::End => return Ok(WarpStop::Ended),

                // A device issues these as well, but they have no effect.
                _ if exec == 0 => {}
                StepCode::SharedLoad { op, uniform } => self.shared_load(cx, shared, &op, uniform, exec)?,
                StepCode::SharedStore { op, conflicting } => self.shared_store(cx, shared, &op, conflicting, exec)?,
                StepCode::GlobalLoad { op, uniform } => self.global_load(cx, &op, uniform, exec)?,
                StepCode::GlobalStore { op, conflicting } => self.global_store(cx, &op, conflicting, exec)?,
                StepCode::SharedAtomic(op) => self.shared_atomic(cx, shared, &op, exec)?,
                StepCode::GlobalAtomic(op) => self.global_atomic(cx, &op, exec)?,
                StepCode::Shfl(op) => self.shfl(cx, &op, exec)?,
                StepCode::Vote { mode, dst, src } => self.vote(cx, mode, dst, src, exec)?,
                StepCode::Ballot { dst, src } => self.ballot(cx, dst, src, exec)?,
                StepCode::MatchAny { dst, src } => self.match_any(cx, dst, src, exec)?,
                StepCode::Redux { op, dst, src } => self.redux(cx, op, dst, src, exec)?,
                StepCode::BarWarp => {
                    need_all_lanes(exec)?;
                    self.floor = self.steps;
                }
                StepCode::BarBlock => {
                    if exec != ALL {
                        let reached = LaneSet(exec);
                        return trap(!exec, FaultKind::BlockBarrierMissed { reached, ended_warp: None });
                    }
                    self.floor = self.steps;
                    self.pc = next;
                    return Ok(WarpStop::BlockBarrier);
                }
            }
            self.pc = next;
        }
    }

    /// Continues with these lanes; if none is left, at `skip`.
    #[inline]
    fn go_on(&mut self, lanes: u32, skip: u32, next: &mut usize) {
        self.active = lanes;
        if lanes == 0 {
            *next = skip as usize;
        }
    }

    /// Returns the lanes of `lanes` whose condition holds. They must have written it.
    #[inline]
    pub(super) fn condition(&self, cond: Cond, lanes: u32, program: &Program) -> StepResult<u32> {
        let slot = cond.slot as usize;
        if lanes & !self.p.written[slot] != 0 {
            self.need(RegClass::Pred, cond.slot, lanes, program)?;
        }
        Ok(lanes & (self.p.value[slot] ^ cond.flip))
    }

    /// Returns the active lanes that take a branch.
    #[inline]
    fn decide(&self, cond: Cond, uniform: bool, program: &Program) -> StepResult<u32> {
        let taking = self.condition(cond, self.active, program)?;
        if uniform && taking != 0 && taking != self.active {
            let kind = FaultKind::DivergentUniformBranch { taking: LaneSet(taking), active: LaneSet(self.active) };
            return trap(self.active, kind);
        }
        Ok(taking)
    }

    /// Applies the predicate that a comparison is combined with.
    #[inline]
    fn combined(
        &self,
        combine: Option<(BoolOp, Cond)>,
        exec: u32,
        program: &Program,
    ) -> StepResult<Option<(BoolOp, u32)>> {
        match combine {
            Some((op, with)) => Ok(Some((op, self.condition(with, exec, program)?))),
            None => Ok(None),
        }
    }

    #[inline]
    fn combine(&mut self, dst: RegSlot, combine: Option<(BoolOp, u32)>, exec: u32) {
        if let Some((op, other)) = combine {
            let own = self.p.value[dst as usize];
            let result = match op {
                BoolOp::And => own & other,
                BoolOp::Or => own | other,
                BoolOp::Xor => own ^ other,
            };
            self.p.set(dst, exec, &result);
        }
    }

    /// Faults if one of the lanes has not written the register.
    #[inline]
    pub(super) fn need(&self, class: RegClass, slot: RegSlot, lanes: u32, program: &Program) -> StepResult {
        let (written, names) = match class {
            RegClass::B32 => (&self.w.written, &program.w.names),
            RegClass::B64 => (&self.d.written, &program.d.names),
            RegClass::Pred => (&self.p.written, &program.p.names),
        };
        let missing = lanes & !written[slot as usize];
        if missing == 0 {
            return Ok(());
        }
        let register = names.get(slot as usize).cloned().unwrap_or_default();
        trap(missing, FaultKind::UnwrittenRegister { register })
    }

    fn noise(&mut self, class: RegClass, dst: RegSlot, exec: u32) {
        match class {
            RegClass::B32 => {
                let noise = [(); 32].map(|()| self.random.next_u32());
                self.w.set(dst, exec, &noise);
            }
            RegClass::B64 => {
                let noise = [(); 32].map(|()| self.random.next());
                self.d.set(dst, exec, &noise);
            }
            RegClass::Pred => {
                let noise = self.random.next_u32();
                self.p.set(dst, exec, &noise);
            }
        }
    }
}

/// Bit of each lane.
pub(super) const LANE_BIT: [u32; 32] = {
    let mut bits = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

macro_rules! set_lanes {
    ($ty:ty) => {
        impl RegisterBank<[$ty; 32]> {
            /// Writes the register in the given lanes.
            #[inline]
            pub(super) fn set(&mut self, dst: RegSlot, lanes: u32, value: &[$ty; 32]) {
                let old = &mut self.value[dst as usize];
                if lanes == ALL {
                    *old = *value;
                } else {
                    for lane in 0..32 {
                        old[lane] = if lanes & LANE_BIT[lane] != 0 { value[lane] } else { old[lane] };
                    }
                }
                self.written[dst as usize] |= lanes;
            }
        }
    };
}
set_lanes!(u32);
set_lanes!(u64);

impl RegisterBank<Mask> {
    /// Writes the register in the given lanes.
    #[inline]
    pub(super) fn set(&mut self, dst: RegSlot, lanes: u32, value: &Mask) {
        let old = &mut self.value[dst as usize];
        *old = *old & !lanes | value & lanes;
        self.written[dst as usize] |= lanes;
    }
}
