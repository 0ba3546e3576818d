//! A frame of one block: headers, the literals section, the sequences section. It is built where the page was.

use super::choices::MIN_CODED_LITERALS;
use super::compress::clear_4096;
use super::find::{Workspace, find_sequences};
use super::format::{
    CONTENT_SIZE_BASE, FRAME_DESCRIPTOR, HEADERS_BYTES, LAST_COMPRESSED_BLOCK, LITERALS_COMPRESSED, LITERALS_RAW,
    LITERALS_RLE, MAGIC, PAGE_BYTES,
};
use super::huffman::{self, LiteralsPlan, SavedCodes};
use super::literals::gather_literals;
use super::sequences::{FrameOutput, write_sequences};
use super::{Mode, TableStores};
use crate::ir::AtomOp;
use crate::{Reg, Var};

/// Compresses the page in shared memory, with a zeroed table behind it, to a frame in its place. Returns the frame's
/// length, or [`PAGE_BYTES`] if the page does not shrink: then nothing is left of it.
pub(super) fn compress_page<'k>(ws: Workspace<'k>, mode: Mode, stores: TableStores) -> Var<'k, u32> {
    let Workspace { k, page, .. } = ws;
    let frame_len = k.var(PAGE_BYTES).named("frame_len");
    k.block_uniform(|give_up| {
        let sequences = find_sequences(ws, mode, stores);
        k.sync_warp();
        let literals = gather_literals(ws, sequences);
        k.sync_warp();
        let plan = LiteralsPlan { description_bytes: k.var(0u32), bits: k.var(0u32), repeated: k.var(0u32) };
        k.if_uniform(literals.ge(MIN_CODED_LITERALS), || plan.set(&huffman::plan(ws, ws.table, *literals)));
        let carried = SavedCodes::take(ws);
        k.sync_warp();
        clear_frame(ws);
        let out = FrameOutput { frame: page, len: k.var(HEADERS_BYTES).named("len"), give_up };
        write_literals(ws, *literals, &plan, &carried, out);
        k.sync_warp();
        write_sequences(ws, *sequences, out);
        write_headers(ws, *out.len);
        frame_len.set(out.len);
    });
    k.sync_warp();
    frame_len
}

/// Clears the page, so that bits can be set.
fn clear_frame(ws: Workspace<'_>) {
    let Workspace { k, lane, page, .. } = ws;
    k.section("frame: clear");
    clear_4096(lane, page);
    k.sync_warp();
}

/// Writes the literals section: coded, one repeated byte, or raw.
fn write_literals<'k>(
    ws: Workspace<'k>,
    count: Reg<'k, u32>,
    plan: &LiteralsPlan<'k>,
    carried: &SavedCodes<'k>,
    out: FrameOutput<'k>,
) {
    let Workspace { k, lane, .. } = ws;
    k.section("frame: literals");
    let literals = ws.table;
    let short = count.lt(1024);
    let header_bytes = short.select(3u32, 4u32);
    let description_bytes = plan.description_bytes;
    // Each of the four streams may be a byte longer than its bits.
    let section_bytes = header_bytes + description_bytes + 6 + ((plan.bits + 7) >> 3) + 4;
    let coded = description_bytes.ne(0) & section_bytes.lt(count);
    k.if_else_uniform(
        coded,
        || {
            out.check(section_bytes);
            carried.store_codes(ws);
            let description_at = out.end() + header_bytes;
            carried.store_description(ws, description_at, *description_bytes);
            k.sync_warp();
            let streams_bytes = huffman::write_streams(ws, literals, count, description_at + description_bytes);
            k.section("frame: literals");
            let compressed_bytes = description_bytes + streams_bytes;
            let size_format = short.select(1u32 << 2, 2u32 << 2);
            let sizes = (count << 4) | (compressed_bytes << short.select(14u32, 18u32));
            write_bytes(ws, out, (size_format | LITERALS_COMPRESSED) | sizes, header_bytes);
            out.len.set(out.len + compressed_bytes);
        },
        || {
            let repeated = plan.repeated.ne(0);
            let header_bytes = k.var(2u32);
            let header = k.var((count << 4) | (1 << 2));
            k.when(count.lt(32)).set(header_bytes, 1u32);
            k.when(count.lt(32)).set(header, count << 3);
            k.when(count.ge(PAGE_BYTES)).set(header_bytes, 3u32);
            k.when(count.ge(PAGE_BYTES)).set(header, (count << 4) | (3 << 2));
            k.if_else_uniform(
                repeated,
                || {
                    write_bytes(ws, out, header | LITERALS_RLE, *header_bytes);
                    k.when(lane.eq(0)).store(out.end().shared::<u8>(), plan.repeated - 1);
                    out.len.set(out.len + 1);
                },
                || {
                    out.check(header_bytes + count);
                    write_bytes(ws, out, header | LITERALS_RAW, *header_bytes);
                    k.if_uniform(count.ne(0), || ws.copy.copy(literals, out.end(), count));
                    out.len.set(out.len + count);
                },
            );
        },
    );
}

/// Appends the low bytes of a value.
fn write_bytes<'k>(ws: Workspace<'k>, out: FrameOutput<'k>, value: Reg<'k, u32>, bytes: Reg<'k, u32>) {
    let Workspace { k, lane, .. } = ws;
    k.when(lane.lt(bytes)).store((out.end() + lane).shared::<u8>(), value >> (lane << 3));
    out.len.set(out.len + bytes);
}

/// Writes magic number, descriptor, content size and the block's header.
fn write_headers<'k>(ws: Workspace<'k>, len: Reg<'k, u32>) {
    let Workspace { k, lane, page, .. } = ws;
    k.section("frame: headers");
    let block = ((len - HEADERS_BYTES) << 3) | LAST_COMPRESSED_BLOCK;
    let content_size = PAGE_BYTES - CONTENT_SIZE_BASE;
    let second = (block << 24) | (FRAME_DESCRIPTOR | content_size << 8);
    let word = lane.eq(0).select(MAGIC, lane.eq(1).select(second, block >> 8));
    k.when(lane.lt(3)).reduce((page + (lane << 2)).shared::<u32>(), AtomOp::Or, word);
}

impl<'k> LiteralsPlan<'k> {
    /// Takes over another plan.
    fn set(&self, other: &Self) {
        self.description_bytes.set(other.description_bytes);
        self.bits.set(other.bits);
        self.repeated.set(other.repeated);
    }
}
