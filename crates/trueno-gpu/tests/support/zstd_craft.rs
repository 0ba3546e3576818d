//! Writes sequences sections with tables of any counts, for frames that libzstd would not write.

use super::{Bits, frame_of, raw_literals};
use trueno_test_pages::PAGE_SIZE;
use trueno_test_pages::generate::Generator;

/// A sequence as it is written: offset values 1 to 3 are repeated offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub(crate) literals: usize,
    pub(crate) offset: usize,
    pub(crate) matched: usize,
}

/// Returns the code of a number, its extra bits and how many they are.
type Coder = fn(usize) -> (usize, usize, usize);

/// Returns the number that a table's codes stand for.
type Field = fn(&Sequence) -> usize;

/// Lengths below 16; the codes are the lengths themselves.
fn literal_code(len: usize) -> (usize, usize, usize) {
    (len, 0, 0)
}

fn offset_code(value: usize) -> (usize, usize, usize) {
    let bits = value.ilog2() as usize;
    (bits, value - (1 << bits), bits)
}

/// Match lengths up to 34.
fn match_code(len: usize) -> (usize, usize, usize) {
    (len - 3, 0, 0)
}

/// Counts for a table of `1 << log` cells that gives every used code some of them.
fn counts_for(codes: &[usize], log: u32, generator: &mut Generator) -> Vec<i32> {
    let used: Vec<usize> = (0..64).filter(|code| codes.contains(code)).collect();
    let mut counts = vec![0; used.last().expect("there are codes") + 1];
    let mut left = 1 << log;
    for (i, code) in used.iter().enumerate() {
        let others = used.len() - i - 1;
        // A single cell is written as 1 or as "less than one". One code alone must not fill the table.
        let most = left - others;
        let count = if others == 0 { most } else { 1 + generator.below((most / 2).max(1)) };
        left -= count;
        let is_low = count == 1 && generator.below(2) == 0;
        counts[*code] = if is_low { -1 } else { i32::try_from(count).expect("small") };
    }
    counts
}

/// Writes counts (section 4.1.1 of the format), lowest bit first.
fn write_counts(counts: &[i32], log: u32) -> Vec<u8> {
    let mut bits = vec![];
    let mut put = |value: usize, count: u32| bits.extend((0..count).map(|i| value >> i & 1 == 1));
    put(log as usize - 5, 4);
    let (mut left, mut at) = ((1usize << log) + 1, 0);
    while left > 1 {
        let short_bits = left.ilog2();
        let half = 1 << short_bits;
        let short_values = 2 * half - 1 - left;
        let value = usize::try_from(counts[at] + 1).expect("-1 or more");
        match value {
            _ if value < short_values => put(value, short_bits),
            _ if value < half => put(value, short_bits + 1),
            _ => put(value + short_values, short_bits + 1),
        }
        left -= counts[at].unsigned_abs() as usize;
        at += 1;
        if value == 1 {
            let zeros = counts[at..].iter().take_while(|count| **count == 0).count();
            (0..zeros / 3).for_each(|_| put(3, 2));
            put(zeros % 3, 2);
            at += zeros;
        }
    }
    bits.chunks(8).map(|byte| byte.iter().enumerate().fold(0, |sum, (i, bit)| sum | u8::from(*bit) << i)).collect()
}

/// The cells of a table: symbol, first next state, number of bits.
fn cells(counts: &[i32], log: u32) -> Vec<(usize, usize, u32)> {
    let len = 1usize << log;
    let low: Vec<usize> = (0..counts.len()).filter(|symbol| counts[*symbol] == -1).collect();
    let mut symbols = vec![0; len];
    for (i, symbol) in low.iter().enumerate() {
        symbols[len - 1 - i] = *symbol;
    }
    let free = (0..len).map(|i| i * (len / 2 + len / 8 + 3) % len).filter(|position| *position < len - low.len());
    let spread = counts.iter().enumerate().flat_map(|(symbol, count)| (0..*count).map(move |_| symbol));
    free.zip(spread).for_each(|(position, symbol)| symbols[position] = symbol);
    let mut numbers: Vec<usize> = counts.iter().map(|count| count.unsigned_abs() as usize).collect();
    let cell = |symbol: &usize| {
        let number = numbers[*symbol];
        numbers[*symbol] += 1;
        let bits = log - number.ilog2();
        (*symbol, (number << bits) - len, bits)
    };
    symbols.iter().map(cell).collect()
}

/// The states that produce `codes`, found from the last one back.
fn states_for(codes: &[usize], cells: &[(usize, usize, u32)]) -> Vec<usize> {
    let mut states = vec![0; codes.len()];
    for i in (0..codes.len()).rev() {
        let leads_on = |(symbol, base, bits): &(usize, usize, u32)| {
            *symbol == codes[i] && (i + 1 == codes.len() || (*base..*base + (1 << bits)).contains(&states[i + 1]))
        };
        states[i] = cells.iter().position(leads_on).expect("every symbol leads to every state");
    }
    states
}

/// Returns a sequences section with a table of its own for each code.
pub(crate) fn sequences_section(sequences: &[Sequence], logs: [u32; 3], generator: &mut Generator) -> Vec<u8> {
    let coders: [(Coder, Field); 3] =
        [(literal_code, |s| s.literals), (offset_code, |s| s.offset), (match_code, |s| s.matched)];
    let mut section = match sequences.len() {
        count @ 0..128 => vec![count.to_le_bytes()[0]],
        count => vec![(count >> 8).to_le_bytes()[0] + 128, count.to_le_bytes()[0]],
    };
    let modes_at = section.len();
    section.push(0);
    let mut coded = vec![];
    for (((coder, field), log), shift) in coders.iter().zip(logs).zip([6, 4, 2]) {
        let values: Vec<_> = sequences.iter().map(|sequence| coder(field(sequence))).collect();
        let codes: Vec<usize> = values.iter().map(|(code, ..)| *code).collect();
        let is_one_code = codes.iter().all(|code| *code == codes[0]);
        if is_one_code {
            section[modes_at] |= 1 << shift;
            section.push(codes[0].to_le_bytes()[0]);
            coded.push((values, vec![0; codes.len()], vec![(codes[0], 0, 0)], 0));
        } else {
            section[modes_at] |= 2 << shift;
            let counts = counts_for(&codes, log, generator);
            section.extend(write_counts(&counts, log));
            let cells = cells(&counts, log);
            coded.push((values, states_for(&codes, &cells), cells, log));
        }
    }
    let mut bits = Bits::default();
    for (_, states, _, log) in &coded {
        bits.put(states[0], *log as usize);
    }
    for i in 0..sequences.len() {
        for kind in [1, 2, 0] {
            let (_, extra, count) = coded[kind].0[i];
            bits.put(extra, count);
        }
        for kind in [0, 2, 1] {
            let (_, states, cells, _) = &coded[kind];
            if let Some(next) = states.get(i + 1) {
                let (_, base, count) = cells[states[i]];
                bits.put(next - base, count as usize);
            }
        }
    }
    section.extend(bits.stream());
    section
}

/// Returns a valid frame of random sequences with many repeated offsets, and none or few literals before each.
pub(crate) fn random_sequences(generator: &mut Generator) -> Vec<u8> {
    let (mut sequences, mut at, mut literals) = (vec![], 0, 0);
    let mut history = [1, 4, 8];
    let (new_in, literals_in, longest) = (1 + generator.below(9), 1 + generator.below(6), 3 + generator.below(30));
    while at < PAGE_SIZE - 64 {
        let len = if at == 0 { 9 } else { generator.below(16) * usize::from(generator.below(literals_in) == 0) };
        let place = at + len;
        let repeated = 1 + generator.below(3);
        let [first, second, third] = history;
        let by_repeat = match repeated - 1 + usize::from(len == 0) {
            0 => [first, second, third],
            1 => [second, first, third],
            2 => [third, first, second],
            _ => [first - 1, first, second],
        };
        let takes_repeat = generator.below(new_in) > 0 && (1..=place).contains(&by_repeat[0]);
        let new = 1 + generator.below(place);
        history = if takes_repeat { by_repeat } else { [new, first, second] };
        let matched = (3 + generator.below(longest)).min(34);
        sequences.push(Sequence { literals: len, offset: if takes_repeat { repeated } else { new + 3 }, matched });
        (at, literals) = (place + matched, literals + len);
    }
    let section = sequences_section(&sequences, [6, 6, 6 + u32::from(longest > 20)], generator);
    let literals: Vec<u8> = (0..literals + PAGE_SIZE - at).map(|_| generator.byte()).collect();
    frame_of(&[raw_literals(&literals), section].concat())
}

/// Returns the page of the most sequences: one literal, then 1365 matches of 3 bytes by repeated offsets.
pub(crate) fn most_sequences(generator: &mut Generator) -> Vec<u8> {
    let mut sequences = vec![Sequence { literals: 0, offset: 1, matched: 3 }; 1365];
    sequences[0].literals = 1;
    frame_of(&[raw_literals(b"x"), sequences_section(&sequences, [5; 3], generator)].concat())
}

/// Returns weights of a tree, four bits each.
fn direct_weights(weights: &[u8]) -> Vec<u8> {
    let pairs = weights.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or(0));
    std::iter::once(u8::try_from(127 + weights.len()).expect("at most 128 weights")).chain(pairs).collect()
}

/// Returns weights of a tree as two FSE states produce them in turn.
fn coded_weights(weights: &[usize], counts: &[i32]) -> Vec<u8> {
    const LOG: u32 = 6;
    let cells = cells(counts, LOG);
    let turns = [0, 1].map(|turn| -> Vec<usize> { weights.iter().skip(turn).step_by(2).copied().collect() });
    let states = turns.map(|codes| states_for(&codes, &cells));
    let mut bits = Bits::default();
    bits.put(states[0][0], LOG as usize);
    bits.put(states[1][0], LOG as usize);
    for i in 0..weights.len() - 2 {
        let (_, base, count) = cells[states[i % 2][i / 2]];
        bits.put(states[i % 2][i / 2 + 1] - base, count as usize);
    }
    let body = [write_counts(counts, LOG), bits.stream()].concat();
    [vec![u8::try_from(body.len()).expect("short")], body].concat()
}

/// Returns a frame whose literals are the last symbol of a tree, with a code of one bit, and which one match fills.
fn frame_of_tree(tree: &[u8]) -> Vec<u8> {
    const LITERALS: usize = 1000;
    let mut bits = Bits::default();
    (0..LITERALS).for_each(|_| bits.put(1, 1));
    let held = [tree, &bits.stream()].concat();
    let header = (2 | LITERALS << 4 | held.len() << 14).to_le_bytes();
    // One literal, a match of the rest of the page, and all other literals.
    let sequences = super::uniform_sequences(1, [1, 0, 47], |_, bits| bits.put(PAGE_SIZE - LITERALS - 2051, 11));
    frame_of(&[&header[..3], &held, &sequences].concat())
}

/// Returns frames of trees that libzstd would not write, with a name each.
pub(super) fn trees() -> Vec<(&'static str, Vec<u8>)> {
    let direct = |weights: &[u8]| frame_of_tree(&direct_weights(weights));
    // Two symbols with codes of two bits, the second just before the last symbol.
    let coded = |count: usize| {
        let mut weights = vec![0; count];
        (weights[0], weights[count - 2]) = (1, 1);
        frame_of_tree(&coded_weights(&weights, &[60, 4]))
    };
    vec![
        ("three direct weights", direct(&[1, 0, 1])),
        ("an over-subscribed tree", direct(&[3, 3, 2, 1])),
        ("a tree that one code cannot complete", direct(&[3, 1])),
        ("a tree without symbols", direct(&[0, 0])),
        ("a tree without a longest code", direct(&[2, 2])),
        ("codes of 11 bits", direct(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])),
        ("codes of 12 bits", direct(&[12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])),
        ("a weight of 13", direct(&[13, 1, 1])),
        ("a tree of no bytes", frame_of_tree(&[0])),
        ("100 coded weights", coded(100)),
        ("254 coded weights", coded(254)),
        ("255 coded weights", coded(255)),
        ("256 coded weights", coded(256)),
        ("257 coded weights", coded(257)),
        ("weights that never end", frame_of_tree(&[5, 0xf0, 0x03, 0x00, 0x00, 0x01])),
    ]
}
