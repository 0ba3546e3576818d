//! Lowers single instructions: operands become slots, table rows become functions over the lanes.

use super::lower::{Lowering, Malformed};
use super::program::{AtomicOp, Code, MemOp, ParamSlot, ShflOp, Slot, WarpValue};
use crate::inst::{Lanes, Op};
use crate::ir::{Conflict, Inst, MemAddr, Operand, RegId, SpecialReg};
use crate::types::{MemTy, RegClass, StateSpace};

impl Lowering<'_> {
    pub(super) fn inst(&mut self, inst: &Inst) -> Malformed<Code> {
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
                        Code::Cmp32 { f, dst, a: self.operand(*a, B32)?, b: self.operand(*b, B32)?, combine }
                    }
                    Lanes::Cmp64(f) => {
                        Code::Cmp64 { f, dst, a: self.operand(*a, B64)?, b: self.operand(*b, B64)?, combine }
                    }
                    _ => return Err(format!("{op:?} is not a comparison")),
                }
            }
            Inst::Arbitrary { dst } => {
                let class = self.kernel.regs.get(dst.index()).ok_or("destination does not exist")?.class;
                Code::Noise { class, dst: self.reg(*dst, class)? }
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
                        Code::D1 { f, dst: self.reg(*dst, B64)?, a: slot }
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
                    StateSpace::Shared => Code::SharedLoad { op, uniform },
                    StateSpace::Global => Code::GlobalLoad { op, uniform },
                }
            }
            Inst::Store { src, ty, addr, conflict, .. } => {
                let mut regs = [0; 4];
                for (slot, value) in regs.iter_mut().zip(src.iter()) {
                    *slot = self.operand(*value, ty.class())?;
                }
                let (op, conflicting) = (self.mem(regs, src.len(), *ty, addr)?, *conflict == Conflict::Intended);
                match addr.space {
                    StateSpace::Shared => Code::SharedStore { op, conflicting },
                    StateSpace::Global => Code::GlobalStore { op, conflicting },
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
                    StateSpace::Shared => Code::SharedAtomic(atomic),
                    StateSpace::Global => Code::GlobalAtomic(atomic),
                }
            }
            Inst::Shfl { mode, dst, in_range, src, lane, clamp, mask } => Code::Shfl(ShflOp {
                mode: *mode,
                dst: self.reg(*dst, B32)?,
                in_range: in_range.map(|p| self.reg(p, Pred)).transpose()?,
                src: self.operand(*src, B32)?,
                lane: self.operand(*lane, B32)?,
                clamp: *clamp,
                mask: self.operand(*mask, B32)?,
            }),
            Inst::Vote { mode, dst, src, mask } => Code::Vote {
                mode: *mode,
                dst: self.reg(*dst, Pred)?,
                src: self.cond(*src)?,
                mask: self.operand(*mask, B32)?,
            },
            Inst::Ballot { dst, src, mask } => {
                Code::Ballot { dst: self.reg(*dst, B32)?, src: self.cond(*src)?, mask: self.operand(*mask, B32)? }
            }
            Inst::MatchAny { dst, src, class, mask } => Code::MatchAny {
                dst: self.reg(*dst, B32)?,
                src: self.operand(*src, *class)?,
                wide: *class == B64,
                mask: self.operand(*mask, B32)?,
            },
            Inst::Redux { op, dst, src, mask } => Code::Redux {
                op: *op,
                dst: self.reg(*dst, B32)?,
                src: self.operand(*src, B32)?,
                mask: self.operand(*mask, B32)?,
            },
            Inst::ActiveMask { dst } => Code::ActiveMask { dst: self.reg(*dst, B32)? },
            Inst::BarWarp { mask } => Code::BarWarp { mask: self.operand(*mask, B32)? },
            Inst::BarBlock => {
                self.program.has_block_barrier = true;
                Code::BarBlock
            }
            Inst::Fence { .. } => Code::Fence,
        })
    }

    fn pure(&mut self, op: Op, dst: RegId, args: &[Operand]) -> Malformed<Code> {
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
            Lanes::W1(f) => Code::W1 { f, dst, a },
            Lanes::W2(f) => Code::W2 { f, dst, a, b },
            Lanes::W3(f) => Code::W3 { f, dst, a, b, c },
            Lanes::W4(f) => Code::W4 { f, dst, a, b, c, d },
            Lanes::D1(f) => Code::D1 { f, dst, a },
            Lanes::D2(f) => Code::D2 { f, dst, a, b },
            Lanes::D1W1(f) => Code::D1W1 { f, dst, a, b },
            Lanes::Widen1(f) => Code::Widen1 { f, dst, a },
            Lanes::Widen2(f) => Code::Widen2 { f, dst, a, b },
            Lanes::Widen3(f) => Code::Widen3 { f, dst, a, b, c },
            Lanes::Narrow1(f) => Code::Narrow1 { f, dst, a },
            Lanes::Cmp32(f) => Code::Cmp32 { f, dst, a, b, combine: None },
            Lanes::Cmp64(f) => Code::Cmp64 { f, dst, a, b, combine: None },
            Lanes::Sel32(f) => Code::Sel32 { f, dst, a, b, p: c },
            Lanes::Sel64(f) => Code::Sel64 { f, dst, a, b, p: c },
            Lanes::P1(f) => Code::P1 { f, dst, a },
            Lanes::P2(f) => Code::P2 { f, dst, a, b },
        })
    }

    fn mov32(&mut self, dst: RegId, a: Slot) -> Malformed<Code> {
        let Lanes::W1(f) = Op::Mov32.lanes() else { unreachable!("a move of 32 bits") };
        Ok(Code::W1 { f, dst: self.reg(dst, RegClass::B32)?, a })
    }

    fn base(&self, addr: &MemAddr) -> Malformed<Slot> {
        self.reg(addr.base, if addr.space == StateSpace::Global { RegClass::B64 } else { RegClass::B32 })
    }

    fn mem(&self, regs: [Slot; 4], len: usize, ty: MemTy, addr: &MemAddr) -> Malformed<MemOp> {
        let valid = matches!(len, 1 | 2 | 4) && len as u64 * u64::from(ty.bytes()) <= 16;
        let count = u8::try_from(len).ok().filter(|_| valid);
        let count = count.ok_or_else(|| format!("an access cannot have {len} elements of {ty:?}"))?;
        Ok(MemOp { regs, count, ty, base: self.base(addr)?, offset: addr.offset })
    }

    fn special(&mut self, reg: SpecialReg) -> Malformed<Slot> {
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
