//! Writes the four streams of coded literals: eight lanes per stream, each with its own piece.

use super::super::find::Workspace;
use super::{CODE_LENGTH_SHIFT, codes_address};
use crate::ir::AtomOp;
use crate::{Pred, Reg, Var};

/// Lanes of a stream.
const STREAM_LANES: u32 = 8;

/// Writes the jump table and the streams at `out`, a shared address in zeroed memory; returns their bytes, uniform. The
/// codes lie in global memory.
pub(in crate::kernels::zstd::encode) fn write_streams<'k>(
    ws: Workspace<'k>,
    literals: Reg<'k, u32>,
    total: Reg<'k, u32>,
    out: Reg<'k, u32>,
) -> Reg<'k, u32> {
    let Workspace { k, lane, .. } = ws;
    k.section("huffman: size the streams");
    // A stream is written from its last literal to its first; so is a lane's piece.
    let stream = lane >> 3;
    let in_stream = lane & (STREAM_LANES - 1);
    let stream_literals = (total + 3) >> 2;
    let piece_literals = (stream_literals + (STREAM_LANES - 1)) >> 3;
    let start = stream * stream_literals;
    let own = total.min(start + stream_literals) - start;
    let skipped = own.min(in_stream * piece_literals);
    let piece = StreamPiece {
        ws,
        last: literals + start + own - skipped - 1,
        len: (own - skipped).min(piece_literals),
        longest: piece_literals,
    };
    let bits = k.var(0u32);
    piece.for_each_pair(|_, pair_bits| bits.set(bits + pair_bits));

    let through = k.var(*bits);
    for distance in [1u32, 2, 4] {
        let before = through.shfl_up(distance);
        k.when(in_stream.ge(distance)).set(through, through + before);
    }
    let stream_bits = through.shfl(lane | (STREAM_LANES - 1));
    // With the bit that marks the end.
    let stream_bytes = (stream_bits + 8) >> 3;
    let [size0, size1, size2, size3] = [0u32, 8, 16, 24].map(|lane| stream_bytes.shfl(lane));
    let jump = lane.eq(0).select(size0, lane.eq(1).select(size1, size2));
    let jump_at = (out + (lane << 1)).shared::<u8>();
    k.when(lane.lt(3)).store(jump_at, jump);
    k.when(lane.lt(3)).store(jump_at.at(1), jump >> 8);
    k.sync_warp();

    k.section("huffman: write the streams");
    let first = k.var(out + 6);
    for (n, size) in [(0, size0), (1, size1), (2, size2)] {
        k.when(stream.gt(n)).set(first, first + size);
    }
    let end_bit = (first << 3) + stream_bits;
    piece.write((first << 3) + through - bits);
    let end_word = ((end_bit >> 5) << 2).shared::<u32>();
    k.when(in_stream.eq(0)).reduce(end_word, AtomOp::Or, 1u32 << (end_bit & 31));
    k.sync_warp();
    size0 + size1 + size2 + size3 + 6
}

/// The literals of a lane, from the last to the first.
struct StreamPiece<'k> {
    ws: Workspace<'k>,
    /// Shared address of the last one.
    last: Reg<'k, u32>,
    len: Reg<'k, u32>,
    /// The longest piece of any lane; uniform.
    longest: Reg<'k, u32>,
}

impl<'k> StreamPiece<'k> {
    /// Returns the code of the literal at an address, with its length; 0 if there is no literal.
    fn code(&self, at: Reg<'k, u32>, there_is: Pred<'k>) -> Reg<'k, u32> {
        let k = self.ws.k;
        let byte = k.when(there_is).load_or(at.shared::<u8>(), 0u32);
        k.when(there_is).load_or(codes_address(self.ws).cast::<u16>().index(byte), 0u32)
    }

    /// Runs `body` with the bits of two literals and their number, for all pairs.
    fn for_each_pair(&self, body: impl FnOnce(Reg<'k, u32>, Reg<'k, u32>)) {
        let k = self.ws.k;
        let done = k.var(0u32);
        let at = k.var(self.last);
        k.do_while_uniform(|| {
            let first = self.code(*at, done.lt(self.len));
            let second = self.code(at - 1, (done + 1).lt(self.len));
            let first_bits = first >> CODE_LENGTH_SHIFT;
            let code = |code: Reg<'k, u32>| code & ((1 << CODE_LENGTH_SHIFT) - 1);
            let bits = code(first) | (code(second) << first_bits);
            body(bits, first_bits + (second >> CODE_LENGTH_SHIFT));
            at.set(at - 2);
            done.set(done + 2);
            done.lt(self.longest)
        });
    }

    /// Writes the piece from a bit of shared memory on. Words are set as they fill up.
    fn write(&self, from: Reg<'k, u32>) {
        let k = self.ws.k;
        let word_at: Var<'k, u32> = k.var((from >> 5) << 2);
        let filled = k.var(from & 31);
        let word = k.var(0u32);
        self.for_each_pair(|bits, count| {
            word.set(word | (bits << filled));
            let rest = bits >> (32 - filled);
            let end = filled + count;
            let full = end.ge(32);
            k.when(full).reduce(word_at.shared::<u32>(), AtomOp::Or, word);
            k.when(full).set(word, rest);
            k.when(full).set(word_at, word_at + 4);
            filled.set(end & 31);
        });
        k.when(word.ne(0)).reduce(word_at.shared::<u32>(), AtomOp::Or, word);
    }
}
