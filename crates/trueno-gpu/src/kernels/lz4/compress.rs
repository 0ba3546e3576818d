//! The LZ4 compression kernel.

use super::encode::encode;
use super::find::{Lz4Workspace, MAX_RECORDS, RECORD_BYTES, TABLE_BYTES, find_matches};
use super::format::PAGE_BYTES;
use super::{Mode, TableStores};
use crate::KernelBuilder;
use crate::kernels::packed::{
    CompressBatch, CompressBuffers, CompressParts, LoadedPage, PageKind, SET_ASIDE_BYTES, WarpCompressKernel,
};

/// Scratch memory for the match records of one page.
const RECORDS_BYTES: u32 = MAX_RECORDS * RECORD_BYTES;

/// Scratch memory that each warp of the grid needs.
const SCRATCH_BYTES_PER_WARP: u32 = RECORDS_BYTES + SET_ASIDE_BYTES;

/// Compresses pages to LZ4 blocks, one page per warp; see [`WarpCompressKernel`] for its parameters.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpCompressKernel};
/// let kernel = Lz4WarpCompressKernel::new(65536);
/// let ptx = kernel.emit_ptx();
/// assert!(ptx.contains(".entry lz4_warp_compress"));
/// ```
pub type Lz4WarpCompressKernel = WarpCompressKernel<super::Lz4>;

pub(super) const COMPRESS: CompressParts = CompressParts {
    name: "lz4_warp_compress",
    scratch_bytes_per_warp: SCRATCH_BYTES_PER_WARP,
    // Six blocks of four warps are resident where shared memory allows, which leaves 85 registers per thread.
    registers: 84,
    build,
};

fn build(k: &KernelBuilder, mode: Mode, stores: TableStores) {
    let batch = CompressBatch::declare(k, SCRATCH_BYTES_PER_WARP);
    let CompressBatch { lane, page, table, scratch: records, .. } = batch;
    let ws = Lz4Workspace { k, lane, page, table, records };
    // The block takes the table's place: the records are complete when the encoder starts.
    let aside = records.byte_offset(RECORDS_BYTES.cast_signed());
    let buffers = CompressBuffers { staging: table, aside, aside_pages: 1 };
    batch.compress_pages(PageKind::Lz4, &buffers, |loaded| {
        store_and_clear_table(ws, loaded);
        k.sync_warp();
        let count = find_matches(ws, mode, stores);
        k.sync_warp();
        encode(ws, count)
    });
}

/// Stores the page to shared memory and clears the table.
fn store_and_clear_table<'k>(ws: Lz4Workspace<'k>, loaded: &LoadedPage<'k>) {
    let place = (ws.page + ws.lane * 16).shared::<u32>();
    for (piece, i) in loaded.pieces.iter().zip(0..) {
        place.byte_offset(512 * i).store_vec(*piece);
        place.byte_offset(512 * i + PAGE_BYTES.cast_signed()).store_vec([0u32; 4]);
    }
}

/// Clearing as many bytes as a page has clears the whole table.
const _: () = assert!(TABLE_BYTES == PAGE_BYTES);
