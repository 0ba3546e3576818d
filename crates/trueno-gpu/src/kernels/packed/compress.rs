//! Compresses a batch into packed pages, with any algorithm that compresses one page per warp.

use super::entry::kind_code;
use super::look_back::{AsideRing, Packer};
use super::{FILL_WORD_BYTES, PACK_ALIGN_BYTES, PAGE_BYTES, PAGE_STEPS, STEP_BYTES, for_each_page};
use crate::ir::LoadHint;
use crate::types::Global;
use crate::{Addr, KernelBuilder, Pred, Reg, Var};
use trueno_page::PageKind;

/// Scratch memory for a page that is set aside until its place is known.
pub(in crate::kernels) const SET_ASIDE_BYTES: u32 = PAGE_BYTES;

/// Shared memory of a warp: the page, and a match table of the same size behind it.
pub(super) const PAGE_AND_TABLE_BYTES: u32 = 2 * PAGE_BYTES;

/// The parameters of a compression kernel, and the warp's own memory.
pub(in crate::kernels) struct CompressBatch<'k> {
    k: &'k KernelBuilder,
    input: Addr<'k, Global, u32>,
    output: Addr<'k, Global, u32>,
    index: Addr<'k, Global, u64>,
    next_page: Addr<'k, Global, u32>,
    pages: Reg<'k, u32>,
    pub(in crate::kernels) lane: Reg<'k, u32>,
    /// Shared address of the page, at a multiple of its size.
    pub(in crate::kernels) page: Reg<'k, u32>,
    /// Shared address of the match table, directly after the page: as many bytes as a page.
    pub(in crate::kernels) table: Reg<'k, u32>,
    /// The warp's part of the scratch memory.
    pub(in crate::kernels) scratch: Addr<'k, Global, u32>,
}

/// The memory for compressed bytes.
pub(in crate::kernels) struct CompressBuffers<'k> {
    /// Shared address of the compressed bytes.
    pub(in crate::kernels) staging: Reg<'k, u32>,
    /// Global memory of [`SET_ASIDE_BYTES`] for each page that can be set aside.
    pub(in crate::kernels) aside: Addr<'k, Global, u32>,
    /// Number of pages that a warp can set aside: a power of two up to 32. The more the time per page varies, the more
    /// are needed so that no warp waits.
    pub(in crate::kernels) aside_pages: u32,
}

impl<'k> CompressBatch<'k> {
    /// Declares the parameters and the memory of a warp.
    pub(in crate::kernels) fn declare(k: &'k KernelBuilder, scratch_bytes_per_warp: u32) -> Self {
        let (input, output, index) = (k.param_ptr("input"), k.param_ptr("output"), k.param_ptr("index"));
        let (scratch, next_page) = (k.param_ptr::<u32>("scratch"), k.param_ptr("next_page"));
        let (pages, lane) = (k.param_u32("pages"), k.lane_id().named("lane"));
        // Not the uniform `warp_id`: with addresses in uniform registers, each LZ4 window copies three of them.
        let warp = (k.thread_id() >> 5).named("warp");
        // Page and table in one region, so that the few bytes read past the page's end are the warp's own.
        let region = k.shared_per_warp("page_and_table", PAGE_AND_TABLE_BYTES, PAGE_BYTES);
        let page = region.base::<u32>(warp).raw().named("page");
        let table = (page + PAGE_BYTES).named("table");
        let warps_per_block = k.block_threads() >> 5;
        let scratch = scratch.step(k.block_id().mad(warps_per_block, warp), scratch_bytes_per_warp);
        Self { k, input, output, index, next_page, pages, lane, page, table, scratch }
    }

    /// Compresses every page of the batch.
    ///
    /// `encode` gets each page that is not same-filled. It stores the page at `self.page`, compresses it to
    /// `buffers.staging`, and returns the length in bytes, or [`PAGE_BYTES`] if the page does not shrink. Pages that
    /// shrink get the kind `kind`.
    pub(in crate::kernels) fn compress_pages(
        &self,
        kind: PageKind,
        buffers: &CompressBuffers<'k>,
        encode: impl FnOnce(&LoadedPage<'k>) -> Var<'k, u32>,
    ) {
        let Self { k, lane, .. } = *self;
        let packer = Packer {
            k,
            lane,
            index: self.index,
            output: self.output.step(lane, PACK_ALIGN_BYTES),
            aside: buffers.aside.step(lane, PACK_ALIGN_BYTES),
            ring: (buffers.aside_pages > 1).then(|| AsideRing { places: buffers.aside_pages, next: k.var(0u32) }),
            page: k.var(0u32).named("aside_page"),
            entry: k.var(0u32).named("aside_entry"),
        };
        let lane_input = self.input.step(lane, PACK_ALIGN_BYTES);
        for_each_page(k, lane, self.next_page, self.pages, |number| {
            let pieces = load_pieces(lane_input.step(number, PAGE_BYTES));
            let loaded = LoadedPage { pieces, input: self.input, number, lane };
            let len = k.var(FILL_WORD_BYTES);
            let held_as = k.var(kind_code(PageKind::SameFilled));
            let bytes = k.var(buffers.staging);
            k.if_else_uniform(
                loaded.is_same_filled(k),
                || k.when(lane.eq(0)).store_vec(buffers.staging.shared::<u32>(), loaded.pieces[0]),
                || {
                    len.set(encode(&loaded));
                    let raw = len.eq(PAGE_BYTES);
                    held_as.set(raw.select(kind_code(PageKind::Raw), kind_code(kind)));
                    bytes.set(raw.select(self.page, buffers.staging));
                },
            );
            k.sync_warp();
            packer.hand_over(number, *len, *held_as, *bytes);
            // The next page overwrites what the lanes have just read.
            k.sync_warp();
        });
        packer.finish();
    }
}

/// A page in the registers of a warp: each lane holds 16 bytes of every 512.
pub(in crate::kernels) struct LoadedPage<'k> {
    pub(in crate::kernels) pieces: Vec<[Reg<'k, u32>; 4]>,
    input: Addr<'k, Global, u32>,
    number: Reg<'k, u32>,
    lane: Reg<'k, u32>,
}

impl<'k> LoadedPage<'k> {
    /// Stores the page to shared memory at `page`.
    pub(in crate::kernels) fn store_to(&self, page: Reg<'k, u32>) {
        let place = (page + self.lane * PACK_ALIGN_BYTES).shared::<u32>();
        for (piece, i) in self.pieces.iter().zip(0..) {
            place.byte_offset(STEP_BYTES.cast_signed() * i).store_vec(*piece);
        }
    }

    /// Loads the page again, for an algorithm that has no room to keep it. The address is computed anew, so that it
    /// takes no register meanwhile.
    pub(in crate::kernels) fn load_again(&self) -> Self {
        let nth_16_bytes = self.number.mad(PAGE_BYTES / PACK_ALIGN_BYTES, self.lane);
        Self { pieces: load_pieces(self.input.step(nth_16_bytes, PACK_ALIGN_BYTES)), ..*self }
    }

    /// Returns a predicate that holds if all 8-byte words are equal; uniform. The first 512 bytes decide for most
    /// pages.
    fn is_same_filled(&self, k: &'k KernelBuilder) -> Pred<'k> {
        let word = [self.pieces[0][0].shfl(0u32), self.pieces[0][1].shfl(0u32)];
        let differ = |piece: &[Reg<'k, u32>; 4]| {
            let low = (piece[0] ^ word[0]) | (piece[2] ^ word[0]);
            let high = (piece[1] ^ word[1]) | (piece[3] ^ word[1]);
            low | high
        };
        let differs = k.var(differ(&self.pieces[0]).ne(0).any());
        k.if_uniform(!*differs, || {
            let rest = self.pieces[1..].iter().map(differ).reduce(|a, b| a | b).expect("a page has several pieces");
            differs.set(rest.ne(0).any());
        });
        !*differs
    }
}

/// Loads a lane's 16 bytes of every 512 of a page.
fn load_pieces(from: Addr<'_, Global, u32>) -> Vec<[Reg<'_, u32>; 4]> {
    let step = STEP_BYTES.cast_signed();
    (0..PAGE_STEPS).map(|i| from.byte_offset(step * i).load_vec_with(LoadHint::NonCoherent)).collect()
}
