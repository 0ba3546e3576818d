//! Checks operands, registers and labels: there, of the right class, values assigned once, everything assigned before it
//! is read.

use super::{ValidateError, name_of};
use crate::ir::{Block, BlockKind, Inst, KernelIr, LabelId, Operand, Path, RegId, RegionId, Stmt};
use crate::types::RegClass;

pub(super) fn check(kernel: &KernelIr) -> Result<(), ValidateError> {
    let mut checker = AssignmentChecker {
        kernel,
        written: vec![false; kernel.regs.len()],
        enclosing: Vec::new(),
        labels: Vec::new(),
    };
    let mut state = Some(vec![false; kernel.regs.len()]);
    checker.block(&kernel.body, &Path::default(), BlockKind::Body, &mut state)
}

/// The registers that are certainly assigned; `None` in unreachable code.
type Assigned = Option<Vec<bool>>;

/// Keeps the registers that are assigned on both paths.
fn meet(a: &mut Assigned, b: &Assigned) {
    match (a.as_mut(), b) {
        (Some(a), Some(b)) => a.iter_mut().zip(b).for_each(|(a, b)| *a &= b),
        (None, Some(b)) => *a = Some(b.clone()),
        (_, None) => {}
    }
}

struct Enclosing {
    label: LabelId,
    is_loop: bool,
    /// The registers assigned on every exit by `Break`.
    at_exit: Assigned,
}

struct AssignmentChecker<'a> {
    kernel: &'a KernelIr,
    /// Values that an earlier statement assigns.
    written: Vec<bool>,
    enclosing: Vec<Enclosing>,
    labels: Vec<LabelId>,
}

impl AssignmentChecker<'_> {
    fn block(
        &mut self,
        block: &Block,
        parent: &Path,
        part: BlockKind,
        state: &mut Assigned,
    ) -> Result<(), ValidateError> {
        for (i, stmt) in block.iter().enumerate() {
            self.stmt(stmt, &parent.child(part, i), state)?;
        }
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt, path: &Path, state: &mut Assigned) -> Result<(), ValidateError> {
        if let Some(p) = stmt.condition() {
            self.read(p.reg, RegClass::Pred, path, state)?;
        }
        match stmt {
            Stmt::Inst { inst, guard } => self.inst(inst, guard.is_some(), path, state),
            Stmt::Section(_) => Ok(()),
            Stmt::If { then, otherwise, .. } => {
                let mut other = state.clone();
                self.block(then, path, BlockKind::Then, state)?;
                self.block(otherwise, path, BlockKind::Else, &mut other)?;
                meet(state, &other);
                Ok(())
            }
            // The first iteration has the fewest assignments, so one pass over the body decides.
            Stmt::Loop { label, body, .. } => {
                self.enter(*label, true, path)?;
                self.block(body, path, BlockKind::Loop, state)?;
                *state = self.leave();
                Ok(())
            }
            Stmt::Scope { label, body } => {
                self.enter(*label, false, path)?;
                self.block(body, path, BlockKind::Scope, state)?;
                let exits = self.leave();
                meet(state, &exits);
                Ok(())
            }
            Stmt::Break { target, cond, .. } => {
                let Some(enclosing) = self.enclosing.iter_mut().rfind(|e| e.label == *target) else {
                    return Err(ValidateError::OutsideTarget { path: path.clone(), what: "break" });
                };
                meet(&mut enclosing.at_exit, state);
                if cond.is_none() {
                    *state = None;
                }
                Ok(())
            }
            Stmt::Continue { target, cond, .. } => {
                if !self.enclosing.iter().any(|e| e.label == *target && e.is_loop) {
                    return Err(ValidateError::OutsideTarget { path: path.clone(), what: "continue" });
                }
                if cond.is_none() {
                    *state = None;
                }
                Ok(())
            }
        }
    }

    fn enter(&mut self, label: LabelId, is_loop: bool, path: &Path) -> Result<(), ValidateError> {
        if self.labels.contains(&label) {
            return Err(ValidateError::DuplicateLabel { path: path.clone() });
        }
        self.labels.push(label);
        self.enclosing.push(Enclosing { label, is_loop, at_exit: None });
        Ok(())
    }

    fn leave(&mut self) -> Assigned {
        self.enclosing.pop().expect("every entered block is left").at_exit
    }

    fn inst(&mut self, inst: &Inst, guarded: bool, path: &Path, state: &mut Assigned) -> Result<(), ValidateError> {
        self.shape(inst, path)?;
        let mut result = Ok(());
        inst.for_each_use(|reg, class| {
            if result.is_ok() {
                result = self.read(reg, class, path, state);
            }
        });
        result?;
        let mut written = Vec::new();
        inst.for_each_def(|reg| written.push(reg));
        for (i, reg) in written.into_iter().enumerate() {
            self.write(reg, self.def_class(inst, i), guarded, path, state)?;
        }
        Ok(())
    }

    /// Checks the number of operands, and the operands that must be constants.
    fn shape(&self, inst: &Inst, path: &Path) -> Result<(), ValidateError> {
        let bad = |problem| Err(ValidateError::BadOperand { path: path.clone(), inst: inst.info().ptx_name, problem });
        match inst {
            Inst::Pure { op, args, .. } => {
                let (dst, sources) = op.lanes().signature();
                if args.len() != sources.len() {
                    return bad("wrong number of operands");
                }
                if dst == RegClass::Pred && sources[0] != RegClass::Pred {
                    return bad("a comparison must be a `Setp`");
                }
                if *op == crate::inst::Op::Lop3 && !matches!(args[3], Operand::Imm(0..=255)) {
                    return bad("the truth table must be an 8-bit constant");
                }
            }
            Inst::Setp { op, .. } if op.lanes().signature().0 != RegClass::Pred => return bad("no compare"),
            Inst::Param { index, .. } if self.kernel.params.len() <= *index as usize => {
                return bad("the parameter does not exist");
            }
            Inst::SharedBase { region: RegionId(region), .. }
                if self.kernel.shared.regions.len() <= *region as usize =>
            {
                return bad("the region does not exist");
            }
            _ => {}
        }
        Ok(())
    }

    fn def_class(&self, inst: &Inst, nth: usize) -> RegClass {
        match inst {
            Inst::Pure { op, .. } | Inst::Setp { op, .. } => op.lanes().signature().0,
            Inst::Arbitrary { dst } => self.kernel.regs.get(dst.index()).map_or(RegClass::B32, |r| r.class),
            Inst::Param { index, .. } => self.kernel.params[*index as usize].ty.class(),
            Inst::Load { ty, .. } => ty.class(),
            Inst::Vote { .. } => RegClass::Pred,
            Inst::Shfl { .. } if nth == 1 => RegClass::Pred,
            _ => RegClass::B32,
        }
    }

    fn class(&self, reg: RegId, expected: RegClass, path: &Path) -> Result<(), ValidateError> {
        let Some(info) = self.kernel.regs.get(reg.index()) else {
            return Err(ValidateError::UnknownRegister { path: path.clone(), reg });
        };
        if info.class != expected {
            let (path, reg) = (path.clone(), name_of(self.kernel, reg));
            return Err(ValidateError::ClassMismatch { path, reg, expected, found: info.class });
        }
        Ok(())
    }

    fn read(&self, reg: RegId, class: RegClass, path: &Path, state: &Assigned) -> Result<(), ValidateError> {
        self.class(reg, class, path)?;
        match state {
            Some(assigned) if !assigned[reg.index()] => {
                Err(ValidateError::Unassigned { path: path.clone(), reg: name_of(self.kernel, reg) })
            }
            _ => Ok(()),
        }
    }

    fn write(
        &mut self,
        reg: RegId,
        class: RegClass,
        guarded: bool,
        path: &Path,
        state: &mut Assigned,
    ) -> Result<(), ValidateError> {
        self.class(reg, class, path)?;
        let (path, name) = (path.clone(), name_of(self.kernel, reg));
        if !self.kernel.reg(reg).mutable {
            if guarded {
                return Err(ValidateError::GuardedValue { path, reg: name });
            }
            if std::mem::replace(&mut self.written[reg.index()], true) {
                return Err(ValidateError::Reassigned { path, reg: name });
            }
        }
        if let (false, Some(assigned)) = (guarded, state) {
            assigned[reg.index()] = true;
        }
        Ok(())
    }
}
