//! Counts the literals, and estimates whether coding them saves bytes.

use super::super::bits::log2_fixed;
use super::super::choices::TREE_SIXTEENTHS;
use super::super::find::Workspace;
use super::{COUNTS, DESCRIPTION, DESCRIPTION_BYTES, NODES};
use crate::ir::AtomOp;
use crate::kernels::reduce::{warp_max, warp_sum};
use crate::{KernelBuilder, Pred, Reg, Var};

/// Statistics of the literals. The keys of the symbols that occur, count above symbol, lie at [`NODES`] in symbol
/// order.
pub(super) struct LiteralCounts<'k> {
    /// Number of different symbols; uniform.
    pub(super) symbols: Var<'k, u32>,
    /// The last of them; uniform.
    pub(super) last: Var<'k, u32>,
    /// The largest count that a lane has seen.
    largest: Var<'k, u32>,
    /// The lane's part of the entropy, in steps of 1/256 bits.
    entropy: Var<'k, u32>,
}

pub(super) fn count<'k>(ws: Workspace<'k>, literals: Reg<'k, u32>, total: Reg<'k, u32>) -> LiteralCounts<'k> {
    let Workspace { k, lane, page, .. } = ws;
    k.section("huffman: count");
    let own = (page + lane * 16).shared::<u32>();
    for n in 0..2 {
        own.byte_offset(COUNTS.cast_signed() + 512 * n).store_vec([0u32; 4]);
    }
    for n in (0..DESCRIPTION_BYTES).step_by(128) {
        let inside = lane.lt((DESCRIPTION_BYTES - n) / 4);
        k.when(inside).store((page + DESCRIPTION + n + lane * 4).shared::<u32>(), 0u32);
    }
    k.sync_warp();
    let at = k.var(lane * 4);
    let from = k.var(0u32);
    k.do_while_uniform(|| {
        let word = (literals + at).shared::<u32>().load();
        for n in 0..4u32 {
            let byte = word.bfe(8 * n, 8u32);
            let slot = (page + COUNTS).shared::<u32>().index(byte);
            k.when((at + n).lt(total)).reduce(slot, AtomOp::Add, 1u32);
        }
        at.set(at + 128);
        from.set(from + 128);
        from.lt(total)
    });
    k.sync_warp();
    list_symbols(ws, total)
}

/// Lists the symbols that occur.
fn list_symbols<'k>(ws: Workspace<'k>, total: Reg<'k, u32>) -> LiteralCounts<'k> {
    let Workspace { k, lane, page, .. } = ws;
    k.section("huffman: list the symbols");
    let counted = LiteralCounts {
        symbols: k.var(0u32).named("symbols"),
        last: k.var(0u32),
        largest: k.var(0u32),
        entropy: k.var(0u32),
    };
    let LiteralCounts { symbols, last, largest, entropy } = counted;
    let below = k.lanemask_lt();
    let log_total = log2_fixed(total);
    let first = k.var(0u32);
    k.do_while_uniform(|| {
        let symbol = first + lane;
        let count = (page + COUNTS).shared::<u32>().index(symbol).load();
        let occurs = count.ne(0);
        let present = occurs.ballot();
        let place = symbols + (present & below).popc();
        k.when(occurs).store((page + NODES).shared::<u32>().index(place), (count << 8) | symbol);
        symbols.set(symbols + present.popc());
        k.when(present.ne(0)).set(last, first + present.bfind());
        largest.set(largest.max(count));
        entropy.set(count.mad(log_total - log2_fixed(count.max(1u32)), *entropy));
        first.set(first + 32);
        first.lt(256)
    });
    k.sync_warp();
    counted
}

impl<'k> LiteralCounts<'k> {
    /// Returns a predicate that holds if the entropy alone, with an estimate of the description, is as long as the
    /// literals; uniform.
    pub(super) fn cannot_pay(&self, k: &'k KernelBuilder, total: Reg<'k, u32>) -> Pred<'k> {
        let bytes = warp_sum(k, *self.entropy) >> 11;
        (bytes + 10 + ((self.symbols * TREE_SIXTEENTHS) >> 4)).ge(total)
    }

    /// Returns the largest count; uniform.
    pub(super) fn largest(&self, k: &'k KernelBuilder) -> Reg<'k, u32> {
        warp_max(k, *self.largest)
    }
}
