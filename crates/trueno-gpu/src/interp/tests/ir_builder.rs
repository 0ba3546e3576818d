//! A minimal builder of instruction trees. It tests the instructions, so it uses nothing built on them.
//!
//! The instruction suite of `trueno-test-kernels` includes this file, so it names everything from `trueno_gpu`.

use trueno_gpu::inst::{Lanes, Op};
use trueno_gpu::ir::{
    Block, Branch, Conflict, Few, Inst, KernelIr, LabelId, LoadHint, MemAddr, Operand, ParamInfo, ParamTy, PredUse,
    RegId, RegInfo, RegionId, RegionInfo, RegionScope, SharedLayout, SpecialReg, Stmt, StoreHint,
};
use trueno_gpu::{MemTy, RegClass, StateSpace, Target};

/// A kernel under construction, with an `input` and an `output` pointer.
pub(crate) struct IrBuilder {
    ir: KernelIr,
    /// Open blocks, the innermost last.
    blocks: Vec<Block>,
    regions: Vec<RegionInfo>,
    labels: u32,
    pub(crate) input: RegId,
    pub(crate) output: RegId,
    /// The thread's number in the grid.
    pub(crate) index: RegId,
}

pub(crate) fn imm(value: u32) -> Operand {
    Operand::Imm(u64::from(value))
}

pub(crate) fn reg(id: RegId) -> Operand {
    Operand::Reg(id)
}

pub(crate) fn is(reg: RegId) -> PredUse {
    PredUse { reg, negated: false }
}

pub(crate) fn shared(base: RegId, offset: i32) -> MemAddr {
    MemAddr { space: StateSpace::Shared, base, offset }
}

pub(crate) fn global(base: RegId, offset: i32) -> MemAddr {
    MemAddr { space: StateSpace::Global, base, offset }
}

impl IrBuilder {
    pub(crate) fn new(name: &str, warps_per_block: u32) -> Self {
        Self::for_target(name, warps_per_block, Target::default())
    }

    /// A kernel of instructions that not all targets have.
    pub(crate) fn for_target(name: &str, warps_per_block: u32, target: Target) -> Self {
        let pointer = |name: &str| ParamInfo { name: name.to_owned(), ty: ParamTy::Pointer(MemTy::U8) };
        let ir = KernelIr {
            name: name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"),
            target,
            warps_per_block,
            min_blocks_per_sm: None,
            params: vec![pointer("input"), pointer("output")],
            regs: vec![],
            shared: SharedLayout::default(),
            body: vec![],
        };
        let (input, output, index) = (RegId(0), RegId(1), RegId(2));
        let mut builder = Self { ir, blocks: vec![vec![]], regions: vec![], labels: 0, input, output, index };
        builder.input = builder.def(RegClass::B64, |dst| Inst::Param { dst, index: 0 });
        builder.output = builder.def(RegClass::B64, |dst| Inst::Param { dst, index: 1 });
        let block = builder.special(SpecialReg::CtaidX);
        let tid = builder.special(SpecialReg::TidX);
        builder.index = builder.op(Op::MadLoU32, &[reg(block), imm(32 * warps_per_block), reg(tid)]);
        builder
    }

    /// Closes the kernel without validating it.
    pub(crate) fn close(mut self) -> KernelIr {
        let warps = self.ir.warps_per_block;
        self.ir.shared = SharedLayout::of(self.regions, warps).expect("regions are small");
        self.ir.body = self.blocks.pop().expect("the body is open");
        assert!(self.blocks.is_empty(), "a block is still open");
        self.ir
    }

    pub(crate) fn fresh(&mut self, class: RegClass) -> RegId {
        let id = RegId(u32::try_from(self.ir.regs.len()).expect("few registers"));
        self.ir.regs.push(RegInfo { class, name: None, mutable: false });
        id
    }

    /// Declares a register that may be assigned again.
    pub(crate) fn var(&mut self, class: RegClass) -> RegId {
        let id = self.fresh(class);
        self.ir.regs[id.index()].mutable = true;
        id
    }

    pub(crate) fn stmt(&mut self, stmt: Stmt) {
        self.blocks.last_mut().expect("the body is open").push(stmt);
    }

    pub(crate) fn inst(&mut self, inst: Inst) {
        self.stmt(Stmt::Inst { inst, guard: None });
    }

    pub(crate) fn when(&mut self, guard: PredUse, inst: Inst) {
        self.stmt(Stmt::Inst { inst, guard: Some(guard) });
    }

    pub(crate) fn def(&mut self, class: RegClass, inst: impl FnOnce(RegId) -> Inst) -> RegId {
        let dst = self.fresh(class);
        self.inst(inst(dst));
        dst
    }

    pub(crate) fn special(&mut self, which: SpecialReg) -> RegId {
        self.def(RegClass::B32, |dst| Inst::Special { dst, reg: which })
    }

    pub(crate) fn op(&mut self, op: Op, args: &[Operand]) -> RegId {
        let class = op.lanes().signature().0;
        self.def(class, |dst| Self::op_into(dst, op, args))
    }

    pub(crate) fn op_into(dst: RegId, op: Op, args: &[Operand]) -> Inst {
        match op.lanes() {
            Lanes::Cmp32(_) | Lanes::Cmp64(_) => Inst::Setp { op, dst, a: args[0], b: args[1], combine: None },
            _ => Inst::Pure { op, dst, args: Few::from_slice(args) },
        }
    }

    /// Computes `base + index * scale`, in global memory.
    pub(crate) fn element(&mut self, base: RegId, index: RegId, scale: u32) -> RegId {
        self.op(Op::MadWideU32, &[reg(index), imm(scale), reg(base)])
    }

    pub(crate) fn load(&mut self, ty: MemTy, addr: MemAddr) -> RegId {
        self.def(ty.class(), |dst| Inst::Load { dst: [dst].into(), ty, addr, hint: LoadHint::Default, uniform: false })
    }

    pub(crate) fn load_many(&mut self, count: usize, ty: MemTy, addr: MemAddr) -> Vec<RegId> {
        let regs: Vec<_> = (0..count).map(|_| self.fresh(ty.class())).collect();
        let dst = Few::from_slice(&regs);
        self.inst(Inst::Load { dst, ty, addr, hint: LoadHint::Default, uniform: false });
        regs
    }

    pub(crate) fn store_inst(ty: MemTy, addr: MemAddr, src: &[Operand]) -> Inst {
        let (hint, conflict) = (StoreHint::Default, Conflict::Fault);
        Inst::Store { src: Few::from_slice(src), ty, addr, hint, conflict }
    }

    pub(crate) fn store(&mut self, ty: MemTy, addr: MemAddr, src: Operand) {
        self.inst(Self::store_inst(ty, addr, &[src]));
    }

    pub(crate) fn warp_barrier(&mut self) {
        self.inst(Inst::BarWarp);
    }

    /// Stores the lane's 32-bit or 64-bit result (predicates as 0 and 1) in an output array that starts at `at_bytes`.
    pub(crate) fn result(&mut self, value: RegId, at_bytes: u32) {
        let class = self.ir.regs[value.index()].class;
        let (ty, scale, value) = match class {
            RegClass::B32 => (MemTy::U32, 4, value),
            RegClass::B64 => (MemTy::U64, 8, value),
            RegClass::Pred => (MemTy::U32, 4, self.op(Op::Selp32, &[imm(1), imm(0), reg(value)])),
        };
        let address = self.element(self.output, self.index, scale);
        self.store(ty, global(address, i32::try_from(at_bytes).expect("a small output")), reg(value));
    }

    /// Declares a region of shared memory and returns the address of its start.
    pub(crate) fn region(&mut self, name: &str, bytes: u32) -> RegId {
        let scope = RegionScope::Block;
        let id = RegionId(u32::try_from(self.regions.len()).expect("few regions"));
        self.regions.push(RegionInfo { name: name.to_owned(), scope, bytes, align: 16, stride: 0, offset: 0 });
        self.def(RegClass::B32, |dst| Inst::SharedBase { dst, region: id })
    }

    pub(crate) fn label(&mut self) -> LabelId {
        self.labels += 1;
        LabelId(self.labels - 1)
    }

    /// Builds a block.
    pub(crate) fn nested(&mut self, f: impl FnOnce(&mut Self)) -> Block {
        self.blocks.push(vec![]);
        f(self);
        self.blocks.pop().expect("opened above")
    }

    pub(crate) fn if_else(
        &mut self,
        cond: PredUse,
        branch: Branch,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        let then = self.nested(then);
        let otherwise = self.nested(otherwise);
        self.stmt(Stmt::If { cond, branch, then, otherwise });
    }

    pub(crate) fn loop_(&mut self, branch: Branch, body: impl FnOnce(&mut Self, LabelId)) {
        let label = self.label();
        let body = self.nested(|k| body(k, label));
        self.stmt(Stmt::Loop { label, branch, body });
    }
}
