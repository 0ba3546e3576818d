//! Cases of loads, stores and atomics, in shared and global memory.

use super::{SuiteCase, words};
use crate::ir_builder::{IrBuilder, global, imm, reg, shared};
use trueno_gpu::inst::Op;
use trueno_gpu::ir::{AtomOp, Conflict, Inst, LoadHint, RegId, StoreHint};
use trueno_gpu::{MemTy, RegClass, StateSpace};

/// Bytes with all signs, without a power-of-two pattern.
fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 167 + 13 + i / 7 * 31) % 256).expect("below 256")).collect()
}

pub(super) fn cases() -> Vec<SuiteCase> {
    let mut cases = vec![];
    let types = [MemTy::U8, MemTy::U16, MemTy::I16, MemTy::U32, MemTy::U64];
    for space in [StateSpace::Global, StateSpace::Shared] {
        for ty in types {
            for count in [1, 2, 4].into_iter().filter(|count| count * ty.bytes() <= 16) {
                cases.push(loads(space, ty, count));
                cases.push(stores(space, ty, count));
            }
        }
        cases.extend([AtomOp::Add, AtomOp::Or].map(|op| atomics(space, op)));
        cases.push(contended_add(space));
    }
    cases.push(hints());
    cases.push(guarded_load());
    cases.push(equal_stores());
    cases
}

fn space_name(space: StateSpace) -> &'static str {
    match space {
        StateSpace::Global => "global",
        StateSpace::Shared => "shared",
    }
}

fn case(name: String, k: IrBuilder, input: Vec<u8>, expected: Vec<u8>) -> SuiteCase {
    SuiteCase { name, kernel: k.finish(), input, grid: 1, expected }
}

/// Copies `bytes` bytes of the input per lane to shared memory and returns their address there.
fn to_shared(k: &mut IrBuilder, bytes: u32) -> RegId {
    let region = k.region("data", 32 * bytes);
    let to = k.op(Op::MadLoU32, &[reg(k.index), imm(bytes), reg(region)]);
    let from = k.element(k.input, k.index, bytes);
    for offset in 0..i32::try_from(bytes).expect("few bytes") {
        let byte = k.load(MemTy::U8, global(from, offset));
        k.store(MemTy::U8, shared(to, offset), reg(byte));
    }
    k.warp_barrier();
    to
}

/// Each lane loads its `count` elements and stores the complete registers.
fn loads(space: StateSpace, ty: MemTy, count: u32) -> SuiteCase {
    let bytes = ty.bytes() * count;
    let name = format!("ld.{}.v{count}.{ty:?}", space_name(space));
    let mut k = IrBuilder::new(&name, 1);
    let addr = match space {
        StateSpace::Global => global(k.element(k.input, k.index, bytes), 0),
        StateSpace::Shared => shared(to_shared(&mut k, bytes), 0),
    };
    let regs = k.load_many(count as usize, ty, addr);
    let size = if ty.class() == RegClass::B64 { 8 } else { 4 };
    for (array, value) in (0..).zip(regs) {
        k.result(value, array * 32 * size);
    }
    let input = noise(32 * bytes as usize);
    let element =
        |lane: usize, e: usize| &input[lane * bytes as usize + e * ty.bytes() as usize..][..ty.bytes() as usize];
    let lanes = || (0..count as usize).flat_map(|e| (0..32).map(move |lane| (lane, e)));
    let extended = |bytes: &[u8]| -> u64 {
        let value = bytes.iter().rev().fold(0u64, |value, &byte| value * 256 + u64::from(byte));
        match (ty, bytes.last()) {
            (MemTy::I16, Some(128..)) => value + (0x1_0000_0000 - (1 << (8 * bytes.len()))),
            _ => value,
        }
    };
    let expected = lanes().map(|(lane, e)| extended(element(lane, e)));
    let expected = match size {
        8 => expected.flat_map(u64::to_le_bytes).collect(),
        _ => words(expected.map(|v| u32::try_from(v).expect("32 bits"))),
    };
    case(name, k, input, expected)
}

/// Each lane stores `count` registers, of which only the low bytes must arrive.
fn stores(space: StateSpace, ty: MemTy, count: u32) -> SuiteCase {
    let bytes = ty.bytes() * count;
    let name = format!("st.{}.v{count}.{ty:?}", space_name(space));
    let mut k = IrBuilder::new(&name, 1);
    let size = if ty.class() == RegClass::B64 { 8 } else { 4 };
    let values: Vec<_> = (0..count).map(|array| reg(k.argument(ty.class(), array * 32 * size))).collect();
    let out = k.element(k.output, k.index, bytes);
    match space {
        StateSpace::Global => k.inst(IrBuilder::store_inst(ty, global(out, 0), &values)),
        StateSpace::Shared => {
            let region = k.region("data", 32 * bytes);
            let at = k.op(Op::MadLoU32, &[reg(k.index), imm(bytes), reg(region)]);
            k.inst(IrBuilder::store_inst(ty, shared(at, 0), &values));
            k.warp_barrier();
            for offset in 0..i32::try_from(bytes).expect("few bytes") {
                let byte = k.load(MemTy::U8, shared(at, offset));
                k.store(MemTy::U8, global(out, offset), reg(byte));
            }
        }
    }
    let input = noise((32 * size * count) as usize);
    let mut expected = vec![];
    for lane in 0..32 {
        for array in 0..count as usize {
            let at = (array * 32 + lane) * size as usize;
            expected.extend_from_slice(&input[at..at + ty.bytes() as usize]);
        }
    }
    case(name, k, input, expected)
}

/// The atomic of each lane has its own place. The old and new values are returned.
fn atomics(space: StateSpace, op: AtomOp) -> SuiteCase {
    let name = format!("atom.{}.{op:?}", space_name(space));
    let mut k = IrBuilder::new(&name, 1);
    let old: Vec<u32> = (0..32).map(|lane| if lane % 3 == 0 { 5 } else { 0x9000_0000 ^ (lane * 0x1_0001) }).collect();
    let value: Vec<u32> = (0..32).map(|lane| 0xfff0_0007u32.rotate_left(lane * 5)).collect();
    let start = k.argument(RegClass::B32, 0);
    let operand = reg(k.argument(RegClass::B32, 128));
    let addr = match space {
        StateSpace::Global => global(k.element(k.output, k.index, 4), 128),
        StateSpace::Shared => {
            let region = k.region("cells", 128);
            shared(k.op(Op::MadLoU32, &[reg(k.index), imm(4), reg(region)]), 0)
        }
    };
    k.store(MemTy::U32, addr, reg(start));
    k.warp_barrier();
    let before = k.def(RegClass::B32, |dst| Inst::Atomic { dst: Some(dst), op, addr, value: operand });
    k.result(before, 0);
    if space == StateSpace::Shared {
        let after = k.load(MemTy::U32, addr);
        k.result(after, 128);
    }
    let new = old.iter().zip(&value).map(|(old, value)| match op {
        AtomOp::Add => old.wrapping_add(*value),
        AtomOp::Or => old | value,
    });
    let expected = words(old.iter().copied().chain(new));
    case(name, k, words(old.iter().chain(&value).copied()), expected)
}

/// All lanes add to one place with a reduction. The sum is the same in any order.
fn contended_add(space: StateSpace) -> SuiteCase {
    let name = format!("red.{}.add contended", space_name(space));
    let mut k = IrBuilder::new(&name, 1);
    let value = k.argument(RegClass::B32, 0);
    let first = k.op(Op::SetpEqU32, &[reg(k.index), imm(0)]);
    let addr = match space {
        StateSpace::Global => global(k.output, 0),
        StateSpace::Shared => shared(k.region("sum", 4), 0),
    };
    k.when(crate::ir_builder::is(first), IrBuilder::store_inst(MemTy::U32, addr, &[imm(1)]));
    k.warp_barrier();
    k.inst(Inst::Atomic { dst: None, op: AtomOp::Add, addr, value: reg(value) });
    if space == StateSpace::Shared {
        k.warp_barrier();
        let sum = k.load(MemTy::U32, addr);
        let output = global(k.output, 0);
        k.when(crate::ir_builder::is(first), IrBuilder::store_inst(MemTy::U32, output, &[reg(sum)]));
    }
    let input = words((0..32).map(|lane| lane * 0x0800_0001));
    // 1 + the sum over the lanes: 496 times 0x0800_0001, modulo 2^32.
    let expected = words([1 + 496 + 0x8000_0000]);
    case(name, k, input, expected)
}

/// Cache hints do not change the result.
fn hints() -> SuiteCase {
    let name = "ld and st hints".to_owned();
    let mut k = IrBuilder::new(&name, 1);
    let from = k.element(k.input, k.index, 4);
    let to = k.element(k.output, k.index, 4);
    let loads = [LoadHint::Default, LoadHint::NonCoherent, LoadHint::Volatile];
    let stores = [StoreHint::Default, StoreHint::Volatile, StoreHint::Default];
    for (array, (load, store)) in (0..).zip(loads.into_iter().zip(stores)) {
        let value = k.def(RegClass::B32, |dst| Inst::Load {
            dst: [dst].into(),
            ty: MemTy::U32,
            addr: global(from, 0),
            hint: load,
            uniform: false,
        });
        let (src, conflict) = ([reg(value)].into(), Conflict::Fault);
        k.inst(Inst::Store { src, ty: MemTy::U32, addr: global(to, array * 128), hint: store, conflict });
    }
    let input = noise(128);
    let expected = input.repeat(3);
    case(name, k, input, expected)
}

/// A lane whose guard fails keeps its register and accesses no memory: the addresses of odd lanes are invalid.
fn guarded_load() -> SuiteCase {
    let name = "guarded ld".to_owned();
    let mut k = IrBuilder::new(&name, 1);
    let odd = k.op(Op::And32, &[reg(k.index), imm(1)]);
    let even = k.op(Op::SetpEqU32, &[reg(odd), imm(0)]);
    let wild = k.op(Op::MadLoU32, &[reg(odd), imm(0x1234_5671), reg(k.index)]);
    let from = k.element(k.input, wild, 4);
    let value = k.var(RegClass::B32);
    k.inst(IrBuilder::op_into(value, Op::Mov32, &[imm(77)]));
    k.when(
        crate::ir_builder::is(even),
        Inst::Load {
            dst: [value].into(),
            ty: MemTy::U32,
            addr: global(from, 0),
            hint: LoadHint::Default,
            uniform: false,
        },
    );
    k.result(value, 0);
    let input = words(100..132);
    let expected = words((0..32).map(|lane| if lane % 2 == 0 { 100 + lane } else { 77 }));
    case(name, k, input, expected)
}

/// Lanes may store the same value to one place in global memory.
fn equal_stores() -> SuiteCase {
    let name = "st.global equal values".to_owned();
    let mut k = IrBuilder::new(&name, 1);
    let pair = k.op(Op::ShrU32, &[reg(k.index), imm(1)]);
    let to = k.element(k.output, pair, 4);
    k.store(MemTy::U32, global(to, 0), reg(pair));
    case(name, k, vec![0; 4], words(0..16))
}
