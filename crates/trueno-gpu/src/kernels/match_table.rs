//! Conflicting stores to the match tables of compressors, whose entries hold a position in their low bits.

use super::packed::TableStores;
use crate::types::Shared;
use crate::{Addr, KernelBuilder, Pred, Reg};

/// The rule by which a compressor resolves conflicting stores to its table.
#[derive(Clone, Copy)]
pub(super) struct ConflictRule<'k> {
    pub(super) k: &'k KernelBuilder,
    pub(super) stores: TableStores,
    /// Bits of the position in an entry.
    pub(super) position_mask: u32,
}

impl<'k> ConflictRule<'k> {
    /// Makes the entry of the highest position stay, after the lanes have stored theirs. Only the lanes where `lanes`
    /// holds have stored; `None` stands for all.
    pub(super) fn resolve(
        self,
        slot: Addr<'k, Shared, u16>,
        entry: Reg<'k, u32>,
        position: Reg<'k, u32>,
        lanes: Option<Pred<'k>>,
    ) {
        let Self { k, stores, position_mask } = self;
        if stores == TableStores::LowestLaneWins {
            return;
        }
        // Whichever lane won. Where hardware does so by itself, this takes one check.
        k.loop_uniform(|again| {
            let is_lower = (slot.load() & position_mask).lt(position & position_mask);
            let loses = lanes.map_or(is_lower, |lanes| lanes & is_lower);
            k.sync_warp();
            again.break_if(!loses.any());
            k.when(loses).store_conflicting(slot, entry);
            k.sync_warp();
        });
    }
}
