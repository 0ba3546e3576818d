//! Batches of packed pages, which the kernels of all algorithms share.
//!
//! A kernel of this family works on one page per warp. The warps of a persistent grid draw page numbers from a counter,
//! in order, until the batch is done. A compressor writes its pages in page order, without gaps except for alignment,
//! and a [`PackedEntry`] for each; a decompressor reads both and reports a [`PageStatus`] for each page. Same-filled
//! and raw pages are handled here. An algorithm contributes the code that compresses or restores any other page.
//!
//! A compressing warp loads its page with 16 bytes per lane, so a same-filled page is recognised in registers. It
//! publishes the size of a compressed page in the index at once, and sets the page aside in scratch memory until it has
//! finished the next one. By then the sizes before it are almost always known, and it moves the page to its place
//! (`look_back`). So the output is packed in page order regardless of timing.
//!
//! [`WarpCompressKernel`] and [`WarpDecompressKernel`] are the kernels, for any [`KernelFormat`]. The interpreter runs
//! them on the CPU too ([`CompressRun`], [`DecompressRun`]).

mod compress;
mod decompress;
mod entry;
mod interpret;
mod kernel;
mod look_back;
mod options;
mod status;
mod warp_kernel;

pub use entry::{PACK_ALIGN_BYTES, PackedEntry};
pub use interpret::{CompressRun, DecompressRun};
pub use options::{Mode, TableStores};
pub use status::PageStatus;
pub use trueno_page::PageKind;
pub use warp_kernel::{KernelFormat, WarpCompressKernel, WarpDecompressKernel};

pub(super) use compress::{CompressBatch, CompressBuffers, LoadedPage, SET_ASIDE_BYTES};
pub(super) use decompress::{DecompressBatch, LaneAddresses, PackedPage, RestoreAttempt};
pub(super) use entry::align_up;
pub(super) use interpret::{PackedBatch, add_scratch, launch, page_count};
pub(super) use kernel::BatchKernel;
pub(super) use warp_kernel::{CompressParts, DecompressParts};

use crate::ir::AtomOp;
use crate::types::Global;
use crate::{Addr, KernelBuilder, Reg};

/// Number of bytes in a page, as kernels count.
pub(super) const PAGE_BYTES: u32 = 4096;
const _: () = assert!(PAGE_BYTES as usize == trueno_page::PAGE_SIZE);

/// Number of bytes in the word of a same-filled page, as kernels count.
const FILL_WORD_BYTES: u32 = 8;
const _: () = assert!(FILL_WORD_BYTES as usize == trueno_page::FILL_WORD_BYTES);

/// Bytes that the lanes of a warp move together, 16 per lane.
const STEP_BYTES: u32 = 32 * 16;

/// Steps in which a warp moves a page.
const PAGE_STEPS: i32 = 8;
const _: () = assert!(PAGE_STEPS.cast_unsigned() * STEP_BYTES == PAGE_BYTES);

/// Draws pages from the counter until the batch is done, and runs `body` with the number of each; the number is
/// uniform.
///
/// Warps that run draw pages in ascending order, which is what lets a compressor wait for the pages before its own.
fn for_each_page<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    next_page: Addr<'k, Global, u32>,
    pages: Reg<'k, u32>,
    body: impl FnOnce(Reg<'k, u32>),
) {
    k.loop_uniform(|all| {
        k.section("draw a page");
        let drawn = k.var(0u32);
        k.when(lane.eq(0)).atomic(drawn, next_page, AtomOp::Add, 1u32);
        let number = drawn.shfl(0u32).named("number");
        all.break_if(number.ge(pages));
        body(number);
    });
}
