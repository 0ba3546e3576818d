//! The decompression kernel: one page a warp, every read and write checked.

use std::sync::OnceLock;

use super::chain::Input;
use super::format::{FILL_WORD_BYTES, MAX_BLOCK_BYTES, PAGE_BYTES};
use super::gather::{AFTER_BLOCK_BYTES, BITMAP_BYTES, SEGMENTS_BYTES, Tables, decode};
use super::index::{
    KIND_LZ4, KIND_RAW, KIND_SAME_FILLED, KIND_SHIFT, LEN_MASK, PACK_ALIGN_BYTES, STATE_PLACED, STATE_SHIFT,
};
use crate::ir::{AtomOp, KernelIr, LoadHint};
use crate::kernels::{Budget, Kernel};
use crate::types::Global;
use crate::{Addr, KernelBuilder, Reg, Target, Var};

/// The output, with the block at its end, on a multiple of 16. Decoding in place is safe: from any literal on, the rest
/// of a page's block is at most 18 bytes longer than the rest of the page (its length bytes), and 15 are lost to
/// alignment; so a byte's source lies at least 47 above it, out of the window of 32 that is being written.
const BUFFER_BYTES: u32 = PAGE_BYTES + 80 + AFTER_BLOCK_BYTES;

/// Even a block that is longer than its page lies clear of the output's start.
const _: () = assert!(MAX_BLOCK_BYTES.next_multiple_of(PACK_ALIGN_BYTES) <= BUFFER_BYTES - AFTER_BLOCK_BYTES);

/// Shared memory of a warp.
const WARP_BYTES: u32 = BUFFER_BYTES + BITMAP_BYTES + SEGMENTS_BYTES;

/// Restores pages that [`Lz4WarpCompressKernel`](super::Lz4WarpCompressKernel), or anyone else, has compressed.
///
/// Parameters of the kernel, in order:
///
/// | parameter | type | what |
/// | --- | --- | --- |
/// | `input` | pointer | packed pages, aligned to 16 bytes |
/// | `input_len` | u64 | bytes there, a multiple of 16 |
/// | `index` | pointer to u64 | one [`PackedEntry`](super::PackedEntry) a page, not trusted |
/// | `output` | pointer | the pages, aligned to 16 bytes |
/// | `status` | pointer to u32 | one [`PageStatus`] a page |
/// | `next_page` | pointer to u32 | zero at the start |
/// | `pages` | u32 | how many |
///
/// A malformed page gets a status that says so and leaves its place in the output as it was; the others come out right.
///
/// ```
/// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpDecompressKernel};
/// let kernel = Lz4WarpDecompressKernel::new(65536);
/// assert!(kernel.emit_ptx().contains(".entry lz4_warp_decompress"));
/// ```
#[derive(Clone, Debug)]
pub struct Lz4WarpDecompressKernel {
    max_pages: u32,
    warps_per_block: u32,
    target: Target,
    /// Built when first asked for, since the options come one after the other.
    ir: OnceLock<KernelIr>,
}

/// What became of a page.
///
/// ```
/// use trueno_gpu::kernels::lz4::PageStatus;
/// assert_eq!(PageStatus::from_code(0), Some(PageStatus::Restored));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PageStatus {
    /// It is in its place.
    Restored = 0,
    /// Its index entry is not complete, points outside the input, or has a kind or length that no page has.
    BadEntry = 1,
    /// Its block is no page's.
    BadBlock = 2,
}

impl PageStatus {
    /// The status that a kernel stored as `code`.
    ///
    /// ```
    /// use trueno_gpu::kernels::lz4::PageStatus;
    /// let stored = [0, 2, 0]; // what the kernel left in `status`
    /// let bad = stored.iter().position(|&code| PageStatus::from_code(code) != Some(PageStatus::Restored));
    /// assert_eq!(bad, Some(1));
    /// assert_eq!(PageStatus::from_code(3), None);
    /// ```
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Restored),
            1 => Some(Self::BadEntry),
            2 => Some(Self::BadBlock),
            _ => None,
        }
    }
}

impl Lz4WarpDecompressKernel {
    /// A kernel for batches of up to `max_pages`: four warps a block.
    ///
    /// ```
    /// use trueno_gpu::kernels::{Kernel, lz4::Lz4WarpDecompressKernel};
    /// let kernel = Lz4WarpDecompressKernel::new(1000);
    /// assert_eq!((kernel.grid(1000), kernel.block()), (250, 128));
    /// assert_eq!(kernel.dynamic_shared_bytes(), 0);
    /// ```
    #[must_use]
    pub fn new(max_pages: u32) -> Self {
        Self { max_pages, warps_per_block: 4, target: Target::default(), ir: OnceLock::new() }
    }

    /// With another number of warps a block. What is over 48 KiB of shared memory is dynamic, and the target must have it:
    /// [`Kernel::ir`] panics otherwise.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::{Kernel, lz4::Lz4WarpDecompressKernel}};
    /// let kernel = Lz4WarpDecompressKernel::new(1000).with_target(Target::SM_90).with_warps_per_block(28);
    /// assert_eq!(kernel.block(), 896);
    /// ```
    #[must_use]
    pub fn with_warps_per_block(self, warps_per_block: u32) -> Self {
        Self { warps_per_block, ir: OnceLock::new(), ..self }
    }

    /// For another target than the default.
    ///
    /// ```
    /// use trueno_gpu::{Target, kernels::lz4::Lz4WarpDecompressKernel};
    /// let kernel = Lz4WarpDecompressKernel::new(1000).with_target(Target::default());
    /// # let _ = kernel;
    /// ```
    #[must_use]
    pub fn with_target(self, target: Target) -> Self {
        Self { target, ir: OnceLock::new(), ..self }
    }
}

impl Kernel for Lz4WarpDecompressKernel {
    fn ir(&self) -> &KernelIr {
        self.ir.get_or_init(|| {
            let k = KernelBuilder::new("lz4_warp_decompress");
            let k = k.with_target(self.target).with_warps_per_block(self.warps_per_block);
            build(&k);
            k.finish().expect("the target has the shared memory for so many warps")
        })
    }

    fn budget(&self) -> Budget {
        // Seven blocks of four warps, or one of 28, leave 73 registers a thread.
        Budget { registers: 72, shared_bytes: self.warps_per_block * WARP_BYTES }
    }

    fn grid(&self, pages: u32) -> u32 {
        pages.min(self.max_pages).div_ceil(self.warps_per_block)
    }
}

fn build(k: &KernelBuilder) {
    let input = k.param_ptr::<u32>("input");
    let input_len = k.param_u64("input_len");
    let index = k.param_ptr::<u64>("index");
    let output = k.param_ptr::<u32>("output");
    let status = k.param_ptr::<u32>("status");
    let next_page = k.param_ptr::<u32>("next_page");
    let pages = k.param_u32("pages");

    let lane = k.lane_id().named("lane");
    let region = k.shared_per_warp("buffer_and_tables", WARP_BYTES, 16);
    let buffer = region.base::<u32>(k.warp_id()).raw().named("buffer");
    let tables =
        Tables { output: buffer, bitmap: buffer + BUFFER_BYTES, segments: buffer + (BUFFER_BYTES + BITMAP_BYTES) };
    let (lane_input, lane_output) = (input.step(lane, 16), output.step(lane, 16));

    k.loop_uniform(|all| {
        k.section("draw a page");
        let drawn = k.var(0u32);
        k.when(lane.eq(0)).atomic(drawn, next_page, AtomOp::Add, 1u32);
        let number = drawn.shfl(0u32).named("number");
        all.break_if(number.ge(pages));

        let entry = index.index(number).load_uniform();
        let (place, high) = (entry.lo(), entry.hi());
        let len = high & LEN_MASK;
        let kind = (high >> KIND_SHIFT) & 3;
        let page =
            Page { k, lane, from: lane_input.step(place, PACK_ALIGN_BYTES), to: lane_output.step(number, PAGE_BYTES) };
        let code = k.var(PageStatus::BadEntry as u32).named("code");
        k.block_uniform(|done| {
            let end = (place.to_u64() << 4) + ((len + (PACK_ALIGN_BYTES - 1)) & !(PACK_ALIGN_BYTES - 1)).to_u64();
            done.exit_if(end.gt(input_len) | (high >> STATE_SHIFT).ne(STATE_PLACED));
            k.if_uniform(kind.eq(KIND_SAME_FILLED) & len.eq(FILL_WORD_BYTES), || {
                page.fill(input.step(place, PACK_ALIGN_BYTES));
                code.set(PageStatus::Restored as u32);
                done.exit();
            });
            k.if_uniform(kind.eq(KIND_RAW) & len.eq(PAGE_BYTES), || {
                page.copy();
                code.set(PageStatus::Restored as u32);
                done.exit();
            });
            done.exit_if(kind.ne(KIND_LZ4) | (len - 1).ge(MAX_BLOCK_BYTES));
            page.restore_block(buffer, tables, len, code);
        });
        k.when(lane.eq(0)).store(status.index(number), code);
        k.sync_warp();
    });
}

/// A page on its way; the addresses are at the lane's first 16 bytes.
struct Page<'k> {
    k: &'k KernelBuilder,
    lane: Reg<'k, u32>,
    from: Addr<'k, Global, u32>,
    to: Addr<'k, Global, u32>,
}

impl<'k> Page<'k> {
    fn fill(&self, word: Addr<'k, Global, u32>) {
        self.k.section("a same-filled page");
        let [low, high] = word.load_vec_with(LoadHint::NonCoherent);
        for i in 0..8 {
            self.to.byte_offset(512 * i).store_vec([low, high, low, high]);
        }
    }

    fn copy(&self) {
        self.k.section("a raw page");
        let pieces = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| (i, self.from.byte_offset(512 * i)));
        let pieces = pieces.map(|(i, from)| (i, from.load_vec_with::<4>(LoadHint::NonCoherent)));
        for (i, words) in pieces {
            self.to.byte_offset(512 * i).store_vec(words);
        }
    }

    fn restore_block(&self, buffer: Reg<'k, u32>, tables: Tables<'k>, len: Reg<'k, u32>, code: Var<'k, u32>) {
        let Self { k, lane, .. } = *self;
        k.section("bring the block in, at the buffer's end");
        let whole = (len + (PACK_ALIGN_BYTES - 1)) & !(PACK_ALIGN_BYTES - 1);
        let start = (buffer + (BUFFER_BYTES - AFTER_BLOCK_BYTES) - whole).named("start");
        let at = k.var(0u32);
        let words = [(); 4].map(|()| k.var_arbitrary::<u32>());
        k.do_while_uniform(|| {
            let lane_at = at + lane * 16;
            let inside = lane_at.lt(whole);
            k.when(inside).load_vec_with(LoadHint::NonCoherent, words, self.from.byte_add(at.to_u64()));
            k.when(inside).store_vec((start + lane_at).shared::<u32>(), words);
            at.set(at + 512);
            at.lt(whole)
        });
        k.sync_warp();
        let is_page = decode(Input { k, lane, start, end: start + len }, tables);
        k.sync_warp();
        code.set(is_page.select(PageStatus::Restored as u32, PageStatus::BadBlock as u32));
        k.if_uniform(*is_page, || {
            k.section("the page goes out");
            let from = (buffer + lane * 16).shared::<u32>();
            for i in 0..8 {
                self.to.byte_offset(512 * i).store_vec(from.byte_offset(512 * i).load_vec::<4>());
            }
        });
    }
}
