//! The LZ4 decompression kernel. Every read and write is checked.

use super::chain::BlockInput;
use super::format::{MAX_BLOCK_BYTES, PAGE_BYTES};
use super::gather::{AFTER_BLOCK_BYTES, BITMAP_BYTES, GatherTables, SEGMENTS_BYTES, decode};
use crate::kernels::packed::{
    DecompressBatch, DecompressParts, PACK_ALIGN_BYTES, PackedPage, PageKind, RestoreAttempt, WarpDecompressKernel,
    align_up,
};
use crate::{KernelBuilder, Reg};

/// Bytes for the output, with the block at its end, aligned to 16 bytes. Decoding in place is safe. From any literal
/// on, the rest of a page's block is at most 18 bytes longer than the rest of the page (its length bytes), and
/// alignment costs up to 15 bytes. So a byte's source lies at least 47 bytes above it, outside the window of 32 bytes
/// being written.
const BUFFER_BYTES: u32 = PAGE_BYTES + 80 + AFTER_BLOCK_BYTES;

/// Even a block that is longer than its page does not overlap the start of the output.
const _: () = assert!(MAX_BLOCK_BYTES.next_multiple_of(PACK_ALIGN_BYTES) <= BUFFER_BYTES - AFTER_BLOCK_BYTES);

/// Shared memory per warp.
const WARP_BYTES: u32 = BUFFER_BYTES + BITMAP_BYTES + SEGMENTS_BYTES;

/// Restores LZ4 blocks, one page per warp; see [`WarpDecompressKernel`] for its parameters.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpDecompressKernel};
/// let kernel = Lz4WarpDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry lz4_warp_decompress"));
/// ```
pub type Lz4WarpDecompressKernel = WarpDecompressKernel<super::Lz4>;

pub(super) const DECOMPRESS: DecompressParts =
    DecompressParts { name: "lz4_warp_decompress", warp_bytes: WARP_BYTES, block_bytes: 0, build };

fn build(k: &KernelBuilder) {
    let (batch, next_page) = DecompressBatch::declare(k, "next_page");
    let region = k.shared_per_warp("buffer_and_tables", WARP_BYTES, 16);
    let buffer = region.base::<u32>(k.warp_id()).raw().named("buffer");
    let tables = GatherTables {
        output: buffer,
        bitmap: buffer + BUFFER_BYTES,
        segments: buffer + (BUFFER_BYTES + BITMAP_BYTES),
    };
    batch.restore_pages(next_page, PageKind::Lz4, MAX_BLOCK_BYTES, |page| restore_block(k, batch.lane, page, tables));
}

fn restore_block<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    page: &PackedPage<'k>,
    tables: GatherTables<'k>,
) -> RestoreAttempt<'k> {
    let buffer = tables.output;
    k.section("bring the block in, at the buffer's end");
    let whole = align_up(page.len);
    let start = (buffer + (BUFFER_BYTES - AFTER_BLOCK_BYTES) - whole).named("start");
    page.load_to(start, whole);
    k.sync_warp();
    let is_page = decode(BlockInput { k, lane, start, end: start + page.len }, tables);
    RestoreAttempt { is_page, page: buffer, refused_as: None }
}
