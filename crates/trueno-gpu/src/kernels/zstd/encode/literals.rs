//! Gathers the literals, the bytes that no match covers, into one run.

use super::find::Workspace;
use super::format::PAGE_BYTES;
use super::record::RecordReader;
use crate::kernels::scan::scan;
use crate::{Reg, Var};

/// Runs up to this many bytes are copied by their lane; longer ones by the whole warp.
const SHORT_RUN: u32 = 16;

/// Copies the page's literals over the table. Returns their number.
pub(super) fn gather_literals<'k>(ws: Workspace<'k>, count: Var<'k, u32>) -> Var<'k, u32> {
    let Workspace { k, page, .. } = ws;
    let to = ws.table;
    k.section("literals: gather, 32 runs at a time");
    let done = k.var(0u32);
    // Bytes of the page covered so far, and literals gathered so far.
    let (covered, gathered) = (k.var(0u32), k.var(0u32).named("gathered"));
    let records = RecordReader::start(ws, *count, k.value(0u32));
    k.while_uniform(
        || done.lt(count),
        || {
            let record = records.take(done + 32);
            let run = record.literals;
            // Both sums in one scan: the page above, the literals below.
            let own = (run + record.length).mad(1 << 16, run);
            let through = scan(k, own, |a, b| a + b);
            let total = through.shfl(31u32);
            let before = through - own;
            let from = page + covered + (before >> 16);
            let place = to + gathered + (before & 0xffff);
            copy_short_runs(ws, from, place, run);
            k.section("literals: long runs");
            let long = k.var(run.gt(SHORT_RUN).ballot());
            k.while_uniform(
                || long.ne(0),
                || {
                    let owner = long.bfind();
                    long.set(long ^ (1u32 << owner));
                    ws.copy.copy(from.shfl(owner), place.shfl(owner), run.shfl(owner));
                },
            );
            k.section("literals: gather, 32 runs at a time");
            covered.set(covered + (total >> 16));
            gathered.set(gathered + (total & 0xffff));
            done.set(done + 32);
        },
    );
    k.section("literals: the last run");
    let rest = PAGE_BYTES - covered;
    k.if_uniform(rest.ne(0), || ws.copy.copy(page + covered, to + gathered, rest));
    gathered.set(gathered + rest);
    gathered
}

/// Lanes copy their own runs, four bytes at a time.
fn copy_short_runs<'k>(ws: Workspace<'k>, from: Reg<'k, u32>, to: Reg<'k, u32>, run: Reg<'k, u32>) {
    let k = ws.k;
    k.section("literals: short runs");
    let (from, to) = (k.var(from), k.var(to));
    let left = k.var(run.gt(SHORT_RUN).select(0u32, run).as_i32());
    k.while_uniform(
        || left.gt(0).any(),
        || {
            let aligned = (from & !3u32).shared::<u32>();
            let word = k.when(left.gt(0)).load_or(aligned, 0u32);
            // At a multiple of four the next word is not needed; behind the page it is another lane's to write.
            let next = k.when(left.gt(0) & (from & 3).ne(0)).load_or(aligned.at(1), 0u32);
            let bytes = word.funnel_shr(next, from << 3);
            for n in 0..4i32 {
                k.when(left.gt(n)).store(to.shared::<u8>().at(n), bytes >> (8 * n.cast_unsigned()));
            }
            from.set(from + 4);
            to.set(to + 4);
            left.set(left - 4);
        },
    );
}
