//! Constants of the Zstandard format (RFC 8878) that a decoder needs, and limits that follow from the page size.

use super::PAGE_BYTES;

/// The first four bytes of a frame (section 3.1.1).
pub(super) const MAGIC: u32 = 0xfd2f_b528;

/// The longest frame that is decoded: a raw page with every optional header field, a checksum and an empty last block.
pub(super) const MAX_FRAME_BYTES: u32 = PAGE_BYTES + 32;

/// The shortest frame that can hold a page: header with a window, and a block header.
pub(super) const MIN_FRAME_BYTES: u32 = 9;

/// More sequences than this produce more than a page, because a match has at least three bytes.
pub(super) const MAX_SEQUENCES: u32 = PAGE_BYTES / 3;

/// The longest Huffman code of a literal (section 4.2.1). libzstd also reads codes of 12 bits, which it never writes.
pub(super) const MAX_CODE_BITS: u32 = 11;

/// Number of entries that the three sequence tables may have together. For a page, libzstd limits each to 256.
pub(super) const MAX_TABLE_ENTRIES: u32 = 768;

/// Accuracy limit and highest symbol of the table of Huffman weights.
pub(super) const WEIGHTS: TableLimits = TableLimits { max_log: 6, max_symbol: 12 };

/// Limits of an FSE table (section 4.1.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct TableLimits {
    /// The largest accuracy, in bits.
    pub(super) max_log: u32,
    /// The highest symbol.
    pub(super) max_symbol: u32,
}

/// One of the three kinds of codes in a sequence (section 3.1.1.3.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeKind {
    pub(super) limits: TableLimits,
    /// Accuracy of the predefined table, in bits.
    pub(super) predefined_log: u32,
    /// Counts of the predefined table; -1 is "less than one".
    pub(super) predefined: &'static [i16],
    /// Baseline and number of extra bits of each code.
    pub(super) codes: &'static [(u32, u32)],
}

/// Literal lengths, offsets and match lengths, in the order of their tables.
pub(super) const CODE_KINDS: [CodeKind; 3] = [
    CodeKind {
        limits: TableLimits { max_log: 9, max_symbol: 35 },
        predefined_log: 6,
        predefined: &[
            4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1,
            -1,
        ],
        codes: &LITERAL_LENGTHS,
    },
    CodeKind {
        limits: TableLimits { max_log: 8, max_symbol: 31 },
        predefined_log: 5,
        predefined: &[1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1],
        codes: &OFFSETS,
    },
    CodeKind {
        limits: TableLimits { max_log: 9, max_symbol: 52 },
        predefined_log: 6,
        predefined: &[
            1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
        ],
        codes: &MATCH_LENGTHS,
    },
];

/// Number of extra bits of literal length codes from 16 on. Codes below are the lengths themselves.
const LITERAL_EXTRA: [u32; 20] = [1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
/// Number of extra bits of match length codes from 32 on. Codes below are the lengths less the minimum.
const MATCH_EXTRA: [u32; 21] = [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
/// Length of the shortest match.
const MIN_MATCH: u32 = 3;

const LITERAL_LENGTHS: [(u32, u32); 36] = length_codes(0, &LITERAL_EXTRA);
const MATCH_LENGTHS: [(u32, u32); 53] = length_codes(MIN_MATCH, &MATCH_EXTRA);
/// Offset code `c` has the baseline `1 << c` and `c` extra bits.
const OFFSETS: [(u32, u32); 32] = {
    let mut codes = [(0, 0); 32];
    let mut code = 0;
    while code < 32 {
        codes[code as usize] = (1 << code, code);
        code += 1;
    }
    codes
};

/// Returns baselines and extra bits of `N` length codes, of which the last have extra bits. Each baseline is where the
/// code before ends.
const fn length_codes<const N: usize>(shortest: u32, extra: &[u32]) -> [(u32, u32); N] {
    let mut codes = [(0, 0); N];
    let (mut code, mut base) = (0, shortest);
    while code < N {
        let bits = if code < N - extra.len() { 0 } else { extra[code - (N - extra.len())] };
        codes[code] = (base, bits);
        base += 1 << bits;
        code += 1;
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baselines_are_those_of_the_specification() {
        let literal = |code: usize| LITERAL_LENGTHS[code];
        assert_eq!([literal(15), literal(16), literal(24)], [(15, 0), (16, 1), (48, 4)]);
        assert_eq!([literal(25), literal(26), literal(35)], [(64, 6), (128, 7), (65_536, 16)]);
        let matched = |code: usize| MATCH_LENGTHS[code];
        assert_eq!([matched(31), matched(32), matched(41)], [(34, 0), (35, 1), (83, 4)]);
        assert_eq!([matched(42), matched(43), matched(52)], [(99, 5), (131, 7), (65_539, 16)]);
    }

    #[test]
    fn predefined_tables_are_full() {
        for kind in CODE_KINDS {
            let cells: i16 = kind.predefined.iter().map(|count| count.abs()).sum();
            assert_eq!(cells, 1 << kind.predefined_log);
            assert_eq!(kind.codes.len(), kind.limits.max_symbol as usize + 1);
        }
    }
}
