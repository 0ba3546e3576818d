//! The Zstandard decompression kernel. Every read and write is checked.

use super::checksum::xxh64_low;
use super::constants::{CONSTANT_BYTES, Constants};
use super::execute::{GATHER_SCRATCH_BYTES, Gather};
use super::format::{MAX_FRAME_BYTES, MAX_TABLE_ENTRIES};
use super::frame::{Frame, Lanes};
use super::fse::{FSE_SCRATCH_BYTES, Table};
use super::header::{Header, RAW, RLE};
use super::huffman::{HUFFMAN_TABLE_BYTES, Tree};
use super::literals::{LiteralBuffers, SLACK_BYTES, decode_literals};
use super::sequences::{RECORDS_BYTES, SequenceBuffers, decode_sequences};
use super::weights::WEIGHTS_BYTES;
use crate::kernels::packed::{
    BatchKernel, DecompressBatch, PAGE_BYTES, PackedPage, PageKind, PageStatus, Restored, align_up,
};
use crate::kernels::{Budget, Kernel};
use crate::{KernelBuilder, Reg, Target, ValidKernel};

/// The page, and the literals behind its end.
const BUFFER_BYTES: u32 = (PAGE_BYTES + SLACK_BYTES).next_multiple_of(64);

/// The Huffman table, and later the sequence tables with scratch memory behind them.
const TABLES_BYTES: u32 = HUFFMAN_TABLE_BYTES;
const SCRATCH_AT: u32 = 4 * MAX_TABLE_ENTRIES;
const _: () = assert!(SCRATCH_AT + GATHER_SCRATCH_BYTES <= TABLES_BYTES);
const _: () = assert!(SCRATCH_AT + FSE_SCRATCH_BYTES <= TABLES_BYTES);
const _: () = assert!(SCRATCH_AT + RECORDS_BYTES <= TABLES_BYTES);

/// Shared memory per warp.
const WARP_BYTES: u32 = BUFFER_BYTES + TABLES_BYTES;

/// Restores Zstandard frames of one block each, from any encoder at any level.
///
/// The parameters of the kernel are those of
/// [`Lz4WarpDecompressKernel`](crate::kernels::lz4::Lz4WarpDecompressKernel).
///
/// A malformed frame gets [`PageStatus::BadBlock`], and one that only the CPU decodes gets [`PageStatus::Unsupported`]:
/// several blocks or frames, a dictionary, content that is said to be no page, a window below 4 KiB, trees or tables of
/// a block before, codes of more than 11 bits, and sequence tables of more than 768 entries together. libzstd writes
/// none of these for a page. The place of such a page in the output is not written. A checksum is verified.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, zstd::ZstdWarpDecompressKernel};
/// let kernel = ZstdWarpDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry zstd_warp_decompress"));
/// ```
#[derive(Clone, Debug)]
pub struct ZstdWarpDecompressKernel {
    batch: BatchKernel,
}

impl ZstdWarpDecompressKernel {
    /// Makes a kernel for batches of up to `max_pages`, with four warps per block.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, zstd::ZstdWarpDecompressKernel};
    /// let kernel = ZstdWarpDecompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self { batch: BatchKernel::new(max_pages) }
    }

    /// Chooses the number of warps per block. Above 48 KiB, shared memory is dynamic. [`Kernel::ir`] panics if the
    /// target has too little of it.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, zstd::ZstdWarpDecompressKernel}};
    /// let kernel = ZstdWarpDecompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { batch: self.batch.with_warps_per_block(warps_per_block) }
    }

    /// Chooses the target.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::zstd::ZstdWarpDecompressKernel};
    /// let kernel = ZstdWarpDecompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { batch: self.batch.with_target(target) }
    }
}

impl Kernel for ZstdWarpDecompressKernel {
    fn ir(&self) -> &ValidKernel {
        self.batch.ir("zstd_warp_decompress", build)
    }

    fn budget(&self) -> Budget {
        // Seven blocks of four warps, or one of 28, leave 73 registers per thread.
        Budget { registers: 72, shared_bytes: self.batch.warps_per_block() * WARP_BYTES + CONSTANT_BYTES }
    }

    fn grid(&self, pages: u32) -> u32 {
        self.batch.grid(pages)
    }
}

fn build(k: &KernelBuilder) {
    let batch = DecompressBatch::declare(k);
    let constants = Constants::fill(k, batch.lane);
    let region = k.shared_per_warp("page_and_tables", WARP_BYTES, 16);
    let buffer = region.base::<u32>(k.warp_id()).raw().named("buffer");
    batch.restore_pages(PageKind::Zstd, MAX_FRAME_BYTES, |page| restore_frame(k, batch.lane, page, buffer, constants));
}

fn restore_frame<'k>(
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    page: &PackedPage<'k>,
    buffer: Reg<'k, u32>,
    constants: Constants<'k>,
) -> Restored<'k> {
    let is_page = k.var(false).named("is_page");
    let refused_as = k.var(PageStatus::BadBlock as u32).named("refused_as");
    k.block_uniform(|refuse| {
        let last_word = (align_up(page.len) >> 2) - 1;
        let frame =
            Frame { k, lane, words: page.start(), len: page.len, last_word, zero: k.value(0u32), refuse, refused_as };
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
    Restored { is_page, page: buffer, refused_as: Some(refused_as) }
}

/// Copies a raw block, or repeats the byte of an RLE block.
fn copy_block<'k>(frame: Frame<'k>, header: &Header<'k>, page: Reg<'k, u32>) {
    let Frame { k, lane, .. } = frame;
    k.section("a raw or RLE block");
    frame.malformed_if(header.block_size.ne(PAGE_BYTES));
    let is_raw = header.block_type.eq(RAW);
    let byte = frame.byte(header.start, Lanes::Alike);
    let at = k.var(lane * 4);
    let round = k.var(0u32);
    k.do_while_uniform(|| {
        let word = is_raw.select(frame.window((header.start + at) * 8, Lanes::Apart), byte * 0x0101_0101);
        (page + at).shared::<u32>().store(word);
        at.set(at + 128);
        round.set(round + 128);
        round.lt(PAGE_BYTES)
    });
    k.sync_warp();
}

/// Decodes a compressed block.
fn decode_block<'k>(frame: Frame<'k>, header: &Header<'k>, page: Reg<'k, u32>, constants: Constants<'k>) {
    let k = frame.k;
    frame.malformed_if(header.block_size.lt(2));
    let tables = page + BUFFER_BYTES;
    let scratch = tables + SCRATCH_AT;
    let tree = Tree { weights: page, sorted: page + WEIGHTS_BYTES, table: tables };
    let weights_table = Table { entries: tables.shared(), scratch, codes: None };
    let literals = decode_literals(frame, LiteralBuffers { page, tree, weights_table }, header.start, header.end);
    let buffers = SequenceBuffers { tables: tables.shared(), scratch, constants };
    decode_sequences(frame, buffers, Gather::new(k, page, scratch), &literals, header.end);
}
