//! Replaces `gpu.rs` in builds without the feature `gpu`: no GPU exists that could be handed in.

use trueno_zram_archive::ReadSummary;

use super::groups::{GroupFailure, GroupsJob};
use crate::compress::Gpu;

pub(super) fn restore_groups<K>(
    _job: GroupsJob<'_, K>,
    gpu: &mut Gpu<'_>,
    _cpu_helps: bool,
) -> Result<ReadSummary, GroupFailure> {
    gpu.never()
}
