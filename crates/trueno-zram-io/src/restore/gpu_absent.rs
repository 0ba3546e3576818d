//! Replaces `gpu.rs` in builds without the feature `gpu`: no GPU exists that could be handed in.

use rayon::ThreadPool;
use trueno_zram_archive::{Archive, ReadSummary};

use super::Sink;
use super::archive::Stop;
use super::placed::PlacedContent;
use crate::Observer;
use crate::compress::Gpu;

pub(super) fn restore_groups<K: Sink>(
    _archive: Archive,
    _sink: &mut K,
    _content: &PlacedContent<'_>,
    (gpu, _helps): (&mut Gpu<'_>, bool),
    _pool: &ThreadPool,
    _observer: &dyn Observer,
) -> Result<ReadSummary, Stop> {
    gpu.never()
}
