//! Cases of control flow: nested branches and loops with diverging lanes, and barriers between warps.

use super::{SuiteCase, words};
use crate::ir_builder::{IrBuilder, global, imm, is, reg, shared};
use trueno_gpu::inst::Op;
use trueno_gpu::ir::{BoolOp, Branch, Combine, Inst, RegId, Stmt};
use trueno_gpu::{MemTy, RegClass};

pub(super) fn cases() -> Vec<SuiteCase> {
    vec![
        collatz(),
        nested_breaks(),
        continues(),
        scope(),
        if_else(Branch::Divergent),
        uniform_loop(),
        combined_compare(BoolOp::And),
        combined_compare(BoolOp::Or),
        combined_compare(BoolOp::Xor),
        block_barrier(),
    ]
}

fn case(name: &str, k: IrBuilder, input: Vec<u8>, results: impl IntoIterator<Item = u32>) -> SuiteCase {
    SuiteCase { name: name.to_owned(), kernel: k.finish(), input, grid: 1, expected: words(results) }
}

fn set(k: &mut IrBuilder, var: RegId, op: Op, args: &[trueno_gpu::ir::Operand]) {
    k.inst(IrBuilder::op_into(var, op, args));
}

fn break_if(k: &mut IrBuilder, target: trueno_gpu::ir::LabelId, cond: RegId, branch: Branch) {
    k.stmt(Stmt::Break { target, cond: Some(is(cond)), branch });
}

/// Lanes leave a loop after very different numbers of iterations, with a branch inside.
fn collatz() -> SuiteCase {
    let mut k = IrBuilder::new("collatz", 1);
    let (n, steps) = (k.var(RegClass::B32), k.var(RegClass::B32));
    let start = k.argument(RegClass::B32, 0);
    set(&mut k, n, Op::Mov32, &[reg(start)]);
    set(&mut k, steps, Op::Mov32, &[imm(0)]);
    k.loop_(Branch::Divergent, |k, label| {
        let done = k.op(Op::SetpLeU32, &[reg(n), imm(1)]);
        break_if(k, label, done, Branch::Divergent);
        let low = k.op(Op::And32, &[reg(n), imm(1)]);
        let odd = k.op(Op::SetpNeU32, &[reg(low), imm(0)]);
        k.if_else(
            is(odd),
            Branch::Divergent,
            |k| set(k, n, Op::MadLoU32, &[reg(n), imm(3), imm(1)]),
            |k| set(k, n, Op::ShrU32, &[reg(n), imm(1)]),
        );
        set(k, steps, Op::AddU32, &[reg(steps), imm(1)]);
    });
    k.result(steps, 0);
    let steps = |mut n: u32| {
        let mut steps = 0;
        while n > 1 {
            n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 };
            steps += 1;
        }
        steps
    };
    case("collatz", k, words(0..32), (0..32).map(steps))
}

/// Two loops. Lanes leave the inner one or both, from inside a branch.
fn nested_breaks() -> SuiteCase {
    let mut k = IrBuilder::new("nested breaks", 1);
    let lane = k.index;
    let (sum, i, j) = (k.var(RegClass::B32), k.var(RegClass::B32), k.var(RegClass::B32));
    set(&mut k, sum, Op::Mov32, &[imm(0)]);
    set(&mut k, i, Op::Mov32, &[imm(0)]);
    k.loop_(Branch::Divergent, |k, outer| {
        set(k, j, Op::Mov32, &[imm(0)]);
        k.loop_(Branch::Divergent, |k, inner| {
            let product = k.op(Op::MulLoU32, &[reg(i), reg(j)]);
            let beyond = k.op(Op::SetpGtU32, &[reg(product), reg(lane)]);
            k.if_else(
                is(beyond),
                Branch::Divergent,
                |k| k.stmt(Stmt::Break { target: outer, cond: None, branch: Branch::Divergent }),
                |_| {},
            );
            set(k, sum, Op::AddU32, &[reg(sum), imm(1)]);
            set(k, j, Op::AddU32, &[reg(j), imm(1)]);
            let done = k.op(Op::SetpGeU32, &[reg(j), imm(5)]);
            break_if(k, inner, done, Branch::Divergent);
        });
        set(k, sum, Op::AddU32, &[reg(sum), imm(100)]);
        set(k, i, Op::AddU32, &[reg(i), imm(1)]);
        let done = k.op(Op::SetpGeU32, &[reg(i), imm(6)]);
        break_if(k, outer, done, Branch::Divergent);
    });
    k.result(sum, 0);
    let expected = (0..32).map(|lane| {
        let mut sum = 0;
        'outer: for i in 0..6 {
            for j in 0..5 {
                if i * j > lane {
                    break 'outer;
                }
                sum += 1;
            }
            sum += 100;
        }
        sum
    });
    case("nested breaks", k, vec![0; 4], expected)
}

/// Lanes skip the rest of an iteration of the inner or the outer loop.
fn continues() -> SuiteCase {
    let mut k = IrBuilder::new("continues", 1);
    let lane = k.index;
    let (sum, i, j) = (k.var(RegClass::B32), k.var(RegClass::B32), k.var(RegClass::B32));
    set(&mut k, sum, Op::Mov32, &[imm(0)]);
    set(&mut k, i, Op::Mov32, &[imm(0)]);
    k.loop_(Branch::Divergent, |k, outer| {
        let done = k.op(Op::SetpGeU32, &[reg(i), imm(4)]);
        break_if(k, outer, done, Branch::Divergent);
        set(k, i, Op::AddU32, &[reg(i), imm(1)]);
        set(k, j, Op::Mov32, &[imm(0)]);
        k.loop_(Branch::Divergent, |k, inner| {
            let done = k.op(Op::SetpGeU32, &[reg(j), imm(8)]);
            break_if(k, inner, done, Branch::Divergent);
            set(k, j, Op::AddU32, &[reg(j), imm(1)]);
            let sum_ij = k.op(Op::AddU32, &[reg(i), reg(j)]);
            let odd = k.op(Op::And32, &[reg(sum_ij), imm(1)]);
            let odd = k.op(Op::SetpNeU32, &[reg(odd), imm(0)]);
            k.stmt(Stmt::Continue { target: inner, cond: Some(is(odd)), branch: Branch::Divergent });
            let far = k.op(Op::SetpGtU32, &[reg(sum_ij), reg(lane)]);
            k.stmt(Stmt::Continue { target: outer, cond: Some(is(far)), branch: Branch::Divergent });
            set(k, sum, Op::AddU32, &[reg(sum), reg(j)]);
        });
        set(k, sum, Op::AddU32, &[reg(sum), imm(1000)]);
    });
    k.result(sum, 0);
    let expected = (0..32).map(|lane| {
        let mut sum = 0;
        'outer: for i in 1..=4 {
            for j in 1..=8 {
                if (i + j) % 2 == 1 {
                    continue;
                }
                if i + j > lane {
                    continue 'outer;
                }
                sum += j;
            }
            sum += 1000;
        }
        sum
    });
    case("continues", k, vec![0; 4], expected)
}

/// Lanes leave a scope at three places.
fn scope() -> SuiteCase {
    let mut k = IrBuilder::new("scope", 1);
    let lane = k.index;
    let result = k.var(RegClass::B32);
    set(&mut k, result, Op::Mov32, &[imm(0)]);
    let label = k.label();
    let body = k.nested(|k| {
        for limit in [8, 16, 24] {
            let below = k.op(Op::SetpLtU32, &[reg(lane), imm(limit)]);
            break_if(k, label, below, Branch::Divergent);
            set(k, result, Op::AddU32, &[reg(result), imm(limit)]);
        }
    });
    k.stmt(Stmt::Scope { label, body });
    set(&mut k, result, Op::AddU32, &[reg(result), reg(lane)]);
    k.result(result, 0);
    let expected = (0..32).map(|lane| lane + [0, 8, 24, 48][lane as usize / 8]);
    case("scope", k, vec![0; 4], expected)
}

/// Both sides run, each with its lanes.
fn if_else(branch: Branch) -> SuiteCase {
    let mut k = IrBuilder::new("if else", 1);
    let lane = k.index;
    let result = k.var(RegClass::B32);
    let low = k.op(Op::SetpLtU32, &[reg(lane), imm(10)]);
    k.if_else(
        !is(low),
        branch,
        |k| set(k, result, Op::Shl32, &[reg(lane), imm(4)]),
        |k| set(k, result, Op::Not32, &[reg(lane)]),
    );
    k.result(result, 0);
    case("if else", k, vec![0; 4], (0..32).map(|lane: u32| if lane < 10 { !lane } else { lane * 16 }))
}

/// A loop with a uniform test at its end, and both kinds of uniform branches inside.
fn uniform_loop() -> SuiteCase {
    let mut k = IrBuilder::new("uniform loop", 1);
    let lane = k.index;
    let (i, sum) = (k.var(RegClass::B32), k.var(RegClass::B32));
    set(&mut k, i, Op::Mov32, &[imm(0)]);
    set(&mut k, sum, Op::Mov32, &[imm(0)]);
    k.loop_(Branch::Uniform, |k, label| {
        let low = k.op(Op::And32, &[reg(i), imm(1)]);
        let odd = k.op(Op::SetpNeU32, &[reg(low), imm(0)]);
        k.if_else(
            is(odd),
            Branch::Uniform,
            |k| set(k, sum, Op::AddU32, &[reg(sum), reg(lane)]),
            |k| set(k, sum, Op::AddU32, &[reg(sum), imm(1000)]),
        );
        set(k, i, Op::AddU32, &[reg(i), imm(1)]);
        let done = k.op(Op::SetpEqU32, &[reg(i), imm(7)]);
        break_if(k, label, done, Branch::Uniform);
    });
    k.result(sum, 0);
    case("uniform loop", k, vec![0; 4], (0..32).map(|lane| 4000 + 3 * lane))
}

/// `setp` with a third predicate, plain and negated.
fn combined_compare(op: BoolOp) -> SuiteCase {
    let name = format!("setp.lt.{op:?}");
    let mut k = IrBuilder::new(&name, 1);
    let lane = k.index;
    let odd = k.op(Op::And32, &[reg(lane), imm(1)]);
    let odd = k.op(Op::SetpNeU32, &[reg(odd), imm(0)]);
    for (array, with) in (0..).zip([is(odd), !is(odd)]) {
        let combine = Some(Combine { op, with });
        let result =
            k.def(RegClass::Pred, |dst| Inst::Setp { op: Op::SetpLtU32, dst, a: reg(lane), b: imm(9), combine });
        k.result(result, array * 128);
    }
    let expected = [1, 0].into_iter().flat_map(|parity| {
        (0..32).map(move |lane| {
            let (below, other) = (lane < 9, lane % 2 == parity);
            u32::from(match op {
                BoolOp::And => below && other,
                BoolOp::Or => below || other,
                BoolOp::Xor => below != other,
            })
        })
    });
    case(&name, k, vec![0; 4], expected)
}

/// Four warps pass on values through shared memory, twice.
fn block_barrier() -> SuiteCase {
    let mut k = IrBuilder::new("bar.sync", 4);
    let tid = k.index;
    let region = k.region("ring", 512);
    let own = k.op(Op::MadLoU32, &[reg(tid), imm(4), reg(region)]);
    let next = k.op(Op::AddU32, &[reg(tid), imm(37)]);
    let next = k.op(Op::And32, &[reg(next), imm(127)]);
    let other = k.op(Op::MadLoU32, &[reg(next), imm(4), reg(region)]);
    let value = k.var(RegClass::B32);
    let square = k.op(Op::MulLoU32, &[reg(tid), reg(tid)]);
    set(&mut k, value, Op::Mov32, &[reg(square)]);
    for _ in 0..2 {
        k.store(MemTy::U32, shared(own, 0), reg(value));
        k.inst(Inst::BarBlock);
        let got = k.load(MemTy::U32, shared(other, 0));
        set(&mut k, value, Op::AddU32, &[reg(value), reg(got)]);
        k.inst(Inst::BarBlock);
    }
    let to = k.element(k.output, tid, 4);
    k.store(MemTy::U32, global(to, 0), reg(value));
    let square = |tid: u32| tid % 128 * (tid % 128);
    let once = |tid: u32| square(tid) + square(tid + 37);
    case("bar.sync", k, vec![0; 4], (0..128).map(|tid| once(tid) + once(tid + 37)))
}
