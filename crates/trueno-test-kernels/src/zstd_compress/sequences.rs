//! The sequences section: codes, tables and the bitstream of three interleaved states (RFC 8878, section 3.1.1.3.2).

use super::bits::{BitWriter, floor_log2};
use super::choices::{LENGTHS_LOG, MANY_SEQUENCES, MIN_DESCRIBED_SEQUENCES, OFFSETS_LOG};
use super::format::{
    LENGTHS_DEFAULT_LOG, LITERAL_LENGTHS_DEFAULT, MATCH_LENGTHS_DEFAULT, MIN_MATCH, MODE_FSE, MODE_PREDEFINED,
    MODE_RLE, OFFSETS_DEFAULT, OFFSETS_DEFAULT_LOG,
};
use super::parse::Sequence;
use super::{fits, fse};

/// A code, and the bits that follow it.
#[derive(Clone, Copy)]
struct Coded {
    code: usize,
    extra: usize,
    extra_bits: usize,
}

/// The three codes of a sequence: literal length, offset, match length.
fn codes(sequence: &Sequence) -> [Coded; 3] {
    let coded = |(code, extra_bits): (usize, usize), value: usize| Coded {
        code,
        extra: value & ((1 << extra_bits) - 1),
        extra_bits,
    };
    let offset = floor_log2(sequence.offset_value);
    let match_value = sequence.length - MIN_MATCH as usize;
    [
        coded(literal_length_code(sequence.literals), sequence.literals),
        coded((offset, offset), sequence.offset_value),
        coded(match_length_code(match_value), match_value),
    ]
}

/// Returns the code of a literal length and its number of extra bits.
pub(super) fn literal_length_code(length: usize) -> (usize, usize) {
    match length {
        0..16 => (length, 0),
        16..24 => (16 + (length - 16) / 2, 1),
        24..32 => (20 + (length - 24) / 4, 2),
        32..48 => (22 + (length - 32) / 8, 3),
        48..64 => (24, 4),
        _ => (floor_log2(length) + 19, floor_log2(length)),
    }
}

/// Returns the code of a match length over the minimum and its number of extra bits.
pub(super) fn match_length_code(value: usize) -> (usize, usize) {
    match value {
        0..32 => (value, 0),
        32..40 => (32 + (value - 32) / 2, 1),
        40..48 => (36 + (value - 40) / 4, 2),
        48..64 => (38 + (value - 48) / 8, 3),
        64..96 => (40 + (value - 64) / 16, 4),
        96..128 => (42, 5),
        _ => (floor_log2(value) + 36, floor_log2(value)),
    }
}

/// The fixed properties of one of the three tables: its predefined distribution and log, and the logs of described
/// tables.
struct TableKind {
    predefined: &'static [i8],
    predefined_log: u32,
    logs: [u32; 2],
}

const KINDS: [TableKind; 3] = [
    TableKind { predefined: &LITERAL_LENGTHS_DEFAULT, predefined_log: LENGTHS_DEFAULT_LOG, logs: LENGTHS_LOG },
    TableKind { predefined: &OFFSETS_DEFAULT, predefined_log: OFFSETS_DEFAULT_LOG, logs: OFFSETS_LOG },
    TableKind { predefined: &MATCH_LENGTHS_DEFAULT, predefined_log: LENGTHS_DEFAULT_LOG, logs: LENGTHS_LOG },
];

/// Chooses a table for codes in these numbers; returns its mode, its description and the table.
fn choose_table(kind: &TableKind, counts: &[usize]) -> (u32, Vec<u8>, fse::FseTable) {
    let total: usize = counts.iter().sum();
    let present: Vec<usize> = (0..counts.len()).filter(|&code| counts[code] > 0).collect();
    if let [only] = present[..] {
        return (MODE_RLE, vec![u8::try_from(only).expect("small")], fse::FseTable::of_one_symbol(only));
    }
    let predefined: Vec<i32> = kind.predefined.iter().map(|&cells| i32::from(cells)).collect();
    let predefined_log = kind.predefined_log as usize;
    if total >= MIN_DESCRIBED_SEQUENCES as usize {
        let log = kind.logs[usize::from(total >= MANY_SEQUENCES as usize)] as usize;
        let distribution = fse::distribute(counts, log);
        let mut description = BitWriter::default();
        fse::describe(&distribution, log, &mut description);
        let described_cost = (fse::cost(counts, &distribution, log) >> 8) + description.len_bits();
        if described_cost < fse::cost(counts, &predefined, predefined_log) >> 8 {
            return (MODE_FSE, description.into_bytes(), fse::FseTable::build(&distribution, log));
        }
    }
    (MODE_PREDEFINED, Vec::new(), fse::FseTable::build(&predefined, predefined_log))
}

/// Appends the sequences section.
pub(super) fn write(frame: &mut Vec<u8>, sequences: &[Sequence]) -> Option<()> {
    let count = sequences.len();
    if count == 0 {
        frame.push(0);
        return Some(());
    }
    let header = if count < 128 { vec![count] } else { vec![(count >> 8) + 128, count & 255] };
    fits(frame.len() + header.len() + 1)?;
    frame.extend(header.into_iter().map(|byte| u8::try_from(byte).expect("a byte")));
    let modes_at = frame.len();
    frame.push(0);

    let coded: Vec<[Coded; 3]> = sequences.iter().map(codes).collect();
    let mut tables = Vec::new();
    for (n, kind) in KINDS.iter().enumerate() {
        let mut counts = [0; 53];
        coded.iter().for_each(|sequence| counts[sequence[n].code] += 1);
        let (mode, description, table) = choose_table(kind, &counts[..kind.predefined.len()]);
        fits(frame.len() + description.len())?;
        frame.extend(description);
        frame[modes_at] |= u8::try_from(mode << (6 - 2 * n)).expect("two bits");
        tables.push(table);
    }
    let [literal_lengths, offsets, match_lengths] = &tables[..] else { unreachable!("three tables") };

    // Each sequence: the bits of the states, then those of the values. The last sequence only sets the states.
    let mut bits = BitWriter::default();
    let mut states: Option<[usize; 3]> = None;
    for [literal_length, offset, match_length] in coded.into_iter().rev() {
        let mut write_step = |table: &fse::FseTable, coded: Coded, state: Option<usize>| match state {
            None => table.first_state(coded.code),
            Some(state) => {
                let (next, count) = table.next_state(coded.code, state);
                bits.push(state, count);
                next
            }
        };
        let of = write_step(offsets, offset, states.map(|s| s[1]));
        let ml = write_step(match_lengths, match_length, states.map(|s| s[2]));
        let ll = write_step(literal_lengths, literal_length, states.map(|s| s[0]));
        states = Some([ll, of, ml]);
        for coded in [literal_length, match_length, offset] {
            bits.push(coded.extra, coded.extra_bits);
        }
    }
    fits(frame.len() + bits.len_bits().div_ceil(8))?;
    let [ll, of, ml] = states.expect("one sequence at least");
    match_lengths.write_state(ml, &mut bits);
    offsets.write_state(of, &mut bits);
    literal_lengths.write_state(ll, &mut bits);
    frame.extend(bits.into_stream());
    Some(())
}
