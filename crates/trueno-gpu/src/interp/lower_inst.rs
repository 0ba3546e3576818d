//! Lowers single instructions: operands become slots, table rows become functions over the lanes.

use super::lower::Lowering;
use super::narrow::lane_u32;
use super::program::{AtomicOp, MemOp, ParamSlot, PureOp, RegSlot, ShflOp, StepCode, WarpValue};
use crate::inst::Op;
use crate::ir::{Conflict, Inst, MemAddr, Operand, RegId, SpecialReg};
use crate::types::{MemTy, RegClass, StateSpace};

impl Lowering<'_> {
    pub(super) fn inst(&mut self, inst: &Inst) -> StepCode {
        use RegClass::{B32, B64};
        match inst {
            Inst::Pure { op, dst, args } => StepCode::Pure(self.pure(*op, *dst, args)),
            Inst::Setp { op, dst, a, b, combine } => {
                let combine = combine.map(|combine| (combine.op, self.cond(combine.with)));
                StepCode::Pure(PureOp { combine, ..self.pure(*op, *dst, &[*a, *b]) })
            }
            Inst::Arbitrary { dst } => StepCode::Noise { class: self.kernel.reg(*dst).class, dst: self.reg(*dst) },
            Inst::Special { dst, reg } => {
                let value = self.special(*reg);
                self.mov(Op::Mov32, *dst, value)
            }
            Inst::Param { dst, index } => {
                let class = self.kernel.params[*index as usize].ty.class();
                // Set when a warp starts.
                let (slot, mov) = match class {
                    B64 => (self.program.d.add([0; 32]), Op::Mov64),
                    _ => (self.program.w.add([0; 32]), Op::Mov32),
                };
                self.program.params.push(ParamSlot { index: *index, class, slot });
                self.mov(mov, *dst, slot)
            }
            Inst::SharedBase { dst, region } => {
                let region = &self.kernel.shared.regions[region.0 as usize];
                let value = self.w_constant(self.program.shared_base.wrapping_add(region.offset));
                self.mov(Op::Mov32, *dst, value)
            }
            Inst::Load { dst, ty, addr, uniform, .. } => {
                let mut regs = [0; 4];
                for (slot, reg) in regs.iter_mut().zip(dst.iter()) {
                    *slot = self.reg(*reg);
                }
                let (op, uniform) = (self.mem(regs, dst.len(), *ty, addr), *uniform);
                match addr.space {
                    StateSpace::Shared => StepCode::SharedLoad { op, uniform },
                    StateSpace::Global => StepCode::GlobalLoad { op, uniform },
                }
            }
            Inst::Store { src, ty, addr, conflict, .. } => {
                let mut regs = [0; 4];
                for (slot, value) in regs.iter_mut().zip(src.iter()) {
                    *slot = self.operand(*value, ty.class());
                }
                let (op, conflicting) = (self.mem(regs, src.len(), *ty, addr), *conflict == Conflict::Intended);
                match addr.space {
                    StateSpace::Shared => StepCode::SharedStore { op, conflicting },
                    StateSpace::Global => StepCode::GlobalStore { op, conflicting },
                }
            }
            Inst::Atomic { dst, op, addr, value } => {
                let dst = dst.map(|dst| self.reg(dst));
                let (base, offset, value) = (self.reg(addr.base), addr.offset, self.operand(*value, B32));
                let atomic = AtomicOp { dst, op: *op, base, offset, value };
                match addr.space {
                    StateSpace::Shared => StepCode::SharedAtomic(atomic),
                    StateSpace::Global => StepCode::GlobalAtomic(atomic),
                }
            }
            Inst::Shfl { mode, dst, in_range, src, lane } => StepCode::Shfl(ShflOp {
                mode: *mode,
                dst: self.reg(*dst),
                in_range: in_range.map(|p| self.reg(p)),
                src: self.operand(*src, B32),
                lane: self.operand(*lane, B32),
            }),
            Inst::Vote { mode, dst, src } => StepCode::Vote { mode: *mode, dst: self.reg(*dst), src: self.cond(*src) },
            Inst::Ballot { dst, src } => StepCode::Ballot { dst: self.reg(*dst), src: self.cond(*src) },
            Inst::MatchAny { dst, src } => StepCode::MatchAny { dst: self.reg(*dst), src: self.operand(*src, B32) },
            Inst::Redux { op, dst, src } => {
                StepCode::Redux { op: *op, dst: self.reg(*dst), src: self.operand(*src, B32) }
            }
            Inst::BarWarp => StepCode::BarWarp,
            Inst::BarBlock => {
                self.program.has_block_barrier = true;
                StepCode::BarBlock
            }
        }
    }

    fn pure(&mut self, op: Op, dst: RegId, sources: &[Operand]) -> PureOp {
        let lanes = op.lanes();
        let mut args = [0; 4];
        for ((slot, source), class) in args.iter_mut().zip(sources).zip(lanes.signature().1) {
            *slot = self.operand(*source, *class);
        }
        PureOp { lanes, dst: self.reg(dst), args, combine: None }
    }

    fn mov(&self, op: Op, dst: RegId, from: RegSlot) -> StepCode {
        StepCode::Pure(PureOp { lanes: op.lanes(), dst: self.reg(dst), args: [from, 0, 0, 0], combine: None })
    }

    fn mem(&self, regs: [RegSlot; 4], len: usize, ty: MemTy, addr: &MemAddr) -> MemOp {
        let count = u8::try_from(len).expect("at most four");
        MemOp { regs, count, ty, base: self.reg(addr.base), offset: addr.offset }
    }

    fn special(&mut self, reg: SpecialReg) -> RegSlot {
        if let Some(&slot) = self.specials.get(&reg) {
            return slot;
        }
        let lane = |f: fn(u32) -> u32| std::array::from_fn(|lane| f(lane_u32(lane)));
        // Most values depend on the launch, and are set when a warp starts.
        let (value, at_launch) = match reg {
            SpecialReg::TidX => ([0; 32], Some(WarpValue::Thread)),
            SpecialReg::CtaidX => ([0; 32], Some(WarpValue::Block)),
            SpecialReg::NtidX => ([0; 32], Some(WarpValue::ThreadsPerBlock)),
            SpecialReg::NctaidX => ([0; 32], Some(WarpValue::Blocks)),
            SpecialReg::LaneId => (lane(|lane| lane), None),
            SpecialReg::LanemaskEq => (lane(|lane| 1 << lane), None),
            SpecialReg::LanemaskLt => (lane(|lane| (1 << lane) - 1), None),
            SpecialReg::LanemaskLe => (lane(|lane| u32::MAX >> (31 - lane)), None),
            SpecialReg::LanemaskGt => (lane(|lane| !(u32::MAX >> (31 - lane))), None),
        };
        let slot = self.program.w.add(value);
        self.specials.insert(reg, slot);
        self.program.specials.extend(at_launch.map(|value| (value, slot)));
        slot
    }
}
