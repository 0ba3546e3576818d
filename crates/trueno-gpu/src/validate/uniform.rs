//! Checks uniformity by data flow over the tree: the values and the control flow that all lanes share.
//!
//! Each register and each statement has one of three levels: the same in the whole block, the same in the warp, or
//! possibly different between lanes. Levels only rise, and the walk repeats until none does. A value is at least as
//! divergent as its sources and as the guard and control flow it is assigned under. The body of a loop is as divergent
//! as its exits.

use super::{ValidateError, name_of};
use crate::inst::Uniformity;
use crate::ir::{Block, BlockKind, Branch, Inst, KernelIr, LabelId, Operand, Path, PredUse, RegId, Stmt};

pub(super) fn check(kernel: &KernelIr) -> Result<(), ValidateError> {
    let mut flow = DataFlow {
        kernel,
        level: vec![Level::Block; kernel.regs.len()],
        cause: vec![None; kernel.regs.len()],
        exits: Vec::new(),
        frames: Vec::new(),
        changed: true,
        report: false,
    };
    while std::mem::take(&mut flow.changed) {
        flow.block(&kernel.body, &Path::default(), BlockKind::Body, Level::Block)?;
    }
    flow.report = true;
    flow.block(&kernel.body, &Path::default(), BlockKind::Body, Level::Block)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Block,
    Warp,
    Lane,
}

/// The reason that a register may differ between lanes.
#[derive(Clone)]
enum Cause {
    Register(RegId),
    Guard(RegId),
    Instruction(String),
    Control(Path),
}

/// A statement around the current one.
enum OuterStmt {
    Target(LabelId),
    DivergentIf,
}

struct DataFlow<'a> {
    kernel: &'a KernelIr,
    level: Vec<Level>,
    cause: Vec<Option<Cause>>,
    /// The highest level at which each loop or scope is left or restarted.
    exits: Vec<(LabelId, Level)>,
    frames: Vec<OuterStmt>,
    changed: bool,
    /// Reports what breaks the rules, once the levels are final.
    report: bool,
}

impl DataFlow<'_> {
    fn block(&mut self, block: &Block, parent: &Path, part: BlockKind, control: Level) -> Result<(), ValidateError> {
        for (i, stmt) in block.iter().enumerate() {
            let path = parent.child(part, i);
            match stmt {
                Stmt::Inst { inst, guard } => self.inst(inst, *guard, &path, control)?,
                Stmt::Section(_) => {}
                Stmt::If { cond, branch, then, otherwise } => {
                    let inner = control.max(self.branch_level(Some(*cond), *branch, &path)?);
                    if *branch == Branch::Divergent {
                        self.frames.push(OuterStmt::DivergentIf);
                    }
                    self.block(then, &path, BlockKind::Then, inner)?;
                    self.block(otherwise, &path, BlockKind::Else, inner)?;
                    if *branch == Branch::Divergent {
                        self.frames.pop();
                    }
                }
                Stmt::Loop { label, branch, body } => {
                    let inner = control.max(self.exit_level(*label));
                    if self.report && *branch == Branch::Uniform && inner == Level::Lane && control != Level::Lane {
                        let chain = "lanes may leave or restart this loop at different times".to_owned();
                        return Err(ValidateError::NotUniform { path, chain });
                    }
                    self.target(*label, body, &path, BlockKind::Loop, inner)?;
                }
                Stmt::Scope { label, body } => {
                    let inner = control.max(self.exit_level(*label));
                    self.target(*label, body, &path, BlockKind::Scope, inner)?;
                }
                Stmt::Break { target, cond, branch } | Stmt::Continue { target, cond, branch } => {
                    self.jump(*target, *cond, *branch, &path, control)?;
                }
            }
        }
        Ok(())
    }

    fn target(
        &mut self,
        label: LabelId,
        body: &Block,
        path: &Path,
        part: BlockKind,
        inner: Level,
    ) -> Result<(), ValidateError> {
        self.frames.push(OuterStmt::Target(label));
        self.block(body, path, part, inner)?;
        self.frames.pop();
        Ok(())
    }

    fn exit_level(&self, label: LabelId) -> Level {
        self.exits.iter().find(|(l, _)| *l == label).map_or(Level::Block, |(_, level)| *level)
    }

    /// Makes everything between a jump and its target as divergent as the jump, since the jump leaves all of it.
    fn jump(
        &mut self,
        target: LabelId,
        cond: Option<PredUse>,
        branch: Branch,
        path: &Path,
        control: Level,
    ) -> Result<(), ValidateError> {
        let level = control.max(self.branch_level(cond, branch, path)?);
        let mut crossed = Vec::new();
        for frame in self.frames.iter().rev() {
            match frame {
                OuterStmt::DivergentIf if branch == Branch::Uniform && self.report => {
                    let chain = "a uniform jump under a divergent `if`".to_owned();
                    return Err(ValidateError::NotUniform { path: path.clone(), chain });
                }
                OuterStmt::DivergentIf => {}
                OuterStmt::Target(label) => {
                    crossed.push(*label);
                    if *label == target {
                        break;
                    }
                }
            }
        }
        for label in crossed {
            match self.exits.iter_mut().find(|(l, _)| *l == label) {
                Some((_, old)) if *old >= level => {}
                Some((_, old)) => {
                    *old = level;
                    self.changed = true;
                }
                None => {
                    self.exits.push((label, level));
                    self.changed = true;
                }
            }
        }
        Ok(())
    }

    fn branch_level(&self, cond: Option<PredUse>, branch: Branch, path: &Path) -> Result<Level, ValidateError> {
        match (branch, cond) {
            (Branch::Divergent, Some(_)) => Ok(Level::Lane),
            (_, None) => Ok(Level::Block),
            // A wrong condition is reported where it occurs. What follows must not seem divergent because of it.
            (Branch::Uniform, Some(p)) => self.require_uniform(p.reg, path).map(|level| level.min(Level::Warp)),
        }
    }

    /// Returns the level of a register that must not be `Lane`. In the reporting pass, `Lane` is an error.
    fn require_uniform(&self, reg: RegId, path: &Path) -> Result<Level, ValidateError> {
        let level = self.level[reg.index()];
        if self.report && level == Level::Lane {
            return Err(ValidateError::NotUniform { path: path.clone(), chain: self.chain(reg) });
        }
        Ok(level)
    }

    fn inst(&mut self, inst: &Inst, guard: Option<PredUse>, path: &Path, control: Level) -> Result<(), ValidateError> {
        let guard_level = guard.map_or(Level::Block, |p| self.level[p.reg.index()]);
        let reached = control.max(guard_level);
        self.check_members(inst, path, reached)?;
        let (own, cause) = self.result_level(inst, path)?;
        let (level, cause) = if own == Level::Lane {
            (own, cause)
        } else if let (Level::Lane, Some(p)) = (guard_level, guard) {
            (Level::Lane, Cause::Guard(p.reg))
        } else {
            (own.max(reached), Cause::Control(path.clone()))
        };
        inst.for_each_def(|r| {
            let old = &mut self.level[r.index()];
            if level > *old {
                *old = level;
                self.cause[r.index()] = Some(cause.clone());
                self.changed = true;
            }
        });
        Ok(())
    }

    /// Barriers and operations of all lanes require all lanes.
    fn check_members(&self, inst: &Inst, path: &Path, reached: Level) -> Result<(), ValidateError> {
        let limit = match inst {
            Inst::BarBlock => Level::Block,
            _ if inst.is_warp_wide() => Level::Warp,
            _ => return Ok(()),
        };
        if self.report && reached > limit {
            return Err(ValidateError::DivergentBarrier { path: path.clone(), inst: inst.info().ptx_name });
        }
        Ok(())
    }

    fn result_level(&self, inst: &Inst, path: &Path) -> Result<(Level, Cause), ValidateError> {
        let own = || Cause::Instruction(describe(inst));
        let of = |reg: RegId| (self.level[reg.index()], Cause::Register(reg));
        Ok(match inst.info().uniformity {
            Uniformity::Pure => {
                let mut worst = (Level::Block, own());
                inst.for_each_use(|r, _| {
                    if self.level[r.index()] > worst.0 {
                        worst = of(r);
                    }
                });
                worst
            }
            Uniformity::Never => (Level::Lane, own()),
            Uniformity::LaneOperand => match inst {
                Inst::Shfl { lane: Operand::Reg(r), .. } if self.level[r.index()] == Level::Lane => of(*r),
                _ => (Level::Warp, own()),
            },
            Uniformity::Always => match inst {
                Inst::Load { addr, .. } => {
                    self.require_uniform(addr.base, path)?;
                    (Level::Warp, own())
                }
                _ if inst.is_warp_wide() => (Level::Warp, own()),
                _ => (Level::Block, own()),
            },
        })
    }

    /// Writes the chain of causes, such as `hit <- word <- lane (%laneid)`.
    fn chain(&self, from: RegId) -> String {
        let mut text = name_of(self.kernel, from);
        let mut seen = vec![from];
        let mut reg = from;
        while let Some(cause) = &self.cause[reg.index()] {
            match cause {
                Cause::Register(next) | Cause::Guard(next) => {
                    let how = if matches!(cause, Cause::Guard(_)) { "guarded by " } else { "" };
                    text += &format!(" <- {how}{}", name_of(self.kernel, *next));
                    if seen.contains(next) {
                        break;
                    }
                    seen.push(*next);
                    reg = *next;
                }
                Cause::Instruction(what) => {
                    text += &format!(" ({what})");
                    break;
                }
                Cause::Control(path) => {
                    text += &format!(" (assigned under divergent control flow at {path})");
                    break;
                }
            }
        }
        text
    }
}

fn describe(inst: &Inst) -> String {
    match inst {
        Inst::Special { reg, .. } => reg.ptx_name().to_owned(),
        _ => inst.info().ptx_name.to_owned(),
    }
}
