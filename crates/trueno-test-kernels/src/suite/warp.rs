//! Cases of shuffles, votes, matches, reductions and special registers.

use super::{SuiteCase, words};
use crate::ir_builder::{IrBuilder, imm, is, reg};
use trueno_gpu::RegClass;
use trueno_gpu::Target;
use trueno_gpu::inst::Op;
use trueno_gpu::ir::{Inst, ReduxOp, ShflMode, SpecialReg, VoteMode};

pub(super) fn cases() -> Vec<SuiteCase> {
    let mut cases = shuffles();
    cases.extend([votes(), ballot(), match_any(), redux()]);
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

/// All modes, with the operand in a register and as a constant.
fn shuffles() -> Vec<SuiteCase> {
    // Mode, lane operand, and the source lane; `None` if it is out of range.
    type Source = fn(u32) -> Option<u32>;
    let table: [(&str, ShflMode, u32, Source); 7] = [
        ("idx 5", ShflMode::Idx, 5, |_| Some(5)),
        ("idx 37 wraps", ShflMode::Idx, 37, |_| Some(5)),
        ("up 0", ShflMode::Up, 0, Some),
        ("up 4", ShflMode::Up, 4, |lane| lane.checked_sub(4)),
        ("up 31", ShflMode::Up, 31, |lane| lane.checked_sub(31)),
        ("down 2", ShflMode::Down, 2, |lane| if lane < 30 { Some(lane + 2) } else { None }),
        ("bfly 16", ShflMode::Bfly, 16, |lane| Some((lane + 16) % 32)),
    ];
    let mut cases = vec![];
    for (name, mode, operand, source) in table {
        let name = format!("shfl.sync.{name}");
        let mut k = IrBuilder::new(&name, 1);
        let value = k.argument(RegClass::B32, 0);
        let operand_reg = k.argument(RegClass::B32, 128);
        for (array, lane) in (0..).zip([imm(operand), reg(operand_reg)]) {
            let in_range = k.fresh(RegClass::Pred);
            let got =
                k.def(RegClass::B32, |dst| Inst::Shfl { mode, dst, in_range: Some(in_range), src: reg(value), lane });
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
        for (j, mode) in (0..).zip([VoteMode::Any, VoteMode::All]) {
            for (n, negated) in (0..).zip([false, true]) {
                let src = trueno_gpu::ir::PredUse { reg: below, negated };
                let answer = k.def(RegClass::Pred, |dst| Inst::Vote { mode, dst, src });
                k.result(answer, ((i * 2 + j) * 2 + n) * 128);
            }
        }
    }
    // The values are the lanes: none is below 0, lane 0 is below 1, all are below 40.
    for [any, all] in [[[0, 1], [0, 1]], [[1, 1], [0, 0]], [[1, 0], [1, 0]]] {
        arrays.extend([any, all].into_iter().flatten().map(|answer| [answer; 32]));
    }
    case("vote.sync", k, words(0..32), &arrays)
}

fn ballot() -> SuiteCase {
    let mut k = IrBuilder::new("vote.sync.ballot", 1);
    let value = k.argument(RegClass::B32, 0);
    let odd = k.op(Op::And32, &[reg(value), imm(1)]);
    let odd = k.op(Op::SetpNeU32, &[reg(odd), imm(0)]);
    let plain = k.def(RegClass::B32, |dst| Inst::Ballot { dst, src: is(odd) });
    let negated = k.def(RegClass::B32, |dst| Inst::Ballot { dst, src: !is(odd) });
    k.result(plain, 0);
    k.result(negated, 128);
    // Lane 31 has 8, so it is even.
    let input = words((0..31).chain([8]));
    case("vote.sync.ballot", k, input, &[[0x2aaa_aaaa; 32], [0xd555_5555; 32]])
}

fn match_any() -> SuiteCase {
    let name = "match.any.sync.b32";
    let mut k = IrBuilder::new(name, 1);
    let value = k.argument(RegClass::B32, 0);
    let same = k.def(RegClass::B32, |dst| Inst::MatchAny { dst, src: reg(value) });
    k.result(same, 0);
    // Three values in turn.
    let sets = [0x4924_9249, 0x9249_2492, 0x2492_4924];
    case(name, k, words((0..32).map(|lane| lane % 3)), &[lanes(|lane| sets[lane as usize % 3])])
}

/// The values tell signed from unsigned, and a wrapping sum from a saturating one.
fn redux() -> SuiteCase {
    let mut k = IrBuilder::for_target("redux.sync", 1, Target::SM_80);
    let value = k.argument(RegClass::B32, 0);
    for (n, op) in (0..).zip([ReduxOp::Add, ReduxOp::Max, ReduxOp::Or]) {
        let all = k.def(RegClass::B32, |dst| Inst::Redux { op, dst, src: reg(value) });
        k.result(all, n * 128);
    }
    // Lane n has n + 2, but lanes 0 and 31 have large values, which wrap the sum around.
    let input = words([0x8000_0003].into_iter().chain(3..33).chain([0x8000_0100]));
    // 3 to 32 sum to 525, and have the low six bits set among them.
    let results = [0x103 + 525, 0x8000_0100, 0x8000_013f].map(|result| [result; 32]);
    case("redux.sync", k, input, &results)
}

/// Special registers, in a block of two warps and a grid of three blocks.
fn specials() -> Vec<SuiteCase> {
    type Value = fn(block: u32, warp: u32, lane: u32) -> u32;
    let table: [(SpecialReg, Value); 9] = [
        (SpecialReg::TidX, |_, warp, lane| warp * 32 + lane),
        (SpecialReg::NtidX, |_, _, _| 64),
        (SpecialReg::CtaidX, |block, _, _| block),
        (SpecialReg::NctaidX, |_, _, _| 3),
        (SpecialReg::LaneId, |_, _, lane| lane),
        (SpecialReg::LanemaskEq, |_, _, lane| 1 << lane),
        (SpecialReg::LanemaskLt, |_, _, lane| (1 << lane) - 1),
        (SpecialReg::LanemaskLe, |_, _, lane| u32::MAX >> (31 - lane)),
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
