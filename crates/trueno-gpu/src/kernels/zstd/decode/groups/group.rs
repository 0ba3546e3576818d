//! The memory of a group of pages, in which the first stage leaves descriptions and records for the second.

use super::super::constants::CONSTANT_BYTES;
use super::super::execute::BITMAP_BYTES;
use super::super::format::CODE_KINDS;
use super::super::format::WEIGHTS;
use super::super::restore::{BUFFER_BYTES, WARP_BYTES};
use super::lookup::SharedTables;
use super::ring::{CHUNKS_BYTES, RING_BYTES};
use super::tables::{ENTRY_BYTES, list_bytes};
use crate::kernels::packed::PAGE_BYTES;
use crate::types::{Global, Shared};
use crate::{Addr, KernelBuilder, Reg};

/// The most pages of a group: one per lane.
pub(super) const GROUP_PAGES: u32 = 32;

/// The most sequences of a page in the first stage. libzstd writes more for few pages, with larger tables.
pub(super) const MAX_RECORDS: u32 = 512;
/// Bytes of a record: start of the match and offset, end of the match and number of the first literal, 16 bits each.
pub(super) const RECORD_BYTES: u32 = 8;

/// Bytes for the weights of a tree, four bits each.
pub(super) const WEIGHTS_BYTES: u32 = 128;
/// Scratch memory of a page.
const SLOT_BYTES: u32 = MAX_RECORDS * RECORD_BYTES + WEIGHTS_BYTES;
/// Scratch memory of a block.
pub(super) const SCRATCH_BYTES: u32 = GROUP_PAGES * SLOT_BYTES;

/// Entries of the three sequence tables of a page together: what libzstd needs for up to 512 sequences, and our own
/// compressor for any number.
pub(super) const TABLE_ENTRIES: u32 = 320;
/// The first stage's memory of a page, for sequences and for weights. An odd number of words each spreads the lanes
/// over the banks.
pub(super) const SEQUENCES_STAGE_AT: u32 = TABLE_ENTRIES * ENTRY_BYTES;
pub(super) const SEQUENCES_LIST_AT: u32 = SEQUENCES_STAGE_AT + CHUNKS_BYTES;
pub(super) const SEQUENCES_LANE_BYTES: u32 = SEQUENCES_LIST_AT + list_bytes(CODE_KINDS[2].limits.max_symbol);
/// The ring takes the place of what is staged, and of the list, which is not needed any more.
const _: () = assert!(SEQUENCES_STAGE_AT + RING_BYTES <= SEQUENCES_LANE_BYTES);
pub(super) const WEIGHTS_LIST_AT: u32 = ENTRY_BYTES << WEIGHTS.max_log;
pub(super) const WEIGHTS_LANE_BYTES: u32 = WEIGHTS_LIST_AT + list_bytes(WEIGHTS.max_symbol);
const _: () = assert!(SEQUENCES_LANE_BYTES % 8 == 4 && WEIGHTS_LANE_BYTES % 8 == 4);
const FIRST_STAGE_BYTES: u32 = GROUP_PAGES * (SEQUENCES_LANE_BYTES + WEIGHTS_LANE_BYTES);

/// The longest code of a literal in the second stage.
pub(super) const MAX_CODE_BITS: u32 = 10;
/// The second stage's memory of a warp: the page with its literals, and the Huffman table or the segments.
pub(super) const PAGE_WARP_BYTES: u32 = BUFFER_BYTES + BITMAP_BYTES + MAX_RECORDS * 2 * 2;
const _: () = assert!(2 << MAX_CODE_BITS <= PAGE_WARP_BYTES - BUFFER_BYTES);

/// The third stage's memory of a warp: for a page and its tables, and for the constants.
pub(super) const THIRD_STAGE_WARP_BYTES: u32 = (WARP_BYTES + CONSTANT_BYTES).next_multiple_of(16);

/// Returns the bytes that the stages of a block share.
const fn stage_bytes(warps: u32) -> u32 {
    let second = warps * PAGE_WARP_BYTES;
    let larger = if second > FIRST_STAGE_BYTES { second } else { FIRST_STAGE_BYTES };
    if larger > THIRD_STAGE_WARP_BYTES { larger } else { THIRD_STAGE_WARP_BYTES }
}

/// Returns the number of warps that the third stage has memory for.
pub(super) const fn third_stage_warps(warps: u32) -> u32 {
    let room = stage_bytes(warps) / THIRD_STAGE_WARP_BYTES;
    if room < warps { room } else { warps }
}

/// Returns the shared memory of a block in bytes.
pub(super) const fn shared_bytes(warps: u32) -> u32 {
    stage_bytes(warps) + GROUP_PAGES * PageDescription::BYTES + 16 + SharedTables::BYTES
}

/// The memory of a block's group.
#[derive(Clone, Copy)]
pub(super) struct PageGroup<'k> {
    /// Address of the memory that the stages share.
    pub(super) work: Reg<'k, u32>,
    descriptions: Addr<'k, Shared, u32>,
    /// The group that the block has drawn.
    pub(super) drawn_group: Addr<'k, Shared, u32>,
    /// Number of pages that warps have drawn.
    pub(super) drawn: Addr<'k, Shared, u32>,
    /// The pages that are left to the third stage, one bit each.
    pub(super) left_over: Addr<'k, Shared, u32>,
    scratch: Addr<'k, Global, u32>,
}

/// The first stage's description of a page, in four words of shared memory: sizes and flags, or 0 if the page is not
/// prepared; the position of the literals; the weights of their tree; the number of the page.
pub(super) struct PageDescription;

impl PageDescription {
    pub(super) const BYTES: u32 = 16;
    /// Numbers of the words.
    pub(super) const SIZES: i32 = 0;
    pub(super) const HELD: i32 = 1;
    pub(super) const WEIGHTS: i32 = 2;
    pub(super) const NUMBER: i32 = 3;
}

/// Positions in the word of sizes: the number of literals is below, then the number of sequences, flags, and the kind
/// of literals.
pub(super) const LITERALS_MASK: u32 = 0x1fff;
pub(super) const SEQUENCES_SHIFT: u32 = 13;
pub(super) const SEQUENCES_BITS: u32 = 10;
pub(super) const IS_PREPARED: u32 = 1 << 23;
/// The literals are coded in four streams.
pub(super) const IS_FOUR: u32 = 1 << 24;
pub(super) const HAS_CHECKSUM: u32 = 1 << 25;
pub(super) const KIND_SHIFT: u32 = 30;
const _: () = assert!(PAGE_BYTES <= LITERALS_MASK && MAX_RECORDS < 1 << SEQUENCES_BITS);

impl<'k> PageGroup<'k> {
    pub(super) fn declare(k: &'k KernelBuilder, warps: u32, slots: Addr<'k, Global, u32>) -> Self {
        let work = k.shared_per_block("stages", stage_bytes(warps), 16).base::<u32>().raw();
        let descriptions = k.shared_per_block("descriptions", GROUP_PAGES * PageDescription::BYTES, 16).base();
        let counters = k.shared_per_block("counters", 16, 16).base::<u32>();
        let scratch = slots.step(k.block_id(), SCRATCH_BYTES);
        Self { work, descriptions, drawn_group: counters.at(2), drawn: counters, left_over: counters.at(1), scratch }
    }

    /// Returns the words of a page's description.
    pub(super) fn description(self, slot: Reg<'k, u32>) -> Addr<'k, Shared, u32> {
        self.descriptions.index(slot * (PageDescription::BYTES / 4))
    }

    /// Returns the address of a page's records.
    pub(super) fn records(self, slot: Reg<'k, u32>) -> Addr<'k, Global, u32> {
        self.scratch.step(slot, SLOT_BYTES)
    }

    /// Returns the address of a page's weights.
    pub(super) fn weights(self, slot: Reg<'k, u32>) -> Addr<'k, Global, u32> {
        self.records(slot).byte_offset((MAX_RECORDS * RECORD_BYTES).cast_signed())
    }
}

/// Positions in the page fit the halves of words.
const _: () = assert!(PAGE_BYTES < 1 << 16);
