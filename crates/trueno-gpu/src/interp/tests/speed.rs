//! Speed of the interpreter on a loop with the instruction mix of a match finder. Run in release:
//! `cargo test --release -p trueno-zram-kernels --lib -- --ignored --nocapture speed`

use super::super::{DeviceMemory, Launch};
use super::ir_builder::{IrBuilder, imm, is, reg, shared};
use crate::inst::Op;
use crate::ir::{Branch, Conflict, Inst, ShflMode, Stmt, StoreHint};
use crate::types::{MemTy, RegClass};
use crate::validate::ValidKernel;

/// Loads of four windows, hash, table lookup and insert, verify, vote, choose; `rounds` times.
fn kernel(rounds: u32) -> ValidKernel {
    let mut k = IrBuilder::new("speed", 1);
    let lane = k.index;
    let page = k.region("page", 4096);
    let table = k.region("table", 4096);
    for offset in (0..8192).step_by(512) {
        let at = k.op(Op::MadLoU32, &[reg(lane), imm(16), reg(page)]);
        let value = k.op(Op::MulLoU32, &[reg(lane), imm(2_654_435_761)]);
        k.inst(IrBuilder::store_inst(MemTy::U32, shared(at, offset), &[reg(value), reg(lane), reg(value), imm(7)]));
    }
    k.warp_barrier();
    let (i, p) = (k.var(RegClass::B32), k.var(RegClass::B32));
    k.inst(IrBuilder::op_into(i, Op::Mov32, &[imm(0)]));
    k.inst(IrBuilder::op_into(p, Op::Mov32, &[imm(0)]));
    k.loop_(Branch::Uniform, |k, label| {
        let lane2 = k.op(Op::MadLoU32, &[reg(lane), imm(2), reg(p)]);
        let pos = k.op(Op::MinU32, &[reg(lane2), imm(4080)]);
        let at = k.op(Op::AddU32, &[reg(pos), reg(page)]);
        let aligned = k.op(Op::And32, &[reg(at), imm(!3)]);
        let words: Vec<_> = (0..4).map(|n| k.load(MemTy::U32, shared(aligned, n * 4))).collect();
        let bits = k.op(Op::Shl32, &[reg(at), imm(3)]);
        let b: Vec<_> = words.windows(2).map(|w| k.op(Op::ShfRWrap, &[reg(w[0]), reg(w[1]), reg(bits)])).collect();
        let hash = k.op(Op::MulLoU32, &[reg(b[0]), imm(2_654_435_761)]);
        let slot = k.op(Op::ShrU32, &[reg(hash), imm(20)]);
        let slot = k.op(Op::And32, &[reg(slot), imm(0xffe)]);
        let slot = k.op(Op::Or32, &[reg(slot), reg(table)]);
        let entry = k.load(MemTy::U16, shared(slot, 0));
        k.warp_barrier();
        let new = k.op(Op::Lop3, &[imm(0xfff), reg(pos), reg(hash), imm(0xca)]);
        k.inst(Inst::Store {
            src: [reg(new)].into(),
            ty: MemTy::U16,
            addr: shared(slot, 0),
            hint: StoreHint::Default,
            conflict: Conflict::Intended,
        });
        k.warp_barrier();
        let candidate = k.op(Op::And32, &[reg(entry), imm(0xffc)]);
        let candidate = k.op(Op::Or32, &[reg(candidate), reg(page)]);
        let word = k.load(MemTy::U32, shared(candidate, 0));
        let diff = k.op(Op::Xor32, &[reg(word), reg(b[1])]);
        let hit = k.op(Op::SetpEqU32, &[reg(diff), imm(0)]);
        let rev = k.op(Op::Brev32, &[reg(diff)]);
        let len = k.op(Op::BfindShiftamtU32, &[reg(rev)]);
        let len = k.op(Op::Selp32, &[reg(len), imm(0), reg(hit)]);
        let shuffle = |k: &mut IrBuilder, n: u32| {
            k.def(RegClass::B32, |dst| Inst::Shfl {
                mode: ShflMode::Up,
                dst,
                in_range: None,
                src: reg(len),
                lane: imm(n),
            })
        };
        let next = [shuffle(k, 1), shuffle(k, 2)];
        let longer = k.op(Op::SetpLeU32, &[reg(next[0]), reg(len)]);
        let longest = k.op(Op::SetpLeU32, &[reg(next[1]), reg(len)]);
        let chosen = k.op(Op::AndPred, &[reg(longer), reg(longest)]);
        let mask = k.def(RegClass::B32, |dst| Inst::Ballot { dst, src: is(chosen) });
        let count = k.op(Op::Popc32, &[reg(mask)]);
        let step = k.op(Op::And32, &[reg(count), imm(63)]);
        let moved = k.op(Op::AddU32, &[reg(p), reg(step)]);
        let moved = k.op(Op::AddU32, &[reg(moved), imm(64)]);
        k.inst(IrBuilder::op_into(p, Op::And32, &[reg(moved), imm(0xfff)]));
        k.inst(IrBuilder::op_into(i, Op::AddU32, &[reg(i), imm(1)]));
        let done = k.op(Op::SetpGeU32, &[reg(i), imm(rounds)]);
        k.stmt(Stmt::Break { target: label, cond: Some(is(done)), branch: Branch::Uniform });
    });
    k.result(p, 0);
    k.finish_unchecked()
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let kernel = kernel(100_000);
    let mut memory = DeviceMemory::new();
    let input = memory.add("input", &[0]);
    let output = memory.add_uninit("output", 128);
    let start = std::time::Instant::now();
    let report = Launch::new(&kernel).arg(input).arg(output).threads(1).run(&mut memory).unwrap();
    let per_microsecond = u128::from(report.total.instructions()) / start.elapsed().as_micros().max(1);
    println!("{per_microsecond} million warp instructions per second");
}
