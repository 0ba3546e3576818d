//! Counters of kernels with known costs.

use super::super::{Counts, LaunchReport};
use super::ir_builder::{IrBuilder, global, imm, is, reg, shared};
use super::run;
use crate::inst::{CountKind, Op};
use crate::ir::{AtomOp, Branch, Inst, Stmt};
use crate::types::{MemTy, RegClass};

fn report(k: IrBuilder) -> LaunchReport {
    run(k).0.unwrap()
}

/// Returns what a kernel counts, without the sketch's own prologue.
fn beyond_start(k: IrBuilder) -> impl Fn(CountKind) -> u64 {
    let start = report(IrBuilder::new("empty", 1)).total;
    let total = report(k).total;
    move |kind| total[kind] - start[kind]
}

#[test]
fn the_start_of_a_sketch() {
    let total = report(IrBuilder::new("empty", 1)).total;
    // Two parameters, two special registers, one multiplication.
    assert_eq!((total[CountKind::Move], total[CountKind::Alu], total.instructions()), (4, 1, 5));
}

#[test]
fn shared_wavefronts_of_strides() {
    // Bytes between lanes, bytes per lane, wavefronts of a store and of a load.
    for (stride, elements, ty, expected) in [
        (4, 1, MemTy::U32, 1),
        (8, 1, MemTy::U32, 2),
        (12, 1, MemTy::U32, 1),
        (128, 1, MemTy::U32, 32),
        (132, 1, MemTy::U32, 1),
        (1, 1, MemTy::U8, 1),
        (2, 1, MemTy::U16, 1),
        (8, 1, MemTy::U64, 2),
        (8, 2, MemTy::U32, 2),
        (16, 4, MemTy::U32, 4),
        (32, 4, MemTy::U32, 8),
    ] {
        let mut k = IrBuilder::new("stride", 1);
        let region = k.region("data", 32 * 132);
        let at = k.op(Op::MadLoU32, &[reg(k.index), imm(stride), reg(region)]);
        let values = vec![crate::ir::Operand::Imm(1); elements];
        k.inst(IrBuilder::store_inst(ty, shared(at, 0), &values));
        k.load_many(elements, ty, shared(at, 0));
        let total = report(k).total;
        assert_eq!(total.shared_wavefronts, 2 * expected, "{stride} {elements} {ty:?}");
        assert_eq!((total[CountKind::SharedStore], total[CountKind::SharedLoad]), (1, 1));
    }
}

#[test]
fn broadcasts_are_free_and_guarded_off_accesses_take_no_wavefront() {
    let mut k = IrBuilder::new("broadcast", 1);
    let region = k.region("data", 16);
    let first = k.op(Op::SetpEqU32, &[reg(k.index), imm(0)]);
    let never = k.op(Op::SetpEqU32, &[reg(k.index), imm(99)]);
    k.when(is(first), IrBuilder::store_inst(MemTy::U32, shared(region, 0), &[imm(1)]));
    k.when(is(never), IrBuilder::store_inst(MemTy::U32, shared(region, 0), &[imm(1)]));
    k.warp_barrier();
    k.load(MemTy::U32, shared(region, 0));
    let total = report(k).total;
    assert_eq!(total.shared_wavefronts, 2);
    assert_eq!(total[CountKind::SharedStore], 2, "guarded-off stores are issued too");
}

#[test]
fn global_sectors() {
    let mut k = IrBuilder::new("sectors", 1);
    let from = k.element(k.input, k.index, 4);
    let value = k.load(MemTy::U32, global(from, 0));
    let to = k.element(k.output, k.index, 16);
    k.inst(IrBuilder::store_inst(MemTy::U32, global(to, 0), &[reg(value), imm(0), imm(0), imm(0)]));
    k.warp_barrier();
    let (op, addr, value) = (AtomOp::Add, global(k.output, 0), imm(1));
    k.inst(Inst::Atomic { dst: None, op, addr, value });
    let total = report(k).total;
    assert_eq!((total.global_sectors_read, total.global_sectors_written, total.global_sectors_atomic), (4, 16, 1));
}

#[test]
fn branches_are_counted_as_they_are_emitted() {
    // A uniform loop with the test at its end: one branch per iteration.
    let mut k = IrBuilder::new("tail", 1);
    let i = k.var(RegClass::B32);
    k.inst(IrBuilder::op_into(i, Op::Mov32, &[imm(0)]));
    k.loop_(Branch::Uniform, |k, target| {
        k.inst(IrBuilder::op_into(i, Op::AddU32, &[reg(i), imm(1)]));
        let done = k.op(Op::SetpEqU32, &[reg(i), imm(10)]);
        k.stmt(Stmt::Break { target, cond: Some(is(done)), branch: Branch::Uniform });
    });
    assert_eq!(beyond_start(k)(CountKind::Branch), 10);

    // With the test at the start: one branch per test, one per way back.
    let mut k = IrBuilder::new("head", 1);
    let i = k.var(RegClass::B32);
    k.inst(IrBuilder::op_into(i, Op::Mov32, &[imm(0)]));
    k.loop_(Branch::Uniform, |k, target| {
        let done = k.op(Op::SetpEqU32, &[reg(i), imm(10)]);
        k.stmt(Stmt::Break { target, cond: Some(is(done)), branch: Branch::Uniform });
        k.inst(IrBuilder::op_into(i, Op::AddU32, &[reg(i), imm(1)]));
    });
    assert_eq!(beyond_start(k)(CountKind::Branch), 21);

    // Both sides run: the branch, and the jump over the second side.
    for (branch, limit, branches) in [(Branch::Divergent, 7, 2), (Branch::Uniform, 99, 2), (Branch::Uniform, 0, 1)] {
        let mut k = IrBuilder::new("if", 1);
        let low = k.op(Op::SetpLtU32, &[reg(k.index), imm(limit)]);
        let side = |k: &mut IrBuilder| {
            k.op(Op::Not32, &[imm(0)]);
        };
        k.if_else(is(low), branch, side, side);
        let counts = beyond_start(k);
        assert_eq!(counts(CountKind::Branch), branches);
        assert_eq!(counts(CountKind::Alu), 1 + if branch == Branch::Divergent { 2 } else { 1 });
    }
}

#[test]
fn sections_add_up() {
    let mut k = IrBuilder::new("sections", 1);
    for (section, count) in [("first", 3), ("second", 5), ("first", 2)] {
        k.stmt(Stmt::Section(section.into()));
        for _ in 0..count {
            k.op(Op::Not32, &[imm(0)]);
        }
    }
    let report = report(k);
    let sections: Vec<_> = report.sections.iter().map(|s| (s.section.as_deref(), s.counts[CountKind::Alu])).collect();
    assert_eq!(sections, [(None, 1), (Some("first"), 5), (Some("second"), 5)]);
    let mut sum = Counts::default();
    report.sections.iter().for_each(|s| sum += &s.counts);
    assert_eq!(sum, report.total);
    assert_eq!(report.warps[0].counts, report.total);
}
