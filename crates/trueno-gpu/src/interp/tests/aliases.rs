//! Instructions whose destination is one of their sources.

use super::ir_builder::{IrBuilder, global, imm, is, reg};
use super::run;
use crate::inst::Op;
use crate::ir::{BoolOp, Combine, Inst, LoadHint, ShflMode, VoteMode};
use crate::types::{MemTy, RegClass};

/// Runs a kernel and returns the first 32 words of the output.
fn words(k: IrBuilder) -> Vec<u32> {
    let (report, bytes) = run(k);
    report.unwrap();
    bytes[..128].chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn compare_combined_with_its_own_destination() {
    for (op, expected) in [
        (BoolOp::And, |lane: u32| lane % 2 == 1 && lane < 9),
        (BoolOp::Or, |lane| lane % 2 == 1 || lane < 9),
        (BoolOp::Xor, |lane| (lane % 2 == 1) != (lane < 9)),
    ] as [(_, fn(u32) -> bool); 3]
    {
        let mut k = IrBuilder::new("combine", 1);
        let p = k.var(RegClass::Pred);
        let odd = k.op(Op::And32, &[reg(k.index), imm(1)]);
        k.inst(IrBuilder::op_into(p, Op::SetpNeU32, &[reg(odd), imm(0)]));
        let combine = Some(Combine { op, with: is(p) });
        k.inst(Inst::Setp { op: Op::SetpLtU32, dst: p, a: reg(k.index), b: imm(9), combine });
        k.result(p, 0);
        assert_eq!(words(k), (0..32).map(|lane| u32::from(expected(lane))).collect::<Vec<_>>(), "{op:?}");
    }
}

#[test]
fn shuffle_into_its_source_and_lane() {
    for alias_lane in [false, true] {
        let mut k = IrBuilder::new("shuffle", 1);
        let v = k.var(RegClass::B32);
        k.inst(IrBuilder::op_into(v, Op::Xor32, &[reg(k.index), imm(5)]));
        let (src, lane) = if alias_lane { (reg(k.index), reg(v)) } else { (reg(v), imm(3)) };
        k.inst(Inst::Shfl { mode: ShflMode::Idx, dst: v, in_range: None, src, lane });
        k.result(v, 0);
        let expected: Vec<u32> = (0..32).map(|lane| if alias_lane { lane ^ 5 } else { 6 }).collect();
        assert_eq!(words(k), expected);
    }
}

#[test]
fn vote_and_load_into_their_sources() {
    let mut k = IrBuilder::new("vote", 1);
    let p = k.var(RegClass::Pred);
    k.inst(IrBuilder::op_into(p, Op::SetpEqU32, &[reg(k.index), imm(7)]));
    k.inst(Inst::Vote { mode: VoteMode::Any, dst: p, src: is(p) });
    k.result(p, 0);
    assert_eq!(words(k), [1; 32]);

    let mut k = IrBuilder::new("load", 1);
    let address = k.var(RegClass::B64);
    k.inst(IrBuilder::op_into(address, Op::MadWideU32, &[imm(2), imm(8), reg(k.input)]));
    let (dst, ty, addr) = ([address].into(), MemTy::U64, global(address, 0));
    k.inst(Inst::Load { dst, ty, addr, hint: LoadHint::Default, uniform: true });
    let low = k.op(Op::CvtU32U64, &[reg(address)]);
    k.result(low, 0);
    assert_eq!(words(k), [4; 32]);
}
