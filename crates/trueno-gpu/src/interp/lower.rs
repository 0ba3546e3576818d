//! Lowers the tree of a valid kernel to a flat program, once per kernel.

use super::narrow::low32;
use super::program::{Cond, FrameId, Pc, Program, ProgramLine, RegSlot, RegisterFile, StepCode, StepOrigin, count};
use super::shared::base_address;
use crate::inst::{CountKind, Mask};
use crate::ir::{
    BlockKind, Branch, Inst, KernelIr, LabelId, Operand, Path, PredUse, RegId, SpecialReg, Stmt, loop_tail_test,
};
use crate::types::RegClass;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The program of a kernel, made at its first launch. Clones made after that share it.
#[derive(Clone, Default)]
pub(crate) struct Lowered(OnceLock<Arc<Program>>);

impl Lowered {
    /// Returns the program of `kernel`, which must be the same in each call.
    pub(super) fn of(&self, kernel: &KernelIr) -> &Program {
        self.0.get_or_init(|| Arc::new(lower(kernel)))
    }
}

impl fmt::Debug for Lowered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.get().map(|program| program.lines.len());
        f.debug_struct("Lowered").field("lines", &lines).finish()
    }
}

pub(super) struct Lowering<'a> {
    pub(super) kernel: &'a KernelIr,
    pub(super) program: Program,
    /// Slot of each register in the file of its class.
    slots: Vec<RegSlot>,
    w_constants: HashMap<u32, RegSlot>,
    d_constants: HashMap<u64, RegSlot>,
    p_constants: HashMap<bool, RegSlot>,
    pub(super) specials: HashMap<SpecialReg, RegSlot>,
    /// Frames of the loops and scopes around the current statement.
    targets: Vec<(LabelId, FrameId)>,
    depth: FrameId,
    section: Option<u32>,
    /// For each open frame, the steps whose `skip` is set when it ends.
    skips: Vec<Vec<usize>>,
}

/// Placeholder for a jump target that is not known yet.
const LATER: Pc = Pc::MAX;

fn lower(kernel: &KernelIr) -> Program {
    let program = Program {
        name: kernel.name.clone(),
        lines: vec![],
        origins: vec![],
        sections: vec![],
        frames: 0,
        w: RegisterFile::default(),
        d: RegisterFile::default(),
        p: RegisterFile::default(),
        specials: vec![],
        params: vec![],
        has_block_barrier: false,
        shared: kernel.shared.clone(),
        shared_base: base_address(kernel.shared.align),
    };
    let mut lowering = Lowering {
        kernel,
        program,
        slots: vec![],
        w_constants: HashMap::new(),
        d_constants: HashMap::new(),
        p_constants: HashMap::new(),
        specials: HashMap::new(),
        targets: vec![],
        depth: 0,
        section: None,
        skips: vec![vec![]],
    };
    lowering.registers();
    lowering.block(&kernel.body, &Path::default(), BlockKind::Body);
    let end = lowering.here();
    lowering.land_skips(end);
    let always = lowering.always();
    lowering.push(StepCode::End, always, None, &Path::default());
    lowering.program
}

impl Lowering<'_> {
    fn registers(&mut self) {
        for (id, reg) in self.kernel.regs.iter().enumerate() {
            let names = match reg.class {
                RegClass::B32 => &mut self.program.w.names,
                RegClass::B64 => &mut self.program.d.names,
                RegClass::Pred => &mut self.program.p.names,
            };
            self.slots.push(count(names.len()));
            names.push(match &reg.name {
                Some(name) => format!("`{name}` (#{id})"),
                None => format!("#{id}"),
            });
        }
    }

    pub(super) fn reg(&self, id: RegId) -> RegSlot {
        self.slots[id.index()]
    }

    pub(super) fn w_constant(&mut self, value: u32) -> RegSlot {
        *self.w_constants.entry(value).or_insert_with(|| self.program.w.add([value; 32]))
    }

    fn d_constant(&mut self, value: u64) -> RegSlot {
        *self.d_constants.entry(value).or_insert_with(|| self.program.d.add([value; 32]))
    }

    fn p_constant(&mut self, value: bool) -> RegSlot {
        *self.p_constants.entry(value).or_insert_with(|| self.program.p.add(if value { Mask::MAX } else { 0 }))
    }

    pub(super) fn operand(&mut self, operand: Operand, class: RegClass) -> RegSlot {
        match (operand, class) {
            (Operand::Reg(reg), _) => self.reg(reg),
            (Operand::Imm(bits), RegClass::B32) => self.w_constant(low32(bits)),
            (Operand::Imm(bits), RegClass::B64) => self.d_constant(bits),
            (Operand::Imm(bits), RegClass::Pred) => self.p_constant(bits & 1 == 1),
        }
    }

    fn always(&mut self) -> Cond {
        Cond { slot: self.p_constant(true), flip: 0 }
    }

    pub(super) fn cond(&self, pred: PredUse) -> Cond {
        Cond { slot: self.reg(pred.reg), flip: if pred.negated { u32::MAX } else { 0 } }
    }

    fn cond_or_always(&mut self, pred: Option<PredUse>) -> Cond {
        match pred {
            Some(pred) => self.cond(pred),
            None => self.always(),
        }
    }

    fn here(&self) -> Pc {
        count(self.program.lines.len())
    }

    /// Adds a step and returns its index, for [`Self::land`].
    fn push(&mut self, code: StepCode, guard: Cond, kind: Option<CountKind>, path: &Path) -> usize {
        let origin = count(self.program.origins.len());
        let same = self.program.origins.last().is_some_and(|s| s.path == *path && s.section == self.section);
        if !same {
            self.program.origins.push(StepOrigin { path: path.clone(), section: self.section });
        }
        let origin = if same { origin - 1 } else { origin };
        self.program.lines.push(ProgramLine { code, guard, kind, origin });
        self.program.lines.len() - 1
    }

    fn control(&mut self, code: StepCode, kind: Option<CountKind>, path: &Path) -> usize {
        let always = self.always();
        self.push(code, always, kind, path)
    }

    /// Like [`Self::control`], for a step that skips to the end of the innermost open frame.
    fn control_skipping(&mut self, code: StepCode, kind: Option<CountKind>, path: &Path) -> usize {
        let index = self.control(code, kind, path);
        self.skips.last_mut().expect("the list of the kernel itself is never popped").push(index);
        index
    }

    /// Sets the target of the steps that skip to the end of the innermost frame.
    fn land_skips(&mut self, to: Pc) {
        let waiting = std::mem::take(self.skips.last_mut().expect("the list of the kernel itself is never popped"));
        for index in waiting {
            self.land(index, to);
        }
    }

    fn land(&mut self, index: usize, to: Pc) {
        match &mut self.program.lines[index].code {
            StepCode::UniformIf { otherwise: target, .. }
            | StepCode::Split { otherwise: target, .. }
            | StepCode::Else { end: target, .. }
            | StepCode::Merge { skip: target, .. }
            | StepCode::Jump { to: target }
            | StepCode::LoopEnd { skip: target, .. }
            | StepCode::ScopeEnd { skip: target, .. }
            | StepCode::Break { skip: target, .. }
            | StepCode::Continue { skip: target, .. } => *target = to,
            other => unreachable!("{other:?} does not jump"),
        }
    }

    fn open_frame(&mut self) -> FrameId {
        let frame = self.depth;
        self.depth += 1;
        self.program.frames = self.program.frames.max(self.depth);
        self.skips.push(vec![]);
        frame
    }

    fn close_frame(&mut self) {
        let end = self.here();
        self.land_skips(end);
        self.skips.pop();
        self.depth -= 1;
    }

    fn block(&mut self, stmts: &[Stmt], parent: &Path, part: BlockKind) {
        for (index, stmt) in stmts.iter().enumerate() {
            let path = parent.child(part, index);
            self.stmt(stmt, &path);
        }
    }

    fn stmt(&mut self, stmt: &Stmt, path: &Path) {
        match stmt {
            Stmt::Section(name) => {
                let known = self.program.sections.iter().position(|s| s == name);
                self.section = Some(count(known.unwrap_or(self.program.sections.len())));
                if known.is_none() {
                    self.program.sections.push(name.clone());
                }
            }
            Stmt::Inst { inst, guard } => {
                let guard = self.cond_or_always(*guard);
                let kind = (!matches!(inst, Inst::Arbitrary { .. })).then(|| inst.info().count);
                let code = self.inst(inst);
                self.push(code, guard, kind, path);
            }
            Stmt::If { cond, branch, then, otherwise } => self.branch(*cond, *branch, then, otherwise, path),
            Stmt::Loop { label, body, .. } => {
                let frame = self.open_frame();
                self.control(StepCode::Enter { frame }, None, path);
                let top = self.here();
                self.targets.push((*label, frame));
                self.block(body, path, BlockKind::Loop);
                self.targets.pop();
                if loop_tail_test(*label, body).is_none() {
                    // The branch back, for lanes that reach the end. `LoopEnd` itself is bookkeeping.
                    let end = self.here() + 1;
                    self.control(StepCode::Jump { to: end }, Some(CountKind::Branch), path);
                }
                self.close_frame();
                self.control_skipping(StepCode::LoopEnd { frame, top, skip: LATER }, None, path);
            }
            Stmt::Scope { label, body } => {
                let frame = self.open_frame();
                self.control(StepCode::Enter { frame }, None, path);
                self.targets.push((*label, frame));
                self.block(body, path, BlockKind::Scope);
                self.targets.pop();
                self.close_frame();
                self.control_skipping(StepCode::ScopeEnd { frame, skip: LATER }, None, path);
            }
            Stmt::Break { target, cond, branch } => {
                let frame = self.target(*target);
                let (cond, uniform) = (self.cond_or_always(*cond), *branch == Branch::Uniform);
                self.control_skipping(
                    StepCode::Break { cond, uniform, frame, skip: LATER },
                    Some(CountKind::Branch),
                    path,
                );
            }
            Stmt::Continue { target, cond, branch } => {
                let frame = self.target(*target);
                let (cond, uniform) = (self.cond_or_always(*cond), *branch == Branch::Uniform);
                let code = StepCode::Continue { cond, uniform, frame, skip: LATER };
                self.control_skipping(code, Some(CountKind::Branch), path);
            }
        }
    }

    fn target(&self, label: LabelId) -> FrameId {
        let found = self.targets.iter().rev().find(|(target, _)| *target == label);
        found.expect("jumps have targets around them").1
    }

    fn branch(&mut self, cond: PredUse, branch: Branch, then: &[Stmt], otherwise: &[Stmt], path: &Path) {
        let cond = self.cond(cond);
        let kind = Some(CountKind::Branch);
        if branch == Branch::Uniform {
            let split = self.control(StepCode::UniformIf { cond, otherwise: LATER }, kind, path);
            self.block(then, path, BlockKind::Then);
            if otherwise.is_empty() {
                let end = self.here();
                self.land(split, end);
                return;
            }
            let jump = self.control(StepCode::Jump { to: LATER }, kind, path);
            let start = self.here();
            self.land(split, start);
            self.block(otherwise, path, BlockKind::Else);
            let end = self.here();
            self.land(jump, end);
            return;
        }
        let frame = self.open_frame();
        let split = self.control(StepCode::Split { cond, frame, otherwise: LATER }, kind, path);
        self.block(then, path, BlockKind::Then);
        if otherwise.is_empty() {
            let end = self.here();
            self.land(split, end);
        } else {
            let after = self.here() + 1;
            self.control(StepCode::Jump { to: after }, kind, path);
            self.land_skips(after);
            self.land(split, after);
            let turn = self.control(StepCode::Else { frame, end: LATER }, None, path);
            self.block(otherwise, path, BlockKind::Else);
            let end = self.here();
            self.land(turn, end);
        }
        self.close_frame();
        self.control_skipping(StepCode::Merge { frame, skip: LATER }, None, path);
    }
}
