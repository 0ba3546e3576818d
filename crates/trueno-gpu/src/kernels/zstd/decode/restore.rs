//! Restores a page from its frame by one warp.

use super::checksum::xxh64_low;
use super::constants::Constants;
use super::execute::{GATHER_SCRATCH_BYTES, Gather};
use super::format::{MAX_CODE_BITS, MAX_TABLE_ENTRIES};
use super::frame::{Frame, LaneAccess};
use super::fse::{FSE_SCRATCH_BYTES, FseTable};
use super::header::{FrameHeaders, RAW, RLE};
use super::huffman::{HUFFMAN_TABLE_BYTES, HuffmanBuffers};
use super::literals::{LiteralBuffers, SLACK_BYTES, decode_literals};
use super::sequences::{RECORDS_BYTES, SequenceBuffers, decode_sequences};
use super::weights::WEIGHTS_BYTES;
use crate::kernels::packed::{PAGE_BYTES, PackedPage, PageStatus, RestoreAttempt};
use crate::{KernelBuilder, Reg};

/// The page, and the literals behind its end.
pub(super) const BUFFER_BYTES: u32 = (PAGE_BYTES + SLACK_BYTES).next_multiple_of(64);

/// The Huffman table, and later the sequence tables with scratch memory behind them.
const TABLES_BYTES: u32 = HUFFMAN_TABLE_BYTES;
const SCRATCH_AT: u32 = 4 * MAX_TABLE_ENTRIES;
const _: () = assert!(SCRATCH_AT + GATHER_SCRATCH_BYTES <= TABLES_BYTES);
const _: () = assert!(SCRATCH_AT + FSE_SCRATCH_BYTES <= TABLES_BYTES);
const _: () = assert!(SCRATCH_AT + RECORDS_BYTES <= TABLES_BYTES);

/// Shared memory per warp.
pub(super) const WARP_BYTES: u32 = BUFFER_BYTES + TABLES_BYTES;

/// Restores a page from its frame, in the [`WARP_BYTES`] at shared address `buffer`.
pub(super) fn restore_frame<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    page: &PackedPage<'k>,
    buffer: Reg<'k, u32>,
    constants: Constants<'k>,
) -> RestoreAttempt<'k> {
    let is_page = k.var(false).named("is_page");
    let refused_as = k.var(PageStatus::BadBlock as u32).named("refused_as");
    k.block_uniform(|refuse| {
        let frame = Frame::of_warp(k, lane, page, refuse, refused_as);
        let header = frame.read_header();
        k.if_else_uniform(
            header.block_type.le(RLE),
            || copy_block(frame, &header, buffer),
            || decode_block(frame, &header, buffer, constants),
        );
        k.if_uniform(header.has_checksum, || {
            frame.malformed_if(xxh64_low(k, lane, buffer).ne(header.checksum));
        });
        is_page.set(true);
    });
    RestoreAttempt { is_page, page: buffer, refused_as: Some(refused_as) }
}

/// Copies a raw block, or repeats the byte of an RLE block.
fn copy_block<'k>(frame: Frame<'k>, header: &FrameHeaders<'k>, page: Reg<'k, u32>) {
    let Frame { k, lane, .. } = frame;
    k.section("a raw or RLE block");
    frame.malformed_if(header.block_size.ne(PAGE_BYTES));
    let is_raw = header.block_type.eq(RAW);
    let byte = frame.byte(header.start, LaneAccess::Uniform);
    let at = k.var(lane * 4);
    let round = k.var(0u32);
    k.do_while_uniform(|| {
        let word = is_raw.select(frame.window((header.start + at) * 8, LaneAccess::PerLane), byte * 0x0101_0101);
        (page + at).shared::<u32>().store(word);
        at.set(at + 128);
        round.set(round + 128);
        round.lt(PAGE_BYTES)
    });
    k.sync_warp();
}

/// Decodes a compressed block.
fn decode_block<'k>(frame: Frame<'k>, header: &FrameHeaders<'k>, page: Reg<'k, u32>, constants: Constants<'k>) {
    let k = frame.k;
    frame.malformed_if(header.block_size.lt(2));
    let tables = page + BUFFER_BYTES;
    let scratch = tables + SCRATCH_AT;
    let tree = HuffmanBuffers { weights: page, sorted: page + WEIGHTS_BYTES, table: tables, max_log: MAX_CODE_BITS };
    let weights_table = FseTable { entries: tables.shared(), scratch, codes: None };
    let literals = decode_literals(frame, LiteralBuffers { page, tree, weights_table }, header.start, header.end);
    let buffers = SequenceBuffers { tables: tables.shared(), scratch, constants };
    decode_sequences(frame, buffers, Gather::new(k, page, scratch), &literals, header.end);
}
