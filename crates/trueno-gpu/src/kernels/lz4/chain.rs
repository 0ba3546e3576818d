//! Finds the token chain of a block with all lanes at once, and the output of each lane's part of it.
//!
//! The start of a sequence is only known after the sequence before it was read. So each lane takes a 32nd of the input
//! and walks from its start as if a token were there. Then each lane starts again where the furthest lane before it
//! ended, until nothing changes. Lanes reach the true chain after a few sequences, so a few rounds suffice.

use super::format::{MIN_MATCH, PAGE_BYTES, RUN_MASK};
use crate::kernels::scan::scan;
use crate::{KernelBuilder, Pred, Reg, Var};

/// Position of the segment count in a lane's sum: segments (literal runs and matches) above, output bytes below.
pub(super) const SEGMENT_SHIFT: u32 = 20;
const ONE_SEGMENT: u32 = 1 << SEGMENT_SHIFT;
pub(super) const OUTPUT_MASK: u32 = ONE_SEGMENT - 1;

/// Longer than any length in a page, so that sums cannot wrap.
const LENGTH_CLAMP: u32 = 2 * PAGE_BYTES - 1;

/// More output than any lane of a valid block produces.
const OUTPUT_CLAMP: u32 = 5000;

/// The last sequence has no match, but is counted as if it had one: a nibble and the minimum.
pub(super) const PHANTOM_MATCH: u32 = MIN_MATCH + RUN_MASK;

/// The block in shared memory.
#[derive(Clone, Copy)]
pub(super) struct BlockInput<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) lane: Reg<'k, u32>,
    pub(super) start: Reg<'k, u32>,
    pub(super) end: Reg<'k, u32>,
}

/// One complete sequence.
pub(super) struct ReadSequence<'k> {
    /// Address of the first literal.
    pub(super) literals: Reg<'k, u32>,
    pub(super) literal_len: Reg<'k, u32>,
    /// Length of the match above the minimum.
    pub(super) extra: Reg<'k, u32>,
    /// Address of the next token.
    pub(super) next: Reg<'k, u32>,
}

/// A lane's part of the true chain.
pub(super) struct ChainPart<'k> {
    /// Address of the part's first token.
    pub(super) first: Reg<'k, u32>,
    /// Tokens at or after this address belong to later lanes.
    pub(super) end: Reg<'k, u32>,
    /// Output bytes and segments of all lanes before this one.
    pub(super) before: Reg<'k, u32>,
    /// Output bytes and segments of all lanes; uniform.
    pub(super) total: Reg<'k, u32>,
}

/// The work of a walk besides following the chain.
#[derive(Clone, Copy, PartialEq)]
enum WalkKind {
    /// Nothing else.
    Plain,
    /// Detects that a lane is off the chain (an offset above 4095, or literals past the end) and moves it 4 bytes on.
    Checking,
    /// Counts output bytes and segments.
    Counting,
}

impl<'k> BlockInput<'k> {
    /// Finds the chain, and the output bytes and segments of each lane's part.
    pub(super) fn find_chain(self) -> ChainPart<'k> {
        let Self { k, lane, start, end } = self;
        k.section("token chain: every lane walks from its part's start");
        let part_bytes = (end - start + 31) >> 5;
        let first = k.var(lane.mad(part_bytes, start)).named("first");
        let part_end = (first + part_bytes).min(end).named("part_end");
        let at = k.var(first).named("at");
        let unused = k.var(0u32);
        let again = k.var(true);
        let round = k.var(0u32);
        k.loop_uniform(|rounds| {
            k.when(*again).set(at, *first);
            k.if_else_uniform(
                round.lt(2),
                || self.walk(WalkKind::Checking, at, part_end, *again, unused),
                || self.walk(WalkKind::Plain, at, part_end, *again, unused),
            );
            round.set(round + 1);
            // Long literal runs jump over whole parts, so the furthest end of all lanes before this one counts.
            let furthest = scan(k, *at, |a, b| a.max(b));
            let entry = furthest.shfl_up(1u32);
            again.set(lane.ne(0) & entry.ne(first));
            k.when(*again).set(first, entry);
            rounds.break_if(!again.any());
        });

        k.section("output bytes and segments of each lane");
        let sum = k.var(0u32).named("sum");
        at.set(first);
        self.walk(WalkKind::Counting, at, part_end, k.value(true), sum);
        let own = (sum & OUTPUT_MASK).min(OUTPUT_CLAMP) | (sum & !OUTPUT_MASK);
        let through = scan(k, own, |a, b| a + b);
        ChainPart { first: *first, end: part_end, before: through - own, total: through.shfl(31u32) }
    }

    /// Walks from `at` to the first token at or after `part_end`, in the lanes where `go` holds.
    fn walk(self, kind: WalkKind, at: Var<'k, u32>, part_end: Reg<'k, u32>, go: Pred<'k>, sum: Var<'k, u32>) {
        let k = self.k;
        // A lane that meets a length of several bytes stops by setting its limit to 0. A lane that does not walk has
        // limit 1.
        let limit = k.var(go.select(part_end, 1u32));
        let bytes = [(); 4].map(|()| k.var_arbitrary::<u32>());
        k.loop_uniform(|walking| {
            // A hop that no lane takes changes nothing, so the first hop needs no test before it.
            k.do_while_uniform(|| {
                self.hop(kind, at, limit, sum, bytes);
                at.lt(limit).any()
            });
            let stopped = limit.eq(0);
            walking.break_if(!stopped.any());
            k.section("a length of several bytes");
            let sequence = self.read_sequence(*at, stopped);
            if kind == WalkKind::Counting {
                k.when(stopped).set(sum, sum + sequence.literal_len + sequence.extra + (ONE_SEGMENT + MIN_MATCH));
                k.when(stopped & sequence.literal_len.ne(0)).set(sum, sum + ONE_SEGMENT);
            }
            k.when(stopped).set(at, sequence.next);
            k.when(stopped).set(limit, part_end);
        });
    }

    /// Takes one step along the chain in the lanes below their limit, without a branch. `bytes` are registers for
    /// loaded bytes, kept between steps.
    fn hop(self, kind: WalkKind, at: Var<'k, u32>, limit: Var<'k, u32>, sum: Var<'k, u32>, bytes: [Var<'k, u32>; 4]) {
        let k = self.k;
        let [token, literal_more, match_more, offset_high] = bytes;
        let here = at.shared::<u8>();
        let goes = at.lt(limit);
        k.when(goes).load(token, here);
        let nibble = token >> 4;
        let long_literals = token.ge(RUN_MASK << 4) & goes;
        k.when(long_literals).load(literal_more, here.at(1));
        // One byte before the offset field.
        let n = k.var(at + nibble);
        k.when(long_literals).set(n, n + literal_more + 1);
        let match_nibble = token & RUN_MASK;
        let long_match = match_nibble.eq(RUN_MASK) & goes;
        let off_chain = match kind {
            WalkKind::Checking => {
                let has_match = n.lt(self.end - 3) & goes;
                k.when(has_match).load(offset_high, n.shared::<u8>().at(2));
                let too_far = offset_high.gt((PAGE_BYTES >> 8) - 1) & has_match;
                let ends_wrong = n.ge(self.end - 3) & goes & n.ne(self.end - 1);
                Some(too_far | ends_wrong)
            }
            WalkKind::Plain | WalkKind::Counting => None,
        };
        let long_match = off_chain.map_or(long_match, |off_chain| long_match & !off_chain);
        let long_match = n.lt(self.end - 3) & long_match;
        k.when(long_match).load(match_more, n.shared::<u8>().at(3));
        k.when(long_match).set(n, n + 1);
        let stops = (literal_more.eq(255) & long_literals) | (match_more.eq(255) & long_match);
        k.when(stops).set(limit, 0u32);
        let goes = goes & !stops;
        if kind == WalkKind::Counting {
            k.when(goes).set(sum, sum + (nibble + match_nibble) + (ONE_SEGMENT + MIN_MATCH));
            k.when(goes & token.ge(16)).set(sum, sum + ONE_SEGMENT);
            k.when(goes & long_literals).set(sum, sum + literal_more);
            k.when(goes & long_match).set(sum, sum + match_more);
        }
        if let Some(off_chain) = off_chain {
            k.when(off_chain).set(n, at + 1);
        }
        k.when(goes).set(at, n + 3);
    }

    /// Reads the sequence at `at` in the lanes where `go` holds, with lengths of any number of bytes. Never reads past
    /// the input.
    pub(super) fn read_sequence(self, at: Reg<'k, u32>, go: Pred<'k>) -> ReadSequence<'k> {
        let k = self.k;
        let token = k.when(go).load_or(at.shared::<u8>(), 0u32);
        let (literal_len, literals) = self.read_length(token >> 4, at + 1, go);
        let after_offset = literals + literal_len + 2;
        let (extra, next) = self.read_length(token & RUN_MASK, after_offset, go);
        ReadSequence { literals, literal_len, extra, next }
    }

    /// Reads a length that starts with `nibble` and continues at `at`. Returns it, and the address after its last byte.
    fn read_length(self, nibble: Reg<'k, u32>, at: Reg<'k, u32>, go: Pred<'k>) -> (Reg<'k, u32>, Reg<'k, u32>) {
        let k = self.k;
        let length = k.var(nibble);
        let at = k.var(at);
        let more = k.var(go & nibble.eq(RUN_MASK) & at.lt(self.end));
        k.while_uniform(
            || more.any(),
            || {
                let byte = k.when(*more).load_or(at.shared::<u8>(), 0u32);
                length.set(length + byte);
                k.when(*more).set(at, at + 1);
                more.set(*more & byte.eq(255) & at.lt(self.end));
            },
        );
        (length.min(LENGTH_CLAMP), *at)
    }
}
