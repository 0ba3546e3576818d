//! Cases of shuffles, votes, matches, masks and special registers.

use super::{SuiteCase, words};
use crate::ir_builder::{FULL, IrBuilder, imm, is, reg};
use trueno_gpu::RegClass;
use trueno_gpu::Target;
use trueno_gpu::inst::Op;
use trueno_gpu::ir::{Branch, Inst, Operand, ReduxOp, ShflMode, SpecialReg, VoteMode};

pub(super) fn cases() -> Vec<SuiteCase> {
    let mut cases = shuffles();
    cases.extend([votes(), ballot(), match_any(RegClass::B32), match_any(RegClass::B64), partial_members()]);
    cases.push(active_mask());
    cases.push(redux());
    cases.extend(specials());
    cases
}

/// Makes a kernel in which every result is one array of 32 words.
fn case(name: &str, k: IrBuilder, input: Vec<u8>, arrays: &[[u32; 32]]) -> SuiteCase {
    let expected = words(arrays.iter().flatten().copied());
    SuiteCase { name: name.to_owned(), kernel: k.finish(), input, grid: 1, expected }
}

fn lanes(f: impl Fn(u32) -> u32) -> [u32; 32] {
    std::array::from_fn(|lane| f(u32::try_from(lane).expect("below 32")))
}

/// All modes, with the operand in a register and as a constant, for whole warps and for segments of 8.
fn shuffles() -> Vec<SuiteCase> {
    // Mode, lane operand, clamp operand, and the source lane; `None` if it is out of range.
    type Source = fn(u32) -> Option<u32>;
    let table: [(&str, ShflMode, u32, u32, Source); 12] = [
        ("idx 5", ShflMode::Idx, 5, 31, |_| Some(5)),
        ("idx 37 wraps", ShflMode::Idx, 37, 31, |_| Some(5)),
        ("idx 20 clamp 15", ShflMode::Idx, 20, 15, |_| None),
        ("idx 3 in eighths", ShflMode::Idx, 3, 0x181f, |lane| Some(lane / 8 * 8 + 3)),
        ("up 0", ShflMode::Up, 0, 0, Some),
        ("up 4", ShflMode::Up, 4, 0, |lane| lane.checked_sub(4)),
        ("up 31", ShflMode::Up, 31, 0, |lane| lane.checked_sub(31)),
        ("up 3 in eighths", ShflMode::Up, 3, 0x1800, |lane| if lane % 8 >= 3 { Some(lane - 3) } else { None }),
        ("down 2", ShflMode::Down, 2, 31, |lane| if lane < 30 { Some(lane + 2) } else { None }),
        ("down 1 in eighths", ShflMode::Down, 1, 0x181f, |lane| if lane % 8 < 7 { Some(lane + 1) } else { None }),
        ("bfly 16", ShflMode::Bfly, 16, 31, |lane| Some((lane + 16) % 32)),
        ("bfly 1 clamp 7 in eighths", ShflMode::Bfly, 1, 0x1807, |lane| {
            // The bound is lane & 24 | 7: the lane's own segment of 8.
            Some(if lane % 2 == 0 { lane + 1 } else { lane - 1 })
        }),
    ];
    let mut cases = vec![];
    for (name, mode, operand, clamp, source) in table {
        let name = format!("shfl.sync.{name}");
        let mut k = IrBuilder::new(&name, 1);
        let value = k.argument(RegClass::B32, 0);
        let operand_reg = k.argument(RegClass::B32, 128);
        for (array, lane) in (0..).zip([imm(operand), reg(operand_reg)]) {
            let in_range = k.fresh(RegClass::Pred);
            let got = k.def(RegClass::B32, |dst| Inst::Shfl {
                mode,
                dst,
                in_range: Some(in_range),
                src: reg(value),
                lane,
                clamp,
                mask: FULL,
            });
            k.result(got, array * 256);
            k.result(in_range, array * 256 + 128);
        }
        let value = |lane: u32| lane * lane + 1000;
        let input = words((0..32).map(value).chain([operand; 32]));
        let got = lanes(|lane| value(source(lane).unwrap_or(lane)));
        let valid = lanes(|lane| u32::from(source(lane).is_some()));
        cases.push(case(&name, k, input, &[got, valid, got, valid]));
    }
    cases
}

fn votes() -> SuiteCase {
    let mut k = IrBuilder::new("vote.sync", 1);
    let value = k.argument(RegClass::B32, 0);
    let thresholds = [0, 1, 40];
    let mut arrays = vec![];
    for (i, threshold) in (0..).zip(thresholds) {
        let below = k.op(Op::SetpLtU32, &[reg(value), imm(threshold)]);
        for (j, mode) in (0..).zip([VoteMode::Any, VoteMode::All, VoteMode::Uni]) {
            for (n, negated) in (0..).zip([false, true]) {
                let src = trueno_gpu::ir::PredUse { reg: below, negated };
                let answer = k.def(RegClass::Pred, |dst| Inst::Vote { mode, dst, src, mask: FULL });
                k.result(answer, ((i * 3 + j) * 2 + n) * 128);
            }
        }
    }
    // The values are the lanes: none is below 0, lane 0 is below 1, all are below 40.
    for [any, all, uni] in [[[0, 1], [0, 1], [1, 1]], [[1, 1], [0, 0], [0, 0]], [[1, 0], [1, 0], [1, 1]]] {
        arrays.extend([any, all, uni].into_iter().flatten().map(|answer| [answer; 32]));
    }
    case("vote.sync", k, words(0..32), &arrays)
}

fn ballot() -> SuiteCase {
    let mut k = IrBuilder::new("vote.sync.ballot", 1);
    let value = k.argument(RegClass::B32, 0);
    let odd = k.op(Op::And32, &[reg(value), imm(1)]);
    let odd = k.op(Op::SetpNeU32, &[reg(odd), imm(0)]);
    let plain = k.def(RegClass::B32, |dst| Inst::Ballot { dst, src: is(odd), mask: FULL });
    let negated = k.def(RegClass::B32, |dst| Inst::Ballot { dst, src: !is(odd), mask: FULL });
    k.result(plain, 0);
    k.result(negated, 128);
    // Lane 31 has 8, so it is even.
    let input = words((0..31).chain([8]));
    case("vote.sync.ballot", k, input, &[[0x2aaa_aaaa; 32], [0xd555_5555; 32]])
}

fn match_any(class: RegClass) -> SuiteCase {
    let name = if class == RegClass::B64 { "match.any.sync.b64" } else { "match.any.sync.b32" };
    let mut k = IrBuilder::new(name, 1);
    let value = k.argument(class, 0);
    let same = k.def(RegClass::B32, |dst| Inst::MatchAny { dst, src: reg(value), class, mask: FULL });
    k.result(same, 0);
    // Three values in turn. With 64 bits they differ only in the high half.
    let values = (0..32u64).map(|lane| lane % 3);
    let input = match class {
        RegClass::B64 => values.flat_map(|v| (v << 40 | 7).to_le_bytes()).collect(),
        _ => words(values.map(|v| u32::try_from(v).expect("below 3"))),
    };
    let sets = [0x4924_9249, 0x9249_2492, 0x2492_4924];
    case(name, k, input, &[lanes(|lane| sets[lane as usize % 3])])
}

/// All operations, among all lanes and, inside a branch, among the even ones. The values tell signed from unsigned, and
/// a wrapping sum from a saturating one.
fn redux() -> SuiteCase {
    const OPS: [ReduxOp; 6] = [ReduxOp::Add, ReduxOp::Min, ReduxOp::Max, ReduxOp::And, ReduxOp::Or, ReduxOp::Xor];
    let mut k = IrBuilder::for_target("redux.sync", 1, Target::SM_80);
    let value = k.argument(RegClass::B32, 0);
    let odd = k.op(Op::And32, &[reg(k.index), imm(1)]);
    let even = k.op(Op::SetpEqU32, &[reg(odd), imm(0)]);
    for (n, op) in (0..).zip(OPS) {
        let all = k.def(RegClass::B32, |dst| Inst::Redux { op, dst, src: reg(value), mask: FULL });
        k.result(all, n * 256);
        let some = k.var(RegClass::B32);
        k.inst(IrBuilder::op_into(some, Op::Mov32, &[imm(9)]));
        let among_even = Inst::Redux { op, dst: some, src: reg(value), mask: imm(0x5555_5555) };
        k.if_else(is(even), Branch::Divergent, |k| k.inst(among_even), |_| {});
        k.result(some, n * 256 + 128);
    }
    // Lane n has n + 2, but lane 0 has 0x8000_0003 and lane 31 has 0xffff_ffff.
    let input = words([0x8000_0003].into_iter().chain(3..33).chain([u32::MAX]));
    // 3 to 32 sum to 525, and their exclusive or is 3 ^ 32. Lane 31 takes 1 from the sum.
    let everyone = [0x8000_0003 + 525 - 1, 3, u32::MAX, 0, u32::MAX, 0x8000_0003 ^ 3 ^ 32 ^ u32::MAX];
    // The even lanes from 2 on have 4, 6, ... 32, which sum to 270.
    // 4 ^ 6 ^ ... ^ 30 is 2 times 2 ^ 3 ^ ... ^ 15, which is 1.
    let evens = [0x8000_0003 + 270, 4, 0x8000_0003, 0, 0x8000_003f, 0x8000_0003 ^ 2 ^ 32];
    let arrays: Vec<[u32; 32]> = everyone
        .into_iter()
        .zip(evens)
        .flat_map(|(all, some)| [[all; 32], lanes(|lane| if lane % 2 == 0 { some } else { 9 })])
        .collect();
    case("redux.sync", k, input, &arrays)
}

/// Operations of the even lanes only, inside a branch, with their mask.
fn partial_members() -> SuiteCase {
    let mut k = IrBuilder::new("partial members", 1);
    let odd = k.op(Op::And32, &[reg(k.index), imm(1)]);
    let even = k.op(Op::SetpEqU32, &[reg(odd), imm(0)]);
    let result = k.var(RegClass::B32);
    k.inst(IrBuilder::op_into(result, Op::Mov32, &[imm(9)]));
    let index = k.index;
    k.if_else(
        is(even),
        Branch::Divergent,
        |k| {
            let mask = Operand::Imm(0x5555_5555);
            let above = k.op(Op::SetpGtU32, &[reg(index), imm(15)]);
            let ballot = k.def(RegClass::B32, |dst| Inst::Ballot { dst, src: is(above), mask });
            let fetched = k.def(RegClass::B32, |dst| Inst::Shfl {
                mode: ShflMode::Idx,
                dst,
                in_range: None,
                src: reg(index),
                lane: imm(30),
                clamp: 31,
                mask,
            });
            k.inst(Inst::BarWarp { mask });
            k.inst(IrBuilder::op_into(result, Op::AddU32, &[reg(ballot), reg(fetched)]));
        },
        |_| {},
    );
    k.result(result, 0);
    let expected = lanes(|lane| if lane % 2 == 0 { 0x5555_0000 + 30 } else { 9 });
    case("partial members", k, vec![0; 4], &[expected])
}

fn active_mask() -> SuiteCase {
    let mut k = IrBuilder::new("activemask", 1);
    let whole = k.def(RegClass::B32, |dst| Inst::ActiveMask { dst });
    k.result(whole, 0);
    case("activemask", k, vec![0; 4], &[[u32::MAX; 32]])
}

/// Special registers, in a block of two warps and a grid of three blocks.
fn specials() -> Vec<SuiteCase> {
    type Value = fn(block: u32, warp: u32, lane: u32) -> u32;
    let table: [(SpecialReg, Value); 10] = [
        (SpecialReg::TidX, |_, warp, lane| warp * 32 + lane),
        (SpecialReg::NtidX, |_, _, _| 64),
        (SpecialReg::CtaidX, |block, _, _| block),
        (SpecialReg::NctaidX, |_, _, _| 3),
        (SpecialReg::LaneId, |_, _, lane| lane),
        (SpecialReg::LanemaskEq, |_, _, lane| 1 << lane),
        (SpecialReg::LanemaskLt, |_, _, lane| (1 << lane) - 1),
        (SpecialReg::LanemaskLe, |_, _, lane| u32::MAX >> (31 - lane)),
        (SpecialReg::LanemaskGe, |_, _, lane| u32::MAX << lane),
        (SpecialReg::LanemaskGt, |_, _, lane| u32::MAX.checked_shl(lane + 1).unwrap_or(0)),
    ];
    let case = |(which, value): (SpecialReg, Value)| {
        let name = format!("mov {}", which.ptx_name());
        let mut k = IrBuilder::new(&name, 2);
        let got = k.special(which);
        k.result(got, 0);
        let warps = (0..3).flat_map(|block| (0..2).map(move |warp| (block, warp)));
        let expected = warps.flat_map(|(block, warp)| (0..32).map(move |lane| value(block, warp, lane)));
        SuiteCase { name, kernel: k.finish(), input: vec![0; 4], grid: 3, expected: words(expected) }
    };
    table.into_iter().map(case).collect()
}
