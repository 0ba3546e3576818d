//! Known results, computed by hand from the PTX ISA, for instructions with edge cases.

use super::pure::Row;
use trueno_gpu::inst::Op;

pub(super) fn rows(op: Op) -> Vec<Row> {
    let rows: &[(&[u64], u64)] = match op {
        Op::Pack => &[(&[0x1111_1111, 0x2222_2222], 0x2222_2222_1111_1111)],
        Op::HighHalf => &[(&[0x2222_2222_1111_1111], 0x2222_2222)],
        Op::CvtF32U32 => &[
            (&[0], 0),
            (&[1], 0x3f80_0000),
            (&[0xffff_ffff], 0x4f80_0000),
            // 2^24 + 1 lies between two floats and rounds to the even one; so does 2^24 + 3.
            (&[0x0100_0001], 0x4b80_0000),
            (&[0x0100_0003], 0x4b80_0002),
        ],
        Op::CvtU32F32 => &[
            (&[0x3fff_ffff], 1),
            (&[0xbf80_0000], 0),
            (&[0x7fc0_0000], 0),
            (&[0x7f80_0000], 0xffff_ffff),
            (&[0x4f80_0000], 0xffff_ffff),
        ],
        Op::AddU32 => &[(&[0xffff_ffff, 1], 0), (&[0x8000_0000, 0x8000_0000], 0)],
        Op::SubU32 => &[(&[0, 1], 0xffff_ffff)],
        Op::MulLoU32 => &[(&[0x10000, 0x10000], 0), (&[2_654_435_761, 3], 0xdaa6_6d13)],
        Op::MulHiU32 => &[(&[0xffff_ffff, 0xffff_ffff], 0xffff_fffe), (&[0x10000, 0x10000], 1)],
        Op::AbsS32 => &[(&[0x8000_0000], 0x8000_0000), (&[0xffff_ffff], 1)],
        Op::MinS32 => &[(&[0xffff_ffff, 1], 0xffff_ffff)],
        Op::MaxS32 => &[(&[0xffff_ffff, 1], 1)],
        Op::MulWideU32 => &[(&[0xffff_ffff, 0xffff_ffff], 0xffff_fffe_0000_0001)],
        Op::MadWideU32 => &[(&[0xffff_ffff, 0xffff_ffff, 0xffff_ffff], 0xffff_ffff_0000_0000)],
        Op::Shl32 => &[(&[1, 31], 0x8000_0000), (&[1, 32], 0), (&[1, 0xffff_ffff], 0)],
        Op::ShrU32 => &[(&[0x8000_0000, 31], 1), (&[0x8000_0000, 32], 0)],
        Op::ShrS32 => &[(&[0x8000_0000, 31], 0xffff_ffff), (&[0x8000_0000, 99], 0xffff_ffff), (&[0x4000_0000, 99], 0)],
        Op::Lop3 => &[
            // The bitwise select: b where a, else c.
            (&[0x0000_ffff, 0x1234_5678, 0x9abc_def0, 0xca], 0x9abc_5678),
            (&[0x0f0f_0f0f, 0x00ff_00ff, 0x5555_5555, 0x96], 0x5aa5_5aa5),
        ],
        Op::ShfRWrap => {
            &[(&[0x4433_2211, 0x8877_6655, 8], 0x5544_3322), (&[0x4433_2211, 0x8877_6655, 32], 0x4433_2211)]
        }
        Op::ShfLWrap => {
            &[(&[0x4433_2211, 0x8877_6655, 8], 0x7766_5544), (&[0x4433_2211, 0x8877_6655, 32], 0x8877_6655)]
        }
        Op::ShfLClamp => &[(&[0x4433_2211, 0x8877_6655, 32], 0x4433_2211)],
        Op::Popc32 => &[(&[0], 0), (&[0xffff_ffff], 32), (&[0x8000_0001], 2)],
        Op::Brev32 => &[(&[1], 0x8000_0000), (&[0x1234_5678], 0x1e6a_2c48)],
        Op::BfindU32 => &[(&[0], 0xffff_ffff), (&[1], 0), (&[0xffff_ffff], 31)],
        Op::BfindShiftamtU32 => &[(&[0], 0xffff_ffff), (&[1], 31), (&[0x8000_0000], 0)],
        Op::BfeU32 => &[(&[0xffff_ffff, 28, 8], 0xf), (&[0xabcd_1234, 8, 8], 0x12), (&[0xffff_ffff, 5, 0], 0)],
        Op::Prmt => {
            &[(&[0x3322_1100, 0x7766_5544, 0x6543], 0x6655_4433), (&[0x3322_1180, 0x7766_5544, 0x0008], 0x8080_80ff)]
        }
        Op::Shl64 => &[(&[1, 63], 1 << 63), (&[1, 64], 0)],
        Op::ShrU64 => &[(&[1 << 63, 63], 1), (&[1 << 63, 64], 0)],
        Op::MulLoU64 => &[(&[u64::MAX, u64::MAX], 1)],
        Op::RcpApproxF32 => &[
            (&[0x4000_0000], 0x3f00_0000),
            (&[0], 0x7f80_0000),
            (&[0x8000_0000], 0xff80_0000),
            (&[0xff80_0000], 0x8000_0000),
            // 1 / 2^127 is subnormal and flushed to zero.
            (&[0x7f00_0000], 0),
        ],
        Op::AddF32 => &[(&[0x3f80_0000, 0x3380_0000], 0x3f80_0000), (&[0x7f80_0000, 0xff80_0000], 0x7fff_ffff)],
        Op::SetpLtS32 => &[(&[0xffff_ffff, 0], 1)],
        Op::SetpLtU32 => &[(&[0xffff_ffff, 0], 0)],
        _ => &[],
    };
    rows.iter().map(|(args, result)| (args.to_vec(), *result)).collect()
}
