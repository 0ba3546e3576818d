//! Simplified kernels give the same results as before: random programs, run both ways in the interpreter.

use super::simplify;
use crate::addr::Addr;
use crate::builder::KernelBuilder;
use crate::interp::{DeviceMemory, Launch};
use crate::types::Global;
use crate::validate::{ValidKernel, validate};
use crate::value::{Pred, Reg, Var};
use proptest::prelude::*;

const VARS: usize = 4;
const FLAGS: usize = 3;

/// Writes a random program, from a seed.
struct Author<'k> {
    k: &'k KernelBuilder,
    seed: u64,
    input: Addr<'k, Global, u32>,
    vars: [Var<'k, u32>; VARS],
    flags: [Var<'k, bool>; FLAGS],
    /// Values and predicates in scope.
    values: Vec<Reg<'k, u32>>,
    preds: Vec<Pred<'k>>,
}

impl<'k> Author<'k> {
    fn pick(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed >> 33).expect("31 bits") % below
    }

    fn var(&mut self) -> Var<'k, u32> {
        self.vars[self.pick(VARS)]
    }

    fn flag(&mut self) -> Var<'k, bool> {
        self.flags[self.pick(FLAGS)]
    }

    fn value(&mut self) -> Reg<'k, u32> {
        match self.pick(8) {
            0 | 1 if !self.values.is_empty() => {
                let i = self.pick(self.values.len());
                self.values[i]
            }
            2 => self.var().get(),
            3 => self.value() ^ self.var(),
            4 => self.value() * 3,
            5 => self.pred().select(self.var(), 77u32),
            6 => self.input.index(self.var() & 63).load(),
            _ => self.var() + 1,
        }
    }

    fn pred(&mut self) -> Pred<'k> {
        match self.pick(9) {
            0 | 1 if !self.preds.is_empty() => {
                let i = self.pick(self.preds.len());
                self.preds[i]
            }
            2 => !self.flag(),
            3 => self.flag().get(),
            4 => self.pred() & self.pred(),
            5 => self.pred() | self.flag(),
            6 => !self.pred(),
            7 => self.value().ne(self.var()) ^ self.flag(),
            _ => self.var().lt(40),
        }
    }

    fn step(&mut self, depth: usize) {
        let k = self.k;
        match self.pick(if depth < 3 { 12 } else { 8 }) {
            0 | 1 => {
                let (var, value) = (self.var(), self.value());
                var.set(value);
            }
            2 => {
                let (guard, var, value) = (self.pred(), self.var(), self.value());
                k.when(guard).set(var, value);
            }
            3 => {
                let (flag, value) = (self.flag(), self.pred());
                flag.set(value);
            }
            4 => {
                let (guard, flag, value) = (self.pred(), self.flag(), self.pred());
                k.when(guard).set(flag, value);
            }
            5 => {
                let value = self.value();
                self.values.push(value);
            }
            6 => {
                let pred = self.pred();
                self.preds.push(pred);
            }
            7 => {
                let (guard, var, at) = (self.pred(), self.var(), self.value());
                k.when(guard).load(var, self.input.index(at & 63));
            }
            8 | 9 => {
                let pred = self.pred();
                let (mut then, mut other) = (self.nested(), self.nested());
                k.if_else(pred, || then.steps(depth + 1), || other.steps(depth + 1));
                self.seed = then.seed ^ other.seed.rotate_left(9) | 1;
            }
            _ => {
                let round = k.var(0u32);
                let (mut first, mut second) = (self.nested(), self.nested());
                k.loop_(|l| {
                    round.set(round + 1);
                    first.steps(depth + 1);
                    l.break_if(first.pred());
                    second.steps(depth + 1);
                    l.break_if(round.gt(3));
                });
                self.seed = first.seed ^ second.seed.rotate_left(9) | 1;
            }
        }
    }

    fn steps(&mut self, depth: usize) {
        for _ in 0..2 + self.pick(5) {
            self.step(depth);
        }
    }

    fn nested(&mut self) -> Self {
        let seed = self.seed.rotate_left(21) | 1;
        self.pick(2);
        Self { seed, values: self.values.clone(), preds: self.preds.clone(), ..*self }
    }
}

fn program(seed: u64) -> ValidKernel {
    let k = KernelBuilder::new("random");
    let (input, out) = (k.param_ptr::<u32>("input"), k.param_ptr::<u32>("out"));
    let lane = k.lane_id();
    let vars = [0u32, 5, 11, 31].map(|start| k.var(lane + start));
    let flags = [3u32, 16, 30].map(|limit| k.var(lane.lt(limit)));
    let mut author = Author { k: &k, seed: seed | 1, input, vars, flags, values: vec![], preds: vec![] };
    for _ in 0..4 {
        author.steps(0);
    }
    for (i, var) in (0..).zip(vars) {
        out.step(lane, 32).at(i).store(var);
    }
    for (i, flag) in (4..).zip(flags) {
        out.step(lane, 32).at(i).store(flag.to_u32());
    }
    k.close().expect("random programs are valid")
}

fn run(kernel: &ValidKernel) -> (Vec<u8>, u64) {
    let mut memory = DeviceMemory::new();
    let words: Vec<u8> = (0..64u32).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    let (input, out) = (memory.add("input", &words), memory.add("out", &[0; 1024]));
    let report = Launch::new(kernel).grid(1).arg(input).arg(out).run(&mut memory).expect("no fault");
    (memory.bytes(out).expect("written").to_vec(), report.total.instructions())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn simplified_programs_give_the_same_bytes(seed: u64) {
        let written = program(seed);
        let simplified = written.clone().rewritten(simplify);
        validate(simplified.clone().into_ir()).expect("still valid");
        let (expected, before) = run(&written);
        let (bytes, after) = run(&simplified);
        prop_assert_eq!(bytes, expected);
        prop_assert!(after <= before);
    }
}
