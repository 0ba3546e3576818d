//! Restores a page that the first stage has prepared, by one warp.

use super::super::checksum::xxh64_low;
use super::super::execute::{BITMAP_BYTES, Gather};
use super::super::frame::{Frame, LaneAccess};
use super::super::huffman::HuffmanBuffers;
use super::super::literals::{Literals, RLE, copy_plain, decode_streams};
use super::super::restore::BUFFER_BYTES;
use super::super::weights::{WEIGHTS_BYTES, read_direct};
use super::group::{
    HAS_CHECKSUM, IS_FOUR, IS_PREPARED, KIND_SHIFT, LITERALS_MASK, MAX_CODE_BITS, PageDescription, PageGroup,
    RECORD_BYTES, SEQUENCES_BITS, SEQUENCES_SHIFT,
};
use super::weights::{CODED, COUNT_SHIFT, IS_DIRECT};
use crate::ir::AtomOp;
use crate::kernels::packed::{PAGE_BYTES, PackedPage, PageStatus, RestoreAttempt};
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg};

/// Restores the page of a slot in the memory at shared address `buffer`. Leaves it to the third stage if it is not
/// prepared or turns out to be malformed.
pub(super) fn restore_prepared<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    page: &PackedPage<'k>,
    buffer: Reg<'k, u32>,
    group: PageGroup<'k>,
    slot: Reg<'k, u32>,
) -> RestoreAttempt<'k> {
    k.section("a prepared page");
    let is_page = k.var(false).named("is_page");
    let refused_as = k.var(PageStatus::BadBlock as u32);
    let description = group.description(slot);
    let [sizes, held, weights] = [PageDescription::SIZES, PageDescription::HELD, PageDescription::WEIGHTS]
        .map(|word| description.at(word).load_uniform());
    k.block_uniform(|refuse| {
        let kind = sizes >> KIND_SHIFT;
        refuse.exit_if((sizes & IS_PREPARED).eq(0) | (kind.eq(CODED) & weights.eq(0)));
        let frame = Frame::of_warp(k, lane, page, refuse, refused_as);
        let literals = Literals::before_slack(buffer, sizes & LITERALS_MASK, held >> 16);
        let held_at = held & 0xffff;
        k.if_else_uniform(
            kind.le(RLE),
            || copy_plain(frame, kind.eq(RLE), held_at, &literals),
            || {
                let tree = HuffmanBuffers {
                    weights: buffer,
                    sorted: buffer + WEIGHTS_BYTES,
                    table: buffer + BUFFER_BYTES,
                    max_log: MAX_CODE_BITS,
                };
                let count = weights.bfe(COUNT_SHIFT, 8u32);
                load_weights(frame, tree.weights, group.weights(slot), held_at, count, (weights & IS_DIRECT).ne(0));
                let log = tree.build(frame, count);
                let is_four = (sizes & IS_FOUR).ne(0);
                decode_streams(frame, tree.table, log, weights & 0xffff, is_four, &literals);
            },
        );
        k.sync_warp();
        let gather = Gather::new(k, buffer, buffer + BUFFER_BYTES);
        let sequences = sizes.bfe(SEQUENCES_SHIFT, SEQUENCES_BITS);
        k.if_uniform(sequences.ne(0), || {
            mark_records(frame, gather, &literals, group.records(slot), sequences);
        });
        gather.finish(frame, &literals);
        k.if_uniform((sizes & HAS_CHECKSUM).ne(0), || {
            let stored = frame.window((frame.len - 4) * 8, LaneAccess::Uniform);
            frame.malformed_if(xxh64_low(k, lane, buffer).ne(stored));
        });
        is_page.set(true);
    });
    let is_left_over = lane.eq(0) & !*is_page;
    k.when(is_left_over).reduce(group.left_over, AtomOp::Or, 1u32 << slot);
    RestoreAttempt { is_page, page: buffer, refused_as: None }
}

/// Brings the weights of a tree, one byte each; bytes after them are 0.
fn load_weights<'k>(
    frame: Frame<'k>,
    weights: Reg<'k, u32>,
    prepared: Addr<'k, Global, u32>,
    held_at: Reg<'k, u32>,
    count: Reg<'k, u32>,
    is_direct: Pred<'k>,
) {
    let Frame { k, lane, .. } = frame;
    let own = (weights + lane * 8).shared::<u32>();
    k.if_else_uniform(
        is_direct,
        || {
            own.store_vec([0u32; 2]);
            k.sync_warp();
            read_direct(frame, weights, held_at + 1, count);
        },
        || {
            // Eight weights per lane. The last word has zeros behind the last weight.
            let word = k.when((lane * 8).lt(count)).load_or(prepared.index(lane), 0u32);
            let (even, odd) = (word & 0x0f0f_0f0f, (word >> 4) & 0x0f0f_0f0f);
            own.store_vec([even.prmt(odd, 0x5140u32), even.prmt(odd, 0x7362u32)]);
        },
    );
    k.sync_warp();
}

/// Marks the segments of all sequences and writes their output.
fn mark_records<'k>(
    frame: Frame<'k>,
    gather: Gather<'k>,
    literals: &Literals<'k>,
    records: Addr<'k, Global, u32>,
    count: Reg<'k, u32>,
) {
    let Frame { k, lane, .. } = frame;
    k.section("mark segments");
    let below = k.lanemask_lt();
    gather.clear_marks(lane);
    k.sync_warp();
    let own_record = records.step(lane, RECORD_BYTES);
    // End of the sequence before the lane's, in lane 0.
    let end_before = k.var(0u32).named("end_before");
    let segments = k.var(gather.segments()).named("segments");
    let [places, ends] = [(); 2].map(|()| k.var(0u32));
    let done = k.var(0u32).named("done");
    k.do_while_uniform(|| {
        let is_active = (done + lane).lt(count);
        k.when(is_active).load_vec([places, ends], own_record.byte_add((*done * RECORD_BYTES).to_u64()));
        let (match_start, offset) = (*places & 0xffff, *places >> 16);
        let (match_end, first_literal) = (*ends & 0xffff, *ends >> 16);
        let literal_start = lane.eq(0).select(*end_before, match_end.shfl_up(1u32));
        let has_literals = is_active & match_start.ne(literal_start);
        let with_literals = has_literals.ballot();
        gather.mark(has_literals, literal_start);
        gather.mark(is_active, match_start);
        let entry = (lane + (with_literals & below).popc()).mad(2u32, *segments);
        let distance = literals.first + first_literal - gather.address(literal_start);
        k.when(has_literals).store(entry.shared::<u16>(), distance);
        let match_entry = entry + has_literals.select(2u32, 0u32);
        k.when(is_active).store(match_entry.shared::<u16>(), 0 - offset);
        segments.set((with_literals.popc() + 32).mad(2u32, *segments));
        // Lanes past the end keep the record before; those of the last sequence are what the page needs.
        end_before.set(match_end.shfl((count - 1 - *done).min(31u32)));
        done.set(done + 32);
        done.lt(count)
    });
    k.sync_warp();
    gather.write_marked(frame, literals, *end_before);
}

/// Every distance fits a signed half word.
const _: () = assert!(PAGE_BYTES + BUFFER_BYTES < 1 << 15 && BITMAP_BYTES * 8 == PAGE_BYTES);
