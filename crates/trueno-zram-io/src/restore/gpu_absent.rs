//! Replaces `gpu.rs` in builds without the feature `gpu`: no GPU exists that could be handed in.

use trueno_zram_archive::{Archive, ReadSummary};

use super::Sink;
use super::content_writer::ContentWriter;
use super::groups::GroupFailure;
use crate::compress::Gpu;
use crate::workers::Workers;

pub(super) fn restore_groups<K: Sink>(
    _archive: Archive,
    _sink: &mut K,
    _content: &ContentWriter<'_>,
    (gpu, _helps): (&mut Gpu<'_>, bool),
    _workers: Workers<'_>,
) -> Result<ReadSummary, GroupFailure> {
    gpu.never()
}
