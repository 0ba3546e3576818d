//! Provokes each fault that is not a race.

use super::super::{Access, DeviceMemory, FaultKind, LaneSet, Launch, Location};
use super::ir_builder::{IrBuilder, global, imm, is, reg, shared};
use super::{fault, run};
use crate::inst::Op;
use crate::ir::{AtomOp, Branch, Inst, LoadHint, PredUse, RegId, ShflMode, SpecialReg, Stmt, VoteMode};
use crate::types::{MemTy, RegClass, StateSpace};

fn sketch() -> IrBuilder {
    IrBuilder::new("broken", 1)
}

fn below(k: &mut IrBuilder, limit: u32) -> PredUse {
    is(k.op(Op::SetpLtU32, &[reg(k.index), imm(limit)]))
}

fn at(kind: &FaultKind) -> &Location {
    match kind {
        FaultKind::OutOfBounds { at, .. }
        | FaultKind::Misaligned { at, .. }
        | FaultKind::UninitialisedMemory { at }
        | FaultKind::StoreConflict { at } => at,
        other => panic!("{other} has no location"),
    }
}

#[test]
fn global_access_out_of_bounds() {
    let mut k = sketch();
    let from = k.element(k.input, k.index, 4);
    // Lanes 30 and 31 read past the 128 bytes.
    k.load(MemTy::U32, global(from, 8));
    let (kind, lanes) = fault(k);
    assert!(matches!(kind, FaultKind::OutOfBounds { access: Access::Read, bytes: 4, .. }), "{kind}");
    assert_eq!((at(&kind).name.as_deref(), at(&kind).offset), (Some("input"), 128));
    assert_eq!(lanes, LaneSet(0xc000_0000));
}

#[test]
fn global_access_before_a_buffer_hits_no_other() {
    let mut k = sketch();
    k.store(MemTy::U8, global(k.output, -1), imm(0));
    let (kind, _) = fault(k);
    assert!(matches!(kind, FaultKind::OutOfBounds { access: Access::Write, bytes: 1, .. }), "{kind}");
}

#[test]
fn shared_access_out_of_bounds() {
    for (offset, lanes) in [(4, 1 << 31), (-4, 1)] {
        let mut k = sketch();
        let region = k.region("data", 128);
        let own = k.op(Op::MadLoU32, &[reg(k.index), imm(4), reg(region)]);
        k.store(MemTy::U32, shared(own, offset), imm(0));
        let (kind, at_fault) = fault(k);
        assert!(matches!(kind, FaultKind::OutOfBounds { access: Access::Write, bytes: 4, .. }), "{kind}");
        assert_eq!(at(&kind).space, StateSpace::Shared);
        assert_eq!(at_fault, LaneSet(lanes));
    }
}

#[test]
fn address_zero_is_not_shared_memory() {
    let mut k = sketch();
    k.region("data", 128);
    let null = k.op(Op::Mov32, &[imm(0)]);
    k.load(MemTy::U8, shared(null, 0));
    assert!(matches!(fault(k).0, FaultKind::OutOfBounds { .. }));
}

#[test]
fn misaligned_accesses() {
    let mut k = sketch();
    let from = k.element(k.input, k.index, 2);
    k.load(MemTy::U32, global(from, 0));
    let (kind, lanes) = fault(k);
    assert!(matches!(kind, FaultKind::Misaligned { bytes: 4, .. }), "{kind}");
    assert_eq!(lanes, LaneSet(0xaaaa_aaaa));

    let mut k = sketch();
    let region = k.region("data", 256);
    let own = k.op(Op::MadLoU32, &[reg(k.index), imm(8), reg(region)]);
    k.inst(IrBuilder::store_inst(MemTy::U32, shared(own, 4), &[imm(0), imm(0)]));
    let (kind, _) = fault(k);
    assert!(matches!(kind, FaultKind::Misaligned { access: Access::Write, bytes: 8, .. }), "{kind}");

    let mut k = sketch();
    let region = k.region("data", 256);
    let (op, addr, value) = (AtomOp::Add, shared(region, 2), imm(1));
    k.inst(Inst::Atomic { dst: None, op, addr, value });
    let (kind, _) = fault(k);
    assert!(matches!(kind, FaultKind::Misaligned { access: Access::Atomic, bytes: 4, .. }), "{kind}");
}

#[test]
fn reads_of_memory_nothing_wrote() {
    let mut k = sketch();
    k.load(MemTy::U8, global(k.output, 5));
    let (kind, _) = fault(k);
    assert!(matches!(kind, FaultKind::UninitialisedMemory { .. }), "{kind}");
    assert_eq!((at(&kind).name.as_deref(), at(&kind).offset), (Some("output"), 5));

    let mut k = sketch();
    let region = k.region("data", 256);
    let own = k.op(Op::MadLoU32, &[reg(k.index), imm(8), reg(region)]);
    k.store(MemTy::U32, shared(own, 0), imm(0));
    k.store(MemTy::U16, shared(own, 4), imm(0));
    k.load_many(2, MemTy::U32, shared(own, 0));
    let (kind, lanes) = fault(k);
    assert_eq!((at(&kind).name.as_deref(), at(&kind).offset), (Some("data"), 6));
    assert_eq!(lanes, LaneSet(1));

    let mut k = sketch();
    let region = k.region("data", 16);
    let (op, addr, value) = (AtomOp::Or, shared(region, 8), imm(1));
    k.inst(Inst::Atomic { dst: None, op, addr, value });
    assert_eq!(at(&fault(k).0).offset, 8);
}

#[test]
fn several_lanes_of_a_store() {
    let mut k = sketch();
    let half = k.op(Op::ShrU32, &[reg(k.index), imm(4)]);
    let to = k.element(k.output, half, 4);
    k.store(MemTy::U32, global(to, 0), reg(k.index));
    let (kind, lanes) = fault(k);
    assert!(matches!(kind, FaultKind::StoreConflict { .. }), "{kind}");
    assert_eq!(lanes, LaneSet(0xffff));

    // In shared memory equal values conflict too, and one common byte is enough.
    let mut k = sketch();
    let region = k.region("data", 64);
    let pair = k.op(Op::ShrU32, &[reg(k.index), imm(1)]);
    let own = k.op(Op::AddU32, &[reg(pair), reg(region)]);
    k.store(MemTy::U8, shared(own, 3), imm(7));
    let (kind, lanes) = fault(k);
    assert!(matches!(kind, FaultKind::StoreConflict { .. }), "{kind}");
    assert_eq!((at(&kind).offset, lanes), (3, LaneSet(0b11)));
}

#[test]
fn uniform_load_with_two_addresses() {
    let mut k = sketch();
    let from = k.element(k.input, k.index, 4);
    let (ty, addr, hint, uniform) = (MemTy::U32, global(from, 0), LoadHint::Default, true);
    k.def(RegClass::B32, |dst| Inst::Load { dst: [dst].into(), ty, addr, hint, uniform });
    assert_eq!(fault(k).0, FaultKind::DivergentUniformLoad);
}

#[test]
fn warp_barrier_in_a_branch() {
    let mut k = sketch();
    let low = below(&mut k, 4);
    k.if_else(low, Branch::Divergent, IrBuilder::warp_barrier, |_| {});
    let (kind, _) = fault(k);
    assert_eq!(kind, FaultKind::WarpOperationMissed { reached: LaneSet(0xf) });
}

#[test]
fn warp_barrier_under_a_guard() {
    let mut k = sketch();
    let low = below(&mut k, 31);
    k.when(low, Inst::BarWarp);
    assert!(matches!(fault(k).0, FaultKind::WarpOperationMissed { .. }));
}

#[test]
fn warp_operations_in_a_branch() {
    let operations: [fn(RegId, RegId) -> Inst; 4] = [
        |w, _| Inst::Shfl { mode: ShflMode::Idx, dst: w, in_range: None, src: imm(1), lane: imm(0) },
        |w, p| Inst::Ballot { dst: w, src: is(p) },
        |w, _| Inst::MatchAny { dst: w, src: imm(1) },
        |_, p| Inst::Vote { mode: VoteMode::Any, dst: p, src: is(p) },
    ];
    for operation in operations {
        let mut k = sketch();
        let low = below(&mut k, 8);
        let (w, p) = (k.var(RegClass::B32), k.var(RegClass::Pred));
        k.inst(IrBuilder::op_into(p, Op::MovPred, &[reg(low.reg)]));
        k.if_else(low, Branch::Divergent, |_| {}, |k| k.inst(operation(w, p)));
        let (kind, _) = fault(k);
        assert_eq!(kind, FaultKind::WarpOperationMissed { reached: LaneSet(!0xff) });
    }
}

#[test]
fn uniform_branches_whose_lanes_disagree() {
    let expected = FaultKind::DivergentUniformBranch { taking: LaneSet(0xfff), active: LaneSet::ALL };
    let mut k = sketch();
    let low = below(&mut k, 12);
    k.if_else(low, Branch::Uniform, |_| {}, |_| {});
    assert_eq!(fault(k).0, expected);

    let mut k = sketch();
    let low = below(&mut k, 12);
    k.loop_(Branch::Uniform, |k, target| k.stmt(Stmt::Break { target, cond: Some(low), branch: Branch::Uniform }));
    assert_eq!(fault(k).0, expected);
}

#[test]
fn registers_read_before_they_are_written() {
    let mut k = sketch();
    let low = below(&mut k, 3);
    let value = k.var(RegClass::B32);
    k.when(low, IrBuilder::op_into(value, Op::Mov32, &[imm(1)]));
    k.op(Op::AddU32, &[reg(value), imm(1)]);
    let (kind, lanes) = fault(k);
    assert!(
        matches!(&kind, FaultKind::UnwrittenRegister { register } if register == &format!("#{}", value.0)),
        "{kind}"
    );
    assert_eq!(lanes, LaneSet(!0b111));

    let mut k = sketch();
    let guard = is(k.fresh(RegClass::Pred));
    k.when(guard, Inst::BarBlock);
    assert!(matches!(fault(k).0, FaultKind::UnwrittenRegister { .. }));

    let mut k = sketch();
    let wide = k.fresh(RegClass::B64);
    k.store(MemTy::U64, global(k.output, 0), reg(wide));
    assert!(matches!(fault(k).0, FaultKind::UnwrittenRegister { .. }));
}

#[test]
fn a_guarded_off_instruction_reads_nothing() {
    let mut k = sketch();
    let never = below(&mut k, 0);
    let wild = k.fresh(RegClass::B64);
    k.when(never, IrBuilder::store_inst(MemTy::U64, global(wild, 0), &[reg(wild)]));
    k.result(k.index, 0);
    run(k).0.unwrap();
}

#[test]
fn endless_loop() {
    let mut k = sketch();
    k.loop_(Branch::Uniform, |k, _| {
        k.special(SpecialReg::LaneId);
    });
    let (kind, lanes) = fault(k);
    assert_eq!((kind, lanes), (FaultKind::StepLimit { limit: 10_000 }, LaneSet::ALL));
}

#[test]
fn step_limit_is_exact() {
    let mut k = sketch();
    k.result(k.index, 0);
    let kernel = k.finish_unchecked();
    // One step per statement, and the end.
    let steps = kernel.body.len() as u64 + 1;
    for (limit, ok) in [(steps, true), (steps - 1, false)] {
        let mut memory = DeviceMemory::new();
        let (input, output) = (memory.add("input", &[]), memory.add_uninit("output", 128));
        let result = Launch::new(&kernel).arg(input).arg(output).step_limit(limit).run(&mut memory);
        assert_eq!(result.is_ok(), ok, "{limit}");
    }
}

#[test]
fn a_fault_names_statement_and_section() {
    let mut k = sketch();
    k.stmt(Stmt::Section("copy".into()));
    let low = below(&mut k, 4);
    k.loop_(Branch::Uniform, |k, _| {
        k.if_else(
            low,
            Branch::Divergent,
            |_| {},
            |k| {
                k.stmt(Stmt::Section("the rest".into()));
                k.load(MemTy::U8, global(k.output, 0));
            },
        );
    });
    let fault = run(k).0.unwrap_err();
    let place = fault.site.clone().unwrap();
    assert_eq!(place.path.to_string(), "body[7].loop[0].else[1]");
    assert_eq!(place.section.as_deref(), Some("the rest"));
    let text = "kernel `broken` at body[7].loop[0].else[1] (section \"the rest\"), block 0, warp 0, lanes 4-31: \
                read of uninitialised memory at global 0x20000000000 (`output` + 0)";
    assert_eq!(fault.to_string(), text);
}

#[test]
fn launches_that_do_not_fit() {
    let kernel = sketch().finish_unchecked();
    let mut memory = DeviceMemory::new();
    let buffer = memory.add("buffer", &[0]);
    let launches = [Launch::new(&kernel).arg(buffer), Launch::new(&kernel).arg(buffer).arg(1u64)];
    for launch in launches {
        assert!(matches!(launch.run(&mut memory).unwrap_err().kind, FaultKind::BadLaunch(_)));
    }
    let mut other = DeviceMemory::new();
    assert!(Launch::new(&kernel).arg(buffer).arg(buffer).run(&mut other).is_err());
    assert!(Launch::new(&kernel).arg(buffer).arg(buffer).run(&mut memory).is_ok());
}
