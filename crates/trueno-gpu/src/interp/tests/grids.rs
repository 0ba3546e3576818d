//! Many warps and blocks: barriers, atomics across blocks, determinism.

use super::super::{DeviceMemory, FaultKind, LaneSet, Launch, LaunchReport};
use super::ir_builder::{IrBuilder, global, imm, is, reg, shared};
use crate::inst::{CountKind, Op};
use crate::ir::{AtomOp, Branch, Inst, ShflMode, SpecialReg, Stmt};
use crate::types::{MemTy, RegClass};
use crate::validate::ValidKernel;

/// Warps draw numbers from a counter and square them until none is left, like the page kernels.
fn drawing(count: u32) -> ValidKernel {
    let mut k = IrBuilder::new("drawing", 4);
    let lane = k.special(SpecialReg::LaneId);
    let first = is(k.op(Op::SetpEqU32, &[reg(lane), imm(0)]));
    let drawn = k.var(RegClass::B32);
    k.loop_(Branch::Uniform, |k, target| {
        k.inst(IrBuilder::op_into(drawn, Op::Mov32, &[imm(0)]));
        let (op, addr, value) = (AtomOp::Add, global(k.input, 0), imm(1));
        k.when(first, Inst::Atomic { dst: Some(drawn), op, addr, value });
        let item = k.def(RegClass::B32, |dst| Inst::Shfl {
            mode: ShflMode::Idx,
            dst,
            in_range: None,
            src: reg(drawn),
            lane: imm(0),
        });
        let done = k.op(Op::SetpGeU32, &[reg(item), imm(count)]);
        k.stmt(Stmt::Break { target, cond: Some(is(done)), branch: Branch::Uniform });
        let square = k.op(Op::MulLoU32, &[reg(item), reg(item)]);
        let to = k.element(k.output, item, 4);
        k.when(first, IrBuilder::store_inst(MemTy::U32, global(to, 0), &[reg(square)]));
    });
    k.finish_unchecked()
}

fn draw(count: u32, blocks: u32, threads: Option<usize>) -> (Vec<u8>, LaunchReport) {
    let kernel = drawing(count);
    let mut memory = DeviceMemory::new();
    let counter = memory.add("counter", &[0; 4]);
    let output = memory.add_uninit("output", count as usize * 4);
    let mut launch = Launch::new(&kernel).grid(blocks).arg(counter).arg(output);
    if let Some(threads) = threads {
        launch = launch.threads(threads);
    }
    let report = launch.run(&mut memory).unwrap();
    let drawn = memory.bytes(counter).unwrap();
    assert_eq!(u32::from_le_bytes(drawn.try_into().unwrap()), count + blocks * 4, "each warp draws one too many");
    (memory.bytes(output).unwrap(), report)
}

/// A kernel is lowered at its first launch. The values of a launch must not be part of that.
#[test]
fn each_launch_has_its_own_arguments_and_grid() {
    let mut k = IrBuilder::new("shape", 4);
    let blocks = k.special(SpecialReg::NctaidX);
    k.inst(IrBuilder::store_inst(MemTy::U32, global(k.output, 0), &[reg(blocks)]));
    let kernel = k.finish_unchecked();
    let mut memory = DeviceMemory::new();
    let input = memory.add("input", &[0; 4]);
    for blocks in [1u32, 3] {
        let output = memory.add_uninit("output", 4);
        // A clone shares what was lowered.
        let kernel = kernel.clone();
        Launch::new(&kernel).grid(blocks).arg(input).arg(output).run(&mut memory).unwrap();
        assert_eq!(memory.bytes(output).unwrap(), blocks.to_le_bytes());
    }
}

#[test]
fn blocks_in_parallel_share_a_counter() {
    let count = 5000;
    let expected: Vec<u8> = (0..count).flat_map(|n: u32| (n * n).to_le_bytes()).collect();
    for (blocks, threads) in [(1, None), (7, Some(1)), (7, Some(3)), (64, None)] {
        let (bytes, report) = draw(count, blocks, threads);
        assert_eq!(bytes, expected);
        assert_eq!(report.warps.len(), blocks as usize * 4);
        assert_eq!(report.total[CountKind::GlobalAtomic], u64::from(count + blocks * 4));
        assert!(report.warps.is_sorted_by_key(|warp| (warp.block, warp.warp)));
    }
}

#[test]
fn one_thread_is_deterministic() {
    assert_eq!(draw(999, 5, Some(1)), draw(999, 5, Some(1)));
}

#[test]
fn neighbouring_bytes_from_different_blocks_are_kept() {
    let mut k = IrBuilder::new("bytes", 1);
    // Byte `lane * blocks + block`: all blocks write into every word.
    let (block, blocks) = (k.special(SpecialReg::CtaidX), k.special(SpecialReg::NctaidX));
    let lane = k.special(SpecialReg::LaneId);
    let at = k.op(Op::MadLoU32, &[reg(lane), reg(blocks), reg(block)]);
    let to = k.element(k.output, at, 1);
    k.store(MemTy::U8, global(to, 0), reg(block));
    let kernel = k.finish_unchecked();
    for _ in 0..20 {
        let mut memory = DeviceMemory::new();
        let input = memory.add("input", &[]);
        let output = memory.add_uninit("output", 32 * 8);
        Launch::new(&kernel).grid(8).arg(input).arg(output).run(&mut memory).unwrap();
        assert_eq!(memory.bytes(output).unwrap(), (0..8).collect::<Vec<u8>>().repeat(32));
    }
}

#[test]
fn the_fault_of_the_lowest_block_is_reported() {
    let mut k = IrBuilder::new("late", 1);
    let block = k.special(SpecialReg::CtaidX);
    let late = is(k.op(Op::SetpGeU32, &[reg(block), imm(11)]));
    k.if_else(late, Branch::Uniform, |k| _ = k.load(MemTy::U8, global(k.output, 0)), |_| {});
    let kernel = k.finish_unchecked();
    for _ in 0..20 {
        let mut memory = DeviceMemory::new();
        let (input, output) = (memory.add("input", &[]), memory.add_uninit("output", 4));
        let fault = Launch::new(&kernel).grid(40).arg(input).arg(output).run(&mut memory).unwrap_err();
        assert_eq!(fault.site.unwrap().block, 11);
    }
}

#[test]
fn every_warp_must_reach_a_block_barrier() {
    let mut k = IrBuilder::new("missing", 3);
    let low = is(k.op(Op::SetpLtU32, &[reg(k.index), imm(64)]));
    k.if_else(low, Branch::Uniform, |k| k.inst(Inst::BarBlock), |_| {});
    let kernel = k.finish_unchecked();
    let mut memory = DeviceMemory::new();
    let buffer = memory.add("buffer", &[]);
    let fault = Launch::new(&kernel).arg(buffer).arg(buffer).run(&mut memory).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BlockBarrierMissed { reached: LaneSet::ALL, ended_warp: Some(2) });
    assert_eq!(fault.site.unwrap().path.to_string(), "body[6].then[0]");
}

#[test]
fn every_lane_must_reach_a_block_barrier() {
    let mut k = IrBuilder::new("missing", 1);
    let low = is(k.op(Op::SetpLtU32, &[reg(k.index), imm(5)]));
    k.when(low, Inst::BarBlock);
    let kernel = k.finish_unchecked();
    let mut memory = DeviceMemory::new();
    let buffer = memory.add("buffer", &[]);
    let fault = Launch::new(&kernel).arg(buffer).arg(buffer).run(&mut memory).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BlockBarrierMissed { reached: LaneSet(0b1_1111), ended_warp: None });
}

#[test]
fn shared_memory_starts_unwritten_in_each_block() {
    let mut k = IrBuilder::new("fresh", 1);
    let region = k.region("data", 128);
    let own = k.op(Op::MadLoU32, &[reg(k.index), imm(4), reg(region)]);
    let block = k.special(SpecialReg::CtaidX);
    let back = k.op(Op::MadLoU32, &[reg(block), imm(0u32.wrapping_sub(128)), reg(own)]);
    let first = is(k.op(Op::SetpEqU32, &[reg(block), imm(0)]));
    k.if_else(
        first,
        Branch::Uniform,
        |k| k.store(MemTy::U32, shared(back, 0), imm(0)),
        |k| {
            k.load(MemTy::U32, shared(back, 0));
        },
    );
    let kernel = k.finish_unchecked();
    let mut memory = DeviceMemory::new();
    let buffer = memory.add("buffer", &[]);
    let fault = Launch::new(&kernel).grid(2).arg(buffer).arg(buffer).threads(1).run(&mut memory).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::UninitialisedMemory { .. }), "{fault}");
}
