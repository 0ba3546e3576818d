//! Tables that the lanes of a block share: what the codes of lengths stand for, and the predefined tables of states.

use super::super::format::{CODE_KINDS, CodeKind};
use super::tables::{NEXT_SHIFT, SYMBOL_SHIFT};
use crate::types::Shared;
use crate::{Addr, KernelBuilder, Reg};

/// A code's half word: the number of extra bits below, and above it the length (of a match, less 3) without them. All
/// those lengths are multiples of what the extra bits span.
pub(super) const LENGTH_SHIFT: u32 = 8;
/// Length of the shortest match, which the half words of match codes leave out.
pub(super) const MIN_MATCH: u32 = 3;

/// Places in the memory, in bytes: codes of literal lengths and of match lengths, and the tables of the three kinds.
const LITERAL_CODES_AT: u32 = 0;
pub(super) const MATCH_CODES_AT: u32 = 128;
const TABLES_AT: [u32; 3] = [256, 256 + 2 * 64, 256 + 2 * (64 + 32)];
const LOOKUP_BYTES: u32 = 256 + 2 * (64 + 32 + 64);

/// The tables in shared memory.
#[derive(Clone, Copy)]
pub(super) struct SharedTables<'k> {
    base: Addr<'k, Shared, u32>,
}

impl<'k> SharedTables<'k> {
    /// Bytes of shared memory.
    pub(super) const BYTES: u32 = LOOKUP_BYTES;

    /// Declares the tables and fills them. A block barrier must follow.
    pub(super) fn fill(k: &'k KernelBuilder, lane: Reg<'k, u32>) -> Self {
        // Aligned so that an index can be combined with the address by `or`.
        let base = k.shared_per_block("lookup", LOOKUP_BYTES, 128).base::<u32>();
        k.section("lookup tables");
        let is_first = k.thread_id().eq(lane) & lane.eq(0);
        for (at, words) in (0..).zip(words().as_chunks::<4>().0) {
            k.when(is_first).store_vec(base.at(4 * at), *words);
        }
        Self { base }
    }

    /// Returns the place of the codes of literal lengths. Those of match lengths are [`MATCH_CODES_AT`] bytes behind.
    pub(super) fn codes(self) -> Reg<'k, u32> {
        self.base.byte_offset(LITERAL_CODES_AT.cast_signed()).raw()
    }

    /// Returns the place of the predefined table of a kind.
    pub(super) fn table(self, at: Reg<'k, u32>) -> Reg<'k, u32> {
        self.base.raw() + at
    }

    /// Places of the predefined tables of the three kinds, for [`Self::table`].
    pub(super) const fn tables_at() -> [u32; 3] {
        TABLES_AT
    }
}

fn words() -> Vec<u32> {
    let mut halves = vec![0u16; LOOKUP_BYTES as usize / 2];
    let mut put = |at: u32, values: &mut dyn Iterator<Item = u32>| {
        for (half, value) in halves[at as usize / 2..].iter_mut().zip(values) {
            *half = u16::try_from(value).expect("half words hold every code and entry");
        }
    };
    let [literals, _, matches] = CODE_KINDS;
    put(LITERAL_CODES_AT, &mut code_halves(&literals, 0));
    put(MATCH_CODES_AT, &mut code_halves(&matches, MIN_MATCH));
    for (kind, at) in CODE_KINDS.iter().zip(TABLES_AT) {
        put(at, &mut predefined_entries(kind).into_iter());
    }
    halves.as_chunks().0.iter().map(|[low, high]| u32::from(*low) | u32::from(*high) << 16).collect()
}

fn code_halves(kind: &CodeKind, shortest: u32) -> impl Iterator<Item = u32> {
    kind.codes.iter().map(move |(base, extra)| {
        assert!((base - shortest).is_multiple_of(1 << extra));
        ((base - shortest) >> extra) << LENGTH_SHIFT | extra
    })
}

/// Builds the predefined table of a kind (RFC 8878, section 4.1.1), as lanes build the others.
fn predefined_entries(kind: &CodeKind) -> Vec<u32> {
    let log = kind.predefined_log;
    let size = 1usize << log;
    let mut symbols = vec![0u32; size];
    let mut numbers: Vec<u32> = kind.predefined.iter().map(|count| u32::from(count.unsigned_abs())).collect();
    let mut free = size;
    for (symbol, _) in (0..).zip(kind.predefined).filter(|(_, count)| **count < 0) {
        free -= 1;
        symbols[free] = symbol;
    }
    let mut walk = (0..size).map(|i| i * ((size >> 1) + (size >> 3) + 3) % size).filter(|cell| *cell < free);
    for (symbol, count) in (0..).zip(kind.predefined).filter(|(_, count)| **count > 0) {
        for cell in walk.by_ref().take(usize::from(count.unsigned_abs())) {
            symbols[cell] = symbol;
        }
    }
    let entry = |symbol: u32| {
        let number = numbers[symbol as usize];
        numbers[symbol as usize] += 1;
        let bits = log - number.ilog2();
        (number - (1 << log >> bits)) << NEXT_SHIFT | symbol << SYMBOL_SHIFT | bits
    };
    symbols.into_iter().map(entry).collect()
}
