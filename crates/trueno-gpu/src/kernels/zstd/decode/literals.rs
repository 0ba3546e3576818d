//! Decodes the literals section to the end of the page buffer (section 3.1.1.3.1).

use super::format::MIN_FRAME_BYTES;
use super::frame::{Frame, LaneAccess};
use super::fse::FseTable;
use super::huffman::HuffmanBuffers;
use super::weights::{WeightBuffers, read_weights};
use crate::kernels::packed::PAGE_BYTES;
use crate::{KernelBuilder, Pred, Reg, Var};

/// Number of bytes between the page and the end of the literals behind it. A literal's place in the page is at least as
/// far before its source, which is therefore never in the window of 32 bytes being written.
pub(super) const SLACK_BYTES: u32 = 48;

/// Types of a literals section.
const RAW: u32 = 0;
pub(super) const RLE: u32 = 1;
const TREELESS: u32 = 3;

/// Shared memory for literals.
#[derive(Clone, Copy)]
pub(super) struct LiteralBuffers<'k> {
    pub(super) page: Reg<'k, u32>,
    pub(super) tree: HuffmanBuffers<'k>,
    /// Table of the weights' codes.
    pub(super) weights_table: FseTable<'k>,
}

/// The decoded literals. All of it is uniform.
#[derive(Clone, Copy)]
pub(super) struct Literals<'k> {
    pub(super) len: Reg<'k, u32>,
    /// Address of the first.
    pub(super) first: Reg<'k, u32>,
    /// Position of the sequences section in the frame.
    pub(super) sequences_at: Reg<'k, u32>,
}

/// The fields of a literals section's header. All of them are uniform if the lanes share the frame.
#[derive(Clone, Copy)]
pub(super) struct LiteralsHeader<'k> {
    pub(super) kind: Reg<'k, u32>,
    /// Holds if coded literals are in four streams.
    pub(super) is_four: Pred<'k>,
    pub(super) len: Reg<'k, u32>,
    /// Positions in the frame: of the content, and of the sequences section behind it.
    pub(super) held_at: Reg<'k, u32>,
    pub(super) held_end: Reg<'k, u32>,
}

impl<'k> Frame<'k> {
    /// Reads the header of the literals section at `start` of a block that ends at `end`.
    pub(super) fn read_literals_header(self, start: Reg<'k, u32>, end: Reg<'k, u32>) -> LiteralsHeader<'k> {
        self.k.section("literals header");
        let head = self.window(start * 8, self.lanes);
        let (kind, format) = (head & 3, head.bfe(2u32, 2u32));
        self.unsupported_if(kind.eq(TREELESS));
        let is_plain = kind.le(RLE);
        let (is_short, is_long) = (format.eq(1), format.eq(3));
        // Plain: 5 bits from bit 3, or 12 or 20 bits from bit 4. Coded: twice 10, 14 or 18 bits from bit 4.
        let plain_len =
            is_short.select(head.bfe(4u32, 12u32), is_long.select(head.bfe(4u32, 20u32), head.bfe(3u32, 5u32)));
        let plain_head = is_short.select(2u32, is_long.select(3u32, 1u32));
        let size_format = format.max(1u32);
        let size_bits = size_format * 4 + 6;
        let coded_bytes = self.window(start * 8 + size_bits + 4, self.lanes).bfe(0u32, size_bits);
        let len = is_plain.select(plain_len, head.bfe(4u32, size_bits)).named("literal_len");
        let held_at = start + is_plain.select(plain_head, size_format + 2);
        let plain_bytes = kind.eq(RAW).select(plain_len, 1u32);
        let held_end = (held_at + is_plain.select(plain_bytes, coded_bytes)).named("held_end");
        self.malformed_if(len.gt(PAGE_BYTES) | held_end.ge(end));
        LiteralsHeader { kind, is_four: format.ne(0), len, held_at, held_end }
    }
}

/// Decodes the literals section at `start` of a block that ends at `end`.
pub(super) fn decode_literals<'k>(
    frame: Frame<'k>,
    buffers: LiteralBuffers<'k>,
    start: Reg<'k, u32>,
    end: Reg<'k, u32>,
) -> Literals<'k> {
    let k = frame.k;
    let LiteralsHeader { kind, is_four, len, held_at, held_end } = frame.read_literals_header(start, end);
    let literals = Literals::before_slack(buffers.page, len, held_end);
    k.if_else_uniform(
        kind.le(RLE),
        || copy_plain(frame, kind.eq(RLE), held_at, &literals),
        || {
            let weight_buffers = WeightBuffers { weights: buffers.tree.weights, table: buffers.weights_table };
            let weights = read_weights(frame, weight_buffers, held_at, held_end);
            let log = buffers.tree.build(frame, *weights.count);
            decode_streams(frame, buffers.tree.table, log, *weights.streams_at, is_four, &literals);
        },
    );
    k.sync_warp();
    literals
}

impl<'k> Literals<'k> {
    /// Places `len` literals so that they end at the end of the buffer at `page`.
    pub(super) fn before_slack(page: Reg<'k, u32>, len: Reg<'k, u32>, sequences_at: Reg<'k, u32>) -> Self {
        let first = (page + (PAGE_BYTES + SLACK_BYTES) - len).named("literals");
        Self { len, first, sequences_at }
    }
}

/// Copies literals of the frame, or repeats one, a word per lane. The first word may start before them.
pub(super) fn copy_plain<'k>(frame: Frame<'k>, is_repeated: Pred<'k>, held_at: Reg<'k, u32>, literals: &Literals<'k>) {
    let Frame { k, lane, .. } = frame;
    k.section("plain literals");
    let end = literals.first + literals.len;
    let to = k.var((literals.first & !3) + lane * 4);
    let round = k.var(literals.first & !3);
    let byte = frame.byte(held_at, LaneAccess::Uniform);
    k.do_while_uniform(|| {
        let from = held_at + to - literals.first;
        let word = is_repeated.select(byte * 0x0101_0101, frame.window(from * 8, LaneAccess::PerLane));
        k.when(to.lt(end)).store(to.shared::<u32>(), word);
        to.set(to + 128);
        round.set(round + 128);
        round.lt(end)
    });
}

/// A stream of Huffman codes, one of four per lane or the same in all lanes.
struct HuffmanStream<'k> {
    frame: Frame<'k>,
    /// Address of the decoding table.
    table: Reg<'k, u32>,
    /// 32 less the longest code.
    unused: Reg<'k, u32>,
    first_bit: Reg<'k, i32>,
    /// Position after the bits to come.
    left: Var<'k, i32>,
    /// Address of the next literal.
    to: Var<'k, u32>,
    count: Reg<'k, u32>,
    /// Literals decoded of each stream; uniform.
    done: Var<'k, u32>,
}

/// Decodes one or four streams that start at `at` of the frame and end with the section.
pub(super) fn decode_streams<'k>(
    frame: Frame<'k>,
    table: Reg<'k, u32>,
    log: Reg<'k, u32>,
    at: Reg<'k, u32>,
    is_four: Pred<'k>,
    literals: &Literals<'k>,
) {
    let Frame { k, lane, .. } = frame;
    k.section("Huffman streams");
    let Literals { len, first, sequences_at: end } = *literals;
    let (from, to) = (k.var(at), k.var(end));
    let (place, count) = (k.var(first), k.var(len));
    // Literals in each stream but the last, and in the last.
    let (most, fewest) = (k.var(len).named("most"), k.var(len).named("fewest"));
    k.if_uniform(is_four, || {
        frame.malformed_if(len.lt(6) | (end - at).lt(10));
        let (low, high) = (frame.window(at * 8, LaneAccess::Uniform), frame.window(at * 8 + 32, LaneAccess::Uniform));
        let stream = lane & 3;
        let second = at + 6 + (low & 0xffff);
        let third = second + (low >> 16);
        let fourth = third + (high & 0xffff);
        // A stream has a byte at least, and the last one does not start past the end.
        let is_empty = (low & 0xffff).eq(0) | (low >> 16).eq(0) | (high & 0xffff).eq(0);
        frame.malformed_if(fourth.ge(end) | is_empty);
        let (is_first, is_second, is_third) = (stream.eq(0), stream.eq(1), stream.eq(2));
        from.set(is_first.select(at + 6, is_second.select(second, is_third.select(third, fourth))));
        to.set(is_first.select(second, is_second.select(third, is_third.select(fourth, end))));
        most.set((len + 3) >> 2);
        fewest.set(len - most * 3);
        count.set(stream.eq(3).select(*fewest, *most));
        place.set(stream.mad(*most, first));
    });
    let last = frame.byte(to - 1, LaneAccess::PerLane);
    frame.malformed_if(last.eq(0).any() | from.ge(to).any());
    let stream = HuffmanStream {
        frame,
        table,
        first_bit: (from * 8).as_i32(),
        left: k.var(((to - 1) * 8 + last.bfind()).as_i32()).named("left"),
        to: place,
        count: *count,
        done: k.var(0u32).named("done"),
        unused: 32 - log,
    };
    let done = stream.done;
    // Codes of one window of 32 bits.
    let rounds = |codes: u32| stream.decode_rounds(codes, *fewest);
    k.if_else_uniform(log.le(8), || rounds(4), || k.if_else_uniform(log.le(10), || rounds(3), || rounds(2)));
    k.section("the last Huffman codes");
    k.while_uniform(
        || done.lt(most),
        || {
            let is_left = done.lt(stream.count);
            let entry = stream.next_entry(stream.window());
            k.when(is_left).store_conflicting(stream.to.shared::<u8>(), entry >> 8);
            k.when(is_left).set(stream.left, stream.left - (entry & 0xff).as_i32());
            stream.to.set(stream.to + 1);
            done.set(done + 1);
        },
    );
    frame.malformed_if(stream.left.ne(stream.first_bit).any());
}

impl<'k> HuffmanStream<'k> {
    /// Returns the next 32 bits. Once the stream is used up they have no meaning, which its end will show.
    fn window(&self) -> Reg<'k, u32> {
        self.frame.window_below(self.left.max(self.first_bit).as_u32(), LaneAccess::PerLane)
    }

    /// Returns the table's entry for the next bits.
    fn next_entry(&self, bits: Reg<'k, u32>) -> Reg<'k, u32> {
        (bits >> self.unused).mad(2u32, self.table).shared::<u16>().load()
    }

    /// Decodes twice `codes` literals per round while every stream has as many, then `codes`, without conditions.
    fn decode_rounds(&self, codes: u32, fewest: Reg<'k, u32>) {
        let Self { frame, done, .. } = *self;
        let k: &'k KernelBuilder = frame.k;
        // Takes `codes` codes off the top of `bits`. Returns how many bits they have; other fields are above.
        let decode = |bits: Reg<'k, u32>, first: u32| {
            let bits = k.var(bits);
            let used = k.var(0u32);
            for i in first..first + codes {
                let entry = self.next_entry(*bits);
                // Lanes of one stream store the same byte.
                self.to.shared::<u8>().at(i.cast_signed()).store_conflicting(entry >> 8);
                bits.set(frame.after_top(*bits, entry));
                used.set(used + entry);
            }
            *used & 0xff
        };
        let advance = |used: Reg<'k, u32>, count: u32| {
            self.left.set(self.left - used.as_i32());
            self.to.set(self.to + count);
            done.set(done + count);
        };
        k.while_uniform(
            || (done + 2 * codes).le(fewest),
            || {
                let [high, low] = self.double_window();
                let used = decode(high, 0);
                // All of the high half may be used.
                let more = decode(low.funnel_shl_clamp(high, used), codes);
                advance(used + more, 2 * codes);
            },
        );
        k.while_uniform(|| (done + codes).le(fewest), || advance(decode(self.window(), 0), codes));
    }

    /// Returns the next 64 bits, the first ones in the first word. The note at [`Self::window`] applies to them too.
    fn double_window(&self) -> [Reg<'k, u32>; 2] {
        let end = self.left.max(self.first_bit).as_u32();
        let word = self.frame.words.index(end >> 5);
        let [low, middle, high] = [word.at(-2), word.at(-1), word].map(|word| word.load());
        [middle.funnel_shr(high, end), low.funnel_shr(middle, end)]
    }
}

/// A stream starts more than three words into its frame: behind the headers of the frame, the block and the literals,
/// and the weights.
const _: () = assert!(MIN_FRAME_BYTES + 3 + 2 >= 3 * 4);
