//! Races on shared memory, and accesses that do not race.

use super::super::{Access, Accessor, FaultKind, LaneSet};
use super::ir_builder::{IrBuilder, imm, is, reg, shared};
use super::{fault, run};
use crate::inst::Op;
use crate::ir::{AtomOp, Branch, Conflict, Inst, MemAddr, Operand, ShflMode, StoreHint};
use crate::types::{MemTy, RegClass};

/// A kernel with 32 words of shared memory. Each lane uses its own word and the next lane's (lane 31 only its own).
fn sketch() -> (IrBuilder, MemAddr, MemAddr) {
    let mut k = IrBuilder::new("races", 1);
    let region = k.region("data", 128);
    let own = k.op(Op::MadLoU32, &[reg(k.index), imm(4), reg(region)]);
    let next = k.op(Op::AddU32, &[reg(k.index), imm(1)]);
    let next = k.op(Op::MinU32, &[reg(next), imm(31)]);
    let next = k.op(Op::MadLoU32, &[reg(next), imm(4), reg(region)]);
    (k, shared(own, 0), shared(next, 0))
}

fn conflicting(k: &mut IrBuilder, addr: MemAddr, value: Operand) {
    let (src, ty, hint, conflict) = ([value].into(), MemTy::U32, StoreHint::Default, Conflict::Intended);
    k.inst(Inst::Store { src, ty, addr, hint, conflict });
}

fn atomic(k: &mut IrBuilder, addr: MemAddr) {
    k.inst(Inst::Atomic { dst: None, op: AtomOp::Add, addr, value: imm(1) });
}

fn race(k: IrBuilder) -> (Access, Access, Accessor, LaneSet) {
    match fault(k) {
        (FaultKind::SharedRace { access, earlier, earlier_by, .. }, lanes) => (earlier, access, earlier_by, lanes),
        (other, _) => panic!("{other}"),
    }
}

#[test]
fn write_then_read_by_another_lane() {
    let (mut k, own, next) = sketch();
    k.store(MemTy::U32, own, imm(1));
    k.load(MemTy::U32, next);
    assert_eq!(race(k), (Access::Write, Access::Read, Accessor::Lanes(LaneSet(2)), LaneSet(1)));
}

#[test]
fn a_warp_barrier_orders() {
    let (mut k, own, next) = sketch();
    k.store(MemTy::U32, own, imm(1));
    k.warp_barrier();
    k.load(MemTy::U32, next);
    k.warp_barrier();
    k.store(MemTy::U32, own, imm(2));
    k.load(MemTy::U32, own);
    run(k).0.unwrap();
}

#[test]
fn a_shuffle_does_not_order() {
    let (mut k, own, next) = sketch();
    k.store(MemTy::U32, own, imm(1));
    let (mode, src, lane) = (ShflMode::Idx, imm(1), imm(0));
    k.def(RegClass::B32, |dst| Inst::Shfl { mode, dst, in_range: None, src, lane });
    k.load(MemTy::U32, next);
    assert_eq!(race(k).1, Access::Read);
}

#[test]
fn read_then_write_by_another_lane() {
    let (mut k, own, next) = sketch();
    k.store(MemTy::U32, own, imm(1));
    k.warp_barrier();
    k.load(MemTy::U32, next);
    k.store(MemTy::U32, own, imm(2));
    // Only lane 0 accessed its own word, but it also read that of lane 1.
    assert_eq!(race(k), (Access::Read, Access::Write, Accessor::Lanes(LaneSet(1)), LaneSet(2)));
}

#[test]
fn read_by_many_then_write() {
    let (mut k, own, _) = sketch();
    k.store(MemTy::U32, own, imm(1));
    k.warp_barrier();
    let fifth = k.op(Op::SetpEqU32, &[reg(k.index), imm(5)]);
    let lane = k.op(Op::MulLoU32, &[reg(k.index), imm(4)]);
    let base = k.op(Op::SubU32, &[reg(own.base), reg(lane)]);
    k.load(MemTy::U32, shared(base, 0));
    k.when(is(fifth), IrBuilder::store_inst(MemTy::U8, shared(base, 1), &[imm(0)]));
    assert_eq!(race(k), (Access::Read, Access::Write, Accessor::Lanes(LaneSet(!(1 << 5))), LaneSet(1 << 5)));
}

#[test]
fn write_then_write_by_another_lane() {
    let (mut k, own, next) = sketch();
    k.store(MemTy::U32, own, imm(1));
    let first = k.op(Op::SetpEqU32, &[reg(k.index), imm(0)]);
    k.when(is(first), IrBuilder::store_inst(MemTy::U32, next, &[imm(2)]));
    assert_eq!(race(k), (Access::Write, Access::Write, Accessor::Lanes(LaneSet(2)), LaneSet(1)));
}

#[test]
fn different_bytes_of_a_word_do_not_race() {
    let mut k = IrBuilder::new("bytes", 1);
    let region = k.region("data", 32);
    let own = k.op(Op::AddU32, &[reg(k.index), reg(region)]);
    k.store(MemTy::U8, shared(own, 0), reg(k.index));
    k.load(MemTy::U8, shared(own, 0));
    k.store(MemTy::U8, shared(own, 0), imm(1));
    run(k).0.unwrap();
}

#[test]
fn a_wide_read_of_a_neighbours_byte_races() {
    let mut k = IrBuilder::new("bytes", 1);
    let region = k.region("data", 32);
    let own = k.op(Op::AddU32, &[reg(k.index), reg(region)]);
    k.store(MemTy::U8, shared(own, 0), reg(k.index));
    k.load(MemTy::U32, shared(region, 0));
    let (earlier, access, earlier_by, lanes) = race(k);
    assert_eq!((earlier, access), (Access::Write, Access::Read));
    assert_eq!((earlier_by, lanes), (Accessor::Lanes(LaneSet(2)), LaneSet(1)));
}

#[test]
fn conflicting_stores_race_with_reads_and_plain_stores_only() {
    let (mut k, own, next) = sketch();
    conflicting(&mut k, own, imm(1));
    conflicting(&mut k, next, imm(2));
    run(k).0.unwrap();

    let (mut k, own, next) = sketch();
    conflicting(&mut k, own, imm(1));
    k.load(MemTy::U32, own);
    k.load(MemTy::U32, next);
    assert_eq!(race(k).0, Access::ConflictingWrite);

    let (mut k, own, next) = sketch();
    conflicting(&mut k, own, imm(1));
    k.store(MemTy::U32, next, imm(2));
    // Lanes 30 and 31 of the plain store write the same word, but the conflicting store came first.
    assert_eq!(race(k).0, Access::ConflictingWrite);

    // A lane's own word that another lane stored to is no longer its own.
    let (mut k, own, next) = sketch();
    conflicting(&mut k, own, imm(1));
    conflicting(&mut k, next, imm(2));
    k.load(MemTy::U32, own);
    assert_eq!(race(k).0, Access::ConflictingWrite);
}

#[test]
fn atomics_race_with_all_but_atomics() {
    let start = || {
        let (mut k, own, next) = sketch();
        k.store(MemTy::U32, own, imm(0));
        k.warp_barrier();
        atomic(&mut k, own);
        (k, own, next)
    };
    let (mut k, _, next) = start();
    atomic(&mut k, next);
    run(k).0.unwrap();

    let (mut k, own, _) = start();
    k.load(MemTy::U32, own);
    k.store(MemTy::U32, own, imm(1));
    run(k).0.unwrap();

    let (mut k, _, next) = start();
    k.load(MemTy::U32, next);
    assert_eq!((race(k).0), Access::Atomic);

    let (mut k, own, next) = sketch();
    k.store(MemTy::U32, own, imm(0));
    atomic(&mut k, next);
    assert_eq!(race(k).1, Access::Atomic);
}

#[test]
fn warps_need_a_block_barrier() {
    let make = |barrier: bool, first: fn(&mut IrBuilder, MemAddr), second: fn(&mut IrBuilder, MemAddr)| {
        let mut k = IrBuilder::new("warps", 2);
        let region = k.region("data", 128);
        let lane = k.op(Op::And32, &[reg(k.index), imm(31)]);
        let at = k.op(Op::MadLoU32, &[reg(lane), imm(4), reg(region)]);
        let warp = k.op(Op::ShrU32, &[reg(k.index), imm(5)]);
        let is_first = is(k.op(Op::SetpEqU32, &[reg(warp), imm(0)]));
        k.if_else(is_first, Branch::Uniform, |k| k.store(MemTy::U32, shared(at, 0), imm(0)), |_| {});
        k.inst(Inst::BarBlock);
        k.if_else(is_first, Branch::Uniform, |k| first(k, shared(at, 0)), |_| {});
        k.warp_barrier();
        if barrier {
            k.inst(Inst::BarBlock);
        }
        k.if_else(is_first, Branch::Uniform, |_| {}, |k| second(k, shared(at, 0)));
        run(k).0
    };
    let read: fn(&mut IrBuilder, MemAddr) = |k, at| _ = k.load(MemTy::U32, at);
    let write: fn(&mut IrBuilder, MemAddr) = |k, at| k.store(MemTy::U32, at, imm(1));
    let atomic: fn(&mut IrBuilder, MemAddr) = atomic;
    let conflicting: fn(&mut IrBuilder, MemAddr) = |k, at| conflicting(k, at, imm(1));
    for (first, second, races) in [
        (read, read, false),
        (read, write, true),
        (write, read, true),
        (write, write, true),
        (atomic, atomic, false),
        (atomic, read, true),
        (conflicting, conflicting, false),
        (conflicting, atomic, true),
    ] {
        make(true, first, second).unwrap();
        match make(false, first, second) {
            Ok(_) => assert!(!races),
            Err(fault) => {
                assert!(races, "{fault}");
                assert!(matches!(fault.kind, FaultKind::SharedRace { earlier_by: Accessor::OtherWarp, .. }), "{fault}");
                assert_eq!(fault.site.unwrap().warp, 1);
            }
        }
    }
}
