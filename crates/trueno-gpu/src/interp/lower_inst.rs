//! Lowers single instructions: operands become slots, table rows become functions over the lanes.

use super::lower::{Lowering, Malformed};
use super::program::{AtomicOp, MemOp, ParamSlot, RegSlot, ShflOp, StepCode, WarpValue};
use crate::inst::{Lanes, Op};
use crate::ir::{Conflict, Inst, MemAddr, Operand, RegId, SpecialReg};
use crate::types::{MemTy, RegClass, StateSpace};

impl Lowering<'_> {
    pub(super) fn inst(&mut self, inst: &Inst) -> Malformed<StepCode> {
        use RegClass::{B32, B64, Pred};
        Ok(match inst {
            Inst::Pure { op, dst, args } => self.pure(*op, *dst, args)?,
            Inst::Setp { op, dst, a, b, combine } => {
                let combine = match combine {
                    Some(combine) => Some((combine.op, self.cond(combine.with)?)),
                    None => None,
                };
                let dst = self.reg(*dst, Pred)?;
                match op.lanes() {
                    Lanes::Cmp32(f) => {
                        StepCode::Cmp32 { f, dst, a: self.operand(*a, B32)?, b: self.operand(*b, B32)?, combine }
                    }
                    Lanes::Cmp64(f) => {
                        StepCode::Cmp64 { f, dst, a: self.operand(*a, B64)?, b: self.operand(*b, B64)?, combine }
                    }
                    _ => return Err(format!("{op:?} is not a comparison")),
                }
            }
            Inst::Arbitrary { dst } => {
                let class = self.kernel.regs.get(dst.index()).ok_or("destination does not exist")?.class;
                StepCode::Noise { class, dst: self.reg(*dst, class)? }
            }
            Inst::Special { dst, reg } => {
                let value = self.special(*reg)?;
                self.mov32(*dst, value)?
            }
            Inst::Param { dst, index } => {
                let param = self.kernel.params.get(*index as usize).ok_or("parameter does not exist")?;
                let class = param.ty.class();
                let slot = self.launch_slot(class)?;
                self.program.params.push(ParamSlot { index: *index, class, slot });
                match class {
                    B64 => {
                        let Lanes::D1(f) = Op::Mov64.lanes() else { unreachable!("a move of 64 bits") };
                        StepCode::D1 { f, dst: self.reg(*dst, B64)?, a: slot }
                    }
                    _ => self.mov32(*dst, slot)?,
                }
            }
            Inst::SharedBase { dst, region } => {
                let regions = &self.kernel.shared.regions;
                let region = regions.get(region.0 as usize).ok_or("shared region does not exist")?;
                let value = self.w_constant(self.program.shared_base.wrapping_add(region.offset))?;
                self.mov32(*dst, value)?
            }
            Inst::Load { dst, ty, addr, uniform, .. } => {
                let mut regs = [0; 4];
                for (slot, reg) in regs.iter_mut().zip(dst.iter()) {
                    *slot = self.reg(*reg, ty.class())?;
                }
                let (op, uniform) = (self.mem(regs, dst.len(), *ty, addr)?, *uniform);
                match addr.space {
                    StateSpace::Shared => StepCode::SharedLoad { op, uniform },
                    StateSpace::Global => StepCode::GlobalLoad { op, uniform },
                }
            }
            Inst::Store { src, ty, addr, conflict, .. } => {
                let mut regs = [0; 4];
                for (slot, value) in regs.iter_mut().zip(src.iter()) {
                    *slot = self.operand(*value, ty.class())?;
                }
                let (op, conflicting) = (self.mem(regs, src.len(), *ty, addr)?, *conflict == Conflict::Intended);
                match addr.space {
                    StateSpace::Shared => StepCode::SharedStore { op, conflicting },
                    StateSpace::Global => StepCode::GlobalStore { op, conflicting },
                }
            }
            Inst::Atomic { dst, op, ty, addr, value, compare } => {
                if ty.bytes() < 4 {
                    return Err(format!("atomics do not work on {ty:?}"));
                }
                let atomic = AtomicOp {
                    dst: dst.map(|dst| self.reg(dst, ty.class())).transpose()?,
                    op: *op,
                    ty: *ty,
                    base: self.base(addr)?,
                    offset: addr.offset,
                    value: self.operand(*value, ty.class())?,
                    compare: compare.map(|compare| self.operand(compare, ty.class())).transpose()?,
                };
                match addr.space {
                    StateSpace::Shared => StepCode::SharedAtomic(atomic),
                    StateSpace::Global => StepCode::GlobalAtomic(atomic),
                }
            }
            Inst::Shfl { mode, dst, in_range, src, lane, clamp, mask } => StepCode::Shfl(ShflOp {
                mode: *mode,
                dst: self.reg(*dst, B32)?,
                in_range: in_range.map(|p| self.reg(p, Pred)).transpose()?,
                src: self.operand(*src, B32)?,
                lane: self.operand(*lane, B32)?,
                clamp: *clamp,
                mask: self.operand(*mask, B32)?,
            }),
            Inst::Vote { mode, dst, src, mask } => StepCode::Vote {
                mode: *mode,
                dst: self.reg(*dst, Pred)?,
                src: self.cond(*src)?,
                mask: self.operand(*mask, B32)?,
            },
            Inst::Ballot { dst, src, mask } => {
                StepCode::Ballot { dst: self.reg(*dst, B32)?, src: self.cond(*src)?, mask: self.operand(*mask, B32)? }
            }
            Inst::MatchAny { dst, src, class, mask } => StepCode::MatchAny {
                dst: self.reg(*dst, B32)?,
                src: self.operand(*src, *class)?,
                wide: *class == B64,
                mask: self.operand(*mask, B32)?,
            },
            Inst::Redux { op, dst, src, mask } => StepCode::Redux {
                op: *op,
                dst: self.reg(*dst, B32)?,
                src: self.operand(*src, B32)?,
                mask: self.operand(*mask, B32)?,
            },
            Inst::ActiveMask { dst } => StepCode::ActiveMask { dst: self.reg(*dst, B32)? },
            Inst::BarWarp { mask } => StepCode::BarWarp { mask: self.operand(*mask, B32)? },
            Inst::BarBlock => {
                self.program.has_block_barrier = true;
                StepCode::BarBlock
            }
            Inst::Fence { .. } => StepCode::Fence,
        })
    }

    fn pure(&mut self, op: Op, dst: RegId, args: &[Operand]) -> Malformed<StepCode> {
        let lanes = op.lanes();
        let (class, sources) = lanes.signature();
        if args.len() != sources.len() {
            return Err(format!("{op:?} takes {} sources, not {}", sources.len(), args.len()));
        }
        let dst = self.reg(dst, class)?;
        let mut slots = [0; 4];
        for ((slot, arg), class) in slots.iter_mut().zip(args).zip(sources) {
            *slot = self.operand(*arg, *class)?;
        }
        let [a, b, c, d] = slots;
        Ok(match lanes {
            Lanes::W1(f) => StepCode::W1 { f, dst, a },
            Lanes::W2(f) => StepCode::W2 { f, dst, a, b },
            Lanes::W3(f) => StepCode::W3 { f, dst, a, b, c },
            Lanes::W4(f) => StepCode::W4 { f, dst, a, b, c, d },
            Lanes::D1(f) => StepCode::D1 { f, dst, a },
            Lanes::D2(f) => StepCode::D2 { f, dst, a, b },
            Lanes::D1W1(f) => StepCode::D1W1 { f, dst, a, b },
            Lanes::Widen1(f) => StepCode::Widen1 { f, dst, a },
            Lanes::Widen2(f) => StepCode::Widen2 { f, dst, a, b },
            Lanes::Widen3(f) => StepCode::Widen3 { f, dst, a, b, c },
            Lanes::Narrow1(f) => StepCode::Narrow1 { f, dst, a },
            Lanes::Cmp32(f) => StepCode::Cmp32 { f, dst, a, b, combine: None },
            Lanes::Cmp64(f) => StepCode::Cmp64 { f, dst, a, b, combine: None },
            Lanes::Sel32(f) => StepCode::Sel32 { f, dst, a, b, p: c },
            Lanes::Sel64(f) => StepCode::Sel64 { f, dst, a, b, p: c },
            Lanes::P1(f) => StepCode::P1 { f, dst, a },
            Lanes::P2(f) => StepCode::P2 { f, dst, a, b },
        })
    }

    fn mov32(&mut self, dst: RegId, a: RegSlot) -> Malformed<StepCode> {
        let Lanes::W1(f) = Op::Mov32.lanes() else { unreachable!("a move of 32 bits") };
        Ok(StepCode::W1 { f, dst: self.reg(dst, RegClass::B32)?, a })
    }

    fn base(&self, addr: &MemAddr) -> Malformed<RegSlot> {
        self.reg(addr.base, if addr.space == StateSpace::Global { RegClass::B64 } else { RegClass::B32 })
    }

    fn mem(&self, regs: [RegSlot; 4], len: usize, ty: MemTy, addr: &MemAddr) -> Malformed<MemOp> {
        let valid = matches!(len, 1 | 2 | 4) && len as u64 * u64::from(ty.bytes()) <= 16;
        let count = u8::try_from(len).ok().filter(|_| valid);
        let count = count.ok_or_else(|| format!("an access cannot have {len} elements of {ty:?}"))?;
        Ok(MemOp { regs, count, ty, base: self.base(addr)?, offset: addr.offset })
    }

    fn special(&mut self, reg: SpecialReg) -> Malformed<RegSlot> {
        if let Some(&slot) = self.specials.get(&reg) {
            return Ok(slot);
        }
        let lane = |f: fn(u32) -> u32| {
            let mut lane = 0;
            [(); 32].map(|()| {
                lane += 1;
                f(lane - 1)
            })
        };
        let value = match reg {
            // Set when a warp starts.
            SpecialReg::TidX | SpecialReg::CtaidX | SpecialReg::NtidX | SpecialReg::NctaidX => [0; 32],
            SpecialReg::LaneId => lane(|lane| lane),
            SpecialReg::LanemaskEq => lane(|lane| 1 << lane),
            SpecialReg::LanemaskLt => lane(|lane| (1 << lane) - 1),
            SpecialReg::LanemaskLe => lane(|lane| u32::MAX >> (31 - lane)),
            SpecialReg::LanemaskGe => lane(|lane| u32::MAX << lane),
            SpecialReg::LanemaskGt => lane(|lane| !(u32::MAX >> (31 - lane))),
        };
        let slot = self.w_slot(value)?;
        self.specials.insert(reg, slot);
        let value = match reg {
            SpecialReg::TidX => Some(WarpValue::Thread),
            SpecialReg::CtaidX => Some(WarpValue::Block),
            SpecialReg::NtidX => Some(WarpValue::ThreadsPerBlock),
            SpecialReg::NctaidX => Some(WarpValue::Blocks),
            _ => None,
        };
        self.program.specials.extend(value.map(|value| (value, slot)));
        Ok(slot)
    }
}
