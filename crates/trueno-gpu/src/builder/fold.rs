//! Simplifies the code that the builder wrote, so that readable code costs no extra instructions.
//!
//! Four rewrites apply inside a block until none is possible. A logical operation on a comparison becomes the combining
//! form of the comparison. A negation moves into the comparison or to the place of use. An operation whose result is
//! only assigned to a variable writes the variable itself, under the guard of the assignment. A copy of a variable that
//! does not change meanwhile becomes the variable.

use crate::inst::Op;
use crate::ir::{Block, BoolOp, Combine, Inst, KernelIr, Operand, PredUse, RegId, RegInfo, Stmt};

pub(super) fn simplify(kernel: &mut KernelIr) {
    loop {
        let mut uses = vec![0; kernel.regs.len()];
        count_uses(&kernel.body, &mut uses);
        let mut fold = Fold { regs: &kernel.regs, uses };
        if !fold.block(&mut kernel.body) {
            return;
        }
    }
}

fn count_uses(block: &[Stmt], uses: &mut [u32]) {
    for stmt in block {
        if let Stmt::Inst { inst, .. } = stmt {
            inst.for_each_use(|r, _| uses[r.index()] += 1);
        }
        if let Some(p) = stmt.condition() {
            uses[p.reg.index()] += 1;
        }
        stmt.blocks().for_each(|b| count_uses(b, uses));
    }
}

fn uses_of(stmt: &Stmt, reg: RegId) -> u32 {
    let mut n = u32::from(stmt.condition().is_some_and(|p| p.reg == reg));
    if let Stmt::Inst { inst, .. } = stmt {
        inst.for_each_use(|r, _| n += u32::from(r == reg));
    }
    n + stmt.blocks().flatten().map(|s| uses_of(s, reg)).sum::<u32>()
}

fn writes(stmt: &Stmt, reg: RegId) -> bool {
    let mut found = false;
    if let Stmt::Inst { inst, .. } = stmt {
        inst.for_each_def(|r| found |= r == reg);
    }
    found || stmt.blocks().flatten().any(|s| writes(s, reg))
}

fn rename_uses(stmt: &mut Stmt, from: RegId, to: RegId) {
    let swap = |r: &mut RegId| {
        if *r == from {
            *r = to;
        }
    };
    if let Some(p) = stmt.condition_mut() {
        swap(&mut p.reg);
    }
    if let Stmt::Inst { inst, .. } = stmt {
        inst.for_each_use_mut(|r, _| swap(r));
    }
    stmt.blocks_mut().flatten().for_each(|s| rename_uses(s, from, to));
}

struct Fold<'a> {
    regs: &'a [RegInfo],
    /// Number of reads of each register in the whole kernel.
    uses: Vec<u32>,
}

impl Fold<'_> {
    fn block(&mut self, block: &mut Block) -> bool {
        let mut changed = false;
        for stmt in block.iter_mut() {
            for inner in stmt.blocks_mut() {
                changed |= self.block(inner);
            }
        }
        let mut i = 0;
        while i < block.len() {
            let folded = self
                .combine(block, i)
                .or_else(|| self.invert(block, i))
                .or_else(|| self.negate_use(block, i))
                .or_else(|| self.assign(block, i))
                .or_else(|| self.propagate(block, i));
            match folded {
                // The statement now at this place may fold further.
                Some(at) => {
                    changed = true;
                    i = at;
                }
                None => i += 1,
            }
        }
        changed
    }

    /// Returns the index of the statement before `i` that computes a value without a guard, if the value is read once.
    fn only_definition(&self, block: &[Stmt], i: usize, reg: RegId) -> Option<usize> {
        if self.regs[reg.index()].mutable || self.uses[reg.index()] != 1 {
            return None;
        }
        let j = (0..i).rev().find(|&j| matches!(block[j], Stmt::Inst { .. }) && writes(&block[j], reg))?;
        matches!(block[j], Stmt::Inst { guard: None, .. }).then_some(j)
    }

    /// Returns `false` if something between `j` and `i` changes what the instruction at `j` reads.
    fn can_sink(&self, block: &[Stmt], j: usize, i: usize) -> bool {
        let Stmt::Inst { inst, .. } = &block[j] else { return false };
        let mut fixed = true;
        inst.for_each_use(|r, _| fixed &= !self.changed_between(block, j, i, r));
        fixed
    }

    fn changed_between(&self, block: &[Stmt], j: usize, i: usize, reg: RegId) -> bool {
        self.regs[reg.index()].mutable && block[j + 1..i].iter().any(|s| writes(s, reg))
    }

    /// Returns the predicate behind `reg` if `reg` is a negation used only here, and the place of the negation.
    fn negated_source(&self, block: &[Stmt], i: usize, reg: RegId) -> Option<(usize, RegId)> {
        let j = self.only_definition(block, i, reg)?;
        match &block[j] {
            Stmt::Inst { inst: Inst::Pure { op: Op::NotPred, args, .. }, .. } => match args[0] {
                Operand::Reg(source) if !self.changed_between(block, j, i, source) => Some((j, source)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Rewrites `setp a; and c, a, b` to `setp.and c, .., b`.
    fn combine(&self, block: &mut Block, i: usize) -> Option<usize> {
        let Stmt::Inst { inst: Inst::Pure { op, dst, args }, guard: None } = &block[i] else { return None };
        let bool_op = match op {
            Op::AndPred => BoolOp::And,
            Op::OrPred => BoolOp::Or,
            Op::XorPred => BoolOp::Xor,
            _ => return None,
        };
        let (Operand::Reg(x), Operand::Reg(y)) = (args[0], args[1]) else { return None };
        let dst = *dst;
        let (j, mut fused, other) = [(y, x), (x, y)].into_iter().find_map(|(host, other)| {
            let j = self.only_definition(block, i, host)?;
            match &block[j] {
                Stmt::Inst { inst: inst @ Inst::Setp { combine: None, .. }, .. } if self.can_sink(block, j, i) => {
                    Some((j, *inst, other))
                }
                _ => None,
            }
        })?;
        let not = self.negated_source(block, i, other);
        if let Inst::Setp { dst: d, combine, .. } = &mut fused {
            *d = dst;
            let with = match not {
                Some((_, source)) => PredUse { reg: source, negated: true },
                None => PredUse { reg: other, negated: false },
            };
            *combine = Some(Combine { op: bool_op, with });
        }
        block[i] = Stmt::Inst { inst: fused, guard: None };
        Some(remove(block, i, [Some(j), not.map(|(at, _)| at)]))
    }

    /// Rewrites `setp.lt a; not b, a` to `setp.ge b`.
    fn invert(&self, block: &mut Block, i: usize) -> Option<usize> {
        let Stmt::Inst { inst: Inst::Pure { op: Op::NotPred, dst, args }, guard } = &block[i] else { return None };
        let Operand::Reg(source) = args[0] else { return None };
        let j = self.only_definition(block, i, source)?;
        let Stmt::Inst { inst: Inst::Setp { op, a, b, combine: None, .. }, .. } = &block[j] else { return None };
        let op = op.inverse().filter(|_| self.can_sink(block, j, i))?;
        let inst = Inst::Setp { op, dst: *dst, a: *a, b: *b, combine: None };
        block[i] = Stmt::Inst { inst, guard: *guard };
        Some(remove(block, i, [Some(j), None]))
    }

    /// Rewrites `not b, a; @b ..` to `@!a ..`, also in votes.
    fn negate_use(&self, block: &mut Block, i: usize) -> Option<usize> {
        let in_vote = match &block[i] {
            Stmt::Inst { inst: Inst::Vote { src, .. } | Inst::Ballot { src, .. }, .. } => Some(*src),
            _ => None,
        };
        if let Some((j, source)) = in_vote.and_then(|p| self.negated_source(block, i, p.reg)) {
            if let Stmt::Inst { inst: Inst::Vote { src, .. } | Inst::Ballot { src, .. }, .. } = &mut block[i] {
                *src = PredUse { reg: source, negated: !src.negated };
            }
            return Some(remove(block, i, [Some(j), None]));
        }
        let p = block[i].condition()?;
        let (j, source) = self.negated_source(block, i, p.reg)?;
        if let Some(p) = block[i].condition_mut() {
            *p = PredUse { reg: source, negated: !p.negated };
        }
        Some(remove(block, i, [Some(j), None]))
    }

    /// Rewrites `op t, ..; @p mov v, t` to `@p op v, ..`.
    fn assign(&self, block: &mut Block, i: usize) -> Option<usize> {
        let Stmt::Inst { inst: Inst::Pure { op, dst, args }, guard } = &block[i] else { return None };
        let (true, Operand::Reg(value)) = (is_copy(*op), args[0]) else { return None };
        let (dst, guard) = (*dst, *guard);
        let j = self.only_definition(block, i, value)?;
        let Stmt::Inst { inst, .. } = &block[j] else { return None };
        if matches!(inst, Inst::Pure { .. } | Inst::Setp { .. }) && self.can_sink(block, j, i) {
            let mut inst = *inst;
            inst.for_each_def_mut(|r| *r = dst);
            block[i] = Stmt::Inst { inst, guard };
            return Some(remove(block, i, [Some(j), None]));
        }
        // Any other instruction stays in place and writes the variable early, if nothing can see the difference.
        let between = &block[j + 1..i];
        let unseen = guard.is_none()
            && between.iter().all(|s| matches!(s, Stmt::Inst { .. } | Stmt::Section(_)))
            && !between.iter().any(|s| writes(s, dst) || uses_of(s, dst) > 0);
        if !unseen {
            return None;
        }
        if let Stmt::Inst { inst, .. } = &mut block[j] {
            inst.for_each_def_mut(|r| {
                if *r == value {
                    *r = dst;
                }
            });
        }
        Some(remove(block, i + 1, [Some(i), None]))
    }

    /// Rewrites `mov t, v; .. t ..` to `.. v ..`, if `v` is not written before the last use.
    fn propagate(&mut self, block: &mut Block, i: usize) -> Option<usize> {
        let Stmt::Inst { inst: Inst::Pure { op, dst, args }, guard: None } = &block[i] else { return None };
        let (true, Operand::Reg(source)) = (is_copy(*op), args[0]) else { return None };
        let copy = *dst;
        let total = self.uses[copy.index()];
        if self.regs[copy.index()].mutable || total == 0 {
            return None;
        }
        let mut found = 0;
        let mut last = i;
        while found < total {
            last += 1;
            let stmt = block.get(last)?;
            found += uses_of(stmt, copy);
            // An instruction reads before it writes, but a nested block may return to a read after a write.
            let done = found == total && matches!(stmt, Stmt::Inst { .. });
            if !done && writes(stmt, source) {
                return None;
            }
        }
        block[i + 1..=last].iter_mut().for_each(|s| rename_uses(s, copy, source));
        self.uses[source.index()] += total - 1;
        self.uses[copy.index()] = 0;
        Some(remove(block, i + 1, [Some(i), None]))
    }
}

fn is_copy(op: Op) -> bool {
    matches!(op, Op::Mov32 | Op::Mov64 | Op::MovPred)
}

/// Removes statements before `i` and returns the new index of `i`.
fn remove(block: &mut Block, i: usize, mut at: [Option<usize>; 2]) -> usize {
    at.sort_unstable();
    let mut place = i;
    for j in at.into_iter().rev().flatten() {
        block.remove(j);
        place -= 1;
    }
    place
}

#[cfg(test)]
mod tests;
