//! Builds the decoding table of a Huffman tree from its weights (section 4.2.1).

use super::format::MAX_CODE_BITS;
use super::frame::Frame;
use super::weights::WEIGHTS_BYTES;
use crate::kernels::scan::scan;
use crate::{KernelBuilder, Reg};

/// Number of bytes of the symbols, sorted by weight.
pub(super) const SORTED_BYTES: u32 = 256;

/// Number of bytes of the largest table.
pub(super) const HUFFMAN_TABLE_BYTES: u32 = 2 << MAX_CODE_BITS;

/// Shared addresses of weights, sorted symbols and table.
#[derive(Clone, Copy)]
pub(super) struct HuffmanBuffers<'k> {
    pub(super) weights: Reg<'k, u32>,
    pub(super) sorted: Reg<'k, u32>,
    /// Entries of 16 bits, symbol above and length of the code below, by the next bits of the stream.
    pub(super) table: Reg<'k, u32>,
    /// The longest code that the table has room for.
    pub(super) max_log: u32,
}

/// The lanes that hold a symbol of the weight that has the lane's number.
struct Holders<'k> {
    k: &'k KernelBuilder,
    /// Masks that turn the bits of the lane's own number into all ones.
    inverted: [Reg<'k, u32>; 4],
}

impl<'k> Holders<'k> {
    fn new(k: &'k KernelBuilder, lane: Reg<'k, u32>) -> Self {
        let inverted = [1u32, 2, 4, 8].map(|bit| (lane & bit).eq(0).select(u32::MAX, 0u32));
        Self { k, inverted }
    }

    /// Returns, in lanes 0 to 15, which lanes hold the weight of the lane's number.
    fn of(&self, weight: Reg<'k, u32>) -> Reg<'k, u32> {
        let all = self.k.value(u32::MAX);
        [1u32, 2, 4, 8]
            .into_iter()
            .zip(self.inverted)
            .fold(all, |held, (bit, inverted)| (weight & bit).ne(0).ballot().xor_and(inverted, held))
    }
}

impl<'k> HuffmanBuffers<'k> {
    /// Completes `count` weights and builds the table. Returns the length of the longest code; uniform.
    pub(super) fn build(self, frame: Frame<'k>, count: Reg<'k, u32>) -> Reg<'k, u32> {
        let Frame { k, lane, .. } = frame;
        k.section("Huffman table");
        let holders = Holders::new(k, lane);
        let own_weight = (self.weights + lane).shared::<u8>();
        // In lane `w`: the number of symbols of weight `w`.
        let held = k.var(0u32).named("held");
        let is_bad = k.var(false);
        self.for_each_32(k, count, |first| {
            let weight = own_weight.byte_add(first).load();
            held.set(held + holders.of(weight).popc());
            is_bad.set(*is_bad | weight.gt(MAX_CODE_BITS + 1));
        });
        frame.malformed_if(is_bad.any());
        let is_weight = (lane - 1).lt(MAX_CODE_BITS + 1);
        let codes = is_weight.select(*held << (lane - 1), 0u32);
        let total = scan(k, codes, |a, b| a + b).shfl(31u32);
        frame.malformed_if(total.eq(0));
        let log = total.bfind() + 1;
        let rest = (1u32 << log) - total;
        frame.malformed_if(log.gt(MAX_CODE_BITS + 1) | (rest & (rest - 1)).ne(0));
        let last_weight = rest.bfind() + 1;
        k.sync_warp();
        (self.weights + count).shared::<u8>().store_conflicting(last_weight);
        k.when(lane.eq(last_weight)).set(held, held + 1);
        // Their number is even, since all others add up to an even number.
        frame.malformed_if(held.shfl(1u32).eq(0));
        frame.unsupported_if(log.gt(self.max_log));

        // Entries below, symbols above.
        let held = is_weight.select(*held, 0u32);
        let entries = held << (lane - 1);
        let through = scan(k, entries | (held << 16), |a, b| a + b);
        let (first_entry, first_symbol) = ((through & 0xffff) - entries, (through >> 16) - held);
        k.sync_warp();
        let below = k.lanemask_lt();
        let next = k.var(first_symbol);
        self.for_each_32(k, count + 1, |first| {
            let weight = own_weight.byte_add(first).load();
            let held_by = holders.of(weight);
            let place = next.shfl(weight) + (held_by.shfl(weight) & below).popc();
            k.when(weight.ne(0)).store((self.sorted + place).shared::<u8>(), first + lane);
            next.set(next + held_by.popc());
        });
        k.sync_warp();
        self.fill(frame, log, held, first_entry, first_symbol);
        k.sync_warp();
        log
    }

    fn for_each_32(self, k: &'k KernelBuilder, count: Reg<'k, u32>, body: impl FnOnce(Reg<'k, u32>)) {
        let first = k.var(0u32);
        k.do_while_uniform(|| {
            body(*first);
            first.set(first + 32);
            first.lt(count)
        });
    }

    /// Fills the table, two entries per store. In lane `w`, `held` is the number of symbols of weight `w`, and the
    /// others are the starts of their entries and sorted symbols.
    fn fill(
        self,
        frame: Frame<'k>,
        log: Reg<'k, u32>,
        held: Reg<'k, u32>,
        first_entry: Reg<'k, u32>,
        first_symbol: Reg<'k, u32>,
    ) {
        let Frame { k, lane, .. } = frame;
        let fill = |words: Reg<'k, u32>, to: Reg<'k, u32>, word: &dyn Fn(Reg<'k, u32>) -> Reg<'k, u32>| {
            let first = k.var(0u32);
            k.while_uniform(
                || first.lt(words),
                || {
                    // A lane past the end repeats the last word.
                    let i = (first + lane).min(words - 1);
                    (to + i * 4).shared::<u32>().store_conflicting(word(i));
                    first.set(first + 32);
                },
            );
        };
        // Weight 1: two symbols per word, since their number is even.
        fill(held.shfl(1u32) >> 1, self.table, &|i| {
            let two = (self.sorted + i * 2).shared::<u16>().load();
            two.prmt(0u32, 0x1404u32) | (log * 0x0001_0001)
        });
        let weight = k.var(2u32);
        k.while_uniform(
            || weight.le(log),
            || {
                let words = held.shfl(*weight) << (weight - 2);
                let to = self.table + first_entry.shfl(*weight) * 2;
                let symbols = self.sorted + first_symbol.shfl(*weight);
                let bits = log + 1 - weight;
                fill(words, to, &|i| {
                    let symbol = (symbols + (i >> (weight - 2))).shared::<u8>().load();
                    let entry = symbol.mad(256u32, bits);
                    entry.prmt(0u32, 0x1010u32)
                });
                weight.set(weight + 1);
            },
        );
    }
}

/// The scratch memory of a tree lies in the page, which is not used before the literals are decoded.
const _: () = assert!(WEIGHTS_BYTES + SORTED_BYTES <= 4096);
