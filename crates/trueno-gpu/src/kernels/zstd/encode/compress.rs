//! The Zstandard compression kernel: its resources and memory.

use super::find::{TABLE_BYTES, Workspace};
use super::format::PAGE_BYTES;
use super::frame::compress_page;
use super::huffman::CODES_BYTES;
use super::record::RECORDS_BYTES;
use super::{Mode, TableStores};
use crate::kernels::packed::{
    CompressBatch, CompressBuffers, CompressParts, PageKind, SET_ASIDE_BYTES, WarpCompressKernel,
};
use crate::kernels::shared_copy::WarpCopy;
use crate::kernels::zstd::Zstd;
use crate::{KernelBuilder, Reg};

/// Pages that a warp can set aside. Some pages take several times as long as others: with room for one, warps waited
/// for a quarter of the time (109 instead of 131 GB/s; 65,536 resident pages of a browser, H200).
const ASIDE_PAGES: u32 = 4;

/// Scratch memory that each warp of the grid needs: for the sequences of a page, the codes of its literals, and pages
/// set aside.
const SCRATCH_BYTES_PER_WARP: u32 = RECORDS_BYTES + CODES_BYTES + ASIDE_PAGES * SET_ASIDE_BYTES;

/// Compresses pages to Zstandard frames, one page per warp; see [`WarpCompressKernel`] for its parameters.
///
/// A frame has a magic number, a content size of 2 bytes and one compressed block; it has no checksum. Every decoder of
/// the format reads it.
///
/// ```
/// use trueno_gpu::kernels::packed::{PackedEntry, PageKind};
/// use trueno_gpu::kernels::zstd::ZstdWarpCompressKernel;
/// let text: [u8; 4096] = std::array::from_fn(|i| b"to be or not to be; "[i % 20]);
/// let run = ZstdWarpCompressKernel::new(1).interpret(&[text], |launch| launch.threads(1))?;
/// let entry = PackedEntry::from_bits(u64::from_le_bytes(*run.index.first_chunk().unwrap()));
/// assert!(entry.kind() == PageKind::Zstd && entry.len_bytes() < 64);
/// assert_eq!(run.packed[..4], [0x28, 0xb5, 0x2f, 0xfd]); // a frame's magic number
/// # Ok::<(), trueno_gpu::interp::Fault>(())
/// ```
pub type ZstdWarpCompressKernel = WarpCompressKernel<Zstd>;

pub(in crate::kernels::zstd) const COMPRESS: CompressParts = CompressParts {
    name: "zstd_warp_compress",
    scratch_bytes_per_warp: SCRATCH_BYTES_PER_WARP,
    // Six blocks of four warps leave 80 per thread.
    registers: 80,
    build,
};

fn build(k: &KernelBuilder, mode: Mode, stores: TableStores) {
    let batch = CompressBatch::declare(k, SCRATCH_BYTES_PER_WARP);
    let CompressBatch { lane, page, table, scratch: records, .. } = batch;
    let ws = Workspace { k, lane, page, table, records, copy: WarpCopy::new(k, lane) };
    let aside = records.byte_offset((RECORDS_BYTES + CODES_BYTES).cast_signed());
    // The frame takes the page's place, and the page comes back from global memory if it does not shrink.
    let buffers = CompressBuffers { staging: page, aside, aside_pages: ASIDE_PAGES };
    batch.compress_pages(PageKind::Zstd, &buffers, |loaded| {
        loaded.store_to(page);
        clear_4096(ws.lane, table);
        k.sync_warp();
        let len = compress_page(ws, mode, stores);
        k.if_uniform(len.eq(PAGE_BYTES), || {
            k.section("frame: the page itself");
            loaded.load_again().store_to(page);
        });
        len
    });
}

/// Clears as many bytes of shared memory as a page has, from `start` on.
pub(super) fn clear_4096<'k>(lane: Reg<'k, u32>, start: Reg<'k, u32>) {
    let own = (start + lane * 16).shared::<u32>();
    for i in 0..8 {
        own.byte_offset(512 * i).store_vec([0u32; 4]);
    }
}

const _: () = assert!(TABLE_BYTES == PAGE_BYTES && PAGE_BYTES == 8 * 512);
