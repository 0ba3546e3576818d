//! Lane orders: which lane wins a conflicting store, and what atomics return.

use super::super::{DeviceMemory, LaneOrder, Launch};
use super::ir_builder::{IrBuilder, global, imm, reg, shared};
use crate::inst::Op;
use crate::ir::{AtomOp, Conflict, Inst, StoreHint};
use crate::types::{MemTy, RegClass};
use crate::validate::ValidKernel;

fn words(kernel: &ValidKernel, order: LaneOrder) -> Vec<u32> {
    let mut memory = DeviceMemory::new();
    let input = memory.add("input", &[0; 4]);
    let output = memory.add("output", &[0; 128]);
    Launch::new(kernel).arg(input).arg(output).lane_order(order).run(&mut memory).unwrap();
    let bytes = memory.bytes(output).unwrap();
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// All lanes store their number to one shared word, on purpose.
fn contest() -> ValidKernel {
    let mut k = IrBuilder::new("contest", 1);
    let region = k.region("data", 4);
    let (src, ty, hint, conflict) = ([reg(k.index)].into(), MemTy::U16, StoreHint::Default, Conflict::Intended);
    k.inst(Inst::Store { src, ty, addr: shared(region, 0), hint, conflict });
    k.warp_barrier();
    let winner = k.load(MemTy::U16, shared(region, 0));
    k.result(winner, 0);
    k.finish_unchecked()
}

#[test]
fn the_order_decides_a_conflicting_store() {
    let kernel = contest();
    assert_eq!(words(&kernel, LaneOrder::Ascending), [31; 32]);
    assert_eq!(words(&kernel, LaneOrder::Descending), [0; 32]);
    let shuffled: Vec<u32> = (0..20).map(|seed| words(&kernel, LaneOrder::Shuffled { seed })[0]).collect();
    assert!(shuffled.iter().any(|winner| *winner != shuffled[0]), "{shuffled:?}");
    let again: Vec<u32> = (0..20).map(|seed| words(&kernel, LaneOrder::Shuffled { seed })[0]).collect();
    assert_eq!(shuffled, again);
}

#[test]
fn the_order_decides_a_conflicting_global_store() {
    let mut k = IrBuilder::new("contest", 1);
    let (src, ty, hint, conflict) = ([reg(k.index)].into(), MemTy::U32, StoreHint::Default, Conflict::Intended);
    k.inst(Inst::Store { src, ty, addr: global(k.output, 0), hint, conflict });
    let kernel = k.finish_unchecked();
    assert_eq!(words(&kernel, LaneOrder::Ascending)[0], 31);
    assert_eq!(words(&kernel, LaneOrder::Descending)[0], 0);
}

#[test]
fn atomics_take_turns_in_order() {
    let mut k = IrBuilder::new("tickets", 1);
    let (op, addr, value) = (AtomOp::Add, global(k.output, 0), imm(1));
    let ticket = k.def(RegClass::B32, |dst| Inst::Atomic { dst: Some(dst), op, addr, value });
    let at = k.op(Op::MaxU32, &[reg(k.index), imm(1)]);
    let to = k.element(k.output, at, 4);
    let later = k.op(Op::SetpGtU32, &[reg(k.index), imm(0)]);
    k.when(super::ir_builder::is(later), IrBuilder::store_inst(MemTy::U32, global(to, 0), &[reg(ticket)]));
    let kernel = k.finish_unchecked();
    let ascending: Vec<u32> = std::iter::once(32).chain(1..32).collect();
    assert_eq!(words(&kernel, LaneOrder::Ascending), ascending);
    let descending: Vec<u32> = std::iter::once(32).chain((0..31).rev()).collect();
    assert_eq!(words(&kernel, LaneOrder::Descending), descending);
    let mut shuffled = words(&kernel, LaneOrder::Shuffled { seed: 5 });
    assert_ne!(shuffled, ascending);
    shuffled.sort_unstable();
    shuffled.dedup();
    assert!(shuffled.len() >= 32, "all tickets differ");
}

#[test]
fn arbitrary_values_differ_between_orders() {
    let mut k = IrBuilder::new("noise", 1);
    let noise = k.def(RegClass::B32, |dst| Inst::Arbitrary { dst });
    k.result(noise, 0);
    let kernel = k.finish_unchecked();
    assert_ne!(words(&kernel, LaneOrder::Ascending), words(&kernel, LaneOrder::Descending));
}
