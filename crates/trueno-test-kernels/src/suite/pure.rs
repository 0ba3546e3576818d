//! Cases of the pure instructions: known results, then combinations of edge values.

use super::{SuiteCase, isa, known, words};
use crate::ir_builder::{IrBuilder, imm, reg};
use trueno_gpu::RegClass;
use trueno_gpu::inst::Op;
use trueno_gpu::ir::Operand;

/// Operands and result.
pub(super) type Row = (Vec<u64>, u64);

const EDGES_32: [u64; 14] =
    [0, 1, 2, 31, 32, 33, 0x7f, 0x8000, 0xffff, 0x1234_5678, 0x7fff_ffff, 0x8000_0000, 0xdead_beef, 0xffff_ffff];
const EDGES_64: [u64; 11] = [
    0,
    1,
    63,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_8000_0000,
    0xfedc_ba98_7654_3210,
    u64::MAX,
];
/// Fewer values for operands past the second, since all combinations run.
const FEW_32: [u64; 5] = [0, 1, 0x8000_0000, 0xdead_beef, 0xffff_ffff];
const AMOUNTS: [u64; 9] = [0, 1, 7, 16, 31, 32, 33, 63, 0xffff_ffff];
const FIELDS: [u64; 8] = [0, 1, 5, 16, 31, 32, 200, 0x104];
const SELECTORS: [u64; 9] = [0x3210, 0x7654, 0x0123, 0x4567, 0x8888, 0xfedc, 0x0f0f, 0xffff_3210, 3];
/// Zeros, ones, halves, extremes, subnormals, infinities, NaN, and integers around 2^24, 2^31 and 2^32.
const FLOATS: [u64; 22] = [
    0x0000_0000,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f00_0000,
    0xbf00_0000,
    0x3fc0_0000,
    0x4020_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x0000_0001,
    0x8000_0001,
    0x0080_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fff_ffff,
    0x4b80_0000,
    0x4eff_ffff,
    0x4f00_0000,
    0xcf00_0000,
    0x4f7f_ffff,
    0x4f80_0000,
];
/// Floats whose reciprocal is exact, or infinite, or zero.
const POWERS: [u64; 14] = [
    0x0000_0000,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f00_0000,
    0x4000_0000,
    0x4100_0000,
    0xc180_0000,
    0x7f80_0000,
    0xff80_0000,
    0x0000_0001,
    0x8000_0001,
    0x7fff_ffff,
    0x0080_0000,
];

pub(super) fn cases() -> Vec<SuiteCase> {
    let mut cases = vec![];
    for &op in Op::ALL {
        if op == Op::Lop3 {
            // The truth table is part of the instruction.
            for table in [0x00, 0x01, 0x80, 0xff, 0xca, 0x96, 0xe8, 0x6a] {
                let known = known::rows(op).into_iter().filter(|(args, _)| args[3] == table);
                let mut rows: Vec<Row> = known.map(|(args, result)| (args[..3].to_vec(), result)).collect();
                for args in combinations(&[&EDGES_32[7..], &FEW_32, &FEW_32]) {
                    let result = isa::reference(op, &[args[0], args[1], args[2], table]);
                    rows.push((args, result));
                }
                cases.push(case(op, &format!("lop3.b32 {table:#04x}"), &rows, Some(table)));
            }
            continue;
        }
        let mut rows = known::rows(op);
        rows.extend(combinations(&operand_sets(op)).into_iter().map(|args| {
            let result = isa::reference(op, &args);
            (args, result)
        }));
        let name = match op {
            // Moves, by their spelling.
            Op::HighHalf => "mov.b64 high half",
            Op::Pack => "mov.b64 pack",
            _ => op.info().ptx_name,
        };
        cases.push(case(op, name, &rows, None));
    }
    cases
}

fn operand_sets(op: Op) -> Vec<&'static [u64]> {
    match op {
        Op::Shl32 | Op::ShrU32 | Op::ShrS32 => vec![&EDGES_32, &AMOUNTS],
        Op::Shl64 | Op::ShrU64 => vec![&EDGES_64, &AMOUNTS],
        Op::ShfLWrap | Op::ShfLClamp | Op::ShfRWrap => vec![&FEW_32, &FEW_32, &AMOUNTS],
        Op::BfeU32 => vec![&FEW_32, &FIELDS, &FIELDS],
        Op::Prmt => vec![&[0x8382_8180, 0x0123_4567], &[0x8786_8584, 0x89ab_cdef], &SELECTORS],
        Op::CvtU32F32 => vec![&FLOATS],
        Op::RcpApproxF32 => vec![&POWERS],
        Op::AddF32 | Op::SubF32 | Op::MulF32 => vec![&FLOATS, &FLOATS],
        _ => {
            let edges = |(index, class): (usize, &RegClass)| -> &'static [u64] {
                match class {
                    RegClass::B32 if index < 2 => &EDGES_32,
                    RegClass::B32 => &FEW_32,
                    RegClass::B64 => &EDGES_64,
                    RegClass::Pred => &[0, 1],
                }
            };
            op.lanes().signature().1.iter().enumerate().map(edges).collect()
        }
    }
}

fn combinations(sets: &[&[u64]]) -> Vec<Vec<u64>> {
    sets.iter().fold(vec![vec![]], |so_far, set| {
        so_far.iter().flat_map(|head| set.iter().map(move |&last| [&head[..], &[last]].concat())).collect()
    })
}

/// Makes a kernel that runs the instruction on one row per thread. Operand `k` of all rows is one array of the input.
fn case(op: Op, name: &str, rows: &[Row], table: Option<u64>) -> SuiteCase {
    let (class, sources) = op.lanes().signature();
    let sources = &sources[..sources.len() - usize::from(table.is_some())];
    let grid = rows.len().div_ceil(32);
    let threads = grid * 32;
    let rows: Vec<&Row> = rows.iter().cycle().take(threads).collect();
    let mut k = IrBuilder::new(&format!("suite {name}"), 1);
    let mut input = vec![];
    let mut args = vec![];
    for (index, source) in sources.iter().enumerate() {
        // Arrays of 8-byte elements need their alignment. An even number of 4-byte elements keeps it.
        let at = u32::try_from(input.len()).expect("a small input");
        let bits = rows.iter().map(|row| row.0[index]);
        match source {
            RegClass::B64 => input.extend(bits.flat_map(u64::to_le_bytes)),
            _ => input.extend(words(bits.map(|bits| u32::try_from(bits).expect("a 32-bit operand")))),
        }
        let value = k.argument(*source, at);
        args.push(reg(match source {
            RegClass::Pred => k.op(Op::SetpNeU32, &[reg(value), imm(0)]),
            _ => value,
        }));
    }
    args.extend(table.map(Operand::Imm));
    let result = k.op(op, &args);
    k.result(result, 0);
    let expected = rows.iter().map(|row| row.1);
    let expected = match class {
        RegClass::B64 => expected.flat_map(u64::to_le_bytes).collect(),
        _ => words(expected.map(|bits| u32::try_from(bits).expect("a 32-bit result"))),
    };
    let grid = u32::try_from(grid).expect("a small grid");
    SuiteCase { name: name.to_owned(), kernel: k.finish(), input, grid, expected }
}
