//! Batches on the GPU with the CPU as its fallback, and on whichever of the two is faster.

mod batch_compressor;
mod chooser;
mod gpu_batch_compressor;
mod lazy_gpu;
mod opening_rule;
mod options;
mod pinned;
mod resident;
mod result;
mod stats;
mod stream;
#[cfg(test)]
mod tests;

pub use batch_compressor::BatchCompressor;
pub use chooser::{Chooser, Placement};
pub use gpu_batch_compressor::GpuBatchCompressor;
pub use lazy_gpu::{LazyGpu, gpu_is_opening};
pub use opening_rule::CpuProgress;
pub use options::GpuOptions;
pub use result::{BatchResult, BatchTimes, RestoredBatch};
pub use stats::{FallbackStats, GpuBatchStats};
pub use stream::{
    CompressStream, CompressedSlot, DecompressStream, PackedSlot, PageSlot, PageStream, RestoredSlot, SlotStream,
};
