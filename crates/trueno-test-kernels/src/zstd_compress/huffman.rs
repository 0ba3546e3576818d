//! The Huffman code of the literals: tree, limited lengths, description, four streams (RFC 8878, section 4.2).

use super::bits::{BitWriter, floor_log2, log2_fixed};
use super::choices::{MANY_WEIGHTS, TREE_SIXTEENTHS, WEIGHTS_LOG};
use super::format::{DIRECT_WEIGHTS_BASE, MAX_CODE_BITS, MAX_DIRECT_WEIGHTS, MAX_TREE_BYTES};
use super::fse;

/// The form in which literals are stored.
pub(super) enum LiteralsPlan {
    Raw,
    Repeated(u8),
    Coded(LiteralsCode),
}

/// A code for literals.
pub(super) struct LiteralsCode {
    /// LiteralsCode and number of bits of each byte; no bits for those that do not occur.
    codes: Vec<(usize, usize)>,
    /// Bits of all literals.
    bits: usize,
    /// The tree's description.
    pub(super) description: Vec<u8>,
}

/// Plans the coding of at least two literals.
pub(super) fn plan(literals: &[u8]) -> LiteralsPlan {
    let mut counts = [0; 256];
    literals.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let mut symbols: Vec<usize> = (0..256).filter(|&symbol| counts[symbol] > 0).collect();
    if let [only] = symbols[..] {
        return LiteralsPlan::Repeated(u8::try_from(only).expect("a byte"));
    }
    if cannot_pay(&counts, literals.len(), symbols.len()) {
        return LiteralsPlan::Raw;
    }
    symbols.sort_by_key(|&symbol| counts[symbol]);
    let weights: Vec<usize> = symbols.iter().map(|&symbol| counts[symbol]).collect();
    let Some(lengths) = limited_lengths(&depths(&weights), literals.len()) else { return LiteralsPlan::Raw };
    let mut bits_of = [0; 256];
    symbols.iter().zip(lengths).for_each(|(&symbol, length)| bits_of[symbol] = length);
    match describe(&bits_of) {
        Some(description) => {
            let bits = counts.iter().zip(bits_of).map(|(count, bits)| count * bits).sum();
            LiteralsPlan::Coded(LiteralsCode { codes: assign_codes(&bits_of), bits, description })
        }
        None => LiteralsPlan::Raw,
    }
}

/// Returns `true` if the entropy alone, with an estimate of the description, is as long as the literals.
fn cannot_pay(counts: &[usize; 256], total: usize, symbols: usize) -> bool {
    let present = counts.iter().filter(|count| **count > 0);
    let entropy: usize = present.map(|&count| count * (log2_fixed(total) - log2_fixed(count))).sum();
    (entropy >> 11) + 10 + ((symbols * TREE_SIXTEENTHS as usize) >> 4) >= total
}

/// Returns the depth of each leaf in the Huffman tree of these weights, which ascend.
///
/// The tree grows in rounds. Nodes lighter than the two lightest together are merged with one another before any new
/// node is, so that all of them pair up at once; of equal weights, leaves come first. A round sees 32 leaves and 32
/// inner nodes.
fn depths(weights: &[usize]) -> Vec<usize> {
    const SEEN: usize = 32;
    const NONE: usize = 0x3fff_ffff;
    #[derive(Clone, Copy)]
    enum Node {
        Leaf(usize),
        Inner(usize),
    }
    let mut inner: Vec<usize> = Vec::new();
    let (mut leaf_parent, mut inner_parent) = (vec![0; weights.len()], vec![0; weights.len()]);
    let (mut leaf, mut next) = (0, 0);
    while inner.len() < weights.len() - 1 {
        let leaf_weight = |n: usize| weights.get(leaf + n).copied().unwrap_or(NONE);
        let inner_weight = |n: usize| inner.get(next + n).copied().unwrap_or(NONE);
        let lightest_two = (leaf_weight(0) + leaf_weight(1))
            .min(inner_weight(0) + inner_weight(1))
            .min(leaf_weight(0) + inner_weight(0));
        let limit = (lightest_two - 1).min(leaf_weight(SEEN - 1)).min(inner_weight(SEEN - 1));
        let mut taken: Vec<(usize, Node)> = (0..SEEN)
            .map(|n| (leaf_weight(n), Node::Leaf(leaf + n)))
            .chain((0..SEEN).map(|n| (inner_weight(n), Node::Inner(next + n))))
            .filter(|(weight, _)| *weight <= limit)
            .collect();
        taken.sort_by_key(|(weight, _)| *weight);
        taken.truncate(taken.len() & !1);
        for pair in taken.chunks(2) {
            let parent = inner.len();
            for (_, node) in pair {
                match *node {
                    Node::Leaf(n) => (leaf_parent[n], leaf) = (parent, leaf + 1),
                    Node::Inner(n) => (inner_parent[n], next) = (parent, next + 1),
                }
            }
            inner.push(pair[0].0 + pair[1].0);
        }
    }
    let mut inner_depth = vec![0; inner.len()];
    for n in (0..inner.len() - 1).rev() {
        inner_depth[n] = inner_depth[inner_parent[n]] + 1;
    }
    leaf_parent.iter().map(|&parent| inner_depth[parent] + 1).collect()
}

/// Limits depths to what the literals' number is worth; returns the code lengths of the symbols in ascending order of
/// weight, the longest first.
fn limited_lengths(depths: &[usize], total: usize) -> Option<Vec<usize>> {
    let for_total = floor_log2(total - 1).saturating_sub(1).max(1);
    // A code needs at least one bit more than a flat one would.
    let for_symbols = floor_log2(depths.len() - 1) + 2;
    let limit = for_total.max(for_symbols).min(MAX_CODE_BITS as usize);
    let mut counts = vec![0isize; limit + 1];
    depths.iter().for_each(|&depth| counts[depth.min(limit)] += 1);
    // The code space used beyond what exists, in codes of the longest length.
    let used: isize = (1..=limit).map(|length| counts[length] << (limit - length)).sum();
    let mut excess = used - (1 << limit);
    while excess > 0 {
        let longest = (1..limit).rev().find(|&length| counts[length] > 0)?;
        counts[longest] -= 1;
        counts[longest + 1] += 1;
        excess -= 1 << (limit - 1 - longest);
    }
    while excess < 0 {
        if counts[limit] == 0 {
            return None;
        }
        counts[limit] -= 1;
        counts[limit - 1] += 1;
        excess += 1;
    }
    Some((1..=limit).rev().flat_map(|length| std::iter::repeat_n(length, counts[length].unsigned_abs())).collect())
}

/// Assigns codes: the longest ones first, in order of the symbols.
fn assign_codes(bits_of: &[usize; 256]) -> Vec<(usize, usize)> {
    let longest = *bits_of.iter().max().expect("256 of them");
    let mut codes = vec![(0, 0); 256];
    let mut next = 0;
    for length in (1..=longest).rev() {
        for symbol in (0..256).filter(|&symbol| bits_of[symbol] == length) {
            codes[symbol] = (next, length);
            next += 1;
        }
        next >>= 1;
    }
    codes
}

/// Describes the tree: the weights of all symbols but the last, coded or 4 bits each, whichever is shorter.
fn describe(bits_of: &[usize; 256]) -> Option<Vec<u8>> {
    let longest = *bits_of.iter().max().expect("256 of them");
    let last = bits_of.iter().rposition(|&bits| bits > 0).expect("two symbols at least");
    let weights: Vec<usize> =
        bits_of[..last].iter().map(|&bits| if bits > 0 { longest + 1 - bits } else { 0 }).collect();
    let direct_bytes = 1 + weights.len().div_ceil(2);
    let direct_fits = weights.len() <= MAX_DIRECT_WEIGHTS as usize;
    let coded = code_weights(&weights, direct_fits.then_some(direct_bytes));
    match coded {
        Some(coded) if !direct_fits || coded.len() <= direct_bytes => Some(coded),
        _ if direct_fits => {
            let mut direct = vec![u8::try_from(DIRECT_WEIGHTS_BASE as usize + weights.len()).expect("up to 255")];
            let nibbles = |pair: &[usize]| pair[0] << 4 | pair.get(1).copied().unwrap_or(0);
            direct.extend(weights.chunks(2).map(|pair| u8::try_from(nibbles(pair)).expect("two nibbles")));
            Some(direct)
        }
        _ => None,
    }
}

/// Codes the weights with two interleaved states, if that is possible and promises to pay.
fn code_weights(weights: &[usize], direct_bytes: Option<usize>) -> Option<Vec<u8>> {
    let mut counts = vec![0; MAX_CODE_BITS as usize + 1];
    weights.iter().for_each(|&weight| counts[weight] += 1);
    if weights.len() < 2 || counts.iter().filter(|count| **count > 0).count() < 2 {
        return None;
    }
    let log = WEIGHTS_LOG[usize::from(weights.len() >= MANY_WEIGHTS as usize)] as usize;
    let distribution = fse::distribute(&counts, log);
    let mut head = BitWriter::default();
    head.push(0, 8);
    fse::describe(&distribution, log, &mut head);
    let promised = (head.len_bits().next_multiple_of(8) + (fse::cost(&counts, &distribution, log) >> 8)) >> 3;
    if promised >= direct_bytes.map_or(156, |bytes| (bytes + 4).min(156)) {
        return None;
    }
    let table = fse::FseTable::build(&distribution, log);
    let mut states = [None; 2];
    let mut bits = BitWriter::default();
    // Weights at even and odd places have a state each.
    for (place, &weight) in weights.iter().enumerate().rev() {
        let state = &mut states[place & 1];
        *state = Some(match *state {
            None => table.first_state(weight),
            Some(state) => {
                let (next, count) = table.next_state(weight, state);
                bits.push(state, count);
                next
            }
        });
    }
    for state in [states[1], states[0]] {
        table.write_state(state.expect("two weights at least"), &mut bits);
    }
    let mut description = head.into_bytes();
    description.extend(bits.into_stream());
    description[0] = u8::try_from(description.len() - 1).ok()?;
    (description.len() <= MAX_TREE_BYTES as usize).then_some(description)
}

impl LiteralsCode {
    /// Returns a bound of the literals section's bytes: each of the four streams may be a byte longer than its bits.
    pub(super) fn section_bytes_at_most(&self, count: usize) -> usize {
        let header_bytes = if count < 1024 { 3 } else { 4 };
        header_bytes + self.description.len() + 6 + self.bits.div_ceil(8) + 4
    }

    /// Returns the jump table and the four streams.
    pub(super) fn streams(&self, literals: &[u8]) -> Vec<u8> {
        let streams = literals.chunks(literals.len().div_ceil(4)).map(|part| {
            let mut bits = BitWriter::default();
            for &byte in part.iter().rev() {
                let (code, count) = self.codes[usize::from(byte)];
                bits.push(code, count);
            }
            bits.into_stream()
        });
        let streams: Vec<Vec<u8>> = streams.collect();
        let sizes = streams[..3].iter().flat_map(|stream| u16::try_from(stream.len()).expect("short").to_le_bytes());
        sizes.chain(streams.concat()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of an optimal code, by merging one pair after the other.
    fn optimal_bits(weights: &[usize]) -> usize {
        let (mut nodes, mut bits) = (weights.to_vec(), 0);
        while nodes.len() > 1 {
            nodes.sort_by(|a, b| b.cmp(a));
            let sum = nodes.pop().unwrap() + nodes.pop().unwrap();
            bits += sum;
            nodes.push(sum);
        }
        bits
    }

    #[test]
    fn rounds_build_an_optimal_tree() {
        let powers: Vec<usize> = (0..12).map(|n| 1 << n).collect();
        let fibonacci = vec![1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610];
        let mixed: Vec<usize> = (0..256).map(|n| 1 + n * n / 700).collect();
        for weights in [vec![1, 1], vec![1; 256], vec![3, 3, 3], vec![1; 33], powers, fibonacci, mixed] {
            let bits: usize = depths(&weights).iter().zip(&weights).map(|(depth, weight)| depth * weight).sum();
            assert_eq!(bits, optimal_bits(&weights), "{weights:?}");
        }
    }

    #[test]
    fn limited_lengths_fill_the_code_space() {
        for (symbols, total) in [(2, 16), (5, 16), (40, 300), (200, 4000), (256, 4096)] {
            let weights: Vec<usize> = (0..symbols).map(|n| 1 + (n * n * n) / 999).collect();
            let lengths = limited_lengths(&depths(&weights), total).unwrap();
            let used: f64 = lengths.iter().map(|&length| 0.5f64.powi(i32::try_from(length).unwrap())).sum();
            assert!(lengths.len() == symbols && (used - 1.0).abs() < 1e-9, "{symbols}: {used}");
        }
    }
}
