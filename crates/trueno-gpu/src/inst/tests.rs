//! The table, compared with the definitions of the PTX ISA: edge values, and slow implementations bit by bit.

use super::semantics::shfl_source;
use super::*;
use crate::ir::ShflMode;
use proptest::prelude::*;

/// Runs a row on single values of any width. Predicates are 0 or 1.
fn run(op: Op, args: &[u64]) -> u64 {
    let w = |i: usize| [u32::try_from(args[i] & 0xffff_ffff).expect("masked"); 32];
    let d = |i: usize| [args[i]; 32];
    let p = |i: usize| if args[i] == 0 { 0 } else { u32::MAX };
    let bit = |m: Mask| u64::from(m & 1);
    match op.lanes() {
        Lanes::W1(f) => f(&w(0))[0].into(),
        Lanes::W2(f) => f(&w(0), &w(1))[0].into(),
        Lanes::W3(f) => f(&w(0), &w(1), &w(2))[0].into(),
        Lanes::W4(f) => f(&w(0), &w(1), &w(2), &w(3))[0].into(),
        Lanes::D1(f) => f(&d(0))[0],
        Lanes::D2(f) => f(&d(0), &d(1))[0],
        Lanes::D1W1(f) => f(&d(0), &w(1))[0],
        Lanes::Widen1(f) => f(&w(0))[0],
        Lanes::Widen2(f) => f(&w(0), &w(1))[0],
        Lanes::Widen3(f) => f(&w(0), &w(1), &d(2))[0],
        Lanes::Narrow1(f) => f(&d(0))[0].into(),
        Lanes::Cmp32(f) => bit(f(&w(0), &w(1))),
        Lanes::Cmp64(f) => bit(f(&d(0), &d(1))),
        Lanes::Sel32(f) => f(&w(0), &w(1), p(2))[0].into(),
        Lanes::Sel64(f) => f(&d(0), &d(1), p(2))[0],
        Lanes::P1(f) => bit(f(p(0))),
        Lanes::P2(f) => bit(f(p(0), p(1))),
    }
}

fn f(v: f32) -> u64 {
    v.to_bits().into()
}

#[test]
fn edges() {
    const ONES: u64 = 0xffff_ffff;
    const MIN: u64 = 0x8000_0000;
    let cases: &[(Op, &[u64], u64)] = &[
        (Op::Shl32, &[1, 31], MIN),
        (Op::Shl32, &[1, 32], 0),
        (Op::Shl32, &[1, ONES], 0),
        (Op::ShrU32, &[MIN, 32], 0),
        (Op::ShrS32, &[MIN, 31], ONES),
        (Op::ShrS32, &[MIN, 200], ONES),
        (Op::ShrS32, &[0x7fff_ffff, 32], 0),
        (Op::Shl64, &[1, 63], 1 << 63),
        (Op::Shl64, &[1, 64], 0),
        (Op::ShrU64, &[u64::MAX, 64], 0),
        (Op::ShfRWrap, &[0x3322_1100, 0x7766_5544, 8], 0x4433_2211),
        (Op::ShfRWrap, &[0x3322_1100, 0x7766_5544, 32], 0x3322_1100),
        (Op::ShfLWrap, &[0x3322_1100, 0x7766_5544, 8], 0x6655_4433),
        (Op::ShfLWrap, &[0x3322_1100, 0x7766_5544, 32], 0x7766_5544),
        (Op::ShfLClamp, &[0x3322_1100, 0x7766_5544, 32], 0x3322_1100),
        (Op::BfindU32, &[0], ONES),
        (Op::BfindU32, &[1], 0),
        (Op::BfindU32, &[MIN], 31),
        (Op::BfindShiftamtU32, &[0], ONES),
        (Op::BfindShiftamtU32, &[1], 31),
        (Op::BfindShiftamtU32, &[MIN], 0),
        (Op::Brev32, &[1], MIN),
        (Op::Prmt, &[0x3322_1100, 0x7766_5544, 0x7531], 0x7755_3311),
        (Op::Prmt, &[0x0000_8000, 0, 0x9999], ONES),
        (Op::Prmt, &[0x0000_7f00, 0, 0x9999], 0),
        (Op::MulHiU32, &[ONES, ONES], 0xffff_fffe),
        (Op::MadWideU32, &[ONES, ONES, u64::MAX], 0xffff_fffe_0000_0000),
        (Op::MadLoU32, &[0x1_0001, 0x1_0001, 5], 0x2_0006),
        (Op::AbsS32, &[MIN], MIN),
        (Op::MinS32, &[ONES, 1], ONES),
        (Op::MaxS32, &[ONES, 1], 1),
        (Op::MinU32, &[ONES, 1], 1),
        (Op::CvtU64U32, &[ONES], ONES),
        (Op::HighHalf, &[0x1234_5678_9abc_def0], 0x1234_5678),
        (Op::CvtU32U64, &[0x1234_5678_9abc_def0], 0x9abc_def0),
        (Op::Pack, &[1, 2], 0x2_0000_0001),
        (Op::CvtF32U32, &[0x0100_0001], f(16_777_216.0)),
        (Op::CvtF32U32, &[0x0100_0003], f(16_777_220.0)),
        (Op::CvtU32F32, &[f(-1.5)], 0),
        (Op::CvtU32F32, &[f(1.9)], 1),
        (Op::CvtU32F32, &[f(1e20)], ONES),
        (Op::CvtU32F32, &[f(f32::NAN)], 0),
        (Op::RcpApproxF32, &[f(4.0)], f(0.25)),
        (Op::RcpApproxF32, &[f(-0.0)], f(f32::NEG_INFINITY)),
        (Op::RcpApproxF32, &[1], f(f32::INFINITY)),
        (Op::RcpApproxF32, &[f(3e38)], 0),
        (Op::SubF32, &[f(f32::INFINITY), f(f32::INFINITY)], 0x7fff_ffff),
        (Op::SetpLtS32, &[ONES, 0], 1),
        (Op::SetpLtU32, &[ONES, 0], 0),
        (Op::SetpGeU64, &[1 << 40, 5], 1),
        (Op::Selp32, &[7, 8, 1], 7),
        (Op::Selp64, &[7, 8, 0], 8),
        (Op::XorPred, &[1, 1], 0),
        (Op::NotPred, &[0], 1),
        (Op::Lop3, &[0b1100, 0b1010, 0b0110, 0x96], 0),
        (Op::Lop3, &[0xfff, 0x1234, 0xabcd_e000, 0xca], 0xabcd_e234),
    ];
    for (op, args, expected) in cases {
        assert_eq!(run(*op, args), *expected, "{op:?}({args:x?})");
    }
}

#[test]
fn names_are_unique_but_for_the_moves() {
    for (i, a) in Op::ALL.iter().enumerate() {
        for b in &Op::ALL[i + 1..] {
            assert!(a.info().ptx_name != b.info().ptx_name || a.info().ptx_name == "mov.b64", "{a:?} and {b:?}");
        }
    }
}

#[test]
fn inverse_compares_are_each_others() {
    for op in Op::ALL.iter().filter(|op| op.inverse().is_some()) {
        let inverse = op.inverse().expect("filtered");
        assert_eq!(inverse.inverse(), Some(*op));
        for (a, b) in [(0, 0), (1, 0), (0, 1), (0xffff_ffff, 1), (1, 0xffff_ffff)] {
            assert_ne!(run(*op, &[a, b]), run(inverse, &[a, b]), "{op:?} {a} {b}");
        }
    }
}

#[test]
fn shuffles_at_the_ends_of_the_warp() {
    assert_eq!(shfl_source(ShflMode::Idx, 13, 34), (2, true));
    assert_eq!(shfl_source(ShflMode::Down, 13, 2), (15, true));
    assert_eq!(shfl_source(ShflMode::Down, 30, 2), (30, false));
    assert_eq!(shfl_source(ShflMode::Bfly, 13, 3), (14, true));
    assert_eq!(shfl_source(ShflMode::Up, 9, 10), (9, false));
    assert_eq!(shfl_source(ShflMode::Up, 31, 31), (0, true));
}

/// The ISA's own loop.
fn bfe_by_bits(a: u32, pos: u32, len: u32) -> u32 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    (0..32).fold(0, |d, i| d | (if i < len && pos + i <= 31 { a >> (pos + i) & 1 } else { 0 }) << i)
}

fn lop3_by_bits(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..32).fold(0, |d, i| d | (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i)
}

proptest! {
    #[test]
    fn fields_agree_with_the_isas_loop(a: u32, pos in 0u32..70, len in 0u32..70, high: bool) {
        // Only the low bytes count.
        let dirt = if high { 0x100 } else { 0 };
        let (x, p, l) = (u64::from(a), u64::from(pos | dirt), u64::from(len | dirt));
        prop_assert_eq!(run(Op::BfeU32, &[x, p, l]), u64::from(bfe_by_bits(a, pos, len)));
    }

    #[test]
    fn lop3_agrees_bit_by_bit(a: u32, b: u32, c: u32, table in 0u32..256) {
        let args = [a, b, c, table].map(u64::from);
        prop_assert_eq!(run(Op::Lop3, &args), u64::from(lop3_by_bits(a, b, c, table)));
    }

    #[test]
    fn lanes_are_independent(a: [u32; 32], b: [u32; 32]) {
        let Lanes::W2(sub) = Op::SubU32.lanes() else { unreachable!() };
        let Lanes::Cmp32(less) = Op::SetpLtU32.lanes() else { unreachable!() };
        let (difference, mask) = (sub(&a, &b), less(&a, &b));
        for i in 0..32 {
            prop_assert_eq!(difference[i], a[i].wrapping_sub(b[i]));
            prop_assert_eq!(mask >> i & 1 == 1, a[i] < b[i]);
        }
    }
}
