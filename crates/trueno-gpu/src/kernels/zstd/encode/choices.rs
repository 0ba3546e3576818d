//! Choices that the format leaves to an encoder. The kernel and its slow twin share them.

use super::Mode;

/// Positions that a warp looks at together.
pub(super) const WINDOW: u32 = 32;

/// The last position at which a match may start: four bytes are read there.
pub(super) const LAST_START: u32 = super::format::PAGE_BYTES - 4;

/// The match table has 2^11 entries of 16 bits: the position below, a tag of the hash above. In
/// [`Mode::Ratio`](super::Mode) half of them are for words of four bytes, half for eight.
pub(super) const HASH_BITS: u32 = 11;

/// Returns the number of bits that choose an entry of a table.
pub(super) const fn hash_bits(mode: Mode) -> u32 {
    match mode {
        Mode::Fast => HASH_BITS,
        Mode::Ratio => HASH_BITS - 1,
    }
}

/// Multiplies the second word of eight bytes, whose hash is the sum of both products.
pub(super) const SECOND_MULTIPLIER: u32 = 0x85eb_ca6b;
/// Knuth's multiplicative hash: 2^32 over the golden ratio.
pub(super) const HASH_MULTIPLIER: u32 = 2_654_435_761;
/// Bits of the position in a table entry.
pub(super) const POSITION_BITS: u32 = 12;

/// Matches of the table are measured up to here before the choice, repeated offsets up to a window.
pub(super) const TABLE_CAP: u32 = 12;

/// A candidate is one number: its score above this many bits, its offset value (offset + 3) below.
pub(super) const SCORE_SHIFT: u32 = 13;
/// Score of a match of the table, per byte.
pub(super) const TABLE_BYTE: u32 = 24;
/// Added to the score of a match of the table; 3 modulo 4.
pub(super) const TABLE_BASE: u32 = 19;
/// Subtracted from the score of a match of the table, per bit of the offset.
pub(super) const OFFSET_BIT: u32 = 4;
/// Score of a repeated offset, per byte.
pub(super) const REPEAT_BYTE: u32 = 32;
/// Added to the score of a repeated offset, by its rank: 0, 1 and 2 modulo 4. So the low two bits of a score tell the
/// kind of the candidate.
pub(super) const REPEAT_BONUS: [u32; 3] = [4, 1, 2];
/// The kind of a candidate: the low bits of its score.
pub(super) const KIND_MASK: u32 = 3;
pub(super) const KIND_TABLE: u32 = 3;
const _: () = assert!((TABLE_BYTE | OFFSET_BIT | REPEAT_BYTE) & KIND_MASK == 0 && TABLE_BASE & KIND_MASK == KIND_TABLE);
/// The lowest score worth a sequence: a repeated offset of 3 bytes reaches it, one of 2 does not.
pub(super) const MIN_SCORE: u32 = 69;
const _: () = assert!(2 * REPEAT_BYTE + REPEAT_BONUS[0] < MIN_SCORE && 3 * REPEAT_BYTE >= MIN_SCORE);
/// A candidate gives way to one at the next position that scores more than this above it.
pub(super) const LAZY_MARGIN: u32 = 12;
/// A match is extended backward by at most this many bytes.
pub(super) const MAX_BACKWARD: u32 = 32;

/// Literals below this number are stored raw.
pub(super) const MIN_CODED_LITERALS: u32 = 16;
/// The assumed length of a tree description per symbol, in 16ths of a byte.
pub(super) const TREE_SIXTEENTHS: u32 = 6;

/// Accuracy logs: of the weights below and from 64 weights on, of offsets and of lengths below and from 256 sequences
/// on.
pub(super) const WEIGHTS_LOG: [u32; 2] = [5, 6];
pub(super) const MANY_WEIGHTS: u32 = 64;
pub(super) const OFFSETS_LOG: [u32; 2] = [5, 6];
pub(super) const LENGTHS_LOG: [u32; 2] = [6, 7];
pub(super) const MANY_SEQUENCES: u32 = 256;
/// With fewer sequences no table is described.
pub(super) const MIN_DESCRIBED_SEQUENCES: u32 = 6;

/// Every part of a frame ends here at the latest, and the page is stored raw otherwise. What may follow the last check,
/// the states of three chains and the end mark, fits behind it.
pub(super) const FRAME_LIMIT: u32 = super::format::PAGE_BYTES - 8;
